/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes masks as bits, before the matrix products. For rows that range analysis cannot classify, the bytecode of the
 * mask (its tape) is run. Bits that other heads or batch entries need too are cached for all workers. sub_blocks.h has
 * the data structures.
 */
#include "bits.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

enum {
    /* Masks of more than COST operations are classified by range analysis, ROWS rows at a time, before their bits are
     * computed. Ice Lake, f32, S 4096, H 8, D 64:
     *   mask of 3 operations                        100 ms with classification, 87 without
     *   block mask of 20 operations, blocks of 512  138 ms with classification, 198 without
     *   the same block mask by ROWS                 48: 133 ms, 96: 138 ms, 192: 147 ms */
    BITS_CLASSIFY_ROWS = 96,
    BITS_CLASSIFY_COST = 6,
    /* maximum bytes of all shared cache entries: enough for a mask of 8,192 rows x 8,192 keys and the summaries of its
     * rows */
    BITS_SHARED_BYTES = 16 << 20
};

/* ---- Layout ------------------------------------------------------------------------------------------------------ */

int64_t fxa__cpu_granule(const fxa__cpu_kernels *kernels) { return fxa__max_i64(FXA__CPU_GRANULE, kernels->nr_step); }

static void bits_carve(fxa__carver *c, int64_t rows, int64_t words, fxa__cpu_mask_bits *bits) {
    bits->pairs = fxa__carve_matrix(c, rows, words, sizeof *bits->pairs);
    bits->from = fxa__carve(c, rows, sizeof *bits->from);
    bits->any = fxa__carve(c, rows, sizeof *bits->any);
    bits->all = fxa__carve(c, rows, sizeof *bits->all);
}

void fxa__cpu_masked_tile_carve(fxa__carver *c, const fxa__cpu_code *code, int64_t rows, int64_t keys,
                                fxa__cpu_masked_tile *masked) {
    *masked = (fxa__cpu_masked_tile){.granule = fxa__cpu_granule(code->kernels), .words = fxa__div_up(keys, 64)};
    if (!code->mask) return;
    bits_carve(c, rows, masked->words, &masked->own);
    masked->k = fxa__carve(c, keys, sizeof *masked->k);
    masked->same = fxa__carve(c, rows, 1);
    masked->mask.scratch = fxa__tape_carve(c, code->mask, rows, keys);
}

/* Returns true if the mask, computed as bits, is the same for several heads or batch entries: it does not read the
 * head, and there are several heads, or several batch entries of one head if it does not read the batch entry
 * either. */
static bool bits_repeat(const fxa__cpu_code *code, const fxa_problem *p) {
    bool by_b = code->band.reads >> FXA_INPUT_B & 1, by_h = code->band.reads >> FXA_INPUT_H & 1;
    return code->mask && !by_h && (p->hq > 1 || (!by_b && p->b > 1));
}

void fxa__cpu_shared_mask_bits_carve(fxa__carver *c, const fxa__cpu_code *code, const fxa__problem *p, int64_t rows,
                                     int64_t keys, fxa__cpu_shared_mask_bits *shared) {
    const fxa_problem *in = &p->in;
    int64_t words = fxa__div_up(keys, 64), batch = code->band.reads >> FXA_INPUT_B & 1 ? fxa__max_i64(in->b, 1) : 1;
    int64_t bytes = rows * (words + 3) * (int64_t)sizeof(uint64_t), most = BITS_SHARED_BYTES / fxa__max_i64(bytes, 1);
    *shared = (fxa__cpu_shared_mask_bits){.tiles = fxa__div_up(in->sq, fxa__max_i64(rows, 1)) + 1, .block_keys = keys};
    shared->blocks = fxa__div_up(in->sk, fxa__max_i64(keys, 1)) + 1;
    if (!bits_repeat(code, in)) return;
    shared->count = fxa__min_i64(most, shared->tiles);
    shared->count = shared->count > most / shared->blocks ? most : shared->count * shared->blocks;
    shared->count = shared->count > most / batch ? most : shared->count * batch;
    shared->entries = fxa__carve(c, shared->count, sizeof *shared->entries);
    for (int64_t i = 0; i < shared->count; i++) {
        fxa__cpu_mask_bits bits;
        bits_carve(c, rows, words, &bits);
        if (!shared->entries) continue;
        shared->entries[i].bits = bits;
        atomic_init(&shared->entries[i].state, 0);
    }
}

