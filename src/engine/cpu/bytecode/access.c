/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads elements of captured tensors for the columns of a row into a register, or adds to the sums of their gradients.
 * If one index increases or decreases with the keys, the columns are divided into pieces of evenly spaced elements: a
 * new piece starts where the index becomes negative (and counts from the end), leaves the tensor, or is clamped. Other
 * accesses are in gather.c. No memory outside of a tensor is read or written.
 */
#include "tape_code.h"

#include "../../../base/dtype.h"
#include "../../../base/num.h"

#include <math.h>
#include <string.h>

/* ---- Evenly spaced: pieces --------------------------------------------------------------------------------------- */

/* An access to a tensor along one axis: the index in column i is clamp(x + i * dx, lo, hi) + shift. */
typedef struct access_walk {
    int64_t n; /* number of columns */
    int64_t x, dx, lo, hi, shift;
    int64_t size, stride; /* size of the axis; number of elements from one index to the next */
    int64_t offset;       /* offset that the indices of the other axes give, in elements */
} access_walk;

/* Columns begin..end of a row. If `inside`, the elements of the columns are at offset, offset + stride, ...; else
 * the elements are outside of the tensor. */
typedef struct access_piece {
    int64_t begin, end, offset, stride;
    bool inside;
} access_piece;

static int32_t access_int(const fxa__tape_at *r, int32_t place) { return *(const int32_t *)r->at[place]; }

/* Sets *w for an access along one axis. Returns false if an index wraps around or the keys are not evenly spaced. Sets
 * *outside if an index of another axis is outside of the tensor, so that nothing is read. */
static bool access_begin(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view, access_walk *w,
                         bool *outside) {
    const fxa__tape_state *s = r->state;
    *outside = false;
    if (access->axis < 0 || !s->step) return false;
    int axis = access->axis;
    *w = (access_walk){
        .n = r->n, .lo = INT32_MIN, .hi = INT32_MAX, .size = view->size[axis], .stride = view->stride[axis]};
    w->x = access_int(r, access->index[axis]) + (int64_t)access->sign * s->k[r->first];
    w->dx = access->sign * s->step;
    int64_t end = w->x + (r->n - 1) * w->dx;
    if (w->x != fxa__sat32(w->x) || end != fxa__sat32(end)) return false;
    if (access->lo >= 0) {
        w->hi = access_int(r, access->hi);
        w->lo = fxa__min_i64(access_int(r, access->lo), w->hi);
        w->shift = access_int(r, access->shift);
        if (w->lo + w->shift != fxa__sat32(w->lo + w->shift) || w->hi + w->shift != fxa__sat32(w->hi + w->shift))
            return false;
    }
    w->offset = fxa__tape_gather_base(r, access, view);
    *outside = w->offset == FXA__TAPE_OUTSIDE;
    return true;
}

