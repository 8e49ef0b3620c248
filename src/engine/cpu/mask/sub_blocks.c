/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the sub-blocks of a tile and a key block. sub_blocks.h has the data structures and contracts.
 */
#include "bits.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

enum {
    SUB_BLOCK_ALIGN =
        /* A key block whose mask is computed as bits starts at a multiple of this many columns. Granules (groups of
         * columns) then end where the blocks of a block mask end. */
    64,
    /* Overhead of one micro-kernel call, in rows that could be computed in the same time: 3.2 for avx512 (332 ns for 4
     * rows, 543 for 8, 682 for 12), 5 for avx2, 1.5 for sse2. Ice Lake, f32, 64 columns, 64 features. */
    SUB_BLOCK_MORE_ROWS = 3
};

void fxa__cpu_masked_tile_start(fxa__cpu_masked_tile *c, const fxa__cpu_kv_group *g,
                                const fxa__cpu_shared_mask_bits *shared, int64_t rows, int64_t keys) {
    void *scratch = c->mask.scratch;
    c->g = g;
    c->shared = shared;
    c->mask = fxa__tape_run_make(g->code->mask, g->bound->params, g->bound->tensors, scratch, rows, keys);
}

int64_t fxa__cpu_sub_block_max_count(const fxa__cpu_code *code, int64_t rows, int64_t keys) {
    return code->mask ? rows * (keys / (fxa__cpu_granule(code->kernels) + FXA__CPU_GAP) + 1) : rows;
}

