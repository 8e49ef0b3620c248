/* SPDX-License-Identifier: Apache-2.0
 *
 * Three analyses:
 * - a bound of |value()|, with which the softmax needs no running maximum
 * - whether the derivative may be infinite; kernels must then keep a gradient of 0 from becoming NaN
 * - which indices of loads are always inside the problem's captured tensors, so that they need no guard
 */
#include "passes.h"

#include "../../../base/invariant.h"
#include "../../../program/range.h"

#include <math.h>

/* Bounds |value()| for any scores, params and tensors, by the rules of interval_rules.h. NaN needs no bound: a NaN
 * score makes its row NaN in any case. */
static void bounds_value(cuda_work *w) {
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds box = fxa__box_default();
    w->c->bounds.value = INFINITY;
    if (fxa__range_open(&r, &small, w->c->program, w->c->computed.value, &box, NULL, NULL)) {
        fxa__real x = fxa__range_of(&r, w->c->computed.value)->f;
        if (x.lo <= x.hi) w->c->bounds.value = fmax(fabs(x.lo), fabs(x.hi));
    }
    fxa__range_close(&r);
}

/* ---- Infinite derivatives ---------------------------------------------------------------------------------------- */

enum {
    BOUNDS_STRICT = 1, /* value() is NaN for every pair (q, k) for which the node is NaN */
    BOUNDS_NAN = 2     /* the node may be NaN for a pair (q, k) for which value() is not NaN */
};

/* Returns true if the result of an operation is NaN whenever an operand is. */
static bool bounds_is_strict(const fxa__node *n) {
    return (n->op >= FXA_OP_ADD && n->op <= FXA_OP_CLAMP) || (n->op >= FXA_OP_SQRT && n->op <= FXA_OP_ATAN);
}

/* Marks as BOUNDS_STRICT the floats whose NaN makes value() NaN. */
static void bounds_mark_strict(const cuda_work *w, uint8_t *marks) {
    const fxa_program *p = w->c->program;
    marks[w->c->computed.value] = BOUNDS_STRICT;
    for (int32_t i = w->c->computed.value; i >= 0; i--)
        for (int k = 0; marks[i] && bounds_is_strict(&p->nodes[i]) && k < p->nodes[i].n_args; k++)
            if (p->nodes[p->nodes[i].arg[k]].type == FXA_FLOAT) marks[p->nodes[i].arg[k]] = BOUNDS_STRICT;
}

/* Returns true if a node may be NaN for a pair (q, k) for which value() is not NaN. */
static bool bounds_may_be_nan(const cuda_work *w, const fxa__range *r, const uint8_t *marks, int32_t node) {
    const fxa__node *n = &w->c->program->nodes[node];
    if (n->type != FXA_FLOAT || (marks[node] & BOUNDS_STRICT)) return false;
    if (n->op == FXA_OP_CONST) return n->f != n->f;
    if (n->n_args == 0 || n->op == FXA_OP_LOAD) return true;
    for (int k = 0; k < n->n_args; k++) {
        if (w->c->program->nodes[n->arg[k]].type != FXA_FLOAT) continue;
        if ((marks[n->arg[k]] & BOUNDS_NAN) || !fxa__real_finite(fxa__range_of(r, n->arg[k])->f)) return true;
    }
    return !bounds_is_strict(n) && n->op != FXA_OP_SELECT && n->op != FXA_OP_FLOAT && n->op != FXA_OP_MULZ;
}

/* Returns true if a node may be infinite, or NaN for a pair (q, k) for which value() is not, or if memory ran out. */
static bool bounds_is_infinite(const cuda_work *w, int32_t derivative) {
    size_t n = (size_t)w->c->program->n_nodes;
    uint8_t *marks = fxa__alloc(w->host, n);
    fxa__range_small small;
    fxa__range r;
    fxa_tile_bounds box = fxa__box_default();
    bool infinite = true, open = fxa__range_open(&r, &small, w->c->program, derivative, &box, NULL, NULL);
    if (marks && open) {
        bounds_mark_strict(w, marks);
        for (int32_t i = 0; i <= derivative; i++)
            if (r.at[i] >= 0 && bounds_may_be_nan(w, &r, marks, i)) marks[i] |= BOUNDS_NAN;
        infinite = (marks[derivative] & BOUNDS_NAN) || !fxa__real_finite(fxa__range_of(&r, derivative)->f);
    }
    fxa__range_close(&r);
    fxa__free(w->host, marks, n);
    return infinite;
}

/* Returns true if the derivative may be infinite or NaN. Ignores its factors that depend on params alone: if such a
 * factor is not finite, all results of the run are infinite or NaN in any case. */
