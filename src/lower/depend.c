/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes which inputs each node depends on, and how often the node's value changes (depend.h).
 */
#include "depend.h"

#include "../base/invariant.h"

enum { DEPEND_SCORE = 1 << FXA_INPUT_SCORE | 1 << FXA_INPUT_DSCORE, DEPEND_H = 1 << FXA_INPUT_H };

/* Returns true if a set of inputs contains an input that varies with the row and an input that varies with the key. */
static bool depend_is_of_pair(uint32_t inputs) { return (inputs & FXA__OF_ROW) && (inputs & FXA__OF_KEY); }

void fxa__lower_depend(const fxa_program *p, const fxa__linear *forms, fxa__depend *out) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        fxa__depend d = {.inputs = fxa__node_input(n)};
        if (n->op == FXA_OP_PARAM) d.params = UINT64_C(1) << n->imm;
        if (n->op == FXA_OP_LOAD) d.tensors = UINT64_C(1) << n->imm;
        for (int j = 0; j < fxa__node_operands(n); j++) {
            FXA__ASSERT(n->arg[j] >= 0 && n->arg[j] < i); /* operands come before the nodes that use them */
            d.inputs |= out[n->arg[j]].inputs;
            d.params |= out[n->arg[j]].params;
            d.tensors |= out[n->arg[j]].tensors;
        }
        d.diagonal = forms && depend_is_of_pair(d.inputs) && fxa__linear_is_shift_invariant(&forms[i]);
        out[i] = d;
    }
}

fxa__rate fxa__lower_rate(const fxa__depend *d) {
    if (d->inputs & DEPEND_SCORE) return FXA__RATE_SCORE;
    if (depend_is_of_pair(d->inputs)) return d->diagonal ? FXA__RATE_DIAGONAL : FXA__RATE_PAIR;
    if (d->inputs & FXA__OF_KEY) return d->inputs & DEPEND_H ? FXA__RATE_HEAD_KEY : FXA__RATE_KEY;
    if (d->inputs & FXA__OF_ROW) return FXA__RATE_ROW;
    if (d->inputs & DEPEND_H) return FXA__RATE_HEAD;
    if (d->inputs) return FXA__RATE_BATCH;
    return d->params || d->tensors ? FXA__RATE_RUN : FXA__RATE_CONST;
}

const char *fxa__lower_rate_name(fxa__rate rate) {
    static const char *const names[FXA__RATES] = {"const", "run",      "batch",    "head", "row",
                                                  "key",   "head key", "diagonal", "pair", "score"};
    return names[rate];
}
