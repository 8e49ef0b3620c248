/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes explicit strides for every operand and capture of a checked problem. Fills in the defaults of every index
 * map and clears its unused members. Refuses tensors whose byte range does not fit in 64 bits, and maps whose
 * coordinates do not fit in 32 bits.
 */
#include "geometry.h"
#include "problem_private.h"

#include "../base/num.h"

#include <string.h>

static fxa_status resolve_operands(fxa_problem *p, fxa_error *err) {
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        fxa__role role = fxa__operand_role(p, info);
        int64_t size[4];
        uint32_t axes = fxa__operand_sizes(p, info->shape, size);
        if (role != FXA__UNUSED)
            FXA_TRY(
                fxa__operand_resolve(info->name, fxa__operand_field(p, info), size, axes, role == FXA__WRITTEN, err));
    }
    return FXA_OK;
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

/* Fills in dense row-major strides; sizes of 0 count as 1. Returns false if a stride overflows. */
static bool resolve_dense(const int64_t *size, int32_t rank, int64_t *stride) {
    int64_t step = 1;
    for (int32_t i = rank - 1; i >= 0; i--) {
        stride[i] = step;
        if (!fxa__mul_i64(step, fxa__max_i64(size[i], 1), &step)) return false;
    }
    return true;
}

/* Refuses nonzero strides of a tensor whose `strided` or `grad_strided` is 0, which would otherwise be ignored without
 * a message. */
static fxa_status resolve_refuse_strides(const char *owner, fxa_tensor_info t, const char *what, const fxa__region *r,
                                         fxa_error *err) {
    char text[FXA__REGION_TEXT];
    bool any = false, grad = what[0] != 0;
    for (int32_t i = 0; i < t.rank; i++) any = any || r->stride[i] != 0;
    if (!any) return FXA_OK;
    fxa__region_text(r, text);
    return fxa__fail(err, FXA_E_PROBLEM,
                     "%stensor %s of %s has strides and %s is 0, which means dense: %s; accepted are strides with %s "
                     "1, or none",
                     what, t.name, owner, grad ? "grad_strided" : "strided", text, grad ? "grad_strided" : "strided");
}

static fxa_status resolve_strides(const char *owner, fxa_tensor_info t, const char *what, const int64_t *size,
                                  int64_t *stride, bool given, fxa_dtype dtype, bool written, fxa_error *err) {
    char text[FXA__REGION_TEXT];
    int64_t lo, hi;
    fxa__region r = {NULL, (int64_t)fxa_dtype_size(dtype), t.rank, {0}, {0}};
    for (int32_t i = 0; i < t.rank; i++) r.size[i] = size[i], r.stride[i] = stride[i];
    if (!given) FXA_TRY(resolve_refuse_strides(owner, t, what, &r, err));
    bool fits = given || resolve_dense(size, t.rank, stride);
    for (int32_t i = 0; i < t.rank; i++) r.stride[i] = stride[i];
    for (int32_t i = t.rank; i < FXA_MAX_RANK; i++) stride[i] = 0;
    if (!fits || !fxa__region_extent(&r, &lo, &hi)) {
        fxa__region_text(&r, text);
        return fxa__fail(err, FXA_E_PROBLEM, "%stensor %s of %s is too large: %s do not fit in 64 bits", what, t.name,
                         owner, text);
    }
    if (written && !fxa__region_is_nested(&r)) {
        fxa__region_text(&r, text);
        return fxa__fail(err, FXA_E_PROBLEM,
                         "%stensor %s of %s overlaps itself: %s; an output needs a place for each element, shown by "
                         "strides that nest",
                         what, t.name, owner, text);
    }
    fxa__region_drop_strides(&r);
    for (int32_t i = 0; i < t.rank; i++) stride[i] = r.stride[i];
    return FXA_OK;
}

