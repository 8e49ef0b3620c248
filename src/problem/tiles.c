/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts tiles by class (empty, full, mixed) without a block mask in memory. A rectangle of tiles is classified in one
 * step, and halved while it is mixed, so the cost grows with the length of the borders between classes, not with the
 * area.
 *
 * Masks inside a score (extract_mask.c) count as masks. Small tiles that range analysis cannot decide, for instance
 * with captured tensors, are evaluated pair by pair (tiles_bruteforce.c). If the mask does not depend on q, or does not
 * depend on k, or depends only on q - k, many tiles have the same class and only one of them is classified.
 *
 * Index maps turn a rectangle of local indices into boxes of coordinates: one box for an affine map, or one box per
 * segment of a map of segments. A value known only at run time is replaced by the range of its possible values:
 * - A table, an offset or start positions can yield any coordinate.
 * - With PADDING or VARLEN, q_len and k_len are at most sq and sk, unless the problem fixes them. BOTTOM_RIGHT can then
 *   shift rows by each possible k_len - q_len.
 * - With PADDING or VARLEN, a tile that is full under the program's mask counts as mixed, because a sequence may end in
 *   the tile.
 */
#include "tiles.h"

#include "../base/invariant.h"
#include "../base/float_state.h"
#include "../base/num.h"

/* ---- Coordinates of rows and keys -------------------------------------------------------------------------------- */

/* Widens the q range of a box by all shifts of q that a run may have: start positions (Q_START) and the alignment of
 * the last row to the last key (BOTTOM_RIGHT). */
static void tiles_shift_rows(const fxa_problem *p, fxa_tile_bounds *box) {
    int64_t lo, hi;
    fxa__q_shift_range(p, &lo, &hi);
    lo += box->lo[FXA_INPUT_Q];
    hi += box->hi[FXA_INPUT_Q];
    bool fits = lo >= INT32_MIN && hi <= INT32_MAX; /* false: q may wrap to any 32-bit value */
    box->lo[FXA_INPUT_Q] = fits ? (int32_t)lo : INT32_MIN;
    box->hi[FXA_INPUT_Q] = fits ? (int32_t)hi : INT32_MAX;
}

/* Sets an axis of the box to the range of base + step * index over all indices of the slice i. The range fits in 32
 * bits, because fxa__problem_create checks the maps. */
static void tiles_set_line(fxa_tile_bounds *box, fxa_input axis, int64_t base, int64_t step, fxa__slice i) {
    int64_t x = base + step * i.first, y = base + step * i.last;
    box->lo[axis] = (int32_t)fxa__min_i64(x, y);
    box->hi[axis] = (int32_t)fxa__max_i64(x, y);
}

/* Removes the first indices of *rest, up to the end of the map's segment that contains them, and sets the axis of the
 * box to the range of their coordinates. Returns false if *rest is empty. */
static bool tiles_next_line(const fxa_index_map *map, fxa_input axis, fxa__slice *rest, fxa_tile_bounds *box) {
    if (rest->first > rest->last) return false;
    fxa__slice i = *rest;
    int64_t base = map->base, step = map->step;
    if (map->kind == FXA_MAP_SEGMENTS) {
        uint32_t s = map->n_segments - 1;
        while (map->segment[s].begin > i.first) s--;
        if (s + 1 < map->n_segments) i.last = fxa__min_i64(i.last, map->segment[s + 1].begin - 1);
        step = map->segment[s].step;
        base = map->segment[s].base - step * map->segment[s].begin;
    }
    rest->first = i.last + 1;
    if (fxa__map_is_dynamic(map)) {
        box->lo[axis] = INT32_MIN;
        box->hi[axis] = INT32_MAX;
        rest->first = rest->last + 1;
    } else
        tiles_set_line(box, axis, base, step, i);
    return true;
}

static void tiles_set_length(fxa_tile_bounds *box, fxa_input axis, int64_t fixed, bool ragged, int64_t most) {
    box->lo[axis] = (int32_t)(fixed > 0 ? fixed : ragged ? 0 : most);
    box->hi[axis] = (int32_t)(fixed > 0 ? fixed : most);
}

/* Returns true if sequences of the batch may have different lengths. */
static bool tiles_are_ragged(const fxa_problem *p) { return (p->flags & (FXA_PADDING | FXA_VARLEN)) != 0; }

fxa_tile_bounds fxa__tile_full_box(const fxa__tile_grid *g) {
    const fxa_problem *p = &g->p->in;
    fxa_tile_bounds box = {{0}, {0}};
    fxa__slice b = {g->b, g->b}, h = {g->h, g->h};
    tiles_next_line(&p->map_b, FXA_INPUT_B, &b, &box);
    tiles_next_line(&p->map_h, FXA_INPUT_H, &h, &box);
    tiles_set_length(&box, FXA_INPUT_Q_LEN, p->global_q_len, tiles_are_ragged(p), p->sq);
    tiles_set_length(&box, FXA_INPUT_K_LEN, p->global_k_len, tiles_are_ragged(p), p->sk);
    tiles_set_length(&box, FXA_INPUT_HEADS, p->global_heads, false, p->hq);
    return box;
}

