/* SPDX-License-Identifier: Apache-2.0
 *
 * Searches for out-of-bounds indices (index_check.h). A box is a rectangle of rows and keys. If range analysis proves
 * that all indices are in bounds in a box, the box is skipped. Otherwise the box is halved until its parts are proven
 * or small; the pairs of a small box are evaluated one by one (index_pair.c).
 */
#include "index_work.h"
#include "work_estimate.h"

#include "../base/dtype.h"
#include "../base/invariant.h"
#include "../base/num.h"

#include <stdio.h>
#include <string.h>

/* INDEX_LEAF: maximum number of pairs in a box that is evaluated pair by pair. INDEX_DEPTH: capacity of the stack of
 * boxes. INDEX_RANGE_COST: cost of the range analysis of one node; the unit is one evaluation of the node. */
enum { INDEX_LEAF = 64, INDEX_DEPTH = 128, INDEX_RANGE_COST = 8 };

typedef struct index_box {
    int64_t q_lo, q_hi, k_lo, k_hi; /* positions of rows and keys, inclusive */
} index_box;

/* Returns the number of nodes of the score program or of the user-written backward program, whichever is larger. */
static int32_t index_nodes(const fxa__problem *p) {
    int32_t bprop_env = p->bprop ? p->bprop->n_nodes : 0;
    return bprop_env > p->program->n_nodes ? bprop_env : p->program->n_nodes;
}

size_t fxa__index_size(const fxa__problem *p) {
    size_t bytes = (size_t)index_nodes(p) * (sizeof(fxa__val) + sizeof(int32_t) + 1);
    return (bytes + 7) / 8 * 8;
}

size_t fxa__index_workspace(const fxa__problem *p) {
    if (!(p->in.flags & FXA_BOUNDS_CHECK) || p->indices_proven) return 0;
    return (size_t)fxa__round_up((int64_t)fxa__index_size(p), FXA_WORKSPACE_ALIGN);
}

/* ---- Boxes ------------------------------------------------------------------------------------------------------- */

static void index_extend(fxa_tile_bounds *box, fxa_input axis, int32_t x, bool first) {
    if (first || x < box->lo[axis]) box->lo[axis] = x;
    if (first || x > box->hi[axis]) box->hi[axis] = x;
}

/* Returns bounds of the coordinates of a box of rows and keys. Valid for index maps of any kind. */
static fxa_tile_bounds index_coords(const fxa__index_work *w, const index_box *x) {
    fxa_tile_bounds box = {{0}, {0}};
    index_extend(&box, FXA_INPUT_B, w->env.coord[FXA_INPUT_B], true);
    index_extend(&box, FXA_INPUT_H, w->env.coord[FXA_INPUT_H], true);
    index_extend(&box, FXA_INPUT_Q_LEN, w->seq.q_len_seen, true);
    index_extend(&box, FXA_INPUT_K_LEN, w->seq.k_len_seen, true);
    index_extend(&box, FXA_INPUT_HEADS, w->seq.heads_seen, true);
    box.lo[FXA_INPUT_Q_ROW] = (int32_t)x->q_lo, box.hi[FXA_INPUT_Q_ROW] = (int32_t)x->q_hi;
    box.lo[FXA_INPUT_K_ROW] = (int32_t)x->k_lo, box.hi[FXA_INPUT_K_ROW] = (int32_t)x->k_hi;
    for (int64_t q = x->q_lo; q <= x->q_hi; q++)
        index_extend(&box, FXA_INPUT_Q, fxa__row_coord(w->p, w->bound, &w->seq, q), q == x->q_lo);
    for (int64_t k = x->k_lo; k <= x->k_hi; k++)
        index_extend(&box, FXA_INPUT_K, fxa__coord(w->p, w->bound, FXA_INPUT_K, k), k == x->k_lo);
    return box;
}

/* Adds the cost of `times` evaluations of the score program and of w->program to w->evaluated, the number of evaluated
 * nodes. Stops the search if the budget is used up. */
static void index_spend(fxa__index_work *w, uint64_t times) {
    w->evaluated += times * (uint64_t)(w->p->program->n_nodes + w->program->n_nodes);
    if (w->evaluated >= w->walk->budget) w->stopped = w->walk->gave_up = true;
}

