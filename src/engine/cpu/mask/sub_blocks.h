/* SPDX-License-Identifier: Apache-2.0
 *
 * Sub-blocks: what the mask leaves of a tile of rows and a block of keys. Both passes use this file to find the work
 * that they can omit. A sub-block is some rows and a run of columns that share their products; rows whose mask has
 * holes have several. A tile and a block are described in one of four ways, the cheapest that is sufficient:
 *
 *   full    no mask, or range analysis finds that every pair is attended
 *   band    the mask bounds q - k and does nothing else (band.c): two numbers give the columns of every row
 *   bits    the mask does not read the score: it is run before the products, one bit per pair
 *   tape    the mask reads the score and is run with the program; range analysis may still exclude rows and columns
 *
 * Bits are summarised by granules of columns, the smallest unit in which products can start or end: granules with some
 * pair, and granules with all pairs. Heads and batch entries with the same mask share the bits. Bits are a function of
 * the tile and the block, so it does not matter which worker computes them.
 */
#ifndef FXA_ENGINE_CPU_MASK_SUB_BLOCKS_H
#define FXA_ENGINE_CPU_MASK_SUB_BLOCKS_H

#include "../code.h"

#include "../../../base/carve.h"

enum {
    FXA__CPU_GRANULE = 16, /* columns of a granule, at least */
    /* Columns between two runs from which on the runs are separate sub-blocks. Ice Lake, f32, S 4096, H 8, D 64, CPU
     * time: a tree mask took 78.5 ms with 16 and 75.3 with 32, a block mask 64.4 and 63.2. */
    FXA__CPU_GAP = 32
};

typedef struct fxa__cpu_sub_block {
    int64_t row, rows;  /* first row within the tile; number of rows */
    int64_t begin, end; /* columns of the key block */
    bool masked;        /* some pair is not attended: bits or a tape give the pairs */
    bool banded;        /* some pair is not attended: the band gives the columns of each row */
} fxa__cpu_sub_block;

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

typedef struct fxa__cpu_mask_bits {
    uint64_t *pairs;  /* [rows,words] bits of rows that differ from the row before */
    int32_t *from;    /* [rows] row of `pairs` that has a row's bits: itself or an earlier row */
    uint64_t *any;    /* [rows] bit i: the row has some pair of granule i */
    uint64_t *all;    /* [rows] bit i: the row has every pair of granule i */
    uint64_t some;    /* bit i: some row has a pair of granule i */
    int64_t row, end; /* rows outside of row..end have no pair */
} fxa__cpu_mask_bits;

/* What the bits of an entry are a function of, besides the index of the entry. */
typedef struct fxa__cpu_mask_bits_key {
    int64_t first, n, q_len; /* rows first..first+n of sequences of q_len */
    int64_t key, keys;       /* keys key..key+keys */
    int32_t q;               /* coordinate of the first row */
    int32_t k_len_seen;      /* key length that programs see */
} fxa__cpu_mask_bits_key;

typedef struct fxa__cpu_mask_bits_entry {
    _Atomic int32_t state; /* 0 = free, 1 = being computed, 2 = valid until the end of the run */
    fxa__cpu_mask_bits_key key;
    fxa__cpu_mask_bits bits;
} fxa__cpu_mask_bits_entry;

/* Mask bits of a run that all workers share. The first worker that needs an entry computes it. A worker that finds the
 * entry used for another tile, or being computed, computes the bits in its own memory. */
typedef struct fxa__cpu_shared_mask_bits {
    int64_t tiles, blocks;             /* a batch entry has tiles * blocks entries */
    int64_t block_keys;                /* keys of a block */
    int64_t count;                     /* limited by memory; 0: no heads or batch entries share their mask */
    fxa__cpu_mask_bits_entry *entries; /* [count] */
} fxa__cpu_shared_mask_bits;

/* Allocates the entries for tiles of at most `rows` rows and blocks of `keys` keys. A carver with a base also marks
 * them as free. */
void fxa__cpu_shared_mask_bits_carve(fxa__carver *c, const fxa__cpu_code *code, const fxa__problem *p, int64_t rows,
                                     int64_t keys, fxa__cpu_shared_mask_bits *shared);