void fxa__cpu_masked_tile_set_rows(fxa__cpu_masked_tile *c, int64_t number, int64_t first, int64_t n, const int32_t *h,
                                   const int32_t *q) {
    c->number = number;
    c->first = first;
    c->n = n;
    c->h = h;
    c->q = q;
    c->ready = false;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* For a key block of class MIXED, sets c->bits (the mask, one bit per row and key) and the range of rows that attend to
 * a key of the block. Shortens the block by the granules (groups of columns) at its end that no row attends to. Returns
 * false if no bit is set. */
static bool sub_block_by_bits(fxa__cpu_masked_tile *c) {
    c->bits = fxa__cpu_mask_bits_get(c);
    uint64_t some = c->bits->some;
    c->row = c->bits->row;
    c->row_end = c->bits->end;
    for (; c->keys > c->granule && !(some >> (c->keys - 1) / c->granule & 1);)
        c->keys = (c->keys - 1) / c->granule * c->granule; /* no row attends to any of the removed keys */
    return some != 0;
}

bool fxa__cpu_masked_tile_set_keys(fxa__cpu_masked_tile *c, int64_t key, int64_t m) {
    int64_t begin, end;
    c->bits = NULL;
    c->banded = false;
    c->row = 0;
    c->row_end = c->n;
    c->tile = fxa__cpu_mask_classify(c->g, c->first, c->n, key, m, &begin, &end);
    if (c->tile == FXA_TILE_EMPTY) return false;
    bool bits = c->tile == FXA_TILE_MIXED && c->mask.tape;
    if (c->tile == FXA_TILE_MIXED) {
        c->banded = fxa__cpu_band_columns(c->g, c->first, c->n, key + begin, end - begin, &c->band_begin, &c->band_end);
        bits = bits && !c->banded;
    }
    if (bits) begin = begin / SUB_BLOCK_ALIGN * SUB_BLOCK_ALIGN;
    c->key = key + begin;
    c->keys = end - begin;
    return !bits || sub_block_by_bits(c);
}

/* A 64-bit word has one bit for each granule (group of columns) of a key block and of a gap after the block. */
_Static_assert(FXA__CPU_KEY_BLOCK + FXA__CPU_GAP < 63 * FXA__CPU_GRANULE, "a shift by all bits of a word");

static uint64_t sub_block_low(int64_t n) { /* Returns a word whose first n bits are set. */
    FXA__ASSERT(0 <= n && n < 64);
    return ((uint64_t)1 << n) - 1;
}

/* Attended keys up to FXA__CPU_GAP columns outside of begin..begin+n count too, because a sub-block also covers short
 * gaps between attended columns. */
bool fxa__cpu_masked_tile_has_pairs(const fxa__cpu_masked_tile *c, int64_t begin, int64_t n) {
    int64_t from = fxa__max_i64(0, begin - FXA__CPU_GAP) / c->granule,
            to = fxa__div_up(begin + n + FXA__CPU_GAP, c->granule);
    return !c->bits || (c->bits->some & sub_block_low(to) & ~sub_block_low(from)) != 0;
}

/* ---- Sub-blocks -------------------------------------------------------------------------------------------------- */

/* Returns true if rows row to row + rows - 1 have the same mask bits. */
static bool sub_block_is_one(const fxa__cpu_masked_tile *c, int64_t row, int64_t rows) {
    return c->bits->from[row] == c->bits->from[row + rows - 1];
}

int64_t fxa__cpu_masked_tile_choose_rows(const fxa__cpu_masked_tile *c, int64_t row, int64_t most) {
    const fxa__cpu_kernels *kernels = c->g->code->kernels;
    int64_t best = 1, best_cost = 0, count = 0,
            work = 0; /* time of products of n rows, in units of one row; the overhead of micro-kernels is included */
    uint64_t any = 0, more;
    if (!c->bits) return most;
    if (sub_block_is_one(c, row, most)) return most < kernels->mr ? most : most / kernels->mr * kernels->mr;
    /* room: number of rows that can be added to the last micro-kernel call */
    for (int64_t n = 1, room = 0; n <= most; n++, room--) {
        if (room == 0) room = kernels->mr, work += kernels->rows ? kernels->mr : SUB_BLOCK_MORE_ROWS;
        if (!kernels->rows) work++; /* if kernels->rows is set, micro-kernels always compute mr rows */
        more = c->bits->any[row + n - 1] & ~any;
        /* popcount is slow (a function call), and `more` is rarely nonzero */
        if (more) count += __builtin_popcountll(more);
        any |= more;
        if (n > 1 && work * count * best > best_cost * n) continue;
        best = n;
        best_cost = work * count;
    }
    return best;
}

/* Returns a word whose bit i is set if at least one of these rows attends to a key of granule i (the i-th group of
 * columns). Bit i of *all is set if all these rows attend to all keys of granule i. */
static uint64_t sub_block_any(const fxa__cpu_masked_tile *c, int64_t row, int64_t rows, uint64_t *all) {
    uint64_t any = 0;
    *all = UINT64_MAX;
    if (sub_block_is_one(c, row, rows)) rows = 1;
    for (int64_t i = row; i < row + rows; i++) {
        any |= c->bits->any[i];
        *all &= c->bits->all[i];
    }
    return any;
}

/* Returns the sub-block of rows row to row + rows - 1 and granules (groups of columns) first to last - 1. */
static fxa__cpu_sub_block sub_block_strip(const fxa__cpu_masked_tile *c, int64_t row, int64_t rows, int64_t first,
                                          int64_t last, uint64_t all) {
    uint64_t whole = sub_block_low(last - first);
    return (fxa__cpu_sub_block){.row = row,
                                .rows = rows,
                                .begin = first * c->granule,
                                .end = fxa__min_i64(last * c->granule, c->keys),
                                .masked = (all >> first & whole) != whole};
}

/* Returns the end (exclusive) of a run of attended granules (groups of columns) that starts at `first`. Gaps of fewer
 * than FXA__CPU_GAP columns do not end the run. Bit i of `any`: some row attends to granule i. */
static int64_t sub_block_run_end(uint64_t any, int64_t first, int64_t granule) {
    int64_t end = first;
    for (int64_t i = first, gap = 0; gap * granule < FXA__CPU_GAP; i++) {
        gap = any >> i & 1 ? 0 : gap + 1;
        if (gap == 0) end = i + 1;
    }
    return end;
}

bool fxa__cpu_sub_block_next(const fxa__cpu_masked_tile *c, int64_t row, int64_t rows, int64_t *at,
                             fxa__cpu_sub_block *out) {
    uint64_t all;
    if (*at >= c->keys) return false;
    if (!c->bits) {
        *out = fxa__cpu_sub_block_within(c, row, rows, 0, c->keys);
        *at = c->keys;
        return out->begin < out->end;
    }
    uint64_t any = sub_block_any(c, row, rows, &all) & ~sub_block_low(*at / c->granule);
    if (any == 0) return false;
    int64_t first = __builtin_ctzll(any), last = sub_block_run_end(any, first, c->granule);
    *out = sub_block_strip(c, row, rows, first, last, all);
    *at = any >> last ? last * c->granule : c->keys;
    return true;
}

fxa__cpu_sub_block fxa__cpu_sub_block_within(const fxa__cpu_masked_tile *c, int64_t row, int64_t rows, int64_t begin,
                                             int64_t end) {
    fxa__cpu_sub_block whole = {.row = row, .rows = rows, .begin = begin, .end = end},
                       none = {.row = row, .rows = rows};
    if (c->tile == FXA_TILE_FULL) return whole;
    if (c->bits) {
        int64_t from = begin / c->granule, to = fxa__div_up(end, c->granule);
        uint64_t all, any = sub_block_any(c, row, rows, &all) & sub_block_low(to) & ~sub_block_low(from);
        if (any == 0) return none;
        return sub_block_strip(c, row, rows, __builtin_ctzll(any), 64 - __builtin_clzll(any), all);
    }
    fxa_tile_class tile =
        fxa__cpu_mask_classify(c->g, c->first + row, rows, c->key + begin, end - begin, &whole.begin, &whole.end);
    if (tile == FXA_TILE_EMPTY) return none;
    whole.begin += begin;
    whole.end += begin;
    whole.masked = tile == FXA_TILE_MIXED && !c->banded;
    whole.banded = tile == FXA_TILE_MIXED && c->banded;
    return whole;
}
