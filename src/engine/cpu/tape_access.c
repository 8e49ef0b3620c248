/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of captured tensors, for the columns of a row: read into a register, or added to a gradient's sum. An index
 * that runs along one axis with the keys is cut into pieces inside of which elements are evenly spaced: where it counts from the
 * end, where it is inside, where it is outside, where a bound holds it. Everything else goes element by element. Nothing outside
 * a tensor is ever touched.
 */
#include "tape_code.h"

#include "../../base/dtype.h"
#include "../../base/num.h"

#include <math.h>
#include <string.h>

/* ---- Evenly spaced: pieces --------------------------------------------------------------------------------------------- */

/* The index along the axis is x + i * dx in column i, held between lo and hi. */
typedef struct access_walk {
    int64_t n, x, dx, lo, hi;
    int64_t size, stride; /* of the axis */
    int64_t offset;       /* by the other axes */
} access_walk;

/* Columns begin..end: elements offset, offset + stride, ...; or none, outside. */
typedef struct access_piece {
    int64_t begin, end, offset, stride;
    bool inside;
} access_piece;

static int32_t access_int(const fxa__tape_at *r, int32_t place) { return *(const int32_t *)r->at[place]; }

/* The walk along an access's axis; false when an index wraps around or keys are not evenly spaced. *outside: another axis'
 * index is, so that nothing is read. */
static bool access_begin(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view, access_walk *w,
                         bool *outside) {
    const fxa__tape_state *s = r->state;
    *outside = false;
    if (access->axis < 0 || !s->step) return false;
    int axis = access->axis;
    *w = (access_walk){.n = r->n, .lo = INT32_MIN, .hi = INT32_MAX, .size = view->size[axis], .stride = view->stride[axis]};
    w->x = access_int(r, access->index[axis]) + (int64_t)access->sign * s->k[r->first];
    w->dx = access->sign * s->step;
    int64_t end = w->x + (r->n - 1) * w->dx;
    if (w->x != fxa__sat32(w->x) || end != fxa__sat32(end)) return false;
    if (access->lo >= 0) {
        w->hi = access_int(r, access->hi);
        w->lo = fxa__min_i64(access_int(r, access->lo), w->hi);
    }
    for (int d = 0; d < access->rank; d++) {
        if (d == axis) continue;
        int64_t i = access_int(r, access->index[d]);
        if (i < 0) i += view->size[d];
        if (i < 0 || i >= view->size[d]) *outside = true;
        else w->offset += i * view->stride[d];
    }
    return true;
}

/* The piece that begins at column i. */
static access_piece access_next(const access_walk *w, int64_t i) {
    int64_t x = w->x + i * w->dx, from = w->lo, to = w->hi, index = x;
    bool held = x < w->lo || x > w->hi;
    if (x < w->lo) {
        from = INT64_MIN / 4, to = w->lo - 1, index = w->lo;
    } else if (x > w->hi) {
        from = w->hi + 1, to = INT64_MAX / 4, index = w->hi;
    } else if (x < -w->size) {
        to = fxa__min_i64(to, -w->size - 1);
    } else if (x < 0) {
        from = fxa__max_i64(from, -w->size), to = fxa__min_i64(to, -1);
    } else if (x < w->size) {
        from = fxa__max_i64(from, 0), to = fxa__min_i64(to, w->size - 1);
    } else {
        from = fxa__max_i64(from, w->size);
    }
    int64_t columns = w->dx > 0 ? (to - x) / w->dx + 1 : (x - from) / -w->dx + 1;
    if (index < 0) index += w->size;
    access_piece p = {.begin = i, .end = fxa__min_i64(w->n, i + columns), .inside = index >= 0 && index < w->size};
    if (p.inside) p.offset = w->offset + index * w->stride;
    p.stride = held ? 0 : w->dx * w->stride;
    return p;
}

/* ---- One by one -------------------------------------------------------------------------------------------------------------- */

/* The element of column i; false: outside. */
static bool access_element(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view, int64_t i,
                           int64_t *offset) {
    int32_t index[FXA_MAX_RANK] = {0};
    for (int d = 0; d < access->rank; d++) {
        const int32_t *at = r->at[access->index[d]];
        index[d] = access->rows >> d & 1 ? at[i] : *at;
    }
    if (access->axis >= 0) {
        int32_t *x = &index[access->axis];
        *x = fxa__wrap32(*x + (int64_t)access->sign * r->state->k[r->first + i]);
        if (access->lo >= 0) {
            *x = (int32_t)fxa__max_i64(*x, access_int(r, access->lo));
            *x = (int32_t)fxa__min_i64(*x, access_int(r, access->hi));
        }
    }
    return fxa__view_offset(view, index, offset);
}

static bool access_is_empty(const fxa_view *view) {
    for (int d = 0; d < view->rank; d++)
        if (view->size[d] <= 0) return true;
    return !view->data;
}

/* ---- Loads ------------------------------------------------------------------------------------------------------------------- */

static void access_store(const fxa__tape_at *r, void *dst, int64_t i, double x) {
    if (r->run->tape->kernels->real_size == sizeof(float)) ((float *)dst)[i] = (float)x;
    else ((double *)dst)[i] = x;
}

