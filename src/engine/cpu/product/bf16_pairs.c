/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of bf16 pairs, as kernels/bf16.h has them. A packed A is rows of pairs, filled with zeroes to a multiple of
 * PAIRS_WORDS words; B is panels of pairs, in the memory of panels of reals, of which it uses the first half.
 *
 * Over rows there are two ways: W^T rounded by its columns as A, X as B; or, where panels are made faster than rows of
 * a transposed A, by transposes: X^T is a packed A, W is packed as B some columns at a time, and sums^T [d,columns] get
 * the products until over_end adds them to out.
 */
#include "product.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

enum { PAIRS_WORDS = 16 }; /* that products may read at once: of a row, and rows */

static int64_t pairs_words(int64_t n) { return fxa__div_up(n, 2 * PAIRS_WORDS) * PAIRS_WORDS; }

/* ---- A ----------------------------------------------------------------------------------------------------------- */

static int64_t pairs_a_ld(const fxa__cpu_kernels *kernels, int64_t k) {
    (void)kernels;
    return pairs_words(k);
}

static void pairs_a_load(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t first,
                         int64_t n, double factor, void *a, int64_t ld, void *room) {
    int64_t d = fxa__cpu_row_place(g, slot, first).n, step = kernels->nr;
    for (int64_t row = 0; row < n; row += step) {
        int64_t rows = fxa__min_i64(step, n - row);
        (void)fxa__cpu_load_rows(g, slot, first + row, rows, factor, room, d);
        kernels->micro.round((uint32_t *)a + row * ld, ld, rows, d, room, d, 1);
    }
}

/* Pairs of a row lie before the numbers that they are made of. */
static void pairs_a_weights(const fxa__cpu_kernels *kernels, void *weights, int64_t ld, int64_t rows, int64_t begin,
                            int64_t end, int64_t columns) {
    int64_t n = end - begin, before = begin / 2, after = before + pairs_words(n), words = pairs_words(columns);
    uint32_t *pairs = weights;
    FXA__ASSERT(begin % (2 * PAIRS_WORDS) == 0 && after <= words);
    if (n > 0) kernels->micro.round(pairs + before, ld, rows, n, (const float *)weights + begin, ld, 1);
    for (int64_t i = 0; i < rows; i++, pairs += ld) {
        memset(pairs, 0, (size_t)before * sizeof *pairs);
        memset(pairs + after, 0, (size_t)(words - after) * sizeof *pairs);
    }
}

/* ---- B ----------------------------------------------------------------------------------------------------------- */

static void pairs_b_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t key,
                           int64_t n, fxa__cpu_b *b, void *room) {
    if (!fxa__cpu_keys_are(g, slot, FXA_BF16)) {
        fxa__cpu_panels_load_t(kernels, g, slot, key, n, b, room);
        return;
    }
    fxa__cpu_place at = fxa__cpu_key_place(g, slot, key);
    b->rows = NULL;
    b->k = at.n;
    kernels->micro.pack_t_stored(b->panels, at.data, at.next / (int64_t)sizeof(uint16_t), n, at.n);
}

static bool pairs_b_load(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t key,
                         int64_t n, fxa__cpu_b *b, void *room, int64_t ld) {
    fxa__cpu_place at = fxa__cpu_key_place(g, slot, key);
    b->rows = NULL;
    b->k = n;
    if (fxa__cpu_keys_are(g, slot, FXA_BF16) &&
        kernels->micro.pack_n_stored(b->panels, at.data, at.next / (int64_t)sizeof(uint16_t), n, at.n))
        return true;
    if (!fxa__cpu_load_keys(g, slot, key, n, room, ld)) return false;
    fxa__cpu_panels_pack(kernels, b, room, ld, n, at.n);
    return true;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* A packed A is 0 past its columns, so k may be rounded up, and weights are 0 before k_begin. */
static void pairs_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x) {
    int64_t nr = kernels->nr, first = x->k_begin / nr * nr, skipped = first - x->a_first;
    int64_t k = fxa__min_i64(fxa__round_up(x->k_end - first, kernels->micro.depth), x->b->k - first);
    FXA__ASSERT(x->k_end <= x->b->k && 0 <= skipped && skipped % 2 == 0 && x->begin % nr == 0);
    kernels->micro.gemm_pairs(x->rows, x->end - x->begin, k, (const uint32_t *)x->a + skipped / 2, x->lda,
                              (const uint32_t *)x->b->panels + x->begin * x->b->k + first / 2 * nr, x->b->k * nr, x->c,
                              x->ldc, x->beta);
}

