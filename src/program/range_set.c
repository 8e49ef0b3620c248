/* SPDX-License-Identifier: Apache-2.0
 *
 * Small sets of integers as ascending intervals: the values of atoms and forms, and the sets of bounds. If a result has
 * too many intervals, the narrowest gap is filled: a result may be a superset, never a subset, which is sound for
 * values and for bounds.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"

/* Returns true if the intervals are ascending, disjoint and not adjacent. Used by asserts only. */
__attribute__((unused)) static bool set_is_ordered(const fxa__set *s) {
    bool ordered = s->n >= 0 && s->n <= FXA__SET_PIECES;
    for (int i = 0; ordered && i < s->n; i++)
        ordered = s->at[i].lo <= s->at[i].hi && (i == 0 || s->at[i - 1].hi + 1 < s->at[i].lo);
    return ordered;
}

fxa__set fxa__set_of(int64_t lo, int64_t hi) {
    fxa__set s = {0};
    if (lo <= hi) s.at[s.n++] = (fxa__interval){lo, hi};
    return s;
}

bool fxa__set_add(fxa__set *s, int64_t lo, int64_t hi) {
    if (lo > hi) return true;
    fxa__interval all[FXA__SET_PIECES + 1];
    int n = 0, i = 0;
    while (i < s->n && s->at[i].hi < lo - 1) all[n++] = s->at[i++];
    for (; i < s->n && s->at[i].lo <= hi + 1; i++) {
        lo = fxa__min_i64(lo, s->at[i].lo);
        hi = fxa__max_i64(hi, s->at[i].hi);
    }
    all[n++] = (fxa__interval){lo, hi};
    while (i < s->n) all[n++] = s->at[i++];

    bool fits = n <= FXA__SET_PIECES;
    if (!fits) {
        int narrow = 0;
        for (int j = 1; j + 1 < n; j++)
            if (all[j + 1].lo - all[j].hi < all[narrow + 1].lo - all[narrow].hi) narrow = j;
        all[narrow].hi = all[narrow + 1].hi;
        for (int j = narrow + 1; j + 1 < n; j++) all[j] = all[j + 1];
        n--;
    }
    s->n = n;
    for (int j = 0; j < n; j++) s->at[j] = all[j];
    FXA__ASSERT(set_is_ordered(s));
    return fits;
}

fxa__set fxa__set_intersection(const fxa__set *a, const fxa__set *b) {
    fxa__set out = {0};
    for (int i = 0, j = 0; i < a->n && j < b->n;) {
        fxa__set_add(&out, fxa__max_i64(a->at[i].lo, b->at[j].lo), fxa__min_i64(a->at[i].hi, b->at[j].hi));
        if (a->at[i].hi < b->at[j].hi)
            i++;
        else
            j++;
    }
    return out;
}

fxa__set fxa__set_union(const fxa__set *a, const fxa__set *b) {
    fxa__set out = *a;
    for (int j = 0; j < b->n; j++) fxa__set_add(&out, b->at[j].lo, b->at[j].hi);
    return out;
}

bool fxa__set_contains(const fxa__set *a, const fxa__set *part) {
    int i = 0;
    for (int j = 0; j < part->n; j++) {
        while (i < a->n && a->at[i].hi < part->at[j].lo) i++;
        if (i == a->n || a->at[i].lo > part->at[j].lo || a->at[i].hi < part->at[j].hi) return false;
    }
    return true;
}
