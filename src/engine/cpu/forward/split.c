/* SPDX-License-Identifier: Apache-2.0
 *
 * Divides the forward pass: computes the sizes of tiles and blocks, and divides a kv group into row tiles and key
 * splits. With these sizes the scores of a row block stay in the L1 cache, and packed K and V of a key block in the L2
 * cache.
 */
#include "../mask/bits.h"
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

enum {
    /* Number of rows of a product for instruction sets whose kernels->rows is 0. Zen 3, f32, D 64: 12 rows x 256 keys
     * and 24 x 128 were fastest; 24 x 256, whose scores do not fit in the L1 cache, was 5 to 10 % slower. */
    FORWARD_ROWS = 12,
    /* Maximum bytes of K^T of a key block, and of V of a key block. One core of Zen 4, f32, S 2048, D 64, percent of
     * peak with 2^18 and with 2^17: no mask 86.8 and 85.6, causal 84.3 and 83.0, dense bias 77.9 and 73.2. */
    FORWARD_PANEL_BYTES = 1 << 18,
    /* Maximum bytes of Q of a tile, and of the output of a tile. Found by measurement, as FORWARD_MAX_TILE. */
    FORWARD_TILE_BYTES = 3 << 17,
    FORWARD_MAX_TILE = 768, /* maximum rows of a tile */
    /* Limits of key splits, for decoding (DECODE) and for all other problems (TILE); untuned:
     *   TASKS   maximum number of tasks of a batch entry whose keys are split
     *   KEYS    minimum number of keys of a split, so that merging the results costs little */
    FORWARD_DECODE_TASKS = 64,
    FORWARD_DECODE_KEYS = 1024,
    FORWARD_TILE_TASKS = 8,
    FORWARD_TILE_KEYS = 2048
};

static int64_t split_clamp(int64_t x, int64_t lo, int64_t hi) { return fxa__max_i64(lo, fxa__min_i64(x, hi)); }

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Returns the maximum keys of a block. The maximum is halved
 *   - if keys are excluded by range analysis only, without mask bits: smaller blocks are excluded more often
 *   - for kernels that process many rows at once */
static int64_t split_block_keys(const fxa__cpu_code *code, int64_t widest) {
    bool by_ranges = code->classify && !code->mask;
    int64_t shorter = code->kernels->rows > FXA__CPU_ROW_BLOCK || by_ranges ? 2 : 1, nr = code->kernels->nr;
    int64_t bytes = (int64_t)code->kernels->real_size * widest * shorter;
    return split_clamp(FORWARD_PANEL_BYTES / bytes / nr * nr, nr, FXA__CPU_KEY_BLOCK / shorter);
}

/* Returns the number of rows that the kernels process at once. */
static int64_t split_product_rows(const fxa__cpu_kernels *kernels) {
    return kernels->rows ? kernels->rows : fxa__round_up(FORWARD_ROWS, kernels->mr);
}

void fxa__cpu_forward_min_sub_block(const fxa__cpu_kernels *kernels, const fxa_problem *p, int32_t *rows,
                                    int32_t *keys) {
    bool is_decode = fxa__cpu_is_decode(p, p->hq / fxa__max_i64(p->hkv, 1) * p->sq);
    *rows = (int32_t)(is_decode ? fxa__max_i64(p->sq, 1) : split_product_rows(kernels));
    *keys = (int32_t)fxa__cpu_granule(kernels);
}

