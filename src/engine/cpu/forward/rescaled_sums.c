/* SPDX-License-Identifier: Apache-2.0
 *
 * Recomputes rows whose sums of V overflow. A final output is a weighted mean of V (times dropout's factor), but o,
 * which is not divided by l yet, may be larger by the number of keys. A row has overflowed if its o is not finite after
 * a pass although its scores are in range. Another pass over the keys then computes, for dropout with probability p,
 *
 *     sums = sum_k t_k (V[k] / 2^64)       in f64, so finite if V is; weights of 0 are skipped
 *     unit = l / (1 - p)
 *     o    = 2^64 sums / unit              in columns where o is not finite
 *     o    = o / unit                      in all other columns, so that tiny values of V lose no digits
 *
 * Now o is a mean of V, and output.c multiplies it by `unit`, which is 1 for rows that have not overflowed. The f64
 * sums are stored in the memory of packed V, which these passes do not use. If not all rows fit, there are several
 * passes.
 */
#include "../real.h"
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <float.h>
#include <string.h>

static bool rescaled_is_finite(double x) { return x - x == 0; }

/* Tests the sum of squares of all outputs first. If it is infinite or NaN, tests the rows one by one. */
int64_t fxa__cpu_overflow_find(const fxa__cpu_forward_worker *w, int64_t row) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t ldo = w->run->sizes.ldo, dv = w->g.p->in.d_v, n = w->task.n;
    if (row == 0 && rescaled_is_finite(kernels->row_dot(w->o, w->o, (n - 1) * ldo + dv))) return n;
    for (; row < n; row++) {
        bool in_range = !w->state.nan[row] && w->state.m[row] < INFINITY;
        const void *o = fxa__cpu_real_at(kernels, w->o, row * ldo);
        if (in_range && !kernels->load(w->x, o, kernels->real_dtype, 1, dv)) break;
    }
    return row;
}

static double rescaled_real_max(const fxa__cpu_forward_worker *w) {
    return w->kernels->real_size == sizeof(float) ? (double)FLT_MAX : DBL_MAX;
}

/* ---- Detection of possible overflow ------------------------------------------------------------------------------ */

/* Sets may_overflow if V of n keys has a finite value so large that sums over all keys may overflow, with a margin of
 * 2^16. Infinities and NaN of V do not set may_overflow: the outputs that they make infinite or NaN are right, and f64
 * sums would take ten times as long as the rest of the pass. */
static void rescaled_scan(fxa__cpu_forward_worker *w, int64_t key, int64_t n) {
    const fxa_problem *p = &w->g.p->in;
    int64_t ldv = w->run->sizes.ldv;
    double most = rescaled_real_max(w), keys = (double)(w->task.key_end - w->task.key);
    double least = most * 0x1p-16 / keys * (p->flags & FXA_DROPOUT ? 1 - p->dropout_p : 1);
    if (w->may_overflow) return;
    (void)fxa__cpu_load_keys(&w->g, FXA_SLOT_V, key, n, w->x, ldv);
    for (int64_t i = 0; i < n * ldv; i++) {
        double x = fabs(fxa__cpu_real_get(w->kernels, w->x, i));
        w->may_overflow |= (x >= least) & (x <= most);
    }
}

static void rescaled_scan_block(fxa__cpu_forward_worker *w) {
    fxa__cpu_sub_block s;
    if (!w->split.is_decode) {
        rescaled_scan(w, w->masked.key, w->masked.keys);
        return;
    }
    for (int64_t at = 0; fxa__cpu_sub_block_next(&w->masked, 0, w->task.n, &at, &s);)
        rescaled_scan(w, w->masked.key + s.begin, s.end - s.begin);
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* Returns the f64 sums of a row, [d_v]. */
static double *rescaled_row(const fxa__cpu_forward_worker *w, int64_t row) {
    return (double *)w->v.panels + (row - w->rescaled) * w->g.p->in.d_v;
}

/* Sets the f64 sums of rows rescaled..rescaled_end to 0. The first of these rows is `row`, and there are as many as fit
 * into the memory of packed V, where the sums are stored. */
static void rescaled_begin(fxa__cpu_forward_worker *w, int64_t row) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t dv = w->g.p->in.d_v, reals = kernels->format->b_size(kernels, w->run->sizes.keys, dv);
    int64_t capacity = reals * (int64_t)kernels->real_size / (dv * (int64_t)sizeof(double));
    FXA__ASSERT(capacity > 0 && row < w->task.n);
    w->rescaled = row;
    w->rescaled_end = fxa__min_i64(row + capacity, w->task.n);
    memset(w->v.panels, 0, (size_t)((w->rescaled_end - row) * dv) * sizeof(double));
}