/* ---- Masked tiles ------------------------------------------------------------------------------------------------ */

typedef struct fxa__cpu_masked_tile {
    const fxa__cpu_kv_group *g;
    const fxa__cpu_shared_mask_bits *shared;
    fxa__tape_run mask;     /* tape of the mask; member tape NULL: no bits */
    fxa__cpu_mask_bits own; /* the worker's memory for bits that are not shared */
    int32_t *k;             /* [keys] coordinates of the block's keys */
    uint8_t *same;          /* [rows] 1 = the row has the bits of the row before; used while bits are computed */
    int64_t granule;        /* columns of a granule */
    int64_t words;          /* words of a row of bits */

    /* The tile. */
    int64_t number;       /* index of the tile among tiles that may share bits */
    int64_t first, n;     /* rows first..first+n of the kv group */
    const int32_t *h, *q; /* [n] coordinates of the rows */
    bool ready;           /* the tape has the rows */

    /* The key block. */
    int64_t key, keys;              /* keys that the mask leaves, in whole granules if there are bits */
    int64_t row, row_end;           /* rows outside of row..row_end have no sub-block */
    fxa_tile_class tile;            /* class of the tile and the block */
    bool banded;                    /* each row attends to a range of columns: */
    int64_t band_begin, band_end;   /* from q + band_begin up to, not including, q + band_end */
    const fxa__cpu_mask_bits *bits; /* bits of the block; NULL: described in another way */
} fxa__cpu_masked_tile;

/* Allocate a worker's memory, and start a run with it. */
void fxa__cpu_masked_tile_carve(fxa__carver *c, const fxa__cpu_code *code, int64_t rows, int64_t keys,
                                fxa__cpu_masked_tile *masked);
void fxa__cpu_masked_tile_start(fxa__cpu_masked_tile *masked, const fxa__cpu_kv_group *g,
                                const fxa__cpu_shared_mask_bits *shared, int64_t rows, int64_t keys);

/* Returns the number of sub-blocks that a tile and a block have at most. */
int64_t fxa__cpu_sub_block_max_count(const fxa__cpu_code *code, int64_t rows, int64_t keys);

/* Moves to rows first..first+n of the kv group, with coordinates h and q. Tiles with the same number in other kv groups
 * or heads share bits. */
void fxa__cpu_masked_tile_set_rows(fxa__cpu_masked_tile *masked, int64_t number, int64_t first, int64_t n,
                                   const int32_t *h, const int32_t *q);
/* Moves to keys key..key+m, or to those of them that are left: masked->key, masked->keys. Returns false if none is
 * left. */
bool fxa__cpu_masked_tile_set_keys(fxa__cpu_masked_tile *masked, int64_t key, int64_t m);

/* Returns how many of `most` rows from `row` of the tile on should share their products, so that a row costs least. */
int64_t fxa__cpu_masked_tile_choose_rows(const fxa__cpu_masked_tile *masked, int64_t row, int64_t most);
/* Finds the next sub-block of these rows from column *at on, and moves *at past it; *at is 0 for the first. Returns
 * false if there is none. */
bool fxa__cpu_sub_block_next(const fxa__cpu_masked_tile *masked, int64_t row, int64_t rows, int64_t *at,
                             fxa__cpu_sub_block *out);
/* Returns what is left of columns begin..end of a sub-block for some of its rows; begin == end: nothing. */
fxa__cpu_sub_block fxa__cpu_sub_block_within(const fxa__cpu_masked_tile *masked, int64_t row, int64_t rows,
                                             int64_t begin, int64_t end);
/* Returns true if a row may have a sub-block in some of columns begin..begin+n of the block. */
bool fxa__cpu_masked_tile_has_pairs(const fxa__cpu_masked_tile *masked, int64_t begin, int64_t n);
/* Returns the bits of a row of a masked sub-block; NULL: the tape of the program with its mask gives the pairs. */
static inline const uint64_t *fxa__cpu_masked_tile_bits(const fxa__cpu_masked_tile *masked, int64_t row) {
    return masked->bits ? masked->bits->pairs + masked->bits->from[row] * masked->words : NULL;
}

#endif
