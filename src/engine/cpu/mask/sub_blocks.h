/* SPDX-License-Identifier: Apache-2.0
 *
 * Sub-blocks: the parts of a tile of query rows and a block of keys (columns) in which the mask allows attention. Both
 * passes skip all other (q, k) pairs. A sub-block is a set of rows and a run of columns that are computed by the same
 * matrix products; if the mask of a row has holes, the row is in several sub-blocks. The mask of a tile and a key block
 * is described in one of four ways, the cheapest that is sufficient:
 *
 *   full    there is no mask, or range analysis finds that every pair is attended
 *   band    the mask bounds q - k and does nothing else (band.c): two numbers give the columns of every row
 *   bits    the mask does not read the score: it is computed before the matrix products, one bit per pair
 *   tape    the mask reads the score, so it is part of the program's bytecode (tape); range analysis may still exclude
 *           rows and columns
 *
 * Granules are groups of columns at whose ends products can start or end. For each row, a summary of its bits has the
 * granules in which the row attends to some key, and those in which it attends to all keys. Heads and batch entries
 * with the same mask share the bits. Bits depend on the tile and the key block only, so any worker may compute them.
 */
#ifndef FXA_ENGINE_CPU_MASK_SUB_BLOCKS_H
#define FXA_ENGINE_CPU_MASK_SUB_BLOCKS_H

#include "../code.h"

#include "../../../base/carve.h"

enum {
    FXA__CPU_GRANULE = 16, /* minimum number of columns of a granule (group of columns) */
    /* Minimum number of columns between two runs of columns for the runs to be separate sub-blocks. Ice Lake, f32, S
     * 4096, H 8, D 64, CPU time with 16 and with 32 columns: tree mask 78.5 and 75.3 ms, block mask 64.4 and 63.2. */
    FXA__CPU_GAP = 32
};

typedef struct fxa__cpu_sub_block {
    int64_t row, rows;  /* first row, relative to the tile; number of rows */
    int64_t begin, end; /* columns begin..end of the key block */
    bool masked;        /* the mask excludes some (q, k) pairs, found by mask bits or by the program's bytecode */
    bool banded;        /* the mask excludes some (q, k) pairs; bounds of q - k give the columns of each row */
} fxa__cpu_sub_block;

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

typedef struct fxa__cpu_mask_bits {
    /* [rows,words] bits of each row that differs from the previous row; bit c: the row attends to column c */
    uint64_t *pairs;
    int32_t *from;    /* [rows] index in `pairs` of a row's bits: that of the row itself or of an earlier, equal row */
    uint64_t *any;    /* [rows] bit i: the row attends to some key of granule (group of columns) i */
    uint64_t *all;    /* [rows] bit i: the row attends to every key of granule (group of columns) i */
    uint64_t some;    /* bit i: at least one row attends to a key of granule (group of columns) i */
    int64_t row, end; /* rows outside of row..end attend to no key of the block */
} fxa__cpu_mask_bits;

/* Values that, together with the index of a cache entry, determine the bits in the entry. */
typedef struct fxa__cpu_mask_bits_key {
    int64_t first, n, q_len; /* rows first..first+n of the kv group, with q_len rows per head */
    int64_t key, keys;       /* keys key..key+keys */
    int32_t q;               /* coordinate of the first row */
    int32_t k_len_seen;      /* key length that programs read */
} fxa__cpu_mask_bits_key;

typedef struct fxa__cpu_mask_bits_entry {
    _Atomic int32_t state; /* 0 = free, 1 = being computed, 2 = valid until the end of the run */
    fxa__cpu_mask_bits_key key;
    fxa__cpu_mask_bits bits;
} fxa__cpu_mask_bits_entry;

/* Mask bits of a run, cached for all workers. The first worker that needs an entry computes it. A worker that finds the
 * entry computed for another tile, or not complete yet, computes the bits in its own memory. */
typedef struct fxa__cpu_shared_mask_bits {
    int64_t tiles, blocks; /* a batch entry has tiles * blocks cache entries */
    int64_t block_keys;    /* number of keys of a block */
    int64_t count;         /* number of cache entries, limited by memory; 0 = no heads or batch entries share a mask */
    fxa__cpu_mask_bits_entry *entries; /* [count] */
} fxa__cpu_shared_mask_bits;

/* Allocates the cache entries for tiles of at most `rows` rows and blocks of `keys` keys. If the arena c has memory (a
 * base address), also marks the entries as free. */
void fxa__cpu_shared_mask_bits_carve(fxa__carver *c, const fxa__cpu_code *code, const fxa__problem *p, int64_t rows,
                                     int64_t keys, fxa__cpu_shared_mask_bits *shared);

/* ---- Masked tiles ------------------------------------------------------------------------------------------------ */