/* Returns true if range analysis proves that all indices of a load are in bounds for the coordinates of the box. */
static bool index_is_inside(fxa__index_work *w, const fxa__env *env, int32_t node, const fxa_tile_bounds *box) {
    const fxa__node *n = &w->program->nodes[node];
    const fxa_view *view = &env->tensors[n->imm];
    for (int d = 0; d < n->n_args; d++) {
        int64_t lo, hi;
        if (!fxa__program_int_range(w->program, n->arg[d], box, env->params, w->ranges, &lo, &hi, &w->evaluated))
            return false;
        if (lo < -view->size[d] || hi >= view->size[d]) return false;
    }
    return true;
}

/* Returns true if all loads are proven in bounds for all pairs of a box, or if the mask is proven false for all of the
 * pairs. Returns false if neither is proven before the budget is used up. */
static bool index_box_is_inside(fxa__index_work *w, const index_box *x) {
    fxa_tile_bounds box = index_coords(w, x);
    if (!w->mask_loads &&
        fxa__program_classify(w->p->program, &box, w->env.params, w->mask_ranges, NULL) == FXA_TILE_EMPTY)
        return true;
    for (int32_t i = 0; i < w->n_loads; i++) {
        index_spend(w, 0);
        if (w->stopped || !index_is_inside(w, w->bprop ? &w->bprop_env : &w->env, w->loads[i], &box)) return false;
    }
    return true;
}

static void index_evaluate_box(fxa__index_work *w, const index_box *x) {
    for (int64_t q = x->q_lo; q <= x->q_hi && !w->stopped; q++)
        for (int64_t k = x->k_lo; k <= x->k_hi && !w->stopped; k++) {
            index_spend(w, 1);
            if (!w->stopped) fxa__index_pair(w, q, k);
        }
}

/* Searches all pairs of a row and a key of batch entry w->b and head w->h. A box (a rectangle of pairs) that is neither
 * proven in bounds nor small is halved along its longer side. */
static void index_walk_head(fxa__index_work *w) {
    index_box stack[INDEX_DEPTH];
    size_t depth = 0;
    stack[depth++] = (index_box){0, w->seq.q_len - 1, 0, w->seq.k_len - 1};
    while (depth && !w->stopped) {
        index_box x = stack[--depth], half = x;
        int64_t rows = x.q_hi - x.q_lo + 1, keys = x.k_hi - x.k_lo + 1;
        /* range analysis examines the mask and each load */
        index_spend(w, INDEX_RANGE_COST * (uint64_t)(w->n_loads + 1));
        if (w->stopped || index_box_is_inside(w, &x)) continue;
        if (rows * keys <= INDEX_LEAF) {
            index_evaluate_box(w, &x);
            continue;
        }
        if (rows >= keys)
            half.q_lo = 1 + (x.q_hi = x.q_lo + rows / 2 - 1);
        else
            half.k_lo = 1 + (x.k_hi = x.k_lo + keys / 2 - 1);
        FXA__ASSERT(depth + 2 <= INDEX_DEPTH && x.q_lo <= x.q_hi && x.k_lo <= x.k_hi);
        FXA__ASSERT(half.q_lo <= half.q_hi && half.k_lo <= half.k_hi);
        stack[depth++] = half;
        stack[depth++] = x;
    }
}

static void index_set_head(fxa__index_work *w, int64_t b, int64_t h) {
    FXA__ASSERT(b >= 0 && b < w->p->in.b && h >= 0 && h < w->p->in.hq);
    w->b = b;
    w->h = h;
    w->seq = fxa__seq_get(w->p, w->bound, b);
    w->env.coord[FXA_INPUT_B] = fxa__coord(w->p, w->bound, FXA_INPUT_B, b);
    w->env.coord[FXA_INPUT_H] = fxa__coord(w->p, w->bound, FXA_INPUT_H, h);
    w->env.coord[FXA_INPUT_Q_LEN] = w->seq.q_len_seen;
    w->env.coord[FXA_INPUT_K_LEN] = w->seq.k_len_seen;
    w->env.coord[FXA_INPUT_HEADS] = w->seq.heads_seen;
}

/* Evaluates random pairs. A pair outside the lengths of its sequences is drawn again, so that all pairs are equally
 * likely. */