static void rescaled_add_f32(double *sum, const float *v, double weight, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += weight * ((double)v[i] / FXA__CPU_RESCALE);
}
static void rescaled_add_f64(double *sum, const double *v, double weight, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += weight * (v[i] / FXA__CPU_RESCALE);
}

void fxa__cpu_rescaled_add(fxa__cpu_forward_worker *w, int64_t row, const void *t, const void *v, int64_t n,
                           double beta) {
    const fxa__cpu_kernels *kernels = w->kernels;
    int64_t dv = w->g.p->in.d_v, ldv = w->run->sizes.ldv;
    if (row < w->rescaled || row >= w->rescaled_end) return;
    double *sum = rescaled_row(w, row);
    for (int64_t i = 0; beta != 1 && i < dv; i++) sum[i] = beta == 0 ? 0 : sum[i] * beta;
    for (int64_t k = 0; k < n; k++) {
        double weight = fxa__cpu_real_get(kernels, t, k);
        if (weight == 0) continue;
        if (kernels->real_size == sizeof(float))
            rescaled_add_f32(sum, (const float *)v + k * ldv, weight, dv);
        else
            rescaled_add_f64(sum, (const double *)v + k * ldv, weight, dv);
    }
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

/* Returns the mean sum / unit * 2^64. The mean is clamped to the range of real, because rounding could make it larger
 * than the largest value of V. */
static double rescaled_mean(const fxa__cpu_forward_worker *w, double sum, double unit) {
    double most = rescaled_real_max(w);
    return fmax(-most, fmin(sum / unit * FXA__CPU_RESCALE, most));
}

double fxa__cpu_rescaled_finish(const fxa__cpu_forward_worker *w, void *o, const double *sums, double l) {
    const fxa_problem *p = &w->g.p->in;
    double unit = p->flags & FXA_DROPOUT ? l / (1 - p->dropout_p) : l;
    bool overflowed = false; /* an element of o is not finite, but its f64 sum is */
    for (int64_t i = 0; i < p->d_v; i++) {
        if (rescaled_is_finite(fxa__cpu_real_get(w->kernels, o, i))) continue;
        overflowed = overflowed || rescaled_is_finite(sums[i]);
        if (!rescaled_is_finite(sums[i])) fxa__cpu_real_set(w->kernels, o, i, sums[i]);
    }
    for (int64_t i = 0; overflowed && i < p->d_v; i++) {
        double x = fxa__cpu_real_get(w->kernels, o, i);
        if (rescaled_is_finite(x))
            fxa__cpu_real_set(w->kernels, o, i, x / unit);
        else if (rescaled_is_finite(sums[i]))
            fxa__cpu_real_set(w->kernels, o, i, rescaled_mean(w, sums[i], unit));
    }
    return overflowed ? unit : 1;
}

/* Sets the outputs and their factors (`unit`) of rows rescaled..rescaled_end. Returns rescaled_end. */
static int64_t rescaled_end(fxa__cpu_forward_worker *w) {
    const fxa__cpu_softmax_state *state = &w->state;
    int64_t end = w->rescaled_end, ldo = w->run->sizes.ldo;
    for (int64_t row = w->rescaled; row < end; row++)
        if (!state->nan[row] && state->m[row] > -INFINITY && state->m[row] < INFINITY)
            state->unit[row] = fxa__cpu_rescaled_finish(w, fxa__cpu_real_at(w->kernels, w->o, row * ldo),
                                                        rescaled_row(w, row), state->l[row]);
    w->rescaled = w->rescaled_end = 0;
    return end;
}

void fxa__cpu_rescaled_sums(fxa__cpu_forward_worker *w, int64_t row) {
    w->may_overflow = false;
    fxa__cpu_each_block(w, rescaled_scan_block);
    for (; w->may_overflow && row < w->task.n; row = fxa__cpu_overflow_find(w, rescaled_end(w))) {
        rescaled_begin(w, row);
        fxa__cpu_softmax_clear(w);
        fxa__cpu_each_block(w, w->split.is_decode ? fxa__cpu_decode_block_rescaled : fxa__cpu_attend_block_rescaled);
    }
}
