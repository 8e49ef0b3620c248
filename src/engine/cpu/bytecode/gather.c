/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads elements of captured tensors at arbitrary indices, and adds to the sums of their gradients. The offset along
 * axes with one index for the entire row is computed once; the indices along the other axes are processed 64 columns at
 * a time. Elements are copied as they are stored, and then converted together.
 *
 * Each axis adds its offset, or FXA__TAPE_OUTSIDE, a large negative number, if its index is outside of the axis. No sum
 * over all axes wraps around, and no sum with an outside index is near a valid offset.
 */
#include "tape_code.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"

#include <string.h>

enum { GATHER_COLUMNS = 64 };

static bool gather_is_outside(int64_t offset) { return offset <= FXA__TAPE_OUTSIDE / 2; }

static bool gather_is_one(const fxa__tape_access *access, int axis) {
    return axis != access->axis && !(access->rows >> axis & 1);
}

int64_t fxa__tape_gather_base(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view) {
    int64_t offset = 0;
    for (int d = 0; d < access->rank; d++)
        if (gather_is_one(access, d))
            r->run->tape->kernels->offsets(&offset, true, r->at[access->index[d]], view->size[d], view->stride[d], 1);
    return gather_is_outside(offset) ? FXA__TAPE_OUTSIDE : offset;
}

/* Computes the indices of columns first..first+n along the axis whose index is sign * k plus a value, where k is the
 * key coordinate. */
static void gather_index(const fxa__tape_at *r, const fxa__tape_access *access, int64_t first, int64_t n,
                         int32_t *index) {
    const int32_t *k = r->state->k + r->first + first;
    int64_t at = *(const int32_t *)r->at[access->index[access->axis]];
    for (int64_t i = 0; i < n; i++) index[i] = fxa__wrap32(at + (int64_t)access->sign * k[i]);
    if (access->lo < 0) return;
    int32_t lo = *(const int32_t *)r->at[access->lo], hi = *(const int32_t *)r->at[access->hi];
    int32_t shift = *(const int32_t *)r->at[access->shift];
    for (int64_t i = 0; i < n; i++) {
        int32_t x = index[i] > lo ? index[i] : lo;
        index[i] = fxa__wrap32((int64_t)(x < hi ? x : hi) + shift);
    }
}

/* Computes the offset of the tensor element of each of the columns first..first+n, from those axes whose index varies
 * with the column. */
static void gather_offsets(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view, int64_t first,
                           int64_t n, int64_t *offset) {
    int32_t room[GATHER_COLUMNS];
    bool add = false;
    for (int d = 0; d < access->rank; d++) {
        if (gather_is_one(access, d)) continue;
        const int32_t *index = d == access->axis ? room : (const int32_t *)r->at[access->index[d]] + first;
        if (d == access->axis) gather_index(r, access, first, n, room);
        r->run->tape->kernels->offsets(offset, add, index, view->size[d], view->stride[d], n);
        add = true;
    }
    if (!add) memset(offset, 0, (size_t)n * sizeof *offset); /* no index varies: all columns access the same element */
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

static inline void gather_sized(const size_t size, const char *data, const int64_t *offset, int64_t n, char *to) {
    for (int64_t i = 0; i < n; i++, to += size) {
        if (gather_is_outside(offset[i]))
            memset(to, 0, size); /* bytes of 0 are the number 0 in every dtype */
        else
            memcpy(to, data + offset[i] * (int64_t)size, size);
    }
}

/* Copies n elements of `size` bytes without conversion; 0 for elements outside of the tensor. */
static void gather_stored(const void *data, size_t size, const int64_t *offset, int64_t n, void *to) {
    switch (size) {
    case 1: gather_sized(1, data, offset, n, to); break;
    case 2: gather_sized(2, data, offset, n, to); break;
    case 4: gather_sized(4, data, offset, n, to); break;
    default: gather_sized(8, data, offset, n, to); break;
    }
}

void fxa__tape_gather(const fxa__tape_at *r, const fxa__tape_access *access, void *dst) {
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    const fxa_view *view = &r->run->tensors[access->tensor];
    bool real = access->type == FXA_FLOAT;
    size_t size = fxa_dtype_size(view->dtype), to_size = real ? kernels->real_size : sizeof(int32_t);
    int64_t offset[GATHER_COLUMNS], base = fxa__tape_gather_base(r, access, view);
    uint64_t stored[GATHER_COLUMNS];
    if (base == FXA__TAPE_OUTSIDE) {
        memset(dst, 0, (size_t)r->n * to_size);
        return;
    }
    bool as_stored = view->dtype == (real ? (fxa_dtype)kernels->real_dtype : FXA_I32);
    for (int64_t first = 0; first < r->n; first += GATHER_COLUMNS) {
        int64_t n = fxa__min_i64(GATHER_COLUMNS, r->n - first);
        char *to = (char *)dst + (size_t)first * to_size;
        gather_offsets(r, access, view, first, n, offset);
        gather_stored((const char *)view->data + base * (int64_t)size, size, offset, n,
                      as_stored ? to : (void *)stored);
        if (!as_stored && real) (void)kernels->load(to, stored, view->dtype, 1, n);
        if (access->word)
            fxa__tape_words(stored, 1, access->word, n, (int32_t *)(void *)to);
        else if (!as_stored && !real)
            kernels->load_ints((int32_t *)(void *)to, stored, view->dtype, 1, n);
    }
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* State of a scatter: consecutive values for one tensor element are summed before they are added to the element's
 * sum. */
typedef struct gather_sum {
    double *to; /* the f64 sums of the captured tensor */
    int64_t at; /* index in `to` of the tensor element whose values are being summed */
    double sum; /* sum of the values of element `at` so far, not yet added to to[at] */
} gather_sum;

/* Adds the value of each of n columns to the gradient sum of the tensor element that the column indexes. Neighbouring
 * columns often index the same element: their values are summed first, in s->sum. */
#define GATHER_ADD(name, real)                                                                                         \
    static void name(gather_sum *s, const int64_t *offset, const real *value, bool row, const real *dscore,            \
                     int64_t n) {                                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            if (gather_is_outside(offset[i]) || dscore[i] == 0) continue;                                              \
            if (offset[i] != s->at) {                                                                                  \
                if (s->at >= 0) s->to[s->at] += s->sum;                                                                \
                s->at = offset[i];                                                                                     \
                s->sum = 0;                                                                                            \
            }                                                                                                          \
            s->sum += (double)value[row ? i : 0];                                                                      \
        }                                                                                                              \
    }
GATHER_ADD(gather_add_f32, float)
GATHER_ADD(gather_add_f64, double)
#undef GATHER_ADD

void fxa__tape_scatter(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore) {
    const fxa__tape_sum *target = &r->run->sums[access->tensor];
    int64_t offset[GATHER_COLUMNS], base = fxa__tape_gather_base(r, access, &target->view);
    if (base == FXA__TAPE_OUTSIDE) return;
    gather_sum s = {.to = target->sum + base, .at = -1, .sum = 0};
    for (int64_t first = 0; first < r->n; first += GATHER_COLUMNS) {
        int64_t n = fxa__min_i64(GATHER_COLUMNS, r->n - first), at = access->value_row ? first : 0;
        gather_offsets(r, access, &target->view, first, n, offset);
        if (r->run->tape->kernels->real_size == sizeof(float))
            gather_add_f32(&s, offset, (const float *)value + at, access->value_row, (const float *)dscore + first, n);
        else
            gather_add_f64(&s, offset, (const double *)value + at, access->value_row, (const double *)dscore + first,
                           n);
    }
    if (s.at >= 0) s.to[s.at] += s.sum;
}
