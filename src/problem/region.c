/* SPDX-License-Identifier: Apache-2.0
 *
 * Extent, nesting and addresses of one strided memory region; see problem_private.h. region_overlap.c compares two
 * regions. All arithmetic is checked in 64 bits, and the memory of a region is not read.
 */
#include "problem_private.h"

#include "../base/invariant.h"
#include "../base/num.h"

#include <stdio.h>

static uint64_t region_abs(int64_t x) { return x < 0 ? 0 - (uint64_t)x : (uint64_t)x; }

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

/* Largest extent of a region whose strides are all kept: 1 TiB. Offsets one step past the end of such a region, and the
 * address of these offsets, do not overflow. */
#define REGION_KEPT ((int64_t)1 << 40)

void fxa__region_drop_strides(fxa__region *r) {
    bool empty = fxa__region_is_empty(r);
    int64_t lo, hi;
    fxa__region wide = *r; /* has a second element along each axis */
    for (int32_t i = 0; i < r->rank; i++)
        if (wide.size[i] < 2) wide.size[i] = 2;
    if (fxa__region_extent(&wide, &lo, &hi) && hi - lo <= REGION_KEPT) return;
    for (int32_t i = 0; i < r->rank; i++)
        if (empty || r->size[i] == 1) r->stride[i] = 0;
}

bool fxa__region_is_nested(const fxa__region *r) {
    uint64_t inner = 0; /* extent, in elements, of the axes marked in `done` */
    bool done[FXA_MAX_RANK] = {false};
    if (fxa__region_is_empty(r)) return true;
    for (int32_t n = 0; n < r->rank; n++) {
        int32_t least = -1;
        for (int32_t i = 0; i < r->rank; i++)
            if (!done[i] && (least < 0 || region_abs(r->stride[i]) < region_abs(r->stride[least]))) least = i;
        FXA__ASSERT(least >= 0); /* `done` marks only n < rank axes, so an axis is left */
        done[least] = true;
        if (r->size[least] == 1) continue;
        if (region_abs(r->stride[least]) <= inner) return false;
        inner += region_abs(r->stride[least]) * (uint64_t)(r->size[least] - 1);
    }
    return true;
}

bool fxa__region_addresses(const fxa__region *r, int64_t *first, int64_t *end) {
    /* Highest address that is accepted: INT64_MAX / 4, so that sums and differences of three addresses fit in 64 bits;
     * UINTPTR_MAX with 32-bit addresses. */
    const int64_t limit = UINTPTR_MAX < INT64_MAX / 4 ? (int64_t)UINTPTR_MAX : INT64_MAX / 4;
    int64_t lo, hi;
    uintptr_t at = (uintptr_t)r->data;
    if (!fxa__region_extent(r, &lo, &hi) || at > (uintptr_t)limit) return false;
    return fxa__add_i64((int64_t)at, lo, first) && fxa__add_i64((int64_t)at, hi, end) && *first >= 0 && *end <= limit;
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
    FXA__ASSERT(n + 1 < FXA__REGION_TEXT); /* FXA__REGION_TEXT is enough for the longest text */
    snprintf(out + n, (size_t)(FXA__REGION_TEXT - n), "]");
}
