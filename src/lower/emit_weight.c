/* SPDX-License-Identifier: Apache-2.0
 *
 * Estimates the compile time of emitted text (emit.h) from the weights of operations in ops.def (macro WEIGHT).
 */
#include "emit_load.h"

/* clang-format off */
static const struct {
    int16_t floats, ints;
} weight_rows[FXA_OP_COUNT] = {
#define WEIGHT(ID, in_floats, in_ints) [FXA_OP_##ID] = {in_floats, in_ints},
#include "../program/ops.def"
};
/* clang-format on */

int32_t fxa__lower_emit_weight(const fxa__emit *e, uint32_t kinds, int32_t pairs) {
    int32_t total = 0; /* cost of the code for `pairs` pairs of a row and a key */
    for (int32_t i = 0; i < e->p->n_nodes; i++) {
        const fxa__node *n = &e->p->nodes[i];
        if (e->level[i] < FXA__EMIT_ROW || !(e->used[i] & kinds) || !fxa__emit_has_statement(e, i)) continue;
        bool floats = (n->n_args ? e->p->nodes[n->arg[n->op == FXA_OP_SELECT]].type : n->type) == FXA_FLOAT;
        int32_t weight = floats ? weight_rows[n->op].floats : weight_rows[n->op].ints;
        if (weight == 0 || e->given[i] || fxa__emit_is_small_power(e, n)) weight = 1;
        total += weight * (e->level[i] == FXA__EMIT_PAIR ? pairs : 1);
    }
    return total / pairs;
}
