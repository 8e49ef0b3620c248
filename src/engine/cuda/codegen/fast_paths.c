/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds two parts of a program for which kernels have faster code:
 * - a mask that compares a value of the query (row operand) with a value of the key (key operand), such as document
 *   ids; tiles in which all of these values are equal have a shorter mask
 * - the tanh of a soft cap, which kernels compute by a polynomial if scores are small
 */
#include "passes.h"

#include "../../../base/invariant.h"

/* ---- Tiles with equal row and key operands ----------------------------------------------------------------------- */

/* Returns true if a node depends on a tensor that a row or key operand (captured value per query or key) loads. */
static bool fast_reads_operands(const cuda_work *w, int32_t node) {
    const fxa_program *p = w->c->program;
    uint64_t tensors = UINT64_C(1) << p->nodes[w->c->operands.q].imm | UINT64_C(1) << p->nodes[w->c->operands.k].imm;
    return w->inputs[node].tensors & tensors;
}

/* Returns true if a condition compares the value of the query (row operand) with that of the key by ==, and both are
 * ints. Floats are excluded, because floats with equal bits may be NaN, hence unequal. */
static bool fast_compares_operands(const cuda_work *w, const fxa__node *n) {
    if (n->op != FXA_OP_EQ || w->c->program->nodes[n->arg[0]].type == FXA_FLOAT) return false;
    return (n->arg[0] == w->c->operands.q && n->arg[1] == w->c->operands.k) ||
           (n->arg[1] == w->c->operands.q && n->arg[0] == w->c->operands.k);
}

/* Writes to conjuncts[] the conditions of the mask except row operand == key operand, and returns the number of these
 * conditions. Returns -1 if the mask lacks this equality, if another condition reads these operands, or if there are
 * too many conditions. */
static int fast_document_mask(const cuda_work *w, int32_t conjuncts[CUDA_CONJUNCTS]) {
    const fxa_program *p = w->c->program;
    int32_t todo[CUDA_CONJUNCTS];
    int n_todo = 1, n = 0;
    bool compares = false;
    if (w->c->operands.q < 0 || w->c->operands.k < 0) return -1;
    todo[0] = fxa__program_output(p, FXA__OUT_MASK);
    while (n_todo > 0) {
        int32_t node = todo[--n_todo];
        const fxa__node *x = &p->nodes[node];
        if (n_todo + 2 > CUDA_CONJUNCTS || n == CUDA_CONJUNCTS) return -1;
        if (x->op == FXA_OP_AND) {
            todo[n_todo++] = x->arg[1];
            todo[n_todo++] = x->arg[0];
        } else if (fast_compares_operands(w, x)) {
            compares = true;
        } else {
            if (fast_reads_operands(w, node)) return -1;
            conjuncts[n++] = node;
        }
    }
    return compares ? n : -1;
}

/* ---- Soft cap ---------------------------------------------------------------------------------------------------- */

/* Returns the node c if n is score * c and c depends on params alone; else -1. */
static int32_t fast_factor(const cuda_work *w, const fxa__node *n) {
    const fxa_program *p = w->c->program;
    for (int k = 0; n->op == FXA_OP_MUL && k < 2; k++) {
        const fxa__depend *c = &w->inputs[n->arg[1 - k]];
        bool score = fxa__node_input(&p->nodes[n->arg[k]]) & 1u << FXA_INPUT_SCORE;
        if (score && fxa__lower_rate(c) <= FXA__RATE_RUN && !c->tensors) return n->arg[1 - k];
    }
    return -1;
}

/* Returns the node tanh(score * factor) and sets *factor, if factor depends on params alone and no other node reads the
 * score; else returns -1. */
static int32_t fast_softcap(const cuda_work *w, int32_t *factor) {
    const fxa_program *p = w->c->program;
    int32_t softcap = -1, product = -1;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (n->op != FXA_OP_TANH || !(w->need[i] & CUDA_VALUE) || fast_factor(w, &p->nodes[n->arg[0]]) < 0) continue;
        softcap = i;
        product = n->arg[0];
    }
    for (int32_t i = 0; softcap >= 0 && i < p->n_nodes; i++)
        for (int k = 0; w->need[i] && k < p->nodes[i].n_args; k++) {
            int32_t x = p->nodes[i].arg[k];
            bool score = fxa__node_input(&p->nodes[x]) & 1u << FXA_INPUT_SCORE;
            if ((score && i != product) || (x == product && i != softcap)) softcap = -1;
        }
    if (softcap >= 0) *factor = fast_factor(w, &p->nodes[product]);
    FXA__ASSERT(softcap < 0 || (*factor >= 0 && fxa__cuda_is_run(w, *factor)));
    return softcap;
}

/* ---- The pass ---------------------------------------------------------------------------------------------------- */

fxa_status fxa__cuda_choose_fast_paths(cuda_work *w, fxa_error *err) {
    fxa__cuda_computed *to = &w->c->computed;
    struct FxaTraits *s = &w->c->switches;
    (void)err;
    w->n_conjuncts = s->mask && !w->i64_operands ? fast_document_mask(w, w->conjuncts) : -1;
    to->softcap = to->softcap_factor = -1;
    if (s->value && !s->user_backward && !w->config.scalars_in_memory)
        to->softcap = fast_softcap(w, &to->softcap_factor);
    if (to->softcap >= 0 && !fxa__cuda_is_host_value(w->c->program, to->softcap_factor)) to->softcap = -1;
    s->softcap = s->softcap_series = to->softcap >= 0;
    return FXA_OK;
}
