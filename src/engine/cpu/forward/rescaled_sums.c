/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows whose sums of V leave the range of real. No output is larger than V, but for dropout's factor; o, which is not
 * divided by l yet, may be as many times as large as there are keys. Such a row has an o that is not finite though its
 * scores are in order, and that is all that is looked for in the end of an item. Its keys go by once more:
 *
 *     sums = sum_k t_k (V[k] / 2^64)       in f64, so finite where V is; weights of 0 count for nothing
 *     o    = sums 2^64 / unit              where o is not finite, else o / unit
 *     unit = l / (1 - p)                   1 of all other rows: what o has to be multiplied with
 *
 * o is a mean of V then. Elements that were finite keep their sums, so that columns of tiny numbers beside large ones
 * lose nothing. Sums of a few rows at a time lie where V is packed otherwise: here it is taken as rows of real.
 */
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <float.h>
#include <string.h>

static bool large_is_finite(double x) { return x - x == 0; }

/* Squares tell, of all rows first; where they add up to infinity, or are none, the rows are looked at. */
int64_t fxa__cpu_large_find(const fxa__cpu_item *it, int64_t row) {
    const fxa__cpu_kernels *kernels = it->kernels;
    int64_t ldo = it->run->blocks.ldo, dv = it->g.p->in.d_v;
    if (row == 0 && large_is_finite(kernels->row_dot(it->s.o, it->s.o, (it->n - 1) * ldo + dv))) return it->n;
    for (; row < it->n; row++) {
        bool in_order = !it->s.nan[row] && it->s.m[row] < INFINITY;
        const void *o = fxa__real_at(it, it->s.o, row * ldo);
        if (in_order && !kernels->load(it->s.x, o, kernels->real_dtype, 1, dv)) break;
    }
    return row;
}

static double large_most(const fxa__cpu_item *it) {
    return it->kernels->real_size == sizeof(float) ? (double)FLT_MAX : DBL_MAX;
}

/* V that is not finite has such outputs of its own, and no second sum makes them others: that took ten times as long as
 * all the rest. Only numbers that are a share of the largest can add up to infinity; 2^16 is room. */
void fxa__cpu_large_look(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa_problem *p = &it->g.p->in;
    int64_t ldv = it->run->blocks.ldv;
    double most = large_most(it), keys = (double)(it->key_end - it->key);
    double least = most * 0x1p-16 / keys * (p->flags & FXA_DROPOUT ? 1 - p->dropout_p : 1);
    if (it->leaves) return;
    (void)fxa__cpu_load_keys(&it->g, FXA_SLOT_V, key, n, it->s.x, ldv);
    for (int64_t i = 0; i < n * ldv; i++) {
        double x = fabs(fxa__real_get(it->s.x, it->kernels->real_size, i));
        it->leaves |= (x >= least) & (x <= most);
    }
}

static double *large_sums(const fxa__cpu_item *it, int64_t row) {
    return (double *)it->s.v.panels + (row - it->large) * it->g.p->in.d_v;
}

static void large_begin(fxa__cpu_item *it, int64_t row) {
    const fxa__cpu_kernels *kernels = it->kernels;
    int64_t dv = it->g.p->in.d_v, reals = kernels->format->b_size(kernels, it->run->blocks.keys, dv);
    int64_t room = reals * (int64_t)kernels->real_size / (dv * (int64_t)sizeof(double));
    FXA__ASSERT(room > 0 && row < it->n);
    fxa__cpu_item_clear(it);
    it->dirty = true;
    it->large = row;
    it->large_end = fxa__min_i64(row + room, it->n);
    memset(it->s.v.panels, 0, (size_t)((it->large_end - row) * dv) * sizeof(double));
}

static void large_add_f32(double *sum, const float *v, double weight, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += weight * ((double)v[i] / FXA__CPU_LARGE);
}
static void large_add_f64(double *sum, const double *v, double weight, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += weight * (v[i] / FXA__CPU_LARGE);
}

void fxa__cpu_large_add(fxa__cpu_item *it, int64_t row, const void *t, const void *v, int64_t n, double beta) {
    int64_t dv = it->g.p->in.d_v, ldv = it->run->blocks.ldv;
    size_t size = it->kernels->real_size;
    if (row < it->large || row >= it->large_end) return;
    double *sum = large_sums(it, row);
    for (int64_t i = 0; beta != 1 && i < dv; i++) sum[i] = beta == 0 ? 0 : sum[i] * beta;
    for (int64_t k = 0; k < n; k++) {
        double weight = fxa__real_get(t, size, k);
        if (weight == 0) continue;
        if (size == sizeof(float))
            large_add_f32(sum, (const float *)v + k * ldv, weight, dv);
        else
            large_add_f64(sum, (const double *)v + k * ldv, weight, dv);
    }
}

/* A mean is no larger than what it is of; that l and the sums are rounded may not make it so. */
static double large_mean(const fxa__cpu_item *it, double sum, double unit) {
    double most = large_most(it);
    return fmax(-most, fmin(sum / unit * FXA__CPU_LARGE, most));
}

double fxa__cpu_large_settle(const fxa__cpu_item *it, void *o, const double *sums, double l) {
    const fxa_problem *p = &it->g.p->in;
    size_t size = it->kernels->real_size;
    double unit = p->flags & FXA_DROPOUT ? l / (1 - p->dropout_p) : l;
    bool left = false; /* the range, and nothing else is wrong */
    for (int64_t i = 0; i < p->d_v; i++) {
        if (large_is_finite(fxa__real_get(o, size, i))) continue;
        left = left || large_is_finite(sums[i]);
        if (!large_is_finite(sums[i])) fxa__real_set(o, size, i, sums[i]);
    }
    for (int64_t i = 0; left && i < p->d_v; i++) {
        double x = fxa__real_get(o, size, i);
        if (large_is_finite(x))
            fxa__real_set(o, size, i, x / unit);
        else if (large_is_finite(sums[i]))
            fxa__real_set(o, size, i, large_mean(it, sums[i], unit));
    }
    return left ? unit : 1;
}

static int64_t large_end(fxa__cpu_item *it) {
    int64_t end = it->large_end, ldo = it->run->blocks.ldo;
    for (int64_t row = it->large; row < end; row++)
        if (!it->s.nan[row] && it->s.m[row] > -INFINITY && it->s.m[row] < INFINITY)
            it->s.unit[row] =
                fxa__cpu_large_settle(it, fxa__real_at(it, it->s.o, row * ldo), large_sums(it, row), it->s.l[row]);
    it->large = it->large_end = 0;
    return end;
}

void fxa__cpu_large_sum(fxa__cpu_item *it, int64_t row, void (*all)(fxa__cpu_item *it)) {
    if (row == it->n) return;
    it->looking = true;
    all(it);
    it->looking = false;
    for (; it->leaves && row < it->n; row = fxa__cpu_large_find(it, large_end(it))) {
        large_begin(it, row);
        all(it);
    }
}
