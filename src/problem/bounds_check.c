/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements fxa_bounds_check, which counts out-of-bounds loads by tensor and axis; index_check.h finds the loads. If a
 * problem has too many pairs to evaluate all of them, the counts are estimated from random pairs, which are the same in
 * every call.
 */
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"
#include "geometry.h"
#include "index_check.h"

#include <string.h>

/* Maximum number of node evaluations of the search over all pairs of a row and a key; the search of random pairs has
 * the same limit. Each search takes at most 1 to 2 seconds. For a program with 8 nodes this is enough for 4 million
 * pairs, because the search counts two evaluations per node and pair. */
#define QUERY_BUDGET ((uint64_t)1 << 26)
enum { QUERY_SAMPLES = 1 << 16, QUERY_ROWS = 2 * FXA_MAX_TENSORS * FXA_MAX_RANK };

typedef struct query_row {
    fxa_bounds_report report;
    bool seen;
    int64_t last[4]; /* pair (b, h, q, k) of the last load counted here, so that each pair counts once */
} query_row;

/* Adds an out-of-bounds load to the report of its tensor and axis. Returns true, which continues the search. */
static bool query_count(void *user, const fxa__miss *m) {
    FXA__ASSERT(m->tensor >= 0 && m->tensor < FXA_MAX_TENSORS && m->axis >= 0 && m->axis < FXA_MAX_RANK);
    FXA__ASSERT(m->index < -m->size || m->index >= m->size); /* else the index is in bounds */
    query_row *x = &((query_row *)user)[(m->bprop * FXA_MAX_TENSORS + m->tensor) * FXA_MAX_RANK + m->axis];
    fxa_bounds_report *r = &x->report;
    const int64_t pair[4] = {m->b, m->h, m->q, m->k};
    if (!x->seen)
        *r = (fxa_bounds_report){.tensor = m->tensor,
                                 .bprop = m->bprop,
                                 .axis = m->axis,
                                 .exact = 1,
                                 .size = m->size,
                                 .lo = m->index,
                                 .hi = m->index,
                                 .b = m->b,
                                 .h = m->h,
                                 .q = m->q,
                                 .k = m->k};
    r->lo = m->index < r->lo ? m->index : r->lo;
    r->hi = m->index > r->hi ? m->index : r->hi;
    if (!x->seen || memcmp(x->last, pair, sizeof pair) != 0) r->pairs += m->weight;
    memcpy(x->last, pair, sizeof pair);
    x->seen = true;
    return true;
}

/* Returns a * b; UINT64_MAX if the product is larger. */
static uint64_t query_times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Returns the number of pairs within the lengths of the sequences; UINT64_MAX if that number does not fit in 64
 * bits. */
static uint64_t query_pairs(const fxa__problem *p, const fxa__bound_args *bound) {
    bool ragged = p->in.flags & (FXA_PADDING | FXA_VARLEN);
    uint64_t pairs = 0, heads = (uint64_t)p->in.hq;
    if (!ragged && p->in.b > 0) pairs = query_times((uint64_t)p->in.b, (uint64_t)p->in.sq * (uint64_t)p->in.sk);
    for (int64_t b = 0; ragged && b < p->in.b; b++) {
        fxa__seq seq = fxa__seq_get(p, bound, b);
        uint64_t own = (uint64_t)seq.q_len * (uint64_t)seq.k_len;
        pairs = own > UINT64_MAX - pairs ? UINT64_MAX : pairs + own;
    }
    return query_times(pairs, heads);
}

/* Replaces the counts of out-of-bounds loads in `rows` by estimates from random pairs of a row and a key. Called if the
 * search over all pairs has used up the budget. No estimate is less than the count that this search found. */
static void query_estimate(const fxa__problem *p, const fxa__bound_args *bound, void *memory, query_row *rows,
                           uint64_t all) {
    uint64_t nodes = (uint64_t)p->program->n_nodes + 1, most = QUERY_BUDGET / nodes;
    uint64_t samples = most < QUERY_SAMPLES ? most : QUERY_SAMPLES;
    fxa__index_walk walk = {.found = query_count, .user = rows, .budget = UINT64_MAX, .samples = samples};
    uint64_t least[QUERY_ROWS];
    for (int i = 0; i < QUERY_ROWS; i++) {
        least[i] = rows[i].report.pairs;
        rows[i].report.pairs = 0;
    }
    fxa__index_walk_all(p, bound, memory, &walk);
    for (int i = 0; i < QUERY_ROWS; i++) {
        double share = walk.sampled ? (double)rows[i].report.pairs / (double)walk.sampled : 0;
        uint64_t estimate = (uint64_t)(share * (double)all);
        rows[i].report.pairs = estimate > least[i] ? estimate : least[i];
        rows[i].report.exact = 0;
    }
}

static void query_walk(const fxa__problem *p, const fxa__bound_args *bound, void *memory, query_row *rows,
                       fxa_bounds_report *reports, size_t *count) {
    fxa__index_walk walk = {.found = query_count, .user = rows, .budget = QUERY_BUDGET};
    uint64_t all = query_pairs(p, bound);
    size_t n = 0;
    fxa__index_walk_all(p, bound, memory, &walk);
    if (walk.gave_up) query_estimate(p, bound, memory, rows, all);
    for (int i = 0; i < QUERY_ROWS; i++) {
        if (!rows[i].seen) continue;
        rows[i].report.of = all;
        if (n++ < *count) reports[n - 1] = rows[i].report;
    }
    *count = n;
}

static fxa_status query_run(fxa__host *host, const fxa__problem *p, const fxa_args *args, fxa_bounds_report *reports,
                            size_t *count, fxa_error *err) {
    size_t n_views = 2 * p->in.n_captures + p->in.n_bprop_captures, views_size = n_views * sizeof(fxa_view);
    size_t rows_size = QUERY_ROWS * sizeof(query_row), size = rows_size + views_size + fxa__index_size(p);
    char *memory = fxa__alloc(host, size);
    fxa__bound_args bound;
    if (!memory) return fxa__fail_memory(err, "a look at the indices of a program");
    memset(memory, 0, rows_size);
    fxa_view *views = (fxa_view *)(void *)(memory + rows_size);
    fxa_status status = fxa__bound_args_make_inputs(p, args, views, &bound, err);
    if (status == FXA_OK) query_walk(p, &bound, views + n_views, (query_row *)(void *)memory, reports, count);
    fxa__free(host, memory, size);
    return status;
}

fxa_status fxa_bounds_check(fxa_context *ctx, const fxa_problem *problem, const fxa_args *args,
                            fxa_bounds_report *reports, size_t *count, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!ctx || !problem || !args || !count)
        return fxa__fail(err, FXA_E_ARGUMENT, "%s is NULL",
                         !ctx       ? "ctx"
                         : !problem ? "problem"
                         : !args    ? "args"
                                    : "count");
    if (!reports && *count)
        return fxa__fail(err, FXA_E_ARGUMENT, "reports is NULL with room for %zu; NULL goes with a count of 0", *count);
    fxa__problem *p = NULL;
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    fxa_status status =
        p->in.device != FXA_HOST
            ? fxa__fail(err, FXA_E_ARGUMENT, "problem.device is %s: indices are looked at on the host alone",
                        fxa_device_name((fxa_device)p->in.device))
            : query_run(fxa__context_host(ctx), p, args, reports, count, err);
    fxa__problem_release(p);
    return status == FXA_OK ? fxa__ok(err) : status;
}
