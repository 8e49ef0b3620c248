/* SPDX-License-Identifier: Apache-2.0
 *
 * Strided regions compared with brute force, which marks every byte of small regions.
 */
#include "problem_case.h"

#include "problem/problem_private.h"

static unsigned char arena[4096];
static uint8_t marks[sizeof arena];

/* Adds `bit` to every byte of every element; returns false if two elements share a byte. */
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

static bool region_meets(const fxa__region *a, const fxa__region *b) {
    fxa__overlap overlap = fxa__region_overlap(a, b);
    T_CHECK(overlap != FXA__OVERLAP_UNKNOWN && overlap == fxa__region_overlap(b, a));
    return overlap != FXA__DISJOINT;
}

/* Returns false unless a region with random strides fits into the arena. */
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
        if (t_int(&rng, 0, 1)) { /* slices of one buffer: equal strides, different offsets */
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
        int64_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
        T_CHECK(fxa__region_addresses(&a, &a0, &a1) && fxa__region_addresses(&b, &b0, &b1));
        yes += want;
        no_but_close += !want && a0 < b1 && b0 < a1;
        if (region_meets(&a, &b) != want) {
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

/* ---- Many elements, strides that do not nest --------------------------------------------------------------------- */

enum { FIELD = 1 << 21 };
static uint8_t field[FIELD];

/* Sets `bit` in every byte of r; returns true if a byte already had `other`. */
static bool field_mark(const fxa__region *r, const unsigned char *base, uint8_t bit, uint8_t other) {
    int64_t at[FXA_MAX_RANK] = {0}, offset = (const unsigned char *)r->data - base;
    for (bool met = false;;) {
        for (int64_t i = 0; i < r->element; i++) {
            met |= (field[offset + i] & other) != 0;
            field[offset + i] |= bit;
        }
        int axis = r->rank - 1;
        while (axis >= 0 && ++at[axis] == r->size[axis]) {
            offset -= (r->size[axis] - 1) * r->stride[axis] * r->element;
            at[axis--] = 0;
        }
        if (axis < 0) return met;
        offset += r->stride[axis] * r->element;
    }
}

/* Makes up to 5 axes of any strides; returns false if they do not fit into the field. */
static bool region_tangle(t_rng *rng, const unsigned char *base, fxa__region *r) {
    int64_t lo, hi, reach = (int64_t)20 << t_int(rng, 0, 8);
    *r = (fxa__region){NULL, (int64_t)1 << t_int(rng, 0, 3), (int32_t)t_int(rng, 3, FXA_MAX_RANK), {0}, {0}};
    for (int i = 0; i < r->rank; i++) {
        r->size[i] = t_int(rng, 1, t_int(rng, 2, 12));
        r->stride[i] = t_int(rng, -reach, reach);
    }
    if (!fxa__region_extent(r, &lo, &hi) || hi - lo > FIELD / 2) return false;
    r->data = base + t_int(rng, 0, 1 << t_int(rng, 0, 16)) * r->element - lo; /* offset of at most FIELD / 2 */
    return true;
}

/* Overlapping pairs are never called disjoint, pairs called overlapping do overlap, and few results are unknown. */
TEST(overlap_of_tangled_strides_matches_brute_force) {
    const unsigned char *base = (const unsigned char *)(uintptr_t)(1 << 24);
    t_rng rng = {t_seed() + 2};
    int overlapping = 0, apart = 0, refused = 0;
    for (int n = t_scaled(1500); n > 0; n--) {
        fxa__region a, b;
        if (!region_tangle(&rng, base, &a) || !region_tangle(&rng, base, &b)) continue;
        memset(field, 0, sizeof field);
        field_mark(&a, base, 1, 0);
        bool want = field_mark(&b, base, 2, 1);
        fxa__overlap got = fxa__region_overlap(&a, &b);
        overlapping += want;
        apart += !want;
        refused += !want && got == FXA__OVERLAP_UNKNOWN;
        if (got == (want ? FXA__DISJOINT : FXA__OVERLAPPING)) {
            char x[FXA__REGION_TEXT], y[FXA__REGION_TEXT];
            fxa__region_text(&a, x);
            fxa__region_text(&b, y);
            T_FAIL("%s of %d and %s of %d, %td bytes on: said %d, overlap is %d\n", x, (int)a.element, y,
                   (int)b.element, (const unsigned char *)b.data - (const unsigned char *)a.data, got, want);
            return;
        }
    }
    if (getenv("FXA_TEST_SCALE"))
        printf("  %d pairs overlap, %d lie apart, %d of these too tangled to tell\n", overlapping, apart, refused);
    T_CHECK(overlapping > t_scaled(300) && apart > t_scaled(300) && refused * 100 <= apart);
}

/* Long axes of any strides. The same regions for every seed; a change that gives up more of them fails. */
TEST(few_long_tangles_are_given_up) { /* */
    if (sizeof(void *) < 8) T_SKIP("these tensors need addresses of 64 bits");
    const unsigned char *base = (const unsigned char *)(uintptr_t)(1 << 24);
    t_rng rng = {1};
    int found[3] = {0, 0, 0};
    for (int n = 0; n < 4000; n++) {
        fxa__region r[2];
        for (int i = 0; i < 2; i++) {
            r[i] = (fxa__region){
                base + t_int(&rng, 0, INT64_C(1) << t_int(&rng, 8, 36)), 1 << t_int(&rng, 0, 3), 5, {0}, {0}};
            for (int axis = 0; axis < 5; axis++) {
                r[i].size[axis] = t_int(&rng, 2, 2 << t_int(&rng, 1, 7));
                r[i].stride[axis] = t_int(&rng, 1, INT64_C(1) << t_int(&rng, 4, 33));
            }
        }
        found[fxa__region_overlap(&r[0], &r[1])]++;
    }
    printf("  %d overlap, %d are disjoint, %d are unknown\n", found[FXA__OVERLAPPING], found[FXA__DISJOINT],
           found[FXA__OVERLAP_UNKNOWN]);
    T_CHECK(found[FXA__OVERLAP_UNKNOWN] <= 49);
}

/* Overlapping pairs that a search without remainders would not find in thousands of steps. */
TEST(overlap_of_known_tangles) {
    const unsigned char *base = (const unsigned char *)(uintptr_t)(1 << 24);
    const struct tangle {
        fxa__region a, b;
        int64_t apart;
    } pairs[] = {
        {{base, 2, 5, {8, 6, 3, 12, 5}, {-14, 20, -16, 30, -14}}, {base, 2, 4, {11, 4, 1, 7}, {40, 99, -13, -80}}, -28},
        {{base, 1, 4, {2, 8, 8, 8}, {4476, 1606, -1419, -803}},
         {base, 1, 4, {5, 5, 6, 2}, {5033, -3589, -3609, -2009}},
         18857},
        {{base, 8, 5, {6, 7, 8, 7, 4}, {2859, -2563, 3675, -3127, -831}},
         {base, 8, 3, {5, 8, 5}, {830, 860, 4722}},
         -206808},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        fxa__region b = pairs[i].b;
        b.data = base + pairs[i].apart;
        T_CHECK(region_meets(&pairs[i].a, &b));
    }
    fxa__region a = {base, 4, 4, {121, 103, 169, 74}, {3462461184, 4202016, 4144, 8}}, b = a;
    const int64_t stride[] = {9980791099, 10782056248, 12553594139, 4934013447};
    memcpy(b.stride, stride, sizeof stride);
    b.data = base + 750681725716;
    T_INT(fxa__region_overlap(&a, &b), FXA__OVERLAP_UNKNOWN);
}

/* Axes with multiples of another stride are joined; otherwise each of these takes more than 16384 steps. */
TEST(axes_that_join_take_no_steps) {
    const unsigned char *base = (const unsigned char *)(uintptr_t)(1 << 24);
    const struct joined {
        fxa__region a, b;
        int64_t a_at, b_at;
        fxa__overlap want;
    } rows[] = {
        {{base, 1, 1, {1337}, {64}}, {base, 8, 3, {1973, 4, 420}, {32, 1, 512}}, 785992, 532456, FXA__DISJOINT},
        {{base, 4, 1, {1063}, {512}}, {base, 2, 3, {777, 389, 6}, {4096, 288, 6}}, 35624, 357064, FXA__DISJOINT},
        {{base, 4, 3, {502, 6, 1817}, {30, 10000, 6}}, {base, 4, 1, {530}, {96}}, 514680, 407248, FXA__OVERLAPPING},
        {{base, 2, 1, {1555}, {30}}, {base, 1, 3, {8, 907, 43}, {1000, 120, 4096}}, 425960, 265632, FXA__OVERLAPPING},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fxa__region a = rows[i].a, b = rows[i].b;
        a.data = base + rows[i].a_at, b.data = base + rows[i].b_at;
        T_INT(fxa__region_overlap(&a, &b), rows[i].want);
        T_INT(fxa__region_overlap(&b, &a), rows[i].want);
    }
}

/* ---- Layouts as programs have them ------------------------------------------------------------------------------- */

/* A buffer of nested axes, innermost the elements. Two tensors are boxes in it that are disjoint along one axis (packed
 * QKV, records with several tensors, a column of a matrix). Each has its axes in random order, some reversed, some cut
 * or strided. */
typedef struct nest {
    int rank;
    int64_t size[FXA_MAX_RANK], pitch[FXA_MAX_RANK]; /* elements, outermost first */
    int64_t element;
} nest;

static nest nest_random(t_rng *rng) {
    nest x = {.rank = (int)t_int(rng, 1, FXA_MAX_RANK), .element = (int64_t)1 << t_int(rng, 0, 3)};
    int64_t pitch = 1;
    for (int i = x.rank - 1; i >= 0; i--) {
        x.size[i] = t_int(rng, 2, t_int(rng, 0, 1) ? 8 : 300);
        x.pitch[i] = pitch;
        pitch *= x.size[i] + (t_int(rng, 0, 2) ? 0 : t_int(rng, 0, 17)); /* optional padding */
    }
    return x;
}

/* Returns indices lo..hi of axis `cut`, and any of the other axes, as a region. */
static fxa__region nest_box(t_rng *rng, const nest *x, const unsigned char *base, int cut, int64_t lo, int64_t hi) {
    fxa__region r = {NULL, x->element, x->rank, {0}, {0}};
    int64_t at = 0;
    for (int i = 0; i < x->rank; i++) {
        int to = (int)t_int(rng, 0, i); /* random insertion: any order */
        int64_t first = i == cut ? lo : t_int(rng, 0, 1) ? 0 : t_int(rng, 0, x->size[i] - 1);
        int64_t last = i == cut ? hi : first == 0 ? x->size[i] - 1 : t_int(rng, first, x->size[i] - 1);
        int64_t step = t_int(rng, 0, 3) ? 1 : t_int(rng, 1, 3), count = (last - first) / step + 1;
        bool back = t_int(rng, 0, 7) == 0;
        for (int j = i; j > to; j--) r.size[j] = r.size[j - 1], r.stride[j] = r.stride[j - 1];
        at += (back ? first + (count - 1) * step : first) * x->pitch[i];
        r.size[to] = count;
        r.stride[to] = (back ? -step : step) * x->pitch[i];
    }
    r.data = base + at * x->element;
    return r;
}

TEST(nested_layouts_that_lie_apart_are_not_refused) {
    if (sizeof(void *) < 8) T_SKIP("these tensors need addresses of 64 bits");
    const unsigned char *base = (const unsigned char *)(uintptr_t)(1 << 24);
    t_rng rng = {t_seed() + 3};
    int close = 0, refused = 0;
    for (int n = t_scaled(20000); n > 0; n--) {
        nest x = nest_random(&rng);
        int cut = (int)t_int(&rng, 0, x.rank - 1);
        int64_t middle = t_int(&rng, 1, x.size[cut] - 1);
        fxa__region a = nest_box(&rng, &x, base, cut, 0, middle - 1);
        fxa__region b = nest_box(&rng, &x, base, cut, middle, x.size[cut] - 1);
        int64_t a0 = 0, a1 = 0, b0 = 0, b1 = 0;
        T_CHECK(fxa__region_addresses(&a, &a0, &a1) && fxa__region_addresses(&b, &b0, &b1));
        close += a0 < b1 && b0 < a1;
        if (fxa__region_overlap(&a, &b) == FXA__DISJOINT && fxa__region_overlap(&b, &a) == FXA__DISJOINT) continue;
        char p[FXA__REGION_TEXT], q[FXA__REGION_TEXT];
        fxa__region_text(&a, p);
        fxa__region_text(&b, q);
        if (refused++ < 5) T_FAIL("%s and %s of one buffer are refused\n", p, q);
    }
    T_CHECK(close > t_scaled(5000));
}

/* Slices of realistic sizes take a few steps, independent of the number of elements. */
/* An axis of one element has no second address, so its stride is not multiplied. */
TEST(strides_of_axes_of_one_element_are_free) {
    static const int64_t strides[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX / 2 + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        for (int axis = 0; axis < 2; axis++) {
            fxa__region a = {arena, 8, 2, {3, 3}, {1, 1}}, b = {arena + 24, 8, 1, {3}, {1}};
            a.size[axis] = 1;
            a.stride[axis] = strides[i];
            T_CHECK(!region_meets(&a, &b));
            b.data = arena + 16;
            T_CHECK(region_meets(&a, &b));
        }
}

TEST(strides_that_no_address_depends_on_are_dropped) {
    static const int64_t far = INT64_C(1) << 41;
    static const struct {
        int64_t size[3], stride[3], kept[3];
    } cases[] = {
        {{3, 1, 2}, {2, 7, 1}, {2, 7, 1}},         {{3, 1, 2}, {2, INT64_MAX, 1}, {2, 0, 1}},
        {{3, 1, 1}, {1, INT64_MIN, 5}, {1, 0, 0}}, {{3, 1, 2}, {-far, 7, 1}, {-far, 0, 1}},
        {{3, 0, 2}, {12, 4, 1}, {12, 4, 1}},       {{3, 0, 2}, {INT64_MAX, 4, 1}, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa__region r = {NULL, 8, 3, {0}, {0}};
        memcpy(r.size, cases[i].size, sizeof cases[i].size);
        memcpy(r.stride, cases[i].stride, sizeof cases[i].stride);
        fxa__region_drop_strides(&r);
        for (int axis = 0; axis < 3; axis++) T_INT(r.stride[axis], cases[i].kept[axis]);
    }
}

TEST(overlap_of_large_slices) {
    if (sizeof(void *) < 8) T_SKIP("these tensors need addresses of 64 bits");
    const int64_t heads = 32, d = 128, s = 1 << 20, row = 3 * heads * d;
    unsigned char *base = (unsigned char *)(uintptr_t)(1 << 20);
    fxa__region q = {base, 2, 4, {8, heads, s, d}, {s * row, d, row, 1}}, k = q, v = q;
    k.data = base + heads * d * 2;
    v.data = base + 2 * heads * d * 2;
    T_CHECK(!region_meets(&q, &k) && !region_meets(&k, &v) && !region_meets(&v, &q));
    v.data = base + 2 * heads * d * 2 - 1;
    T_CHECK(region_meets(&k, &v) && !region_meets(&q, &v));
}

TEST(addresses_stay_in_the_address_space) {
    int64_t first, end;
    fxa__region r = {arena, 4, 1, {2}, {INT64_C(1) << 60}};
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    r.stride[0] = -(INT64_C(1) << 60);
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    r = (fxa__region){(void *)(UINTPTR_MAX - 63), 4, 1, {17}, {1}}; /* 64 bytes remain up to the end */
    T_CHECK(!fxa__region_addresses(&r, &first, &end));
    r = (fxa__region){arena, 4, 1, {2}, {INT64_MIN}};
    T_CHECK(!fxa__region_extent(&r, &first, &end));
    r.size[0] = 1; /* the stride of an axis of size 1 is irrelevant */
    T_CHECK(fxa__region_addresses(&r, &first, &end) && fxa__region_is_nested(&r));
    T_CHECK(!region_meets(&r, &(fxa__region){arena + 4, 4, 0, {0}, {0}}));
}

T_MAIN
