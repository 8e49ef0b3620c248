/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds nodes of a program that need not be computed: factors that cancel in a derivative, a factor that the run's
 * scale can include, and values of a bprop that the score program has already computed. Called before leaves.c adds the
 * nodes to the graph; the results are in the members `same`, `folded` and `value` of fxa__dnn_score.
 */
#include "../attention/attention.h"

#include "../../../base/invariant.h"

#include <string.h>

/* ---- Factors that cancel in the derivative ----------------------------------------------------------------------- */

enum { REUSE_KINDS = 3 };
static const uint32_t reuse_kinds[REUSE_KINDS] = {FXA__OUT_SCORE, FXA__OUT_MASK, FXA__OUT_DSCORE};

/* Sets needed[n_nodes]: true for nodes that the score, the mask and the gradient of the score depend on. */
static void reuse_mark(const fxa_program *p, bool *needed) {
    memset(needed, 0, (size_t)p->n_nodes * sizeof *needed);
    for (int i = 0; i < REUSE_KINDS; i++)
        if (fxa__program_output(p, reuse_kinds[i]) >= 0) needed[fxa__program_output(p, reuse_kinds[i])] = true;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--)
        for (int j = 0; needed[i] && j < p->nodes[i].n_args; j++) needed[p->nodes[i].arg[j]] = true;
}

/* Returns true if exactly one user, a node that is marked in needed[] or an output, reads the node. */
static bool reuse_has_one_user(const fxa_program *p, const bool *needed, int32_t node) {
    int users = 0;
    for (int i = 0; i < REUSE_KINDS; i++) users += node == fxa__program_output(p, reuse_kinds[i]);
    for (int32_t i = node + 1; i < p->n_nodes; i++)
        for (int j = 0; needed[i] && j < p->nodes[i].n_args; j++) users += p->nodes[i].arg[j] == node;
    return users == 1;
}

/* The gradient of a soft cap c f(x / c) of a score x is dscore c f'(x / c) / c. Removes the multiplication and the
 * division by c from such a gradient, which saves roundings. Results do not change otherwise: if c is 0 or not finite
 * while the score is finite, f' or dscore is 0. */
void fxa__dnn_reuse_cancel(fxa__dnn_score *s) {
    const fxa_program *p = s->program;
    const uint32_t varies = 1u << FXA_INPUT_SCORE | 1u << FXA_INPUT_DSCORE;
    bool *needed = s->needed; /* scratch memory here: s->needed has no meaning before nodes are added */
    reuse_mark(p, needed);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        if (!needed[i] || n->op != FXA_OP_DIVZ || (s->depend[n->arg[1]].inputs & varies)) continue;
        int32_t at = n->arg[0];
        while (p->nodes[at].op == FXA_OP_MULZ && p->nodes[at].arg[1] != n->arg[1] && reuse_has_one_user(p, needed, at))
            at = p->nodes[at].arg[0];
        bool cancels = p->nodes[at].op == FXA_OP_MULZ && p->nodes[at].arg[1] == n->arg[1] && s->same[at] < 0;
        if (cancels && reuse_has_one_user(p, needed, at)) s->same[at] = p->nodes[at].arg[0], s->same[i] = n->arg[0];
    }
}

/* ---- A factor of the score that the scale can include ------------------------------------------------------------ */

/* Returns the only node that reads `node`; -1 if no node or several nodes read `node`, or if `node` is an output. */
static int32_t reuse_user(const fxa_program *p, const bool *needed, int32_t node) {
    if (!reuse_has_one_user(p, needed, node)) return -1;
    for (int32_t i = node + 1; i < p->n_nodes; i++)
        for (int j = 0; needed[i] && j < p->nodes[i].n_args; j++)
            if (p->nodes[i].arg[j] == node) return i;
    return -1;
}

/* Lets the scale include a factor c of the score only if a tanh reads the product. If the softmax read it, cuDNN would
 * compute the row maximum before it multiplies by c, which is wrong for a negative c. */
int32_t fxa__dnn_reuse_fold(fxa__dnn_score *s) {
    const fxa_program *p = s->program;
    bool *needed = s->needed; /* scratch memory here: s->needed has no meaning before nodes are added */
    int32_t score = 0;
    reuse_mark(p, needed);
    while (score < p->n_nodes && !(fxa__node_input(&p->nodes[score]) & 1u << FXA_INPUT_SCORE)) score++;
    if (score == p->n_nodes || !needed[score]) return -1;
    const int32_t at = reuse_user(p, needed, score), above = at >= 0 ? reuse_user(p, needed, at) : -1;
    if (above < 0 || p->nodes[above].op != FXA_OP_TANH) return -1;
    const fxa__node *n = &p->nodes[at];
    if (n->op != FXA_OP_MUL && (n->op != FXA_OP_DIV || n->arg[0] != score)) return -1;
    return fxa__dnn_score_is_by_value(s, n->arg[n->arg[0] == score]) ? at : -1;
}

/* ---- Nodes that are already computed ----------------------------------------------------------------------------- */

static bool reuse_is_same(const fxa__dnn_score *from, int32_t j, const fxa__dnn_score *to, int32_t i) {
    const fxa__node *x = &from->program->nodes[j], *y = &to->program->nodes[i];
    if (x->op != y->op || x->type != y->type || x->n_args != y->n_args || x->imm != y->imm) return false;
    for (int k = 0; k < x->n_args; k++) {
        const fxa__node *a = &from->program->nodes[x->arg[k]], *b = &to->program->nodes[y->arg[k]];
        bool number = a->op == FXA_OP_CONST && b->op == FXA_OP_CONST && a->type == b->type && a->imm == b->imm &&
                      memcmp(&a->f, &b->f, sizeof a->f) == 0;
        bool made = to->value[y->arg[k]] >= 0 && to->value[y->arg[k]] == from->value[x->arg[k]];
        if (!number && !made) return false;
    }
    return true;
}

/* Gives each node of `to` the tensor of an equal node of `from`, except
 *   - params and loads, because each belongs to one of the programs,
 *   - the score that `from` returns, because cuDNN masks it only if it has no other use (backward_pad),
 *   - nodes that depend on one of these. */
void fxa__dnn_reuse_made(const fxa__dnn_score *from, fxa__dnn_score *to) {
    int32_t score = fxa__program_output(from->program, FXA__OUT_SCORE);
    FXA__ASSERT(from->g == to->g && from->base == to->base); /* only then can the programs share tensors */
    for (int32_t i = 0; i < to->program->n_nodes; i++) {
        const fxa__node *n = &to->program->nodes[i];
        if (n->op == FXA_OP_CONST || n->op == FXA_OP_PARAM || n->op == FXA_OP_LOAD) continue;
        for (int32_t j = 0; j < from->program->n_nodes && to->value[i] < 0; j++)
            if (from->value[j] >= 0 && j != score && reuse_is_same(from, j, to, i)) to->value[i] = from->value[j];
    }
}