/* Returns the longest piece of evenly spaced elements that starts at column i. */
static access_piece access_next(const access_walk *w, int64_t i) {
    int64_t lo = w->lo + w->shift, hi = w->hi + w->shift, x = w->x + w->shift + i * w->dx, from = lo, to = hi,
            index = x;
    bool held = x < lo || x > hi;
    if (x < lo) {
        from = INT64_MIN / 4, to = lo - 1, index = lo;
    } else if (x > hi) {
        from = hi + 1, to = INT64_MAX / 4, index = hi;
    } else if (x < -w->size) {
        to = fxa__min_i64(to, -w->size - 1);
    } else if (x < 0) {
        from = fxa__max_i64(from, -w->size), to = fxa__min_i64(to, -1);
    } else if (x < w->size) {
        from = fxa__max_i64(from, 0), to = fxa__min_i64(to, w->size - 1);
    } else {
        from = fxa__max_i64(from, w->size);
    }
    int64_t reach = w->dx > 0 ? to - x : x - from, step = w->dx > 0 ? w->dx : -w->dx;
    int64_t columns = (step == 1 ? reach : reach / step) + 1; /* no division for the common step 1 */
    if (index < 0) index += w->size;
    access_piece p = {.begin = i, .end = fxa__min_i64(w->n, i + columns), .inside = index >= 0 && index < w->size};
    if (p.inside) p.offset = w->offset + index * w->stride;
    p.stride = held ? 0 : w->dx * w->stride;
    return p;
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

static bool access_is_empty(const fxa_view *view) {
    for (int d = 0; d < view->rank; d++)
        if (view->size[d] <= 0) return true;
    return !view->data;
}

static void access_store(const fxa__tape_at *r, void *dst, int64_t i, double x) {
    if (r->run->tape->kernels->real_size == sizeof(float))
        ((float *)dst)[i] = (float)x;
    else
        ((double *)dst)[i] = x;
}

/* Sets columns begin..end to x, in entire steps of FXA__TAPE_STEP columns, of which the last overlaps the one before.
 * Ranges shorter than a step are set element by element. */
static void access_fill(const fxa__tape_at *r, void *row, int64_t begin, int64_t end, double x) {
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    int64_t n = end - begin, size = (int64_t)kernels->real_size;
    float f = (float)x;
    const void *value = size == sizeof f ? (const void *)&f : &x;
    if (n < FXA__TAPE_STEP) {
        for (int64_t i = begin; i < end; i++) access_store(r, row, i, x);
        return;
    }
    kernels->tape[FXA__TAPE_FILL_F](n / FXA__TAPE_STEP * FXA__TAPE_STEP, (char *)row + begin * size, value, NULL, NULL);
    kernels->tape[FXA__TAPE_FILL_F](FXA__TAPE_STEP, (char *)row + (end - FXA__TAPE_STEP) * size, value, NULL, NULL);
}

/* Loads a piece of a row as reals. */
static void access_copy_floats(const fxa__tape_at *r, const fxa_view *view, const access_piece *p, void *dst) {
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    char *to = (char *)dst + (size_t)p->begin * kernels->real_size;
    const char *from = (const char *)view->data + p->offset * (int64_t)fxa_dtype_size(view->dtype);
    int64_t n = p->end - p->begin;
    if (p->inside && p->stride == -1) { /* load the row as it is stored, then reverse it */
        kernels->load(to, from - (n - 1) * (int64_t)fxa_dtype_size(view->dtype), view->dtype, 1, n);
        kernels->tape[FXA__TAPE_REVERSE_F](n, to, NULL, NULL, NULL);
        return;
    }
    if (p->inside && p->stride) {
        kernels->load(to, from, view->dtype, p->stride, n);
        return;
    }
    access_fill(r, dst, p->begin, p->end, p->inside ? fxa__load_f64(view->data, view->dtype, p->offset) : 0);
}

static void access_copy_ints(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view,
                             const access_piece *p, int32_t *dst) {
    const char *from = (const char *)view->data + p->offset * (int64_t)fxa_dtype_size(view->dtype);
    if (p->inside && access->word) {
        fxa__tape_words(from, p->stride, access->word, p->end - p->begin, dst + p->begin);
        return;
    }
    if (p->inside && p->stride) {
        r->run->tape->kernels->load_ints(dst + p->begin, from, view->dtype, p->stride, p->end - p->begin);
        return;
    }
    int32_t x = p->inside ? fxa__load_i32(view->data, view->dtype, p->offset) : 0;
    for (int64_t i = p->begin; i < p->end; i++) dst[i] = x;
}

/* Returns true if all columns are one contiguous piece with the dtype of a register, so that the tensor can be read in
 * place. */
static bool access_is_row(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view,
                          const access_piece *p) {
    fxa_dtype real = (fxa_dtype)r->run->tape->kernels->real_dtype;
    return p->end == r->n && p->inside && p->stride == 1 && r->n % FXA__TAPE_STEP == 0 &&
           view->dtype == (access->type == FXA_FLOAT ? real : FXA_I32);
}

/* Loads a row of the tensor into dst, one piece of evenly spaced elements after the other. Returns dst, or the address
 * in the tensor itself if may_alias and the row is contiguous there. */
static void *access_walk_load(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view,
                              const access_walk *w, void *dst, bool may_alias) {
    access_piece p = access_next(w, 0);
    if (may_alias && access_is_row(r, access, view, &p))
        return (char *)(uintptr_t)view->data + p.offset * (int64_t)fxa_dtype_size(view->dtype);
    for (;; p = access_next(w, p.end)) {
        if (access->type == FXA_FLOAT)
            access_copy_floats(r, view, &p, dst);
        else
            access_copy_ints(r, access, view, &p, dst);
        if (p.end == r->n) return dst;
    }
}

void *fxa__tape_access_load(const fxa__tape_at *r, const fxa__tape_access *access, void *dst, bool may_alias) {
    const fxa_view *view = &r->run->tensors[access->tensor];
    access_walk w;
    bool outside = access_is_empty(view);
    if (!outside && !access_begin(r, access, view, &w, &outside)) {
        fxa__tape_gather(r, access, dst);
        return dst;
    }
    if (!outside) return access_walk_load(r, access, view, &w, dst, may_alias);
    memset(dst, 0, (size_t)r->n * (access->type == FXA_FLOAT ? r->run->tape->kernels->real_size : sizeof(int32_t)));
    return dst;
}

void fxa__tape_access_prefetch(const fxa__tape_at *r, const fxa__tape_access *access) {
    const fxa_view *view = &r->run->tensors[access->tensor];
    access_walk w;
    bool outside = access_is_empty(view);
    if (outside || !access_begin(r, access, view, &w, &outside) || outside) return;
    access_piece p = access_next(&w, 0);
    if (!p.inside || (p.stride != 1 && p.stride != -1)) return;
    int64_t last = p.offset + (p.end - p.begin - 1) * p.stride, size = (int64_t)fxa_dtype_size(view->dtype), line = 64;
    const char *at = (const char *)view->data + fxa__min_i64(p.offset, last) * size;
    const char *end = (const char *)view->data + (fxa__max_i64(p.offset, last) + 1) * size;
    for (; at < end; at += line) __builtin_prefetch(at, 0, 2);
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* For each column of a piece, adds the column's value to the gradient sum of the tensor element that the column loads,
 * except where dscore is 0. The sums of consecutive columns are p->stride doubles apart. */
static void access_add_spread(const fxa__tape_at *r, const fxa__tape_access *access, const access_piece *p,
                              const void *value, const void *dscore, double *sum) {
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    size_t skip = (size_t)p->begin * kernels->real_size;
    const char *x = (const char *)value + (access->value_row ? skip : 0), *d = (const char *)dscore + skip;
    int op = access->value_row ? FXA__TAPE_SPREAD_FF : FXA__TAPE_SPREAD_Ff;
    kernels->tape[op](p->end - p->begin, sum + p->offset, d, x, &p->stride);
}

/* For each column of a piece, adds the column's value to the gradient sum of the tensor element that the column loads,
 * except where dscore is 0. If all columns load the same element (stride 0), the values of entire steps of
 * FXA__TAPE_STEP columns are summed first and then added at once. */
static void access_add_piece(const fxa__tape_at *r, const fxa__tape_access *access, access_piece p, const void *value,
                             const void *dscore, double *sum) {
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    int64_t steps = (p.end - p.begin) / FXA__TAPE_STEP * FXA__TAPE_STEP;
    size_t skip = (size_t)p.begin * kernels->real_size;
    if (p.stride == 0 && access->value_row && steps > 0) {
        kernels->tape[FXA__TAPE_SUM_FF](steps, sum + p.offset, (const char *)dscore + skip, (const char *)value + skip,
                                        NULL);
        p.begin += steps;
    }
    access_add_spread(r, access, &p, value, dscore, sum);
}

/* Like access_add_piece, but adds to the elements of the gradient tensor itself (`view`), which may have any dtype.
 * row: true = `value` has one value per column; false = one for all columns. */
static void access_add_stored(const fxa__tape_at *r, const fxa_view *view, const access_piece *p, const void *value,
                              bool row, const void *dscore) {
    enum { PIECE = 64 };
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    char *to = (char *)(uintptr_t)view->data + p->offset * (int64_t)fxa_dtype_size(view->dtype);
    union {
        float f[PIECE];
        double d[PIECE];
    } room;
    for (int64_t i = p->begin, n; i < p->end; i += n) {
        n = fxa__min_i64(PIECE, p->end - i);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = row ? i + j : 0;
            if (kernels->real_size == sizeof(float))
                room.f[j] = ((const float *)dscore)[i + j] != 0 ? ((const float *)value)[at] : 0;
            else
                room.d[j] = ((const double *)dscore)[i + j] != 0 ? ((const double *)value)[at] : 0;
        }
        kernels->store(to, view->dtype, p->stride, &room, n, 1, true);
        to += n * p->stride * (int64_t)fxa_dtype_size(view->dtype);
    }
}

void fxa__tape_access_add(const fxa__tape_at *r, const fxa__tape_access *access, const void *value,
                          const void *dscore) {
    const fxa__tape_sum *sum = &r->run->sums[access->tensor];
    access_walk w;
    bool outside;
    if (!sum->sum && !sum->one_pair_per_element) return;
    if (access->axis < 0 && !access->rows) { /* one element for the entire row */
        int64_t offset = fxa__tape_gather_base(r, access, &sum->view);
        access_piece all = {.end = r->n, .offset = offset};
        if (offset != FXA__TAPE_OUTSIDE) access_add_piece(r, access, all, value, dscore, sum->sum);
        return;
    }
    if (!access_begin(r, access, &sum->view, &w, &outside)) {
        fxa__tape_scatter(r, access, value, dscore);
        return;
    }
    for (access_piece p = {0}; !outside && p.end < r->n;) {
        p = access_next(&w, p.end);
        if (p.inside && sum->one_pair_per_element)
            access_add_stored(r, &sum->view, &p, value, access->value_row, dscore);
        if (p.inside && !sum->one_pair_per_element) access_add_piece(r, access, p, value, dscore, sum->sum);
    }
}

/* ---- Ranges of columns ------------------------------------------------------------------------------------------- */

/* Returns true if x satisfies the range's comparison with `bound`. */
static bool access_within(const fxa__tape_range *range, int32_t x, int32_t bound) {
    if (range->side == TAPE_ABS) x = fxa__wrap32(x < 0 ? -(int64_t)x : x);
    if (range->side == TAPE_AT) return x == bound;
    if (range->side == TAPE_ABOVE) return range->strict ? bound < x : bound <= x;
    return range->strict ? x < bound : x <= bound;
}

/* Computes the interval lo..hi, both included, of the ints that satisfy the range's comparison with `bound`. */
static void access_interval(const fxa__tape_range *range, int64_t bound, int64_t *lo, int64_t *hi) {
    const int64_t far = (int64_t)1 << 40;
    int64_t most = range->strict ? bound - 1 : bound;
    *lo = -far;
    *hi = most;
    if (range->side == TAPE_ABOVE) *lo = range->strict ? bound + 1 : bound, *hi = far;
    if (range->side == TAPE_ABS) *lo = -most;
    if (range->side == TAPE_AT) *lo = *hi = bound;
}

/* Returns x / step rounded up, for x > 0, without a division for the common step 1. */
static int64_t access_steps(int64_t x, int64_t step) { return step == 1 ? x : (x + step - 1) / step; }

bool fxa__tape_range_ends(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                          int64_t first, int64_t n, int64_t *begin, int64_t *end) {
    int64_t x = offset + (int64_t)range->sign * s->k[first], y = x + (n - 1) * range->sign * s->step, lo, hi;
    int64_t least = range->side == TAPE_ABS ? -INT32_MAX : INT32_MIN; /* abs(INT32_MIN) would wrap */
    if (!s->step || x < least || x > INT32_MAX || y < least || y > INT32_MAX) return false;
    access_interval(range, bound, &lo, &hi);
    if (range->sign < 0) { /* -x increases with k */
        int64_t t = lo;
        lo = -hi, hi = -t, x = -x;
    }
    *begin = lo <= x ? 0 : fxa__min_i64(n, access_steps(lo - x, s->step));
    *end = hi < x ? 0 : fxa__min_i64(n, access_steps(hi - x + 1, s->step));
    return true;
}

bool fxa__tape_range_columns(const fxa__tape_state *s, const fxa__tape_range *range, int32_t offset, int32_t bound,
                             int64_t first, int64_t n, int64_t *begin, int64_t *end) {
    if (!fxa__tape_range_ends(s, range, offset, bound, first, n, begin, end)) return false;
    if (*begin >= *end) *begin = *end = 0;
    return true;
}

void fxa__tape_apply_range(const fxa__tape_at *r, const fxa__tape_range *range, void *out) {
    int32_t offset = access_int(r, range->offset), bound = access_int(r, range->bound);
    int64_t begin, end;
    if (fxa__tape_range_columns(r->state, range, offset, bound, r->first, r->n, &begin, &end)) {
        access_fill(r, out, 0, begin, -INFINITY);
        access_fill(r, out, end, r->n, -INFINITY);
        return;
    }
    const int32_t *k = r->state->k + r->first;
    for (int64_t i = 0; i < r->n; i++)
        if (!access_within(range, fxa__wrap32(offset + (int64_t)range->sign * k[i]), bound))
            access_store(r, out, i, -INFINITY);
}
