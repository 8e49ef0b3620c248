/* SPDX-License-Identifier: Apache-2.0
 *
 * Strided regions against brute force: every byte of small regions is marked one by one.
 */
#include "problem_case.h"

#include "problem/operand.h"

static unsigned char arena[4096];
static uint8_t marks[sizeof arena];

/* Adds `bit` to every byte of every element; false when two elements share a byte. */
static bool region_mark(const fxa__region *r, uint8_t bit) {
    int64_t at[FXA_MAX_RANK] = {0}, base = (const unsigned char *)r->data - arena;
    bool apart = true;
    if (fxa__region_is_empty(r)) return true;
    for (;;) {
        int64_t offset = base;
        for (int i = 0; i < r->rank; i++) offset += at[i] * r->stride[i] * r->element;
        for (int64_t i = 0; i < r->element; i++) {
            apart &= !(marks[offset + i] & bit);
            marks[offset + i] |= bit;
        }
        int axis = r->rank - 1;
        while (axis >= 0 && ++at[axis] == r->size[axis]) at[axis--] = 0;
        if (axis < 0) return apart;
    }
}

/* A region that lies in the arena, whatever its strides. */
static bool region_random(t_rng *rng, fxa__region *r) {
    static const int64_t elements[] = {1, 2, 4, 8};
    int64_t lo, hi;
    *r = (fxa__region){NULL, elements[t_int(rng, 0, 3)], (int32_t)t_int(rng, 0, 4), {0}, {0}};
    for (int i = 0; i < r->rank; i++) {
        r->size[i] = t_int(rng, 0, 19) ? t_int(rng, 1, 4) : 0;
        r->stride[i] = t_int(rng, -20, 20);
    }
    if (!fxa__region_extent(r, &lo, &hi) || hi - lo > (int64_t)sizeof arena) return false;
    int64_t first = t_int(rng, 0, fxa__region_is_empty(r) ? 8 : 300) * r->element;
    if (first + hi - lo > (int64_t)sizeof arena) return false;
    r->data = arena + first - lo;
    return true;
}

TEST(extent_and_nesting_match_brute_force) {
    t_rng rng = {t_seed()};
    int nested = 0, overlapping = 0;
    for (int n = t_scaled(20000); n > 0; n--) {
        fxa__region r;
        int64_t lo, hi;
        if (!region_random(&rng, &r)) continue;
        memset(marks, 0, sizeof marks);
        bool apart = region_mark(&r, 1);
        if (fxa__region_is_nested(&r)) {
            nested++;
            T_CHECK(apart);
        }
        overlapping += !apart;
        T_CHECK(fxa__region_extent(&r, &lo, &hi));
        int64_t base = (const unsigned char *)r.data - arena, first = -1, end = -1;
        for (int64_t i = 0; i < (int64_t)sizeof marks; i++)
            if (marks[i]) first = first < 0 ? i : first, end = i + 1;
        T_INT(lo, first < 0 ? 0 : first - base);
        T_INT(hi, end < 0 ? 0 : end - base);
    }
    T_CHECK(nested > t_scaled(100) && overlapping > t_scaled(100));
}

TEST(overlap_matches_brute_force) {
    t_rng rng = {t_seed() + 1};
    int yes = 0, no_but_close = 0;
    for (int n = t_scaled(40000); n > 0; n--) {
        fxa__region a, b;
        if (!region_random(&rng, &a) || !region_random(&rng, &b)) continue;
        if (t_int(&rng, 0, 1)) { /* slices of one buffer: equal strides, an offset inside */
            memcpy(b.stride, a.stride, sizeof b.stride);
            b.rank = a.rank;
            b.element = a.element;
            for (int i = 0; i < b.rank; i++) b.size[i] = b.size[i] < 1 ? 1 : b.size[i];
            b.data = (const unsigned char *)a.data + t_int(&rng, -24, 24) * b.element;
            int64_t first, end, lo = (int64_t)(uintptr_t)arena, hi = lo + (int64_t)sizeof arena;
            if (!fxa__region_addresses(&b, &first, &end) || first < lo || end > hi) continue;
        }
        memset(marks, 0, sizeof marks);
        region_mark(&a, 1);
        region_mark(&b, 2);
        bool want = false;
        for (size_t i = 0; i < sizeof marks; i++) want |= marks[i] == 3;
        int64_t a0, a1, b0, b1;
        T_CHECK(fxa__region_addresses(&a, &a0, &a1) && fxa__region_addresses(&b, &b0, &b1));
        yes += want;
        no_but_close += !want && a0 < b1 && b0 < a1;
        if (fxa__region_overlaps(&a, &b) != want || fxa__region_overlaps(&b, &a) != want) {
            char x[FXA__REGION_TEXT], y[FXA__REGION_TEXT];
            fxa__region_text(&a, x);
            fxa__region_text(&b, y);
            T_FAIL("%s of %d at %d and %s of %d at %d: overlap is %d\n", x, (int)a.element,
                   (int)((const unsigned char *)a.data - arena), y, (int)b.element,
                   (int)((const unsigned char *)b.data - arena), want);
            return;
        }
    }
    T_CHECK(yes > t_scaled(1000) && no_but_close > t_scaled(1000));
}

/* Sizes of real runs: answered by a few digits, without looking at elements. */
TEST(overlap_of_large_slices) {
    const int64_t heads = 32, d = 128, s = 1 << 20, row = 3 * heads * d;
    unsigned char *base = (unsigned char *)(uintptr_t)(1 << 20);
    fxa__region q = {base, 2, 4, {8, heads, s, d}, {s * row, d, row, 1}}, k = q, v = q;
    k.data = base + heads * d * 2;
    v.data = base + 2 * heads * d * 2;
    T_CHECK(!fxa__region_overlaps(&q, &k) && !fxa__region_overlaps(&k, &v) && !fxa__region_overlaps(&v, &q));
    v.data = base + 2 * heads * d * 2 - 1;
    T_CHECK(fxa__region_overlaps(&k, &v) && !fxa__region_overlaps(&q, &v));
}

TEST(addresses_stay_in_the_address_space) {
    int64_t first, end;
    fxa__region r = {arena, 4, 1, {2}, {INT64_C(1) << 60}};
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    r.stride[0] = -(INT64_C(1) << 60);
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    r.stride[0] = INT64_MIN;
    T_CHECK(!fxa__region_extent(&r, &first, &end));
    r.size[0] = 1; /* an axis of one element has no stride to speak of */
    T_CHECK(fxa__region_addresses(&r, &first, &end) && fxa__region_is_nested(&r));
    T_CHECK(!fxa__region_overlaps(&r, &(fxa__region){arena + 4, 4, 0, {0}, {0}}));
}

T_MAIN