/* ---- Over rows, by transposes ------------------------------------------------------------------------------------ */

static int64_t transposed_x_size(const fxa__cpu_kernels *kernels, int64_t most, int64_t d) {
    (void)kernels;
    return fxa__round_up(d, PAIRS_WORDS) * pairs_words(most);
}
/* Of sums: products write whole panels; odd in cache lines. */
static int64_t transposed_ld(const fxa__cpu_kernels *kernels, int64_t columns) {
    return fxa__round_up(columns, kernels->nr) + PAIRS_WORDS;
}
static int64_t transposed_sums_size(const fxa__cpu_kernels *kernels, int64_t columns, int64_t d) {
    return d * transposed_ld(kernels, columns);
}
static int64_t transposed_room_size(const fxa__cpu_kernels *kernels, int64_t most) {
    return pairs_words(most) * kernels->nr;
}
static int64_t transposed_depth(const fxa__cpu_kernels *kernels) { return kernels->micro.depth; }
static int64_t transposed_step(const fxa__cpu_kernels *kernels, bool differ, int64_t columns) {
    (void)differ, (void)columns;
    return kernels->nr;
}

static void transposed_clear(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o) {
    memset(o->sums, 0, (size_t)transposed_sums_size(kernels, o->columns, o->d) * sizeof(float));
}

static void transposed_pack(const fxa__cpu_kernels *kernels, fxa__cpu_over *o, const void *x, int64_t ld, int64_t n) {
    FXA__ASSERT(n <= o->most);
    o->rows = n;
    kernels->micro.round(o->x, pairs_words(o->most), o->d, n, x, 1, ld);
}

/* Rows are taken by as many as a product does at once; past the last they are 0. */
static void transposed_add(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, const void *w, int64_t ldw,
                           int64_t begin, int64_t end, int64_t first, int64_t last) {
    int64_t depth = kernels->micro.depth, nr = kernels->nr;
    FXA__ASSERT(0 <= first && last <= o->rows && end <= o->columns && end - begin <= nr);
    first = first / depth * depth;
    last = fxa__min_i64(o->rows, fxa__round_up(last, depth));
    int64_t pairs = fxa__div_up(last - first, 2), k = fxa__round_up(last - first, depth);
    kernels->micro.pack_n(o->room, (const float *)w + first * ldw + begin, ldw, last - first, end - begin);
    memset((uint32_t *)o->room + pairs * nr, 0, (size_t)((k / 2 - pairs) * nr) * sizeof(uint32_t));
    kernels->micro.gemm_pairs(o->d, end - begin, k, (const uint32_t *)o->x + first / 2, pairs_words(o->most), o->room,
                              0, (float *)o->sums + begin, transposed_ld(kernels, o->columns), o->ones);
}

static void transposed_end(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, int64_t columns) {
    kernels->micro.add_transposed(o->out, o->ld_out, o->sums, transposed_ld(kernels, o->columns), o->d, columns);
}

#define PAIRS_FORMAT                                                                                                   \
    FXA__CPU_PANELS, .a_ld = pairs_a_ld, .a_load = pairs_a_load, .a_weights = pairs_a_weights,                         \
                     .b_load_t = pairs_b_load_t, .b_load = pairs_b_load, .product = pairs_product,                     \
                     .product_rows = fxa__cpu_panels_product

const fxa__cpu_format fxa__cpu_format_pairs = {PAIRS_FORMAT, FXA__CPU_PANELS_OVER};

const fxa__cpu_format fxa__cpu_format_transposed = {
    PAIRS_FORMAT,
    .over_x_size = transposed_x_size,
    .over_sums_size = transposed_sums_size,
    .over_room_size = transposed_room_size,
    .over_depth = transposed_depth,
    .over_step = transposed_step,
    .over_clear = transposed_clear,
    .over_pack = transposed_pack,
    .over_add = transposed_add,
    .over_end = transposed_end,
};
