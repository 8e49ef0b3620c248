/* SPDX-License-Identifier: Apache-2.0
 *
 * The last step of a row (softmax epilogue). It computes the row's output O and its LSE:
 *
 *     M = max(m, z),  L = l exp(m - M) + exp(z - M),  O = u o exp(m - M) / L,  LSE = M + log L
 *
 *     m   maximum of the row's scores
 *     l   sum of exp(score - m)
 *     o   output before the division by l
 *     z   score of the row's sink; -inf = no sink
 *     u   `unit` in the code: 1, except for rows that rescaled_sums.c recomputed because their sums of V overflowed
 *
 * If M is -inf, then O = 0 and LSE = -inf. If a score or z is NaN or +inf, both O and LSE are NaN. The results of key
 * splits are merged first by the same formulas, in the order of the splits.
 */
#include "forward.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"
#include "../../../problem/merge_row.h"

#include <string.h>

/* Softmax state of a row: maximum, sum, and factor of the output. */
typedef struct output_row {
    double m, l, unit; /* m = NaN: a score was NaN */
} output_row;

/* Returns the score of the sink of row r of the kv group; -inf = no sink. */
static double output_sink(const fxa__cpu_forward_worker *w, int64_t r) {
    const fxa_problem *p = &w->g.p->in;
    if (p->flags & FXA_SINKS)
        return fxa__load_f64(w->g.bound->slot[FXA_SLOT_SINKS], p->sinks.dtype,
                             fxa__cpu_row_head(&w->g, r) * p->sinks.stride[1]);
    return p->flags & FXA_SINK_ZERO ? 0 : -INFINITY;
}

/* Returns the factor of a row's output, and sets *lse to the row's LSE if want_lse. An output with factor 0 becomes 0
 * even if the output is not finite. */
static double output_factor(const output_row *row, double sink, bool want_lse, double *lse) {
    double top = fxa__fmax(row->m, sink);
    *lse = top < INFINITY ? top : NAN;
    if (*lse != *lse) return NAN;
    if (*lse == -INFINITY) return 0;
    double weight = 1, sum = row->l;
    if (sink > -INFINITY) {
        weight = exp(row->m - top);
        sum = row->l * weight + exp(sink - top);
    }
    if (want_lse) *lse = top + log(sum);
    return row->unit * weight / sum;
}

static void output_store_one(const fxa__cpu_address *to, double x) { fxa__store_f64(to->data, to->dtype, 0, x); }

/* For FXA_ACCUMULATE_O: merges o * factor with the row that is stored, in f64, and rounds the result once. */
static void output_merge(const fxa__cpu_forward_worker *w, const fxa__cpu_address *to, const void *o, double factor,
                         double *lse, const fxa__cpu_address *lse_to) {
    double old_lse = fxa__load_f64(lse_to->data, lse_to->dtype, 0);
    for (int64_t i = 0; i < to->n; i++) {
        double x = factor == 0 ? 0 : fxa__cpu_real_get(w->kernels, o, i) * factor;
        w->row[i] = factor != factor ? NAN : x;
        w->old[i] = fxa__load_f64(to->data, to->dtype, i * to->stride);
    }
    fxa__merge_row(w->old, &old_lse, w->row, *lse, to->n);
    for (int64_t i = 0; i < to->n; i++) fxa__store_f64(to->data, to->dtype, i * to->stride, w->old[i]);
    *lse = old_lse;
}

static void output_fill(const fxa__cpu_forward_worker *w, void *o, int64_t n, double x) {
    for (int64_t i = 0; i < n; i++) fxa__cpu_real_set(w->kernels, o, i, x);
}

/* Addresses where the results of a row are stored. */
typedef struct output_to {
    fxa__cpu_address o, lse, max; /* member `data` is NULL if the result is not requested */
} output_to;

/* Sets *to to the addresses of row r of the kv group. At the call, *to must hold the addresses of row r - 1, or all
 * zeroes. */
static void output_to_row(const fxa__cpu_forward_worker *w, output_to *to, int64_t r) {
    uint32_t flags = w->g.p->in.flags;
    fxa__cpu_row_next(&w->g, FXA_SLOT_O, r, &to->o);
    if (flags & (FXA_RETURN_LSE | FXA_ACCUMULATE_O)) fxa__cpu_row_next(&w->g, FXA_SLOT_LSE, r, &to->lse);
    if (flags & FXA_RETURN_ROW_MAX) fxa__cpu_row_next(&w->g, FXA_SLOT_ROW_MAX, r, &to->max);
}

/* Stores the results of a row. Overwrites o, the row's output before the division by the softmax sum. */
static void output_store(fxa__cpu_forward_worker *w, const output_to *to, void *o, double factor, double lse,
                         double max) {
    if (w->g.p->in.flags & FXA_ACCUMULATE_O)
        output_merge(w, &to->o, o, factor * w->g.bound->load[FXA_SLOT_O], &lse, &to->lse);
    else {
        if (!(factor > 0)) output_fill(w, o, to->o.n, factor); /* factor is 0 or NaN */
        fxa__cpu_store(w->kernels, w->g.bound, FXA_SLOT_O, &to->o, o, factor > 0 ? factor : 1, false);
    }
    if (to->lse.data) output_store_one(&to->lse, lse);
    if (to->max.data) output_store_one(&to->max, max);
}