typedef struct fxa__cpu_masked_tile {
    const fxa__cpu_kv_group *g;
    const fxa__cpu_shared_mask_bits *shared;
    fxa__tape_run mask;     /* run of the mask's bytecode; mask.tape is NULL if the mask is not computed as bits */
    fxa__cpu_mask_bits own; /* memory of this worker for bits that are not shared */
    int32_t *k;             /* [keys] coordinates of the block's keys */
    uint8_t *same;          /* [rows] 1 = the row has the bits of the previous row; used while bits are computed */
    int64_t granule;        /* number of columns of a granule (group of columns) */
    int64_t words;          /* number of 64-bit words of a row of bits */

    /* The current tile. */
    /* index of the tile within its head, or within the kv group if tiles span several heads; selects the cache entry */
    int64_t number;
    int64_t first, n;     /* rows first..first+n of the kv group, which stacks the rows of its query heads */
    const int32_t *h, *q; /* [n] coordinates of the rows */
    bool ready;           /* the rows of this tile have been passed to the bytecode `mask` */

    /* The current key block. */
    /* keys key..key+keys: the key block without keys at its ends that the mask excludes; if `bits` is set, only entire
     * granules (groups of columns) are cut off */
    int64_t key, keys;
    int64_t row, row_end; /* rows outside of row..row_end have no sub-block */
    fxa_tile_class tile;  /* class of the tile and the key block: empty, full or mixed */
    bool banded;          /* each row with coordinate q attends to exactly the columns q + band_begin .. q + band_end */
    int64_t band_begin, band_end; /* first and last (exclusive) column of a row, relative to the row's coordinate q */
    /* mask bits of the tile and key block; NULL = none: the tile is full, a band describes its mask, or the program's
     * bytecode computes the mask */
    const fxa__cpu_mask_bits *bits;
} fxa__cpu_masked_tile;

/* Allocate the memory of a worker's masked tile; initialise the masked tile for a run. */
void fxa__cpu_masked_tile_carve(fxa__carver *c, const fxa__cpu_code *code, int64_t rows, int64_t keys,
                                fxa__cpu_masked_tile *masked);
void fxa__cpu_masked_tile_start(fxa__cpu_masked_tile *masked, const fxa__cpu_kv_group *g,
                                const fxa__cpu_shared_mask_bits *shared, int64_t rows, int64_t keys);

/* Returns the maximum number of sub-blocks of a tile and a block. */
int64_t fxa__cpu_sub_block_max_count(const fxa__cpu_code *code, int64_t rows, int64_t keys);

/* Sets the tile to rows first..first+n of the kv group, with coordinates h and q. Tiles with the same `number` in other
 * kv groups or heads use the same cache entries of mask bits. */
void fxa__cpu_masked_tile_set_rows(fxa__cpu_masked_tile *masked, int64_t number, int64_t first, int64_t n,
                                   const int32_t *h, const int32_t *q);
/* Sets the key block (masked->key, masked->keys) to keys key..key+m, without keys at its ends that the mask excludes
 * for all rows of the tile. Returns false if the mask excludes all (q, k) pairs. */
bool fxa__cpu_masked_tile_set_keys(fxa__cpu_masked_tile *masked, int64_t key, int64_t m);

/* Returns the number of rows, at most `most`, from `row` of the tile on, that should share their products, so that the
 * cost per row is smallest. */
int64_t fxa__cpu_masked_tile_choose_rows(const fxa__cpu_masked_tile *masked, int64_t row, int64_t most);
/* Finds the next sub-block of rows row..row+rows from column *at on, and sets *at to where the next call starts. *at is
 * 0 for the first call. Returns false if no sub-block is left. */
bool fxa__cpu_sub_block_next(const fxa__cpu_masked_tile *masked, int64_t row, int64_t rows, int64_t *at,
                             fxa__cpu_sub_block *out);
/* Returns the sub-block of rows row..row+rows in columns begin..end, without columns at its ends that the mask excludes
 * for all these rows. In the result, begin == end if no pair is attended. */
fxa__cpu_sub_block fxa__cpu_sub_block_within(const fxa__cpu_masked_tile *masked, int64_t row, int64_t rows,
                                             int64_t begin, int64_t end);
/* Returns true if some row may have a sub-block that overlaps columns begin..begin+n of the key block. */
bool fxa__cpu_masked_tile_has_pairs(const fxa__cpu_masked_tile *masked, int64_t begin, int64_t n);
/* Returns the mask bits of a row of a masked sub-block; NULL if the program's bytecode (tape) applies the mask
 * instead. */
static inline const uint64_t *fxa__cpu_masked_tile_bits(const fxa__cpu_masked_tile *masked, int64_t row) {
    return masked->bits ? masked->bits->pairs + masked->bits->from[row] * masked->words : NULL;
}

#endif
