/* SPDX-License-Identifier: Apache-2.0
 *
 * Overlap test of two strided regions a and b. They share a byte if first_a + sum(i*s) + x == first_b + sum(j*t) + y
 * for some indices i, j and byte offsets x, y within an element; s and t are the strides of a and b. The test therefore
 * searches integer factors c, each in a given range, with
 *
 *       sum(c*s) == first_b - first_a
 *
 * Axes with equal stride (in bytes, made positive) are joined into one axis with the factor c = i - j. The byte
 * difference x - y is one more axis, whose stride is the greatest common divisor of all strides, so every sum is a
 * multiple of this divisor.
 *
 * The solver is a bounded depth-first search over the axes by decreasing stride:
 *
 *   1. Try only factors c that leave a remainder within the range of sums of the remaining axes.
 *   2. If the remaining axes can sum to every multiple of the last stride in that range, the regions overlap. This is
 *      so for axes that together cover their memory without gaps.
 *   3. Store remainders that failed, because different factors of long strides often leave equal remainders.
 *
 * The search takes a few steps, for any sizes, if the regions are slices of one buffer, or if each stride exceeds the
 * extent of all axes with shorter strides. Other strides could take one step per element; after OVERLAP_STEPS steps
 * the result is FXA__OVERLAP_UNKNOWN.
 */
#include "problem_private.h"

#include "../base/invariant.h"
#include "../base/num.h"

#define OVERLAP_AXES (2 * FXA_MAX_RANK + 1)
#define OVERLAP_STEPS 16384
#define OVERLAP_MEMO 64 /* a power of two */

/* An axis of the search contributes one term stride * c, for an integer c in lo..hi. The search looks for factors c
 * with which the sum of the terms of all axes equals the distance of the regions in bytes. */
typedef struct overlap_axis {
    int64_t stride, lo, hi;
} overlap_axis;

/* The possible sums of terms stride * c, one term of each axis from i to n - 1 of the search (overlap_search.reach[i]).
 * All sums are multiples of the stride of axis n - 1. reach[n] is for no axis: the only sum is 0. */
typedef struct overlap_reach {
    int64_t lo, hi; /* smallest and largest sum of the terms */
    bool all;       /* true = the terms can sum to every multiple of the last axis's stride in lo..hi */
} overlap_reach;

/* A stored failure of the search: no terms stride * c of the axes `from` - 1 to n - 1 have the sum `rest`. */
typedef struct overlap_memo {
    int64_t rest;
    int from; /* first axis of the failure, plus 1; 0 = no failure is stored */
} overlap_memo;

typedef struct overlap_search {
    int n, steps;
    overlap_axis axis[OVERLAP_AXES]; /* [n] axes by decreasing stride */
    overlap_reach reach[OVERLAP_AXES + 1];
    overlap_memo memo[OVERLAP_MEMO];
} overlap_search;

/* ---- Arithmetic -------------------------------------------------------------------------------------------------- */