static fxa_status resolve_capture(const char *owner, fxa_tensor_info t, fxa_capture *c, bool grads, fxa_error *err) {
    for (int32_t i = 0; i < FXA_MAX_RANK; i++) {
        if (i >= t.rank) c->size[i] = 0;
        if (c->size[i] < 0)
            return fxa__fail(err, FXA_E_PROBLEM, "size %d of tensor %s of %s is %lld: accepted are 0 and more", i,
                             t.name, owner, (long long)c->size[i]);
    }
    bool given = c->grad_strided != 0;
    FXA_TRY(resolve_strides(owner, t, "", c->size, c->stride, c->strided != 0, t.dtype, false, err));
    c->strided = c->grad_strided = 1;
    if (!c->grad) {
        memset(c->grad_stride, 0, sizeof c->grad_stride);
        c->grad_dtype = 0;
        return FXA_OK;
    }
    if (!grads)
        return fxa__fail(err, FXA_E_PROBLEM, "grad of tensor %s of %s is set: only tensors of program have gradients",
                         t.name, owner);
    c->grad = 1;
    if (!c->grad_dtype) c->grad_dtype = t.dtype;
    return resolve_strides(owner, t, "the gradient of ", c->size, c->grad_stride, given, (fxa_dtype)c->grad_dtype, true,
                           err);
}

/* ---- Index maps -------------------------------------------------------------------------------------------------- */

/* Returns true if base + step * i is a 32-bit coordinate for all i in 0..count-1. */
static bool resolve_is_coordinate(int64_t base, int64_t step, int64_t count) {
    int64_t last;
    if (count <= 0) return true;
    if (!fxa__mul_i64(step, count - 1, &last) || !fxa__add_i64(last, base, &last)) return false;
    return base >= INT32_MIN && base <= INT32_MAX && last >= INT32_MIN && last <= INT32_MAX;
}

static fxa_status resolve_segments(const char *name, fxa_index_map *map, int64_t n, fxa_error *err) {
    if (map->n_segments < 1 || map->n_segments > FXA_MAX_SEGMENTS)
        return fxa__fail(err, FXA_E_PROBLEM, "%s.n_segments is %u: accepted are 1 to %d", name, map->n_segments,
                         FXA_MAX_SEGMENTS);
    for (uint32_t i = 0; i < map->n_segments; i++) {
        fxa_segment *s = &map->segment[i];
        if (i == 0 ? s->begin != 0 : s->begin <= s[-1].begin)
            return fxa__fail(err, FXA_E_PROBLEM, "%s.segment[%u].begin is %lld: the first is 0, the others ascend",
                             name, i, (long long)s->begin);
        if (s->step == 0) s->step = 1;
        int64_t end = i + 1 < map->n_segments ? fxa__min_i64(n, s[1].begin) : n;
        if (end > s->begin && !resolve_is_coordinate(s->base, s->step, end - s->begin))
            return fxa__fail(err, FXA_E_PROBLEM,
                             "%s.segment[%u] maps %lld indices to %lld + %lld * i: coordinates are 32 bit", name, i,
                             (long long)(end - s->begin), (long long)s->base, (long long)s->step);
    }
    memset(map->segment + map->n_segments, 0, (FXA_MAX_SEGMENTS - map->n_segments) * sizeof *map->segment);
    return FXA_OK;
}

static fxa_status resolve_map(const char *name, fxa_index_map *map, int64_t n, fxa_error *err) {
    if (map->kind > FXA_MAP_TABLE)
        return fxa__fail(err, FXA_E_PROBLEM, "%s.kind is %u: accepted are 0 to 2 (AFFINE, SEGMENTS, TABLE)", name,
                         map->kind);
    if (map->reserved) return fxa__fail(err, FXA_E_PROBLEM, "%s.reserved is %u: accepted is 0", name, map->reserved);
    map->has_offset = map->has_offset != 0;
    if (map->kind != FXA_MAP_AFFINE) map->base = 0, map->step = 1;
    if (map->kind == FXA_MAP_SEGMENTS) return resolve_segments(name, map, n, err);
    map->n_segments = 0;
    memset(map->segment, 0, sizeof map->segment);
    if (map->step == 0) map->step = 1;
    if (!resolve_is_coordinate(map->base, map->step, n))
        return fxa__fail(err, FXA_E_PROBLEM, "%s maps %lld indices to %lld + %lld * i: coordinates are 32 bit", name,
                         (long long)n, (long long)map->base, (long long)map->step);
    return FXA_OK;
}

/* Sets the range of the coordinates that a map assigns to indices 0..n-1. The range of a table is not known; it is set
 * to an empty range (*lo > *hi). */
