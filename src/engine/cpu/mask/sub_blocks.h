/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mask leaves of a tile of rows and a block of keys, as strips: the one place where both passes learn what not
 * to do. A strip is a few rows and a run of columns that share their products; rows whose mask has holes have several.
 *
 * Four ways, the cheapest that can tell:
 *   whole   range analysis, or the absence of a mask, says that every pair is attended
 *   band    the mask bounds q - k and nothing else (mask/band.c): two numbers give the columns of every row
 *   bits    the mask does not read the score, so it is run before there are any: a bit per pair
 *   tape    a mask that reads the score is run with it; range analysis may still leave out rows and columns
 *
 * Bits are summed up by granules of columns, the least that a product can begin or end at: which have some pair, and
 * which have all. Heads and batch entries whose mask is the same share them (fxa__cpu_shared_mask_bits). Who computes
 * them changes nothing: they are a function of the tile and the block.
 */
#ifndef FXA_ENGINE_CPU_MASK_SUB_BLOCKS_H
#define FXA_ENGINE_CPU_MASK_SUB_BLOCKS_H

#include "../code.h"

#include "../../../base/carve.h"

enum {
    FXA__CPU_GRANULE = 16, /* columns, at least */
    /* Columns between two runs that are worth a strip of their own. Ice Lake, f32, S 4096, H 8, D 64, CPU time: a tree
     * took 78.5 ms with 16 and 75.3 with 32, blocks 64.4 and 63.2. */
    FXA__CPU_GAP = 32
};

typedef struct fxa__cpu_sub_block {
    int64_t row, rows;   /* of the tile */
    int64_t begin, end;  /* columns of the block */
    bool masked, banded; /* not every pair is attended: bits or a tape tell which, or the band does */
} fxa__cpu_sub_block;

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

typedef struct fxa__cpu_mask_bits {
    uint64_t *pairs;     /* [rows,words]; */
    int32_t *from;       /* [rows]: which of those are a row's: itself, or one before that it is like */
    uint64_t *any, *all; /* [rows]: bit i: some pair, every pair of granule i */
    uint64_t some;       /* bit i: some row has some pair of granule i */
    int64_t row, end;    /* rows outside of row..end have none at all */
} fxa__cpu_mask_bits;

/* What bits are a function of, besides what chose the entry: the batch entry, where the mask reads it. */
typedef struct fxa__cpu_mask_bits_key {
    int64_t first, n, q_len, key, keys;
    int32_t q, k_len_seen; /* q: of the first row */
} fxa__cpu_mask_bits_key;

typedef struct fxa__cpu_mask_bits_entry {
    _Atomic int32_t state; /* 0: free, 1: being filled, 2: filled for good */
    fxa__cpu_mask_bits_key key;
    fxa__cpu_mask_bits bits;
} fxa__cpu_mask_bits_entry;

/* Bits of a run that all workers share. The first to come to a entry fills it; who finds it taken by another tile, or
 * being filled, computes for itself. */
typedef struct fxa__cpu_shared_mask_bits {
    int64_t tiles, blocks; /* entries of a batch entry */
    int64_t count;         /* entries: as many as memory allows; 0: masks differ everywhere, or do not pay */
    int64_t block_keys;
    fxa__cpu_mask_bits_entry *entries;
} fxa__cpu_shared_mask_bits;

/* Carves the entries for tiles of at most `rows` rows and blocks of `keys`; clears them, with a base, for a run. */
void fxa__cpu_shared_mask_bits_carve(fxa__carver *c, const fxa__cpu_code *code, const fxa__problem *p, int64_t rows,
                                     int64_t keys, fxa__cpu_shared_mask_bits *shared);

/* ---- A worker's cut ---------------------------------------------------------------------------------------------- */

typedef struct fxa__cpu_masked_tile {
    const fxa__cpu_kv_group *g;
    const fxa__cpu_shared_mask_bits *shared;
    fxa__tape_run mask; /* tape NULL: no bits */
    fxa__cpu_mask_bits own;
    int32_t *k;    /* coordinates of the block's keys */
    uint8_t *same; /* by row, while bits are made: it has those of the row before */
    int64_t granule, words;
    /* the tile */
    int64_t number, first, n;
    const int32_t *h, *q; /* its coordinates */
    bool ready;           /* the tape knows its rows */
    /* the block: what the mask leaves of the keys asked about, to whole granules where there are bits */
    int64_t key, keys;
    int64_t row, row_end; /* no other row of the tile has a strip */
    fxa_tile_class tile;
    bool banded; /* rows attend to columns q + band_begin up to, not including, q + band_end */
    int64_t band_begin, band_end;
    const fxa__cpu_mask_bits *bits; /* NULL: not this way */
} fxa__cpu_masked_tile;

/* A worker's memory, and its beginning. */
void fxa__cpu_masked_tile_carve(fxa__carver *c, const fxa__cpu_code *code, int64_t rows, int64_t keys,
                                fxa__cpu_masked_tile *cut);
void fxa__cpu_masked_tile_start(fxa__cpu_masked_tile *cut, const fxa__cpu_kv_group *g,
                                const fxa__cpu_shared_mask_bits *shared, int64_t rows, int64_t keys);

/* Strips that a tile and a block have, at most. */
int64_t fxa__cpu_sub_block_max_count(const fxa__cpu_code *code, int64_t rows, int64_t keys);

/* Moves to rows first..first+n of the group; tiles of the same number in other groups, or heads, share bits. */
void fxa__cpu_masked_tile_set_rows(fxa__cpu_masked_tile *cut, int64_t number, int64_t first, int64_t n,
                                   const int32_t *h, const int32_t *q);
/* Moves to keys key..key+m, or those of them that are left: cut->key, cut->keys. False: none. */
bool fxa__cpu_masked_tile_set_keys(fxa__cpu_masked_tile *cut, int64_t key, int64_t m);

/* How many of `most` rows from `row` of the tile on should share their products: those that cost least each. */
int64_t fxa__cpu_masked_tile_choose_rows(const fxa__cpu_masked_tile *cut, int64_t row, int64_t most);
/* The next strip of these rows from column *at on, which moves past it; it begins at 0 for the first. False: none. */
bool fxa__cpu_sub_block_next(const fxa__cpu_masked_tile *cut, int64_t row, int64_t rows, int64_t *at,
                             fxa__cpu_sub_block *out);
/* What is left of columns begin..end of a strip for some of its rows; begin == end: nothing. */
fxa__cpu_sub_block fxa__cpu_sub_block_within(const fxa__cpu_masked_tile *cut, int64_t row, int64_t rows, int64_t begin,
                                             int64_t end);
/* Whether a row has a strip in some of columns begin..begin+n of the block, as far as bits tell. */
bool fxa__cpu_masked_tile_has_pairs(const fxa__cpu_masked_tile *cut, int64_t begin, int64_t n);
/* The bits of a row of a masked strip; NULL: the tape with its mask tells. */
static inline const uint64_t *fxa__cpu_masked_tile_bits(const fxa__cpu_masked_tile *cut, int64_t row) {
    return cut->bits ? cut->bits->pairs + cut->bits->from[row] * cut->words : NULL;
}

#endif