static int64_t overlap_gcd(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t overlap_floordiv(int64_t a, int64_t positive) { return a / positive - (a % positive < 0); }

static int64_t overlap_mod(int64_t a, int64_t positive) {
    int64_t rest = a % positive;
    return rest < 0 ? rest + positive : rest;
}

/* ---- Axes -------------------------------------------------------------------------------------------------------- */

/* Adds lo..hi to the range of the factor c in the term stride * c of the axis with this stride. If there is no such
 * axis, inserts one in the order of the strides. */
static void overlap_add(overlap_search *s, int64_t stride, int64_t lo, int64_t hi) {
    int at = 0;
    while (at < s->n && s->axis[at].stride > stride) at++;
    if (at == s->n || s->axis[at].stride != stride) {
        FXA__ASSERT(s->n < OVERLAP_AXES && stride > 0);
        for (int i = s->n++; i > at; i--) s->axis[i] = s->axis[i - 1];
        s->axis[at] = (overlap_axis){stride, 0, 0};
    }
    s->axis[at].lo += lo;
    s->axis[at].hi += hi;
}

/* Adds the axes of region a or b to the search. The factor c in the term stride * c of an axis is the index along the
 * axis for region a, the negated index for region b. If the stride of an axis is negative, its absolute value is the
 * stride, and the index counts from the end of the axis. */
static void overlap_add_region(overlap_search *s, const fxa__region *r, bool is_b) {
    for (int32_t i = 0; i < r->rank; i++) {
        int64_t most = r->size[i] - 1;
        if (most == 0 || r->stride[i] == 0) continue; /* the stride of an axis of one element may be any number */
        int64_t stride = (r->stride[i] < 0 ? -r->stride[i] : r->stride[i]) * r->element;
        overlap_add(s, stride, is_b ? -most : 0, is_b ? 0 : most);
    }
}

/* Adds the last axis, for the difference of two byte offsets: one within an element of a bytes, one within an element
 * of b bytes. All strides are multiples of `divisor`, so a difference is possible only if it equals *rest modulo
 * `divisor`. Rounds *rest down to a multiple of `divisor`. Returns false if no difference is possible: the regions are
 * disjoint. */
static bool overlap_add_bytes(overlap_search *s, int64_t a, int64_t b, int64_t *rest) {
    int64_t divisor = 0;
    for (int i = 0; i < s->n; i++) divisor = overlap_gcd(s->axis[i].stride, divisor);
    int64_t off = overlap_mod(*rest, divisor);
    int64_t lo = -overlap_floordiv(b - 1 + off, divisor), hi = overlap_floordiv(a - 1 - off, divisor);
    *rest -= off;
    if (lo > hi) return false;
    overlap_add(s, divisor, lo, hi);
    return true;
}

/* Merges an axis x into an axis y with a shorter stride, if the stride of y divides the stride of x and steps along y
 * fill the distance between two steps along x. Returns true if two axes were merged. */
static bool overlap_join(overlap_search *s) {
    for (int i = 0; i < s->n; i++)
        for (int j = i + 1; j < s->n; j++) {
            overlap_axis *x = &s->axis[i], *y = &s->axis[j];
            int64_t times = x->stride / y->stride;
            if (x->stride % y->stride || y->hi - y->lo + 1 < times) continue;
            y->lo += x->lo * times;
            y->hi += x->hi * times;
            s->n--;
            for (int k = i; k < s->n; k++) s->axis[k] = s->axis[k + 1];
            return true;
        }
    return false;
}

/* Sets s->reach[i] to the possible sums of terms stride * c of the axes i to n - 1. The stride of the last axis (byte
 * offsets) divides all strides. */
static void overlap_set_reach(overlap_search *s) {
    int64_t divisor = s->axis[s->n - 1].stride;
    s->reach[s->n] = (overlap_reach){0, 0, true};
    for (int i = s->n - 1; i >= 0; i--) {
        const overlap_axis *x = &s->axis[i];
        const overlap_reach *inner = &s->reach[i + 1];
        FXA__ASSERT(x->stride % divisor == 0);
        s->reach[i].lo = inner->lo + x->lo * x->stride;
        s->reach[i].hi = inner->hi + x->hi * x->stride;
        s->reach[i].all = inner->all && x->stride - divisor <= inner->hi - inner->lo;
    }
}

/* ---- Search ------------------------------------------------------------------------------------------------------ */

/* Returns the entry of s->memo, chosen by a hash, for the axes `at` to n - 1 and the sum `rest`. */
static overlap_memo *overlap_memo_of(overlap_search *s, int at, int64_t rest) {
    uint64_t mixed = ((uint64_t)rest * OVERLAP_AXES + (uint64_t)at) * UINT64_C(0x9E3779B97F4A7C15);
    return &s->memo[mixed >> 32 & (OVERLAP_MEMO - 1)];
}

/* Returns FXA__OVERLAPPING if `rest` is a possible sum of terms stride * c of the axes `at` to n - 1, FXA__DISJOINT if
 * `rest` is no such sum, FXA__OVERLAP_UNKNOWN if the search has used up its steps. */
static fxa__overlap overlap_find(overlap_search *s, int at, int64_t rest) {
    const overlap_reach *r = &s->reach[at], *inner = &s->reach[at + 1];
    if (rest < r->lo || rest > r->hi) return FXA__DISJOINT;
    if (r->all) return FXA__OVERLAPPING; /* `all` is true for the last axis, so after this line axis at + 1 exists */
    FXA__ASSERT(at + 1 < s->n);
    overlap_memo *memo = overlap_memo_of(s, at, rest);
    if (memo->from == at + 1 && memo->rest == rest) return FXA__DISJOINT;
    const overlap_axis *x = &s->axis[at];
    int64_t from = fxa__max_i64(x->lo, -overlap_floordiv(inner->hi - rest, x->stride));
    int64_t to = fxa__min_i64(x->hi, overlap_floordiv(rest - inner->lo, x->stride));
    for (int64_t c = from; c <= to; c++) {
        if (s->steps-- <= 0) return FXA__OVERLAP_UNKNOWN;
        fxa__overlap found = overlap_find(s, at + 1, rest - c * x->stride); /* recursion depth <= OVERLAP_AXES = 11 */
        if (found != FXA__DISJOINT) return found;
    }
    *memo = (overlap_memo){rest, at + 1};
    return FXA__DISJOINT;
}

fxa__overlap fxa__region_overlap(const fxa__region *a, const fxa__region *b) {
    int64_t a_first, a_end, b_first, b_end;
    if (!fxa__region_addresses(a, &a_first, &a_end) || !fxa__region_addresses(b, &b_first, &b_end))
        return FXA__OVERLAP_UNKNOWN;
    if (a_first >= b_end || b_first >= a_end || a_first == a_end || b_first == b_end) return FXA__DISJOINT;
    overlap_search s = {.steps = OVERLAP_STEPS};
    int64_t rest = b_first - a_first;
    overlap_add_region(&s, a, false);
    overlap_add_region(&s, b, true);
    if (s.n == 0) return FXA__OVERLAPPING; /* each region is one element, and the bytes of both elements intersect */
    if (!overlap_add_bytes(&s, a->element, b->element, &rest)) return FXA__DISJOINT;
    while (overlap_join(&s)) {}
    overlap_set_reach(&s);
    return overlap_find(&s, 0, rest);
}

const char *fxa__overlap_note(fxa__overlap overlap) {
    return overlap != FXA__OVERLAP_UNKNOWN
               ? ""
               : ": their strides interleave in too many ways to tell; give them memory that does "
                 "not interleave, or strides that nest";
}
