/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of captured tensors at any indices: offsets of a few columns at a time, axis by axis, then the elements.
 */
#include "tape_code.h"

#include "../../base/dtype.h"
#include "../../base/num.h"

enum { GATHER_COLUMNS = 64 };
#define GATHER_OUTSIDE INT64_MIN

/* The index of columns first..first+n along an axis, into `index`. */
static void gather_index(const fxa__tape_at *r, const fxa__tape_access *access, int axis, int64_t first, int64_t n,
                         int32_t *index) {
    const int32_t *at = r->at[access->index[axis]];
    bool row = access->rows >> axis & 1;
    for (int64_t i = 0; i < n; i++) index[i] = row ? at[first + i] : *at;
    if (axis != access->axis) return;
    const int32_t *k = r->state->k + r->first + first;
    for (int64_t i = 0; i < n; i++) index[i] = fxa__wrap32(index[i] + (int64_t)access->sign * k[i]);
    if (access->lo < 0) return;
    int32_t lo = *(const int32_t *)r->at[access->lo], hi = *(const int32_t *)r->at[access->hi];
    int32_t shift = *(const int32_t *)r->at[access->shift];
    for (int64_t i = 0; i < n; i++) {
        int32_t x = index[i] > lo ? index[i] : lo;
        index[i] = fxa__wrap32((int64_t)(x < hi ? x : hi) + shift);
    }
}

/* Offsets of columns first..first+n; GATHER_OUTSIDE where an index is outside. */
static void gather_offsets(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view, int64_t first,
                           int64_t n, int64_t *offset) {
    int32_t index[GATHER_COLUMNS];
    for (int64_t i = 0; i < n; i++) offset[i] = 0;
    for (int d = 0; d < access->rank; d++) {
        int64_t size = view->size[d], stride = view->stride[d];
        gather_index(r, access, d, first, n, index);
        for (int64_t i = 0; i < n; i++) {
            int64_t x = index[i] < 0 ? index[i] + size : index[i];
            bool inside = x >= 0 && x < size && offset[i] != GATHER_OUTSIDE;
            offset[i] = inside ? offset[i] + x * stride : GATHER_OUTSIDE;
        }
    }
}

#define GATHER_EACH(type, convert)                                                                                     \
    do {                                                                                                               \
        for (int64_t i = 0; i < n; i++) to[i] = offset[i] == GATHER_OUTSIDE ? 0 : (type)(convert);                     \
        return;                                                                                                        \
    } while (0)

static void gather_f32(const fxa_view *view, const int64_t *offset, int64_t n, float *to) {
    if (view->dtype == FXA_F32) GATHER_EACH(float, ((const float *)view->data)[offset[i]]);
    GATHER_EACH(float, fxa__load_f64(view->data, view->dtype, offset[i]));
}

static void gather_f64(const fxa_view *view, const int64_t *offset, int64_t n, double *to) {
    GATHER_EACH(double, fxa__load_f64(view->data, view->dtype, offset[i]));
}

static void gather_i32(const fxa_view *view, const int64_t *offset, int64_t n, int32_t *to) {
    if (view->dtype == FXA_I32) GATHER_EACH(int32_t, ((const int32_t *)view->data)[offset[i]]);
    GATHER_EACH(int32_t, fxa__load_i32(view->data, view->dtype, offset[i]));
}

void fxa__tape_gather(const fxa__tape_at *r, const fxa__tape_access *access, void *dst) {
    const fxa_view *view = &r->run->tensors[access->tensor];
    int64_t offset[GATHER_COLUMNS];
    for (int64_t first = 0; first < r->n; first += GATHER_COLUMNS) {
        int64_t n = fxa__min_i64(GATHER_COLUMNS, r->n - first);
        gather_offsets(r, access, view, first, n, offset);
        if (access->type != FXA_FLOAT)
            gather_i32(view, offset, n, (int32_t *)dst + first);
        else if (r->run->tape->kernels->real_size == sizeof(float))
            gather_f32(view, offset, n, (float *)dst + first);
        else
            gather_f64(view, offset, n, (double *)dst + first);
    }
}

/* Element i of a row of reals. */
static double gather_real(const fxa__tape_at *r, const void *row, int64_t i) {
    return r->run->tape->kernels->real_size == sizeof(float) ? (double)((const float *)row)[i]
                                                             : ((const double *)row)[i];
}

void fxa__tape_scatter(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore) {
    const fxa__tape_sum *target = &r->run->sums[access->tensor];
    int64_t offset[GATHER_COLUMNS];
    for (int64_t first = 0; first < r->n; first += GATHER_COLUMNS) {
        int64_t n = fxa__min_i64(GATHER_COLUMNS, r->n - first);
        gather_offsets(r, access, &target->view, first, n, offset);
        for (int64_t i = 0; i < n; i++)
            if (offset[i] != GATHER_OUTSIDE && gather_real(r, dscore, first + i) != 0)
                target->sum[offset[i]] += gather_real(r, value, access->value_row ? first + i : 0);
    }
}