static bool bounds_derivative_is_infinite(const cuda_work *w, int32_t derivative) {
    const fxa_program *p = w->c->program;
    for (const fxa__node *n = &p->nodes[derivative]; n->op == FXA_OP_MUL || n->op == FXA_OP_MULZ;
         n = &p->nodes[derivative]) {
        if (fxa__cuda_is_run(w, n->arg[0]) == fxa__cuda_is_run(w, n->arg[1])) break;
        derivative = n->arg[fxa__cuda_is_run(w, n->arg[0])];
    }
    return !fxa__cuda_is_run(w, derivative) && bounds_is_infinite(w, derivative);
}

/* ---- Indices ----------------------------------------------------------------------------------------------------- */

/* Returns a bit mask of the indices of a load: bit d is set if index d is b, h or an int with constant bounds. Such an
 * index is inside every tensor with at least min_size[d] elements on axis d; raises min_size[d] to this size. The bits
 * of q and k are 0: tiles extend past the last query and key, and kernels run the program there too. */
static uint8_t bounds_of_load(const cuda_work *w, const fxa__node *n, int64_t *min_size) {
    uint8_t proven = 0;
    for (int d = 0; d < n->n_args; d++) {
        const fxa__node *index = &w->c->program->nodes[n->arg[d]];
        const fxa__interval *s = &w->bounds[n->arg[d]];
        bool head = index->imm == FXA_INPUT_B || index->imm == FXA_INPUT_H;
        bool coordinate = index->op == FXA_OP_INPUT && head;
        int64_t needs = coordinate ? -1 - index->imm : s->hi + 1;
        bool known = coordinate || (s->lo >= 0 && s->hi < FXA__CUDA_LENGTH);
        /* min_size[d] is the maximum of constant sizes, or stands for the size of b or h: it cannot be both at once. */
        if (known && (min_size[d] == 0 || min_size[d] == needs || (min_size[d] > 0 && needs > 0))) {
            min_size[d] = needs > min_size[d] || min_size[d] == 0 ? needs : min_size[d];
            proven |= (uint8_t)(1u << d);
        }
    }
    return proven;
}

/* Returns true if a tensor has at least the sizes bounds.min_size. Tensors that passes added have unknown sizes, hence
 * fit only if min_size is 0. */
static bool bounds_fit(const cuda_work *w, int32_t tensor) {
    int32_t i = fxa__cuda_caller_tensor(w->c, tensor);
    if (!w->problem) return w->config.sizes_fit;
    for (int d = 0; d < FXA_MAX_RANK; d++) {
        int64_t needs = w->c->bounds.min_size[tensor][d];
        if (needs < 0) needs = -1 - needs == FXA_INPUT_B ? w->problem->in.b : w->problem->in.hq;
        if (needs > 0 && (i < 0 || w->problem->in.captures[i].size[d] < needs)) return false;
    }
    return true;
}

/* Finds the indices of loads that need no guard. If an axis of a tensor is too short, all indices of the tensor get
 * one. */
static void bounds_indices(cuda_work *w) {
    const fxa_program *p = w->c->program;
    const fxa__cuda_operands *o = &w->c->operands;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        bool given = i == o->q || i == o->k || i == o->dense;
        if (n->op == FXA_OP_LOAD && w->need[i] && !given)
            w->in_bounds[i] = bounds_of_load(w, n, w->c->bounds.min_size[n->imm]);
    }
    for (int32_t t = 0; t < p->n_tensors; t++) {
        FXA__ASSERT(t < FXA_CUDA_TENSORS);
        if (bounds_fit(w, t)) continue;
        for (int d = 0; d < FXA_MAX_RANK; d++) w->c->bounds.min_size[t][d] = 0;
        for (int32_t i = 0; i < p->n_nodes; i++)
            if (p->nodes[i].op == FXA_OP_LOAD && p->nodes[i].imm == t) w->in_bounds[i] = 0;
    }
}

/* Returns `bound`, that of |value()|, as an integer; 0 = no bound, or one above 16. Up to 16, exp2(value() * unit) is
 * from 2^-64 to 2^64 if the unit (factor of the score that depends on params alone) is at most 4. The integer may be
 * 1% below `bound`: kernels have this much margin. */
static int bounds_integer(double bound) { return !(bound <= 16) ? 0 : bound <= 1.01 ? 1 : (int)ceil(bound * 0.99); }

fxa_status fxa__cuda_bound_values(cuda_work *w, fxa_error *err) {
    struct FxaTraits *s = &w->c->switches;
    (void)err;
    bounds_indices(w);
    bounds_value(w);
    s->bounded = s->value ? bounds_integer(w->c->bounds.value) : 0;
    if (s->derivative && bounds_derivative_is_infinite(w, fxa__program_output(w->c->program, FXA__OUT_DSCORE)))
        s->derivative = 2;
    return FXA_OK;
}