static void index_sample(fxa__index_work *w) {
    const fxa_problem *p = &w->p->in;
    uint64_t state = 0x9E3779B97F4A7C15u, done = 0;
    FXA__ASSERT(p->sq > 0 && p->sk > 0);
    for (uint64_t i = 0; done < w->walk->samples && i < 64 * w->walk->samples; i++) {
        int64_t at[4];
        const int64_t size[4] = {p->b, p->hq, p->sq, p->sk};
        for (int d = 0; d < 4; d++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            at[d] = (int64_t)((state >> 33) % (uint64_t)size[d]);
        }
        index_set_head(w, at[0], at[1]);
        if (at[2] >= w->seq.q_len || at[3] >= w->seq.k_len) continue;
        fxa__index_pair(w, at[2], at[3]);
        done++;
    }
    w->walk->sampled = done;
}

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

/* Returns the set of inputs that the program reads: bit i stands for fxa_input i. */
static uint32_t index_inputs(const fxa_program *p) {
    uint32_t reads = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].op == FXA_OP_INPUT) reads |= 1u << p->nodes[i].imm;
    return reads;
}

/* Returns true if the mask depends on a load that has indices (a load from a tensor of rank 0 has none). `from`:
 * scratch memory, one byte per node. */
static bool index_mask_loads(const fxa_program *p, uint8_t *from) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        from[i] = n->op == FXA_OP_LOAD && n->n_args;
        for (int a = 0; a < n->n_args; a++) from[i] |= from[n->arg[a]];
    }
    return from[fxa__program_output(p, FXA__OUT_MASK)];
}

/* Returns true if a node of type int or bool depends on the score. If no such node does, the score decides neither the
 * indices of loads nor which loads the result needs. `from`: scratch memory, one byte per node. */
static bool index_reads_score(const fxa_program *p, uint8_t *from) {
    bool decides = false;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        from[i] = n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_SCORE;
        for (int a = 0; a < n->n_args; a++) from[i] |= from[n->arg[a]];
        decides = decides || (from[i] && n->type != FXA_FLOAT);
    }
    return decides;
}

/* Sets of[i] to 1 for each node i on which an index of a load depends. */
static void index_mark_operands(const fxa_program *p, uint8_t *of) {
    memset(of, 0, (size_t)p->n_nodes);
    for (int32_t i = p->n_nodes - 1; i >= 0; i--) {
        const fxa__node *n = &p->nodes[i];
        for (int a = 0; a < n->n_args; a++) of[n->arg[a]] |= of[i] || n->op == FXA_OP_LOAD;
    }
}

/* Returns the range of the values of an int or bool tensor of any rank. Along an axis with stride 0 only one element is
 * read. */
static fxa_tensor_range index_scan(const fxa_view *view) {
    fxa_tensor_range out = fxa_tensor_scan(view);
    fxa_type type = fxa__dtype_type(view->dtype);
    if (out.known || view->rank < 2 || !view->data || (type != FXA_INT && type != FXA_BOOL)) return out;
    int64_t at[FXA_MAX_RANK] = {0}, offset = 0;
    for (int d = 0; d < view->rank; d++)
        if (view->size[d] <= 0) return out;
    for (int d = view->rank; d >= 0;) {
        int32_t x = fxa__load_i32(view->data, view->dtype, offset);
        if (!out.known || x < out.lo) out.lo = x;
        if (!out.known || x > out.hi) out.hi = x;
        out.known = 1;
        for (d = view->rank - 1; d >= 0; d--) {
            if (view->stride[d] != 0 && ++at[d] < view->size[d]) break;
            offset -= view->stride[d] != 0 ? (view->size[d] - 1) * view->stride[d] : 0;
            at[d] = 0;
        }
        if (d >= 0) offset += view->stride[d];
    }
    return out;
}