static void output_finish(fxa__cpu_forward_worker *w, int64_t r, const output_to *to, const output_row *row, void *o) {
    double lse, sink = output_sink(w, r);
    double factor = output_factor(row, sink, to->lse.data != NULL, &lse);
    output_store(w, to, o, factor, lse, row->m);
}

/* ---- Key splits -------------------------------------------------------------------------------------------------- */

/* Returns the index in `results` of the result of key split `chunk` for row r of the kv group. */
static int64_t output_result(const fxa__cpu_forward_worker *w, int64_t group, int64_t chunk, int64_t r) {
    return group * w->run->result_rows + chunk * w->g.rows + r;
}

/* Returns the address in `results_o` of the output of split result `at`. */
static char *output_result_o(const fxa__cpu_forward_worker *w, int64_t at) {
    return w->run->results_o + at * w->run->sizes.ldo * (int64_t)w->kernels->real_size;
}

void fxa__cpu_output(fxa__cpu_forward_worker *w, int64_t group) {
    int64_t ldo = w->run->sizes.ldo;
    output_to to = {.o = {.data = NULL}};
    for (int64_t i = 0; i < w->task.n; i++) {
        output_row row = {w->state.nan[i] ? NAN : w->state.m[i], w->state.l[i], w->state.unit[i]};
        void *o = fxa__cpu_real_at(w->kernels, w->o, i * ldo);
        if (w->split.key_splits == 1) {
            output_to_row(w, &to, w->task.first + i);
            output_finish(w, w->task.first + i, &to, &row, o);
            continue;
        }
        int64_t at = output_result(w, group, w->task.key_split, w->task.first + i);
        w->run->results[at] = (fxa__cpu_split_result){row.m, row.l, row.unit};
        memcpy(output_result_o(w, at), o, (size_t)ldo * w->kernels->real_size);
    }
}

/* Adds the key splits of row r of the kv group: sets row->l, and sets w->row to the output times `factor`. row->m must
 * be set. The output of a split is multiplied first by `factor` and then by its weight: factor * weight could underflow
 * to 0, which times an infinite output would be NaN. */
static void output_add_splits(fxa__cpu_forward_worker *w, int64_t group, int64_t r, double factor, output_row *row) {
    int64_t dv = w->g.p->in.d_v;
    row->l = 0;
    for (int64_t i = 0; i < dv; i++) w->row[i] = 0;
    for (int64_t c = 0; c < w->split.key_splits && row->m > -INFINITY && row->m < INFINITY; c++) {
        int64_t at = output_result(w, group, c, r);
        const fxa__cpu_split_result *x = &w->run->results[at];
        double weight = exp(x->m - row->m), share = weight * x->unit;
        const char *o = output_result_o(w, at);
        if (weight == 0) continue;
        row->l += weight * x->l;
        for (int64_t i = 0; i < dv; i++) w->row[i] += share * (factor * fxa__cpu_real_get(w->kernels, o, i));
    }
}

/* Merges the key splits of row r of the kv group. Stores the row's output in w->o. */
static output_row output_merge_row(fxa__cpu_forward_worker *w, int64_t group, int64_t r) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t dv = w->g.p->in.d_v;
    output_row row = {-INFINITY, 0, 1};
    for (int64_t c = 0; c < w->split.key_splits; c++)
        row.m = fxa__fmax(row.m, w->run->results[output_result(w, group, c, r)].m);
    output_add_splits(w, group, r, 1, &row);
    for (int64_t i = 0; i < dv; i++) fxa__cpu_real_set(w->kernels, w->o, i, w->row[i]);
    if (!kernels->load(w->x, w->o, kernels->real_dtype, 1, dv)) {
        output_add_splits(w, group, r, 1 / FXA__CPU_RESCALE, &row);
        row.unit = fxa__cpu_rescaled_finish(w, w->o, w->row, row.l);
    }
    return row;
}

void fxa__cpu_output_merge_splits(fxa__cpu_forward_worker *w, int64_t group) {
    output_to to = {.o = {.data = NULL}};
    for (int64_t r = 0; r < w->g.rows; r++) {
        output_row row = output_merge_row(w, group, r);
        output_to_row(w, &to, r);
        output_finish(w, r, &to, &row, w->o);
    }
}

/* ---- Rows past the end of a sequence ----------------------------------------------------------------------------- */

void fxa__cpu_output_absent(fxa__cpu_forward_worker *w) {
    fxa__cpu_forward_worker all = *w; /* the kv group with q_len extended to the padded length Sq */
    all.g.seq.q_len = w->g.p->in.sq;
    for (int64_t h = 0; h < w->g.heads; h++)
        for (int64_t q = w->g.seq.q_len; q < all.g.seq.q_len; q++) {
            output_to to = {.o = {.data = NULL}};
            output_to_row(&all, &to, h * all.g.seq.q_len + q);
            output_store(&all, &to, w->o, 0, -INFINITY, -INFINITY);
        }
}