static void resolve_map_range(const fxa_index_map *map, int64_t n, int64_t *lo, int64_t *hi) {
    *lo = INT64_MAX, *hi = INT64_MIN;
    if (map->kind == FXA_MAP_TABLE || n <= 0) return;
    for (uint32_t i = 0; i < (map->n_segments ? map->n_segments : 1); i++) {
        fxa_segment s = map->n_segments ? map->segment[i] : (fxa_segment){0, map->base, map->step};
        int64_t end = i + 1 < map->n_segments ? fxa__min_i64(n, map->segment[i + 1].begin) : n;
        if (end <= s.begin) continue;
        int64_t last = s.base + s.step * (end - s.begin - 1);
        *lo = fxa__min_i64(*lo, fxa__min_i64(s.base, last));
        *hi = fxa__max_i64(*hi, fxa__max_i64(s.base, last));
    }
}

/* Returns true if a window bounds q - k on at least one side. */
static bool resolve_is_bounded(const fxa_problem *p) {
    return (p->flags & FXA_WINDOW) && ((p->window_left >= 0 && p->window_left < INT32_MAX) ||
                                       (p->window_right >= 0 && p->window_right < INT32_MAX));
}

/* Checks that these values fit in 32 bits, because the mask would be wrong if they wrapped in the program:
 * - the coordinate q of each row, after the shift of BOTTOM_RIGHT
 * - q - k of each row and key, if a window bounds q - k
 * With identity maps and without global lengths, they always fit. Coordinates that depend on start positions, tables or
 * offsets are known only at run time: they are not checked and may wrap. */
static fxa_status resolve_alignment(const fxa_problem *p, fxa_error *err) {
    int64_t lo, hi, key_lo, key_hi, shift_lo, shift_hi;
    bool own =
        fxa__map_is_identity(&p->map_q) && fxa__map_is_identity(&p->map_k) && !p->global_q_len && !p->global_k_len;
    if (own || (p->flags & FXA_Q_START)) return FXA_OK;
    resolve_map_range(&p->map_q, p->sq, &lo, &hi);
    resolve_map_range(&p->map_k, p->sk, &key_lo, &key_hi);
    fxa__align_range(p, &shift_lo, &shift_hi);
    if (lo > hi) return FXA_OK;
    if (lo + shift_lo < INT32_MIN || hi + shift_hi > INT32_MAX)
        return fxa__fail(err, FXA_E_PROBLEM,
                         "FXA_BOTTOM_RIGHT moves rows %lld..%lld by k_len - q_len, %lld to %lld: "
                         "coordinates are 32 bit",
                         (long long)lo, (long long)hi, (long long)shift_lo, (long long)shift_hi);
    lo += shift_lo, hi += shift_hi;
    if (!resolve_is_bounded(p) || key_lo > key_hi || (lo - key_hi >= -INT32_MAX && hi - key_lo <= INT32_MAX))
        return FXA_OK;
    return fxa__fail(err, FXA_E_PROBLEM,
                     "FXA_WINDOW bounds q - k of rows %lld..%lld and keys %lld..%lld: their distances are 32 bit",
                     (long long)lo, (long long)hi, (long long)key_lo, (long long)key_hi);
}

fxa_status fxa__problem_resolve(fxa_problem *p, fxa_capture *captures, fxa_capture *bprop_captures, fxa_error *err) {
    FXA_TRY(resolve_operands(p, err));
    for (size_t i = 0; i < p->n_captures; i++)
        FXA_TRY(resolve_capture("program", fxa_program_tensor(p->program, i), &captures[i], true, err));
    for (size_t i = 0; i < p->n_bprop_captures; i++)
        FXA_TRY(resolve_capture("bprop", fxa_program_tensor(p->bprop, i), &bprop_captures[i], false, err));
    FXA_TRY(resolve_map("map_b", &p->map_b, p->b, err));
    FXA_TRY(resolve_map("map_h", &p->map_h, p->hq, err));
    FXA_TRY(resolve_map("map_q", &p->map_q, p->sq, err));
    FXA_TRY(resolve_map("map_k", &p->map_k, p->sk, err));
    return resolve_alignment(p, err);
}