/* ---- Computing bits ---------------------------------------------------------------------------------------------- */

static uint64_t bits_low(int64_t n) { /* Returns a word whose first n bits are set, 0 <= n <= 64. */
    return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

static void bits_fill(uint64_t *row, int64_t words, int64_t n) { /* Sets the first n bits of a row. */
    for (int64_t i = 0; i < words; i++) row[i] = bits_low(fxa__max_i64(0, fxa__min_i64(n - 64 * i, 64)));
}

/* Divides `word` into groups of `granule` bits, and returns a word whose bit i is set if group i has a set bit.
 * `granule` is a power of two. */
static uint64_t bits_granules(uint64_t word, int64_t granule) {
    uint64_t out = 0;
    for (int64_t i = granule / 2; i > 0; i /= 2)
        word |= word >> i; /* ORs all bits of each group into the group's first bit */
    for (int64_t i = 0; i * granule < 64; i++) out |= (word >> i * granule & 1) << i;
    return out;
}

/* Computes the summary of a row: in which granules (groups of columns) the row attends to some key, and in which to all
 * keys. Words that equal those of the previous row are not examined again. */
static void bits_sum_up(const fxa__cpu_masked_tile *c, const fxa__cpu_mask_bits *to, int64_t row) {
    const uint64_t *pairs = to->pairs + row * c->words;
    const uint64_t *before = row > 0 ? to->pairs + to->from[row - 1] * c->words : NULL;
    uint64_t some = before ? to->any[row - 1] : 0, all = before ? to->all[row - 1] : 0;
    int64_t per_word = 64 / c->granule;
    for (int64_t i = 0; 64 * i < c->keys; i++) {
        if (before && pairs[i] == before[i]) continue;
        uint64_t here = bits_low(fxa__min_i64(c->keys - 64 * i, 64)),
                 holes = bits_granules(~pairs[i] & here, c->granule);
        uint64_t there = bits_low(per_word) << i * per_word;
        some = (some & ~there) | bits_granules(pairs[i], c->granule) << i * per_word;
        all = (all & ~there) | (bits_granules(here, c->granule) & ~holes) << i * per_word;
    }
    to->any[row] = some;
    to->all[row] = all;
}

/* Passes the tile's rows and the key block's columns to the mask's bytecode (tape), if not done yet. */
static void bits_ready(fxa__cpu_masked_tile *c, bool *block_ready) {
    const fxa__cpu_kv_group *g = c->g;
    if (!c->ready) {
        fxa__cpu_tape_batch(g, &c->mask);
        fxa__cpu_tape_rows(g, &c->mask, c->first, c->n, c->h, c->q);
    }
    if (!*block_ready) {
        (void)fxa__cpu_key_coords(g, c->key, c->keys, c->k);
        fxa__tape_columns(&c->mask, c->keys, c->k, c->key);
    }
    c->ready = *block_ready = true;
}

/* Computes the mask bits of rows row to row + rows - 1 of the tile. Sets c->same[i] to 1 for each row i whose bits
 * equal those of the previous row. */
static void bits_pairs(fxa__cpu_masked_tile *c, int64_t row, int64_t rows, uint64_t *pairs, bool *ready) {
    int64_t begin, end;
    fxa_tile_class tile = FXA_TILE_MIXED;
    if (rows < c->n) tile = fxa__cpu_mask_classify(c->g, c->first + row, rows, c->key, c->keys, &begin, &end);
    if (tile == FXA_TILE_MIXED) {
        bits_ready(c, ready);
        fxa__tape_mask(&c->mask, row, rows, pairs, c->words, c->same + row);
        return;
    }
    bits_fill(pairs, c->words, tile == FXA_TILE_FULL ? c->keys : 0);
    for (int64_t i = 0; i < rows; i++) c->same[row + i] = i > 0;
}

/* Copies any[row] and all[row] to the following rows that have the same mask bits. Returns the index of the first row
 * with different bits. */
static int64_t bits_repeat_row(const fxa__cpu_masked_tile *c, const fxa__cpu_mask_bits *to, int64_t row) {
    uint64_t any = to->any[row], all = to->all[row];
    int64_t i = row;
    do {
        to->from[i] = (int32_t)row;
        to->any[i] = any;
        to->all[i] = all;
    } while (++i < c->n && c->same[i]);
    return i;
}

/* Computes the mask bits of a tile, and for each row the granules (groups of columns) that it attends to. */
static void bits_compute(fxa__cpu_masked_tile *c, fxa__cpu_mask_bits *to) {
    bool ready = false;
    int64_t span = fxa__tape_mask_cost(c->mask.tape) > BITS_CLASSIFY_COST ? BITS_CLASSIFY_ROWS : c->n;
    for (int64_t row = 0; row < c->n; row += span)
        bits_pairs(c, row, fxa__min_i64(span, c->n - row), to->pairs + row * c->words, &ready);
    to->some = 0;
    to->row = to->end = 0;
    for (int64_t i = 0, end; i < c->n; i = end) {
        bits_sum_up(c, to, i);
        end = bits_repeat_row(c, to, i);
        if (!to->any[i]) continue;
        if (!to->some) to->row = i;
        to->some |= to->any[i];
        to->end = end;
    }
}

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

/* Returns true if two tiles have the same mask bits. */
static bool bits_same(const fxa__cpu_mask_bits_key *a, const fxa__cpu_mask_bits_key *b) {
    return a->first == b->first && a->n == b->n && a->q_len == b->q_len && a->key == b->key && a->keys == b->keys &&
           a->q == b->q && a->k_len_seen == b->k_len_seen;
}

/* Returns the properties of a tile that determine its mask bits. */
static fxa__cpu_mask_bits_key bits_key(const fxa__cpu_masked_tile *c) {
    const fxa__cpu_kv_group *g = c->g;
    return (fxa__cpu_mask_bits_key){.first = c->first % g->seq.q_len,
                                    .n = c->n,
                                    .q_len = g->seq.q_len,
                                    .key = c->key,
                                    .keys = c->keys,
                                    .q = c->q[0],
                                    .k_len_seen = g->seq.k_len_seen};
}

/* Returns the cache entry of a tile; NULL if the cache has no entry for it. */
static fxa__cpu_mask_bits_entry *bits_entry(const fxa__cpu_masked_tile *c) {
    const fxa__cpu_shared_mask_bits *shared = c->shared;
    int64_t b = c->g->code->band.reads >> FXA_INPUT_B & 1 ? c->g->b : 0, block = c->key / shared->block_keys;
    FXA__ASSERT(block < shared->blocks); /* because c->key < Sk, and the blocks contain at least Sk keys */
    if (c->number >= shared->tiles || b >= shared->count) return NULL;
    int64_t at = (b * shared->tiles + c->number) * shared->blocks + block;
    return at < shared->count ? &shared->entries[at] : NULL;
}

const fxa__cpu_mask_bits *fxa__cpu_mask_bits_get(fxa__cpu_masked_tile *c) {
    fxa__cpu_mask_bits_entry *entry = bits_entry(c);
    fxa__cpu_mask_bits_key of = bits_key(c);
    int32_t state = entry ? atomic_load_explicit(&entry->state, memory_order_acquire) : 1;
    if (state == 2 && bits_same(&entry->key, &of)) return &entry->bits;
    if (state == 0 && atomic_compare_exchange_strong(&entry->state, &state, 1)) {
        entry->key = of;
        bits_compute(c, &entry->bits);
        atomic_store_explicit(&entry->state, 2, memory_order_release);
        return &entry->bits;
    }
    bits_compute(c, &c->own);
    return &c->own;
}
