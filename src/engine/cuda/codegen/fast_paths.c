/* SPDX-License-Identifier: Apache-2.0
 *
 * Faster forms with the same bits: a mask inside one document, a soft cap of small scores, distances that cost less to
 * compute than to load.
 */
#include "passes.h"

#include "../../../program/range.h"

/* ---- Inside one document ----------------------------------------------------------------------------------------- */

static bool short_reads_words(const cuda_work *w, int32_t node) {
    const fxa_program *p = w->c->program;
    uint64_t words = UINT64_C(1) << p->nodes[w->c->operands.q].imm | UINT64_C(1) << p->nodes[w->c->operands.k].imm;
    return w->inputs[node].tensors & words;
}

/* Returns true if a condition compares row and key operand for equality. Ints only: floats with equal bits are unequal
 * if they are NaN. */
static bool short_is_same(const cuda_work *w, const fxa__node *n) {
    if (n->op != FXA_OP_EQ || w->c->program->nodes[n->arg[0]].type == FXA_FLOAT) return false;
    return (n->arg[0] == w->c->operands.q && n->arg[1] == w->c->operands.k) ||
           (n->arg[1] == w->c->operands.q && n->arg[0] == w->c->operands.k);
}

int fxa__cuda_document_mask(const cuda_work *w, int32_t conjuncts[CUDA_CONJUNCTS]) {
    const fxa_program *p = w->c->program;
    int32_t todo[CUDA_CONJUNCTS];
    int n_todo = 1, n = 0;
    bool same = false;
    if (w->c->operands.q < 0 || w->c->operands.k < 0) return -1;
    todo[0] = fxa__program_output(p, FXA__OUT_MASK);
    while (n_todo > 0) {
        int32_t node = todo[--n_todo];
        const fxa__node *x = &p->nodes[node];
        if (n_todo + 2 > CUDA_CONJUNCTS || n == CUDA_CONJUNCTS) return -1;
        if (x->op == FXA_OP_AND) {
            todo[n_todo++] = x->arg[1];
            todo[n_todo++] = x->arg[0];
        } else if (short_is_same(w, x)) {
            same = true;
        } else {
            if (short_reads_words(w, node)) return -1;
            conjuncts[n++] = node;
        }
    }
    return same ? n : -1;
}

/* ---- Near the middle of a soft cap ------------------------------------------------------------------------------- */

/* Returns the node c of score * c if c depends on params alone; -1 = n is no such product. */
static int32_t short_factor(const cuda_work *w, const fxa__node *n) {
    const fxa_program *p = w->c->program;
    for (int k = 0; n->op == FXA_OP_MUL && k < 2; k++) {
        const fxa__depend *c = &w->inputs[n->arg[1 - k]];
        bool score = fxa__node_input(&p->nodes[n->arg[k]]) & 1u << FXA_INPUT_SCORE;
        if (score && fxa__lower_rate(c) <= FXA__RATE_RUN && !c->tensors) return n->arg[1 - k];
    }
    return -1;
}

int32_t fxa__cuda_softcap_find(const cuda_work *w, int32_t *factor) {
    const fxa_program *p = w->c->program;
    int32_t softcap = -1, product = -1;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (n->op != FXA_OP_TANH || !(w->need[i] & CUDA_VALUE) || short_factor(w, &p->nodes[n->arg[0]]) < 0) continue;
        softcap = i;
        product = n->arg[0];
    }
    for (int32_t i = 0; softcap >= 0 && i < p->n_nodes; i++)
        for (int k = 0; w->need[i] && k < p->nodes[i].n_args; k++) {
            int32_t x = p->nodes[i].arg[k];
            bool score = fxa__node_input(&p->nodes[x]) & 1u << FXA_INPUT_SCORE;
            if ((score && i != product) || (x == product && i != softcap)) softcap = -1;
        }
    if (softcap >= 0) *factor = short_factor(w, &p->nodes[product]);
    return softcap;
}

/* ---- Slopes that are finite -------------------------------------------------------------------------------------- */