fxa_tile_class fxa__tile_box(const fxa__tile_grid *g, const fxa_tile_bounds *box) {
    uint64_t steps = 0;
    if (g->budget && (*g->budget -= FXA__TILE_BOX_COST) < 0) return FXA_TILE_MIXED;
    fxa_tile_class tile = fxa__program_classify(g->program, box, g->params, g->tensors, &steps);
    if (g->budget) *g->budget -= (int64_t)steps / (int64_t)(fxa_program_node_count(g->program) + 1);
    return tile == FXA_TILE_FULL && tiles_are_ragged(&g->p->in) ? FXA_TILE_MIXED : tile;
}

fxa_tile_class fxa__tile_class(const fxa__tile_grid *g, fxa__slice q, fxa__slice k) {
    const fxa_problem *p = &g->p->in;
    fxa_tile_bounds box = fxa__tile_full_box(g);
    fxa_tile_class all = FXA_TILE_MIXED;
    bool first = true;
    tiles_set_line(&box, FXA_INPUT_Q_ROW, 0, 1, q);
    tiles_set_line(&box, FXA_INPUT_K_ROW, 0, 1, k);
    while (tiles_next_line(&p->map_q, FXA_INPUT_Q, &q, &box)) {
        tiles_shift_rows(p, &box);
        for (fxa__slice rest = k; tiles_next_line(&p->map_k, FXA_INPUT_K, &rest, &box); first = false) {
            fxa_tile_class tile = fxa__tile_box(g, &box);
            if (tile == FXA_TILE_MIXED || (!first && tile != all)) return FXA_TILE_MIXED;
            all = tile;
        }
    }
    return all;
}

/* Maximum work of one count of tiles, one to a few seconds. The unit is the range analysis of one node of the mask, so
 * this is enough for 400,000 rectangles of tiles if the mask has 20 nodes. */
#define TILES_WORK ((int64_t)1 << 23)

/* If tiles are single pairs, a mixed rectangle with at most this many tiles is counted pair by pair. */
#define TILES_PAIRS 64

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/* A rectangle of tiles: q are rows of tiles, k are columns of tiles. */
typedef struct tiles_rect {
    fxa__slice q, k;
} tiles_rect;

/* Returns the local indices that `tiles` cover. `tile`: number of indices per tile. `size`: number of all indices. */
static fxa__slice tiles_indices(fxa__slice tiles, int64_t tile, int64_t size) {
    return (fxa__slice){tiles.first * tile, fxa__min_i64(size, (tiles.last + 1) * tile) - 1};
}

static int64_t tiles_length(fxa__slice s) { return s.last - s.first + 1; }

/* Returns the class of a rectangle of tiles; a single mixed tile is evaluated pair by pair. */
static fxa_tile_class tiles_class(const fxa__tile_grid *g, const tiles_rect *r) {
    fxa__slice q = tiles_indices(r->q, g->tile_q, g->p->in.sq), k = tiles_indices(r->k, g->tile_k, g->p->in.sk);
    fxa_tile_class tile = fxa__tile_class(g, q, k);
    bool single = tiles_length(r->q) == 1 && tiles_length(r->k) == 1;
    return tile == FXA_TILE_MIXED && single ? fxa__tile_bruteforce_class(g, q, k) : tile;
}

/* Cuts r at the middle of its longer side, keeps the first half in r and returns the second half. */
static tiles_rect tiles_cut(tiles_rect *r) {
    tiles_rect other = *r;
    FXA__ASSERT(tiles_length(r->q) > 1 || tiles_length(r->k) > 1);
    bool by_q = tiles_length(r->q) >= tiles_length(r->k);
    fxa__slice *low = by_q ? &r->q : &r->k, *high = by_q ? &other.q : &other.k;
    low->last = low->first + tiles_length(*low) / 2 - 1;
    high->first = low->last + 1;
    return other;
}

/* Adds the number of tiles of each class in a rectangle, multiplied by `times`, to *out. */
static void tiles_count_grid(const fxa__tile_grid *g, tiles_rect all, uint64_t times, fxa_tile_counts *out) {
    tiles_rect stack[FXA__TILE_DEPTH];
    int n = 0;
    stack[n++] = all;
    while (n > 0) {
        tiles_rect r = stack[--n];
        uint64_t count = (uint64_t)tiles_length(r.q) * (uint64_t)tiles_length(r.k);
        fxa_tile_class tile = tiles_class(g, &r);
        if (*g->budget < 0)
            out->unknown += count * times;
        else if (tile == FXA_TILE_EMPTY)
            out->empty += count * times;
        else if (tile == FXA_TILE_FULL)
            out->full += count * times;
        else if (count == 1)
            out->mixed += times;
        else if (count > TILES_PAIRS || !fxa__tile_bruteforce_count(g, r.q, r.k, times, out)) {
            tiles_rect other = tiles_cut(&r);
            FXA__ASSERT(n + 2 <= FXA__TILE_DEPTH);
            stack[n++] = other;
            stack[n++] = r;
        }
    }
}

