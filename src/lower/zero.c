/* SPDX-License-Identifier: Apache-2.0
 *
 * Zeroes, node by node; see zero.h.
 */
#include "zero.h"

#include <math.h>

static bool zero_is_finite(const fxa_program *p, int32_t node) {
    return p->nodes[node].op == FXA_OP_CONST && isfinite(p->nodes[node].f);
}

/* Of a float. 0 times what may be infinite is no zero, unless by mulz or divz. */
static bool zero_of(const fxa_program *p, const fxa__node *n, const bool *zero) {
    bool x = n->n_args > 0 && zero[n->arg[0]], y = n->n_args > 1 && zero[n->arg[1]];
    switch (n->op) {
    case FXA_OP_CONST: return n->f == 0;
    case FXA_OP_INPUT: return n->imm == FXA_INPUT_DSCORE;
    case FXA_OP_NEG:
    case FXA_OP_ABS:
    case FXA_OP_GRAFT:
    case FXA_OP_MULZ:
    case FXA_OP_DIVZ: return x;
    case FXA_OP_MUL: return (x && y) || (x && zero_is_finite(p, n->arg[1])) || (y && zero_is_finite(p, n->arg[0]));
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MIN:
    case FXA_OP_MAX: return x && y;
    case FXA_OP_CLAMP: return x && y && zero[n->arg[2]];
    case FXA_OP_SELECT: return y && zero[n->arg[2]];
    default: return false;
    }
}

void fxa__lower_zero(const fxa_program *p, bool *zero) {
    for (int32_t i = 0; i < p->n_nodes; i++) zero[i] = p->nodes[i].type == FXA_FLOAT && zero_of(p, &p->nodes[i], zero);
}