fxa__cpu_sizes fxa__cpu_forward_sizes(const fxa__cpu_code *code, const fxa_problem *p) {
    const fxa__cpu_kernels *kernels = code->kernels;
    int64_t size = (int64_t)kernels->real_size, widest = fxa__max_i64(1, fxa__max_i64(p->d_qk, p->d_v));
    int64_t rows = split_product_rows(kernels), nr = kernels->nr, vector = FXA__CPU_PAD / size;
    fxa__cpu_sizes s = {.rows = rows};
    s.keys = split_block_keys(code, widest);
    s.tile_rows = split_clamp(FORWARD_TILE_BYTES / (size * widest) / rows * rows, 4 * rows, FORWARD_MAX_TILE);
    s.ldq = fxa__round_up(p->d_qk, vector);
    s.ldo = fxa__round_up(p->d_v, fxa__max_i64(nr, vector));
    s.ldt = fxa__round_up(s.keys, nr) + vector; /* one more cache line, so that rows use all cache sets */
    s.ldv = p->d_v;
    s.lda = kernels->format->a_ld(kernels, p->d_qk);
    FXA__ASSERT(s.lda <= s.ldq);
    FXA__ASSERT(s.keys <= FXA__CPU_KEY_BLOCK && s.rows <= FXA__CPU_PRODUCT_ROWS);
    return s;
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* Divides rows into tiles. If heads have few rows, a tile has rows of several heads. Otherwise a tile has rows of one
 * head only, because the mask then excludes more keys for all rows of a tile. */
static void split_rows(const fxa__cpu_sizes *sizes, int64_t heads, int64_t q_len, fxa__cpu_forward_split *split) {
    bool per_head = 2 * q_len > sizes->tile_rows;
    int64_t rows = per_head ? q_len : heads * q_len, tiles = fxa__div_up(rows, sizes->tile_rows);
    split->tile_rows = tiles ? fxa__round_up(fxa__div_up(rows, tiles), sizes->rows) : 0;
    split->tiles_per_head = per_head ? tiles : 0;
    split->tiles = per_head ? heads * tiles : tiles;
}

/* Returns the number of key splits of a tile: as many as possible, at least 1, without more than FORWARD_.._TASKS tasks
 * of the batch entry and without splits of less than FORWARD_.._KEYS keys. */
static int64_t split_count(bool is_decode, int64_t hkv, int64_t tiles, int64_t k_len) {
    int64_t tasks = (is_decode ? FORWARD_DECODE_TASKS : FORWARD_TILE_TASKS) / (hkv * fxa__max_i64(tiles, 1));
    return split_clamp(tasks, 1, fxa__max_i64(1, k_len / (is_decode ? FORWARD_DECODE_KEYS : FORWARD_TILE_KEYS)));
}

fxa__cpu_forward_split fxa__cpu_forward_split_make(const fxa__cpu_forward_run *run, int64_t q_len, int64_t k_len) {
    const fxa_problem *p = &run->p->in;
    int64_t hkv = fxa__max_i64(p->hkv, 1), heads = p->hq / hkv, rows = heads * q_len;
    fxa__cpu_forward_split split = {.is_decode = fxa__cpu_is_decode(p, rows)};
    if (split.is_decode)
        split.tiles = rows > 0, split.tile_rows = rows;
    else
        split_rows(&run->sizes, heads, q_len, &split);
    split.key_splits = split_count(split.is_decode, hkv, split.tiles, k_len);
    split.split_keys = fxa__round_up(fxa__div_up(k_len, split.key_splits), run->sizes.keys);
    FXA__ASSERT(split.tile_rows <= run->sizes.tile_rows || split.is_decode);
    return split;
}

void fxa__cpu_forward_bound(fxa__cpu_forward_run *run) {
    const fxa_problem *p = &run->p->in;
    int64_t hkv = fxa__max_i64(p->hkv, 1), rows = p->hq / hkv * p->sq, few = fxa__min_i64(rows, FXA__CPU_DECODE_ROWS);
    int64_t tiles = fxa__max_i64(fxa__cpu_forward_split_make(run, p->sq, 0).tiles, 1);
    int64_t by_decode = split_count(true, hkv, 1, p->sk), by_tile = split_count(false, hkv, 1, p->sk);
    run->tasks = fxa__max_i64(tiles, fxa__max_i64(by_decode, FORWARD_TILE_TASKS / hkv));
    run->result_rows = by_decode > 1 && fxa__cpu_is_decode(p, few) ? by_decode * few : 0;
    if (by_tile > 1)
        run->result_rows = fxa__max_i64(run->result_rows, fxa__min_i64(FORWARD_TILE_TASKS / hkv * run->sizes.tile_rows,
                                                                       fxa__min_i64(rows, INT32_MAX) * by_tile));
}