/* Searches one program, the score program or the user-written backward program, for out-of-bounds loads. */
static void index_program(fxa__index_work *w, const fxa_program *program, bool bprop, const fxa_view *views) {
    const fxa_problem *p = &w->p->in;
    uint32_t reads = index_inputs(w->p->program) | index_inputs(program);
    bool by_b = p->flags & (FXA_PADDING | FXA_VARLEN | FXA_Q_START) || reads >> FXA_INPUT_B & 1, by_h;
    w->program = program;
    w->bprop = bprop;
    w->derives = p->pass == FXA_BACKWARD && !p->bprop;
    w->by_score = index_reads_score(w->p->program, w->state) || index_reads_score(program, w->state);
    w->mask_loads = !bprop && index_mask_loads(program, w->state);
    w->n_loads = 0;
    for (int32_t i = 0; i < program->n_tensors; i++) w->ranges[i] = fxa_tensor_scan(&views[i]);
    index_mark_operands(program, w->state);
    for (int32_t i = 0; i < program->n_nodes; i++) {
        int32_t t = program->nodes[i].op == FXA_OP_LOAD && w->state[i] ? program->nodes[i].imm : -1;
        if (t >= 0 && !w->ranges[t].known) w->ranges[t] = index_scan(&views[t]);
    }
    for (int32_t i = 0; i < program->n_nodes; i++)
        if (program->nodes[i].op == FXA_OP_LOAD && program->nodes[i].n_args) w->loads[w->n_loads++] = i;
    if (!w->n_loads || !fxa__entries_with_work(w->p) || p->hq == 0 || p->sq == 0 || p->sk == 0) return;
    w->weight = 1;
    if (w->walk->samples) {
        index_sample(w);
        return;
    }
    by_b = by_b || w->by_score;
    by_h = w->by_score || reads >> FXA_INPUT_H & 1;
    w->weight = (uint64_t)(by_b ? 1 : p->b) * (uint64_t)(by_h ? 1 : p->hq);
    for (int64_t b = 0; b < (by_b ? p->b : 1); b++)
        for (int64_t h = 0; h < (by_h ? p->hq : 1) && !w->stopped; h++) {
            index_set_head(w, b, h);
            if (w->seq.q_len <= 0 || w->seq.k_len <= 0) break; /* no rows or no keys, in any head */
            index_walk_head(w);
        }
}

void fxa__index_walk_all(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa__index_walk *walk) {
    size_t n = (size_t)index_nodes(p);
    fxa__index_work w = {.p = p, .bound = bound, .walk = walk, .vals = memory};
    w.loads = (int32_t *)(void *)(w.vals + n);
    w.state = (uint8_t *)(w.loads + n);
    w.env.params = bound->params;
    w.env.tensors = bound->tensors;
    w.bprop_env.params = bound->bprop_params;
    w.bprop_env.tensors = bound->bprop_tensors;
    walk->gave_up = false;
    for (int32_t i = 0; i < p->program->n_tensors; i++) w.mask_ranges[i] = fxa_tensor_scan(&bound->tensors[i]);
    index_program(&w, p->program, false, bound->tensors);
    if (!w.stopped && p->bprop) index_program(&w, p->bprop, true, bound->bprop_tensors);
}

/* ---- Error of the first out-of-bounds index ---------------------------------------------------------------------- */

/* Stores the first out-of-bounds index in *user, and returns false to end the walk. */
static bool index_keep_first(void *user, const fxa__miss *miss) {
    *(fxa__miss *)user = *miss;
    return false;
}

fxa_status fxa__index_refuse(const fxa__problem *p, const fxa__bound_args *bound, void *memory, fxa_error *err) {
    fxa__miss m = {.tensor = -1};
    fxa__index_walk walk = {.found = index_keep_first, .user = &m, .budget = UINT64_MAX};
    fxa__index_walk_all(p, bound, memory, &walk);
    if (m.tensor < 0) return FXA_OK;
    const fxa_program *program = m.bprop ? p->in.bprop : p->program;
    char accepted[64] = "none is accepted";
    if (m.size > 0)
        (void)snprintf(accepted, sizeof accepted, "accepted are %lld to %lld", (long long)-m.size,
                       (long long)m.size - 1);
    return fxa__fail(err, FXA_E_BINDING,
                     "index %d is outside axis %d of tensor '%s', which has %lld elements there, at b %lld, h %lld, "
                     "q %lld, k %lld; %s (FXA_BOUNDS_CHECK)",
                     (int)m.index, (int)m.axis, fxa_program_tensor(program, (size_t)m.tensor).name, (long long)m.size,
                     (long long)m.b, (long long)m.h, (long long)m.q, (long long)m.k, accepted);
}