/* Returns the number of tiles along an axis, a partial tile at the end included. */
static int64_t tiles_along(int64_t size, int64_t tile) { return size / tile + (size % tile != 0); }

/* Counts the partial tiles at the edges: the last row of tiles, if this row is partial, and then the other tiles of the
 * last column, if this column is partial. */
static void tiles_count_ends(const fxa__tile_grid *g, int64_t nq, int64_t nk, fxa_tile_counts *out) {
    int64_t whole_q = g->p->in.sq / g->tile_q, whole_k = g->p->in.sk / g->tile_k;
    tiles_rect row = {{whole_q, nq - 1}, {0, nk - 1}}, column = {{0, whole_q - 1}, {whole_k, nk - 1}};
    if (whole_q < nq) tiles_count_grid(g, row, 1, out);
    if (whole_k < nk) tiles_count_grid(g, column, 1, out);
}

static void tiles_count_problem(const fxa__tile_grid *g, fxa_tile_counts *out) {
    int64_t nq = tiles_along(g->p->in.sq, g->tile_q), nk = tiles_along(g->p->in.sk, g->tile_k);
    if (nq == 0 || nk == 0) return;
    tiles_rect all = {{0, nq - 1}, {0, nk - 1}};
    uint64_t times = 1;
    fxa_properties properties;
    fxa_program_properties(g->program, &properties);
    if (!(properties.mask_depends & FXA__OF_ROW)) { /* all rows of tiles have equal classes */
        times *= (uint64_t)nq;
        all.q.last = 0;
    }
    if (!(properties.mask_depends & FXA__OF_KEY)) {
        times *= (uint64_t)nk;
        all.k.last = 0;
    }
    if (times == 1 && fxa__tiles_count_diagonals(g, out))
        tiles_count_ends(g, nq, nk, out);
    else
        tiles_count_grid(g, all, times, out);
    FXA__ASSERT(out->empty + out->full + out->mixed + out->unknown == (uint64_t)nq * (uint64_t)nk);
}

fxa_status fxa__tiles_count(fxa__tile_grid *g, fxa_tile_counts *out, fxa_error *err) {
    fxa_program *program = NULL;
    fxa__tile_bruteforce pairs = {.vals = NULL};
    FXA_TRY(fxa__program_extract_masks(g->p->host, g->p->program, &program, err));
    g->program = program;
    g->pairs = &pairs;
    fxa_status status = fxa__tile_bruteforce_open(g, &pairs, err);
    if (status == FXA_OK) {
        int64_t budget = TILES_WORK / (int64_t)(fxa_program_node_count(program) + 1) * FXA__TILE_BOX_COST;
        fxa_tile_counts counts = {0, 0, 0, 0};
        g->budget = &budget;
        tiles_count_problem(g, &counts);
        *out = counts;
    }
    fxa__tile_bruteforce_close(g, &pairs);
    fxa_program_destroy(program);
    return status == FXA_OK ? fxa__ok(err) : status;
}

fxa_status fxa_tiles_count(fxa_context *ctx, const fxa_problem *problem, int64_t b, int64_t h, int64_t tile_q,
                           int64_t tile_k, const double *params, const fxa_tensor_range *tensors, fxa_tile_counts *out,
                           fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (ctx == NULL || problem == NULL || out == NULL)
        return fxa__fail(err, FXA_E_ARGUMENT, "%s is NULL", ctx == NULL ? "ctx" : problem == NULL ? "problem" : "out");
    if (tile_q < 1 || tile_k < 1)
        return fxa__fail(err, FXA_E_ARGUMENT, "tile_q is %lld and tile_k is %lld: accepted are 1 and more",
                         (long long)tile_q, (long long)tile_k);
    fxa__problem *p = NULL;
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    fxa_status status = FXA_OK;
    if (b < 0 || b >= p->in.b || h < 0 || h >= p->in.hq)
        status =
            fxa__fail(err, FXA_E_ARGUMENT, "b is %lld and h is %lld: accepted are indices from 0, below %lld and %lld",
                      (long long)b, (long long)h, (long long)p->in.b, (long long)p->in.hq);
    else {
        fxa__tile_grid grid = {.p = p, .b = b, .h = h, .params = params, .tensors = tensors};
        grid.tile_q = fxa__min_i64(tile_q, INT32_MAX);
        grid.tile_k = fxa__min_i64(tile_k, INT32_MAX);
        status = fxa__tiles_count(&grid, out, err);
    }
    fxa__problem_release(p);
    return status;
}
