/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts tiles of masks that depend on q and k only through q - k, such as causal masks, windows and dilated windows.
 * These masks may also read b, h, lengths and params. All tiles of a diagonal have the same class, so a grid of n x n
 * tiles is counted by its 2 n - 1 diagonals of tiles. A range of diagonals is classified in one step, and halved while
 * it is mixed.
 */
#include "tiles.h"

#include "../base/invariant.h"
#include "../base/num.h"
#include "../program/linear.h"

/* ---- Masks that depend on q - k only ----------------------------------------------------------------------------- */

/* Returns true if the mask depends on q and k only through q - k within `box`, which contains the coordinates of all
 * rows and keys. Also returns false if memory runs out; tiles.c then counts rectangles, which needs no memory. */
static bool diagonal_mask(const fxa__tile_grid *g, const fxa_tile_bounds *box) {
    const fxa_program *p = g->program;
    int32_t mask = fxa__program_output(p, FXA__OUT_MASK);
    size_t n = (size_t)mask + 1;
    fxa__range_small small;
    fxa__range r;
    bool still = false;
    fxa__linear *forms = fxa__alloc_array(p->host, n, sizeof *forms);
    if (fxa__range_open(&r, &small, p, mask, box, g->params, g->tensors) && forms != NULL) {
        for (int32_t i = 0; i <= mask; i++)
            if (r.at[i] >= 0) forms[i] = fxa__linear_of(p, i, forms, &r);
        still = fxa__linear_is_shift_invariant(&forms[mask]);
    }
    fxa__range_close(&r);
    fxa__free(p->host, forms, n * sizeof *forms);
    return still;
}

/* Returns true if the index map only adds a constant that is known before the run. */
static bool diagonal_map(const fxa_index_map *map) {
    return map->kind == FXA_MAP_AFFINE && !map->has_offset && map->step == 1;
}

/* Sets an axis of the box to lo..hi. Returns false if lo or hi does not fit in 32 bits. */
static bool diagonal_widen(fxa_tile_bounds *box, fxa_input axis, int64_t lo, int64_t hi) {
    box->lo[axis] = fxa__sat32(lo);
    box->hi[axis] = fxa__sat32(hi);
    return box->lo[axis] == lo && box->hi[axis] == hi;
}

/* Sets *distance to the coordinate q of row 0 minus the coordinate k of key 0. Sets *offsets to the range of diagonals
 * of tiles: the diagonal of the tile in row i and column j of tiles is i - j. Returns false if tiles on one diagonal
 * may have different classes, because of the mask, the index maps or tiles that are not square. */
static bool diagonal_find(const fxa__tile_grid *g, int64_t *distance, fxa__slice *offsets) {
    const fxa_problem *d = &g->p->in;
    int64_t nq = d->sq / g->tile_q, nk = d->sk / g->tile_k, k = d->map_k.base, shift, most;
    fxa__q_shift_range(d, &shift, &most);
    if (g->tile_q != g->tile_k || nq == 0 || nk == 0 || !diagonal_map(&d->map_q) || !diagonal_map(&d->map_k) ||
        shift != most)
        return false;
    int64_t q = d->map_q.base + shift;
    *distance = q - k;
    *offsets = (fxa__slice){1 - nk, nq - 1};
    /* the box contains the coordinates of all rows and keys, and all coordinates that diagonal_class classifies */
    fxa_tile_bounds box = fxa__tile_full_box(g);
    int64_t first = q - k + offsets->first * g->tile_q, last = q - k + nq * g->tile_q - 1;
    return diagonal_widen(&box, FXA_INPUT_Q, fxa__min_i64(q, first), fxa__max_i64(q + d->sq - 1, last)) &&
           diagonal_widen(&box, FXA_INPUT_K, fxa__min_i64(k, 0), fxa__max_i64(k + d->sk - 1, g->tile_k - 1)) &&
           diagonal_mask(g, &box);
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/* Returns the number of tiles (i, j) with i - j <= offset in a grid of nq x nk tiles. These tiles are a triangle
 * without its two corners, which are outside the grid. */
static uint64_t diagonal_below(int64_t offset, int64_t nq, int64_t nk) {
    if (offset < 1 - nk) return 0;
    if (offset >= nq - 1) return (uint64_t)nq * (uint64_t)nk;
    uint64_t n = (uint64_t)(offset + nk), past = (uint64_t)fxa__max_i64(0, offset + nk - nq),
             above = (uint64_t)fxa__max_i64(0, offset);
    return n * (n + 1) / 2 - past * (past + 1) / 2 - above * (above + 1) / 2;
}

/* Returns the class of all tiles on a range of diagonals of tiles. Classifies one box that has the same values of q - k
 * as these tiles, with k in 0..tile_k - 1. */
static fxa_tile_class diagonal_class(const fxa__tile_grid *g, int64_t distance, fxa__slice offsets) {
    fxa_tile_bounds box = fxa__tile_full_box(g);
    box.lo[FXA_INPUT_K] = 0;
    box.hi[FXA_INPUT_K] = (int32_t)(g->tile_k - 1);
    box.lo[FXA_INPUT_Q] = (int32_t)(distance + offsets.first * g->tile_q);
    box.hi[FXA_INPUT_Q] = (int32_t)(distance + (offsets.last + 1) * g->tile_q - 1);
    FXA__ASSERT(box.lo[FXA_INPUT_Q] <= box.hi[FXA_INPUT_Q]); /* both bounds fit in 32 bits, see diagonal_find */
    return fxa__tile_box(g, &box);
}

/* Returns the class of the tiles of one diagonal by evaluating each pair (q, k) of the first tile. */
static fxa_tile_class diagonal_class_by_pairs(const fxa__tile_grid *g, int64_t offset) {
    int64_t q = fxa__max_i64(offset, 0) * g->tile_q, k = fxa__max_i64(-offset, 0) * g->tile_k;
    return fxa__tile_bruteforce_class(g, (fxa__slice){q, q + g->tile_q - 1}, (fxa__slice){k, k + g->tile_k - 1});
}

bool fxa__tiles_count_diagonals(const fxa__tile_grid *g, fxa_tile_counts *out) {
    fxa__slice stack[FXA__TILE_DEPTH], all;
    int64_t distance, nq = g->p->in.sq / g->tile_q, nk = g->p->in.sk / g->tile_k;
    int n = 0;
    if (!diagonal_find(g, &distance, &all)) return false;
    stack[n++] = all;
    while (n > 0) {
        fxa__slice s = stack[--n];
        uint64_t count = diagonal_below(s.last, nq, nk) - diagonal_below(s.first - 1, nq, nk);
        fxa_tile_class tile = diagonal_class(g, distance, s);
        if (tile == FXA_TILE_MIXED && s.first == s.last) tile = diagonal_class_by_pairs(g, s.first);
        if (*g->budget < 0)
            out->unknown += count;
        else if (tile == FXA_TILE_EMPTY)
            out->empty += count;
        else if (tile == FXA_TILE_FULL)
            out->full += count;
        else if (s.first == s.last)
            out->mixed += count;
        else {
            int64_t middle = s.first + (s.last - s.first) / 2;
            FXA__ASSERT(n + 2 <= FXA__TILE_DEPTH);
            stack[n++] = (fxa__slice){middle + 1, s.last};
            stack[n++] = (fxa__slice){s.first, middle};
        }
    }
    return true;
}