enum {
    SHORT_STRICT = 1,
    SHORT_NAN = 2
}; /* STRICT: the value is NaN where the node is; NAN: the node may be NaN where the value is not */

static bool short_is_strict(const fxa__node *n) {
    return (n->op >= FXA_OP_ADD && n->op <= FXA_OP_CLAMP) || (n->op >= FXA_OP_SQRT && n->op <= FXA_OP_ATAN);
}

static void short_mark_strict(const cuda_work *w, uint8_t *marks) {
    const fxa_program *p = w->c->program;
    marks[w->c->computed.value] = SHORT_STRICT;
    for (int32_t i = w->c->computed.value; i >= 0; i--)
        for (int k = 0; marks[i] && short_is_strict(&p->nodes[i]) && k < p->nodes[i].n_args; k++)
            if (p->nodes[p->nodes[i].arg[k]].type == FXA_FLOAT) marks[p->nodes[i].arg[k]] = SHORT_STRICT;
}

/* Returns true if a node may be NaN because of NaN or infinite operands that are not the value's own. */
static bool short_may_be_nan(const cuda_work *w, const fxa__range *r, const uint8_t *marks, int32_t node) {
    const fxa__node *n = &w->c->program->nodes[node];
    if (n->type != FXA_FLOAT || (marks[node] & SHORT_STRICT)) return false;
    if (n->op == FXA_OP_CONST) return n->f != n->f;
    if (n->n_args == 0 || n->op == FXA_OP_LOAD) return true;
    for (int k = 0; k < n->n_args; k++) {
        if (w->c->program->nodes[n->arg[k]].type != FXA_FLOAT) continue;
        if ((marks[n->arg[k]] & SHORT_NAN) || !fxa__real_finite(fxa__range_of(r, n->arg[k])->f)) return true;
    }
    return !short_is_strict(n) && n->op != FXA_OP_SELECT && n->op != FXA_OP_FLOAT && n->op != FXA_OP_MULZ;
}

bool fxa__cuda_is_derivative_infinite(const cuda_work *w, int32_t slope) {
    size_t n = (size_t)w->c->program->n_nodes;
    uint8_t *marks = fxa__alloc(w->host, n);
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds box = fxa__box_default();
    bool steep = true, open = fxa__range_open(&r, &small, w->c->program, slope, &box, NULL, NULL);
    if (marks && open) {
        short_mark_strict(w, marks);
        for (int32_t i = 0; i <= slope; i++)
            if (r.at[i] >= 0 && short_may_be_nan(w, &r, marks, i)) marks[i] |= SHORT_NAN;
        steep = (marks[slope] & SHORT_NAN) || !fxa__real_finite(fxa__range_of(&r, slope)->f);
    }
    fxa__range_close(&r);
    fxa__free(w->host, marks, n);
    return steep;
}

/* ---- Distances --------------------------------------------------------------------------------------------------- */

enum { SHORT_OPERATIONS = 3 };

/* Counts down the operations that pairs would compute. Returns false if there are too many, or operations besides
 * arithmetic of heads and distances. */
static bool short_count(const cuda_work *w, int32_t node, int *left) {
    const fxa__node *n = &w->c->program->nodes[node];
    if (fxa__lower_rate(&w->inputs[node]) <= FXA__RATE_HEAD) return true;
    if ((*left)-- == 0) return false;
    switch (n->op) {
    case FXA_OP_FLOAT: return w->tiles[node].kind == CUDA_TILE_FLOAT;
    case FXA_OP_ADD:
    case FXA_OP_SUB:
    case FXA_OP_MUL: return short_count(w, n->arg[0], left) && short_count(w, n->arg[1], left);
    case FXA_OP_NEG:
    case FXA_OP_ABS: return short_count(w, n->arg[0], left);
    default: return false;
    }
}

bool fxa__cuda_is_cheap(const cuda_work *w, int32_t node) {
    int left = SHORT_OPERATIONS;
    return short_count(w, node, &left);
}
