/* SPDX-License-Identifier: Apache-2.0
 *
 * Out-of-bounds indices of one pair. A load is reported only if the result needs the loaded element. The result needs:
 *
 *   mask        always
 *   score       where the mask is true
 *   select      its condition and the selected operand
 *   && and ||   an operand that alone decides the result and has no out-of-bounds load; without such an operand, both
 *   with_grad   (value of operand 0, gradient of operand 1) operand 0; operand 1 only where gradients are computed
 */
#include "index_work.h"

#include "../base/invariant.h"
#include "../base/dtype.h"

#include <string.h>

/* Bits of the state of a node at one pair of a row and a key. */
enum {
    INDEX_NEEDED = 1, /* an output of the program needs the node's value */
    INDEX_MISSED = 2, /* the node's value depends on an out-of-bounds load */
    INDEX_DERIVED = 4 /* an output needs the node's derivative */
};

/* Returns the first axis on which the index of load n is out of bounds; -1 if all indices are in bounds. */
static int index_miss_axis(const fxa_view *view, const fxa__node *n, const fxa__val *vals) {
    for (int d = 0; d < n->n_args; d++) {
        int64_t i = vals[n->arg[d]].i;
        if (i < -view->size[d] || i >= view->size[d]) return d;
    }
    return -1;
}

/* Returns the operand of an && or || node that alone decides the node's value and does not depend on an out-of-bounds
 * load; -1 if there is no such operand, or if the node has another operation. */
static int32_t index_decider(const fxa__index_work *w, const fxa__node *n) {
    if (n->type != FXA_BOOL || (n->op != FXA_OP_AND && n->op != FXA_OP_OR)) return -1;
    for (int i = 0; i < 2; i++)
        if (w->vals[n->arg[i]].i == (n->op == FXA_OP_OR) && !(w->state[n->arg[i]] & INDEX_MISSED)) return n->arg[i];
    return -1;
}

/* Returns true if the value of node n at this pair depends on operand `arg`. */
static bool index_uses(const fxa__index_work *w, const fxa__node *n, int arg) {
    if (arg >= fxa__node_operands(n)) return false;
    if (n->op == FXA_OP_SELECT) return arg == 0 || arg == (w->vals[n->arg[0]].i ? 1 : 2);
    int32_t decider = index_decider(w, n);
    return decider < 0 || n->arg[arg] == decider;
}

/* Marks in w->state each node whose value at this pair depends on an out-of-bounds load. */
static void index_mark_misses(fxa__index_work *w, const fxa__env *env) {
    for (int32_t i = 0; i < w->program->n_nodes; i++) {
        const fxa__node *n = &w->program->nodes[i];
        w->state[i] = 0;
        if (n->op == FXA_OP_LOAD && index_miss_axis(&env->tensors[n->imm], n, w->vals) >= 0) w->state[i] = INDEX_MISSED;
        for (int a = 0; a < n->n_args; a++)
            if (index_uses(w, n, a)) w->state[i] |= w->state[n->arg[a]] & INDEX_MISSED;
    }
}

/* Calls walk->found for each axis on which the index of a load node is out of bounds. */
static void index_report(fxa__index_work *w, const fxa__env *env, int32_t node, int64_t q, int64_t k) {
    const fxa__node *n = &w->program->nodes[node];
    const fxa_view *view = &env->tensors[n->imm];
    FXA__ASSERT(n->op == FXA_OP_LOAD && n->imm < w->program->n_tensors);
    for (int d = 0; d < n->n_args && !w->stopped; d++) {
        int32_t i = w->vals[n->arg[d]].i;
        if (i >= -view->size[d] && i < view->size[d]) continue;
        fxa__miss miss = {w->bprop, n->imm, d, i, view->size[d], w->b, w->h, q, k, w->weight};
        w->stopped = !w->walk->found(w->walk->user, &miss);
    }
}

/* Marks the nodes whose values the outputs need at this pair, and reports out-of-bounds indices of the loads among
 * them. */
static void index_mark_needed(fxa__index_work *w, const fxa__env *env, int64_t q, int64_t k) {
    const fxa_program *p = w->program;
    for (int32_t o = 0; o < p->n_outputs; o++) {
        bool score = p->outputs[o].kind == FXA__OUT_SCORE;
        if (score && !w->vals[fxa__program_output(p, FXA__OUT_MASK)].i) continue;
        w->state[p->outputs[o].value] |= INDEX_NEEDED | (score && w->derives ? INDEX_DERIVED : 0);
    }
    for (int32_t i = p->n_nodes - 1; i >= 0 && !w->stopped; i--) {
        const fxa__node *n = &p->nodes[i];
        uint8_t state = w->state[i] & (n->type == FXA_FLOAT ? INDEX_NEEDED | INDEX_DERIVED : INDEX_NEEDED);
        if (!state) continue;
        for (int a = 0; a < n->n_args; a++) {
            if (index_uses(w, n, a)) w->state[n->arg[a]] |= n->op == FXA_OP_WITH_GRAD ? INDEX_NEEDED : state;
            if (a >= fxa__node_operands(n) && state & INDEX_DERIVED) w->state[n->arg[a]] |= state;
        }
        if (n->op == FXA_OP_LOAD) index_report(w, env, i, q, k);
    }
}

/* Returns the scaled score of row q and key k; 0 if slot Q or K is NULL. */
static double index_score(const fxa__index_work *w, int64_t q, int64_t k) {
    const fxa_problem *p = &w->p->in;
    const void *rows = w->bound->slot[FXA_SLOT_Q], *keys = w->bound->slot[FXA_SLOT_K];
    double sum = 0;
    if (!rows || !keys) return 0;
    int64_t x = fxa__row_offset(w->p, &w->seq, &p->q, false, w->bound, w->b, w->h, q);
    int64_t y = fxa__row_offset(w->p, &w->seq, &p->k, true, w->bound, w->b, w->h / (p->hq / p->hkv), k);
    for (int64_t i = 0; i < p->d_qk; i++)
        sum += fxa__load_f64(rows, (fxa_dtype)p->q.dtype, x + i * p->q.stride[3]) *
               fxa__load_f64(keys, (fxa_dtype)p->k.dtype, y + i * p->k.stride[3]);
    return sum * w->bound->scale * w->bound->load[FXA_SLOT_Q] * w->bound->load[FXA_SLOT_K];
}

void fxa__index_pair(fxa__index_work *w, int64_t q, int64_t k) {
    int32_t *at = w->env.coord;
    FXA__ASSERT(q >= 0 && q < w->seq.q_len && k >= 0 && k < w->seq.k_len);
    at[FXA_INPUT_Q] = fxa__row_coord(w->p, w->bound, &w->seq, q);
    at[FXA_INPUT_K] = fxa__coord(w->p, w->bound, FXA_INPUT_K, k);
    at[FXA_INPUT_Q_ROW] = (int32_t)q;
    at[FXA_INPUT_K_ROW] = (int32_t)k;
    w->env.score = w->by_score ? index_score(w, q, k) : 0;
    if (w->bprop) { /* the user-written backward program runs for attended pairs only */
        fxa__program_eval(w->p->program, &w->env, w->vals);
        if (!w->vals[fxa__program_output(w->p->program, FXA__OUT_MASK)].i) return;
        memcpy(w->bprop_env.coord, at, sizeof w->bprop_env.coord);
        w->bprop_env.score = w->env.score;
        w->bprop_env.dscore = 1;
    }
    const fxa__env *env = w->bprop ? &w->bprop_env : &w->env;
    fxa__program_eval(w->program, env, w->vals);
    index_mark_misses(w, env);
    index_mark_needed(w, env, q, k);
}