static void access_copy_floats(const fxa__tape_at *r, const fxa_view *view, const access_piece *p, void *dst) {
    const fxa__cpu_kernels *kernels = r->run->tape->kernels;
    char *to = (char *)dst + (size_t)p->begin * kernels->real_size;
    const char *from = (const char *)view->data + p->offset * (int64_t)fxa_dtype_size(view->dtype);
    if (p->inside && p->stride) {
        kernels->load(to, from, view->dtype, p->stride, p->end - p->begin);
        return;
    }
    double x = p->inside ? fxa__load_f64(view->data, view->dtype, p->offset) : 0;
    for (int64_t i = p->begin; i < p->end; i++) access_store(r, dst, i, x);
}

static void access_copy_ints(const fxa_view *view, const access_piece *p, int32_t *dst) {
    for (int64_t i = p->begin; i < p->end; i++)
        dst[i] = p->inside ? fxa__load_i32(view->data, view->dtype, p->offset + (i - p->begin) * p->stride) : 0;
}

static void access_gather(const fxa__tape_at *r, const fxa__tape_access *access, const fxa_view *view, void *dst) {
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at;
        bool inside = access_element(r, access, view, i, &at);
        if (access->type == FXA_FLOAT) access_store(r, dst, i, inside ? fxa__load_f64(view->data, view->dtype, at) : 0);
        else ((int32_t *)dst)[i] = inside ? fxa__load_i32(view->data, view->dtype, at) : 0;
    }
}

void fxa__tape_access_load(const fxa__tape_at *r, const fxa__tape_access *access, void *dst) {
    const fxa_view *view = &r->run->tensors[access->tensor];
    access_walk w;
    bool outside;
    size_t size = access->type == FXA_FLOAT ? r->run->tape->kernels->real_size : sizeof(int32_t);
    if (access_is_empty(view)) {
        memset(dst, 0, (size_t)r->n * size);
    } else if (!access_begin(r, access, view, &w, &outside)) {
        access_gather(r, access, view, dst);
    } else if (outside) {
        memset(dst, 0, (size_t)r->n * size);
    } else {
        for (access_piece p = {0}; p.end < r->n;) {
            p = access_next(&w, p.end);
            if (access->type == FXA_FLOAT) access_copy_floats(r, view, &p, dst);
            else access_copy_ints(view, &p, dst);
        }
    }
}

/* ---- Sums ------------------------------------------------------------------------------------------------------------------------ */

/* The value of column i, 0 where the pair's dscore is. */
static double access_value(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore,
                           int64_t i) {
    int64_t at = access->value_row ? i : 0;
    if (r->run->tape->kernels->real_size == sizeof(float))
        return ((const float *)dscore)[i] == 0 ? 0 : (double)((const float *)value)[at];
    return ((const double *)dscore)[i] == 0 ? 0 : ((const double *)value)[at];
}

void fxa__tape_access_add(const fxa__tape_at *r, const fxa__tape_access *access, const void *value, const void *dscore) {
    const fxa__tape_sum *sums = r->run->sums;
    access_walk w;
    bool outside;
    if (!sums || !sums[access->tensor].sum) return;
    const fxa_view *view = &sums[access->tensor].view;
    double *sum = sums[access->tensor].sum;
    if (!access_begin(r, access, view, &w, &outside)) {
        int64_t at;
        for (int64_t i = 0; i < r->n; i++) {
            double x = access_value(r, access, value, dscore, i);
            if (x != 0 && access_element(r, access, view, i, &at)) sum[at] += x;
        }
        return;
    }
    for (access_piece p = {0}; !outside && p.end < r->n;) {
        p = access_next(&w, p.end);
        for (int64_t i = p.begin; p.inside && i < p.end; i++)
            sum[p.offset + (i - p.begin) * p.stride] += access_value(r, access, value, dscore, i);
    }
}

/* ---- Ranges of columns ------------------------------------------------------------------------------------------------------- */

static void access_mask(const fxa__tape_at *r, void *out, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) access_store(r, out, i, -INFINITY);
}

static bool access_within(const fxa__tape_range *range, int64_t x, int64_t bound) {
    if (range->above) return range->strict ? bound < x : bound <= x;
    return range->strict ? x < bound : x <= bound;
}

void fxa__tape_apply_range(const fxa__tape_at *r, const fxa__tape_range *range, void *out) {
    const fxa__tape_state *s = r->state;
    int64_t offset = access_int(r, range->offset), bound = access_int(r, range->bound);
    const int32_t *k = s->k + r->first;
    int64_t x = offset + (int64_t)range->sign * k[0], dx = range->sign * s->step, end = x + (r->n - 1) * dx;
    if (!s->step || x != fxa__sat32(x) || end != fxa__sat32(end)) {
        for (int64_t i = 0; i < r->n; i++)
            if (!access_within(range, fxa__wrap32(offset + (int64_t)range->sign * k[i]), bound)) access_store(r, out, i, -INFINITY);
        return;
    }
    /* Towards the bound the first columns hold, away from it the last ones. */
    bool first = access_within(range, x, bound), last = access_within(range, end, bound);
    if (first && last) return;
    if (!first && !last) {
        access_mask(r, out, 0, r->n);
        return;
    }
    /* The last column on the first one's side, by the distance to the bound. */
    int64_t distance = dx > 0 ? bound - x : x - bound, step = s->step;
    bool at_bound = first ? !range->strict : range->strict; /* x == bound belongs to the first one's side */
    int64_t columns = at_bound ? distance / step + 1 : (distance + step - 1) / step;
    if (first) access_mask(r, out, columns, r->n);
    else access_mask(r, out, 0, columns);
}
