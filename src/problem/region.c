/* SPDX-License-Identifier: Apache-2.0
 *
 * Strided regions of memory; see operand.h. Everything is checked 64-bit arithmetic; nothing is dereferenced.
 */
#include "operand.h"

#include "../base/num.h"

#include <stdio.h>

static uint64_t region_abs(int64_t x) {
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

bool fxa__region_is_empty(const fxa__region *r) {
    for (int32_t i = 0; i < r->rank; i++)
        if (r->size[i] == 0) return true;
    return false;
}

bool fxa__region_extent(const fxa__region *r, int64_t *lo, int64_t *hi) {
    int64_t first = 0, last = 0, count = r->element, reach;
    *lo = *hi = 0;
    if (fxa__region_is_empty(r)) return true;
    for (int32_t i = 0; i < r->rank; i++) {
        if (!fxa__mul_i64(count, r->size[i], &count)) return false;
        if (!fxa__mul_i64(r->size[i] - 1, r->stride[i], &reach)) return false;
        if (!fxa__add_i64(reach < 0 ? first : last, reach, reach < 0 ? &first : &last)) return false;
    }
    int64_t end;
    if (!fxa__add_i64(last, 1, &end) || !fxa__mul_i64(first, r->element, lo) || !fxa__mul_i64(end, r->element, hi))
        return false;
    int64_t total;
    return !__builtin_sub_overflow(*hi, *lo, &total);
}

bool fxa__region_is_nested(const fxa__region *r) {
    uint64_t inner = 0; /* what the axes passed so far reach, in elements */
    bool done[FXA_MAX_RANK] = {false};
    if (fxa__region_is_empty(r)) return true;
    for (int32_t n = 0; n < r->rank; n++) {
        int32_t least = -1;
        for (int32_t i = 0; i < r->rank; i++)
            if (!done[i] && (least < 0 || region_abs(r->stride[i]) < region_abs(r->stride[least]))) least = i;
        done[least] = true;
        if (r->size[least] == 1) continue;
        if (region_abs(r->stride[least]) <= inner) return false;
        inner += region_abs(r->stride[least]) * (uint64_t)(r->size[least] - 1);
    }
    return true;
}

bool fxa__region_addresses(const fxa__region *r, int64_t *first, int64_t *end) {
    const int64_t limit = INT64_MAX / 2; /* sums and differences of two addresses stay in 64 bits */
    int64_t lo, hi;
    uintptr_t at = (uintptr_t)r->data;
    if (!fxa__region_extent(r, &lo, &hi) || at > (uintptr_t)limit) return false;
    return fxa__add_i64((int64_t)at, lo, first) && fxa__add_i64((int64_t)at, hi, end) && *first >= 0 && *end <= limit;
}

/* ---- Do two regions overlap? ----------------------------------------------------------------------------------------
 * They do when first_a + sum i*s = first_b + sum j*t for some indices: when sum c*s = first_b - first_a has a solution
 * with each c in its range, where axes of one stride (in bytes, made positive) are joined: c = i - j. Digits c are
 * tried from the longest stride down, only those from which the rest is still in reach: one or two per axis when
 * strides nest. */

#define OVERLAP_AXES  (2 * FXA_MAX_RANK + 1)
#define OVERLAP_STEPS 4096

typedef struct overlap_axis {
    int64_t stride, lo, hi; /* digits lo..hi */
} overlap_axis;

typedef struct overlap_search {
    int n, steps;
    overlap_axis axis[OVERLAP_AXES];                    /* longest stride first */
    int64_t lo[OVERLAP_AXES + 1], hi[OVERLAP_AXES + 1]; /* what axes from i on can reach */
} overlap_search;

/* Adds digits 0..count-1 of a (sign 1) or of b (sign -1) to the axis of that stride, keeping the order. */
static void overlap_add(overlap_search *s, int64_t step, int64_t element, int64_t count, int sign) {
    int at = 0;
    if (step == 0 || count <= 1) return;
    int64_t stride = (step < 0 ? -step : step) * element;
    while (at < s->n && s->axis[at].stride > stride) at++;
    if (at == s->n || s->axis[at].stride != stride) {
        for (int i = s->n++; i > at; i--) s->axis[i] = s->axis[i - 1];
        s->axis[at] = (overlap_axis){stride, 0, 0};
    }
    if (sign > 0)
        s->axis[at].hi += count - 1;
    else
        s->axis[at].lo -= count - 1;
}

static int64_t overlap_floordiv(int64_t a, int64_t positive) {
    return a / positive - (a % positive < 0);
}

static bool overlap_find(overlap_search *s, int at, int64_t rest) {
    if (at == s->n) return rest == 0;
    const overlap_axis *x = &s->axis[at];
    int64_t from = fxa__max_i64(x->lo, -overlap_floordiv(s->hi[at + 1] - rest, x->stride));
    int64_t to = fxa__min_i64(x->hi, overlap_floordiv(rest - s->lo[at + 1], x->stride));
    for (int64_t c = from; c <= to && s->steps > 0; c++) {
        s->steps--;
        if (overlap_find(s, at + 1, rest - c * x->stride)) return true; /* as deep as there are axes: 11 */
    }
    return false;
}

bool fxa__region_overlaps(const fxa__region *a, const fxa__region *b) {
    int64_t a_first, a_end, b_first, b_end;
    if (!fxa__region_addresses(a, &a_first, &a_end) || !fxa__region_addresses(b, &b_first, &b_end)) return false;
    if (a_first >= b_end || b_first >= a_end || a_first == a_end || b_first == b_end) return false;
    overlap_search s = {0, OVERLAP_STEPS, {{0, 0, 0}}, {0}, {0}};
    for (int32_t i = 0; i < a->rank; i++) overlap_add(&s, a->stride[i], a->element, a->size[i], 1);
    for (int32_t i = 0; i < b->rank; i++) overlap_add(&s, b->stride[i], b->element, b->size[i], -1);
    overlap_add(&s, 1, 1, a->element, 1);
    overlap_add(&s, 1, 1, b->element, -1);
    for (int i = s.n - 1; i >= 0; i--) {
        s.lo[i] = s.lo[i + 1] + s.axis[i].lo * s.axis[i].stride;
        s.hi[i] = s.hi[i + 1] + s.axis[i].hi * s.axis[i].stride;
    }
    return overlap_find(&s, 0, b_first - a_first);
}

void fxa__region_text(const fxa__region *r, char out[FXA__REGION_TEXT]) {
    const char *head[2] = {"sizes [", "], strides ["};
    const int64_t *list[2] = {r->size, r->stride};
    int n = 0;
    for (int part = 0; part < 2; part++) {
        n += snprintf(out + n, (size_t)(FXA__REGION_TEXT - n), "%s", head[part]);
        for (int32_t i = 0; i < r->rank; i++)
            n += snprintf(out + n, (size_t)(FXA__REGION_TEXT - n), "%s%lld", i ? "," : "", (long long)list[part][i]);
    }
    snprintf(out + n, (size_t)(FXA__REGION_TEXT - n), "]");
}
