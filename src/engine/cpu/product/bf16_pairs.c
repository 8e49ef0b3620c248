/* SPDX-License-Identifier: Apache-2.0
 *
 * Two formats of operands of bf16. A pair is two bf16 in one 32-bit word (kernels/bf16.h). The rows of a packed A
 * consist of pairs and are padded with zeroes to a multiple of PAIRS_WORDS words. B is in panels of pairs, which use
 * the first half of the memory of panels of reals.
 *
 * The formats differ in transposed sums W^T X, where the weights W are P or dS. Format "pairs": A = W^T, which the
 * product rounds to bf16, and B = X, as in panels.c. Format "transposed", for kernels that pack panels faster than the
 * rows of a transposed A: A = X^T, and W is packed as B, a few columns at a time. The products of format "transposed"
 * are added to sums^T [d,columns], which sum_end adds to out.
 */
#include "product.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

enum { PAIRS_WORDS = 16 }; /* 32-bit words that a product may read at once from a row of A */

static int64_t pairs_words(int64_t n) { return fxa__div_up(n, 2 * PAIRS_WORDS) * PAIRS_WORDS; }

/* ---- A ----------------------------------------------------------------------------------------------------------- */

static int64_t pairs_a_ld(const fxa__cpu_kernels *kernels, int64_t k) {
    (void)kernels;
    return pairs_words(k);
}

static void pairs_a_load(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first,
                         int64_t n, double factor, void *a, int64_t ld, void *room) {
    int64_t d = fxa__cpu_row_address(g, slot, first).n, step = kernels->nr;
    for (int64_t row = 0; row < n; row += step) {
        int64_t rows = fxa__min_i64(step, n - row);
        (void)fxa__cpu_load_rows(g, slot, first + row, rows, factor, room, d);
        kernels->pairs.round((uint32_t *)a + row * ld, ld, rows, d, room, d, 1);
    }
}

/* Packs weights in place: in each row, the bf16 pairs overwrite the reals, from the start of the row. */
static void pairs_a_weights(const fxa__cpu_kernels *kernels, void *weights, int64_t ld, int64_t rows, int64_t begin,
                            int64_t end, int64_t columns) {
    int64_t n = end - begin, before = begin / 2, after = before + pairs_words(n), words = pairs_words(columns);
    uint32_t *pairs = weights;
    FXA__ASSERT(begin % (2 * PAIRS_WORDS) == 0 && after <= words);
    if (n > 0) kernels->pairs.round(pairs + before, ld, rows, n, (const float *)weights + begin, ld, 1);
    for (int64_t i = 0; i < rows; i++, pairs += ld) {
        memset(pairs, 0, (size_t)before * sizeof *pairs);
        memset(pairs + after, 0, (size_t)(words - after) * sizeof *pairs);
    }
}

/* ---- B ----------------------------------------------------------------------------------------------------------- */

static void pairs_b_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key,
                           int64_t n, fxa__cpu_packed_b *b, void *room) {
    if (!fxa__cpu_has_dense_keys(g, slot, FXA_BF16)) {
        fxa__cpu_panels_load_t(kernels, g, slot, key, n, b, room);
        return;
    }
    fxa__cpu_address at = fxa__cpu_key_address(g, slot, key);
    b->rows = NULL;
    b->k = at.n;
    kernels->pairs.pack_t_stored(b->panels, at.data, at.next / (int64_t)sizeof(uint16_t), n, at.n);
}

static bool pairs_b_load(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key,
                         int64_t n, fxa__cpu_packed_b *b, void *room, int64_t ld) {
    fxa__cpu_address at = fxa__cpu_key_address(g, slot, key);
    b->rows = NULL;
    b->k = n;
    if (fxa__cpu_has_dense_keys(g, slot, FXA_BF16) &&
        kernels->pairs.pack_n_stored(b->panels, at.data, at.next / (int64_t)sizeof(uint16_t), n, at.n))
        return true;
    if (!fxa__cpu_load_keys(g, slot, key, n, room, ld)) return false;
    fxa__cpu_panels_pack(kernels, b, room, ld, n, at.n);
    return true;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Multiplies A by rows k_begin..k_end of B and some more: the range starts at a multiple of nr, and its length is a
 * multiple of `depth` if B has enough rows. The columns of A for the additional rows are 0. */
static void pairs_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x) {
    int64_t nr = kernels->nr, first = x->k_begin / nr * nr, skipped = first - x->a_first;
    int64_t k = fxa__min_i64(fxa__round_up(x->k_end - first, kernels->pairs.depth), x->b->k - first);
    FXA__ASSERT(x->k_end <= x->b->k && 0 <= skipped && skipped % 2 == 0 && x->begin % nr == 0);
    kernels->pairs.gemm_pairs(x->rows, x->end - x->begin, k, (const uint32_t *)x->a + skipped / 2, x->lda,
                              (const uint32_t *)x->b->panels + x->begin * x->b->k + first / 2 * nr, x->b->k * nr, x->c,
                              x->ldc, x->beta);
}

/* ---- Sums W^T X of the format "transposed", computed as (X^T W)^T ------------------------------------------------ */

/* Returns the row pitch of sums^T in reals: entire panels, because products write these, plus one cache line. An odd
 * number of cache lines per row spreads the rows over the sets of the cache. */
static int64_t transposed_ld(const fxa__cpu_kernels *kernels, int64_t columns) {
    return fxa__round_up(columns, kernels->nr) + PAIRS_WORDS;
}

static void transposed_sum_layout(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum) {
    sum->x_size = fxa__round_up(sum->d, PAIRS_WORDS) * pairs_words(sum->capacity);
    sum->sums_size = sum->d * transposed_ld(kernels, sum->columns);
    sum->room_size = pairs_words(sum->capacity) * kernels->nr;
    sum->depth = kernels->pairs.depth;
    sum->step = sum->masked_step = kernels->nr;
}

static void transposed_sum_pack(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum, const void *x,
                                int64_t ld, int64_t n) {
    FXA__ASSERT(n <= sum->capacity);
    sum->rows = n;
    kernels->pairs.round(sum->x, pairs_words(sum->capacity), sum->d, n, x, 1, ld);
}

/* A product W^T X reads `depth` rows of W at once, so the range of rows first..last is extended to multiples of
 * `depth`. Rows past the end of W count as 0. */
static void transposed_sum_add(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, const void *w,
                               int64_t ldw, int64_t begin, int64_t end, int64_t first, int64_t last) {
    int64_t depth = sum->depth, nr = kernels->nr;
    FXA__ASSERT(0 <= first && last <= sum->rows && end <= sum->columns && end - begin <= nr);
    first = first / depth * depth;
    last = fxa__min_i64(sum->rows, fxa__round_up(last, depth));
    int64_t pairs = fxa__div_up(last - first, 2), k = fxa__round_up(last - first, depth);
    kernels->micro.pack_n(sum->room, (const float *)w + first * ldw + begin, ldw, last - first, end - begin);
    memset((uint32_t *)sum->room + pairs * nr, 0, (size_t)((k / 2 - pairs) * nr) * sizeof(uint32_t));
    kernels->pairs.gemm_pairs(sum->d, end - begin, k, (const uint32_t *)sum->x + first / 2, pairs_words(sum->capacity),
                              sum->room, 0, (float *)sum->sums + begin, transposed_ld(kernels, sum->columns),
                              sum->ones);
}

static void transposed_sum_end(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, int64_t columns) {
    kernels->pairs.add_transposed(sum->out, sum->ld_out, sum->sums, transposed_ld(kernels, sum->columns), sum->d,
                                  columns);
}

#define PAIRS_FORMAT                                                                                                   \
    FXA__CPU_PANELS, .a_ld = pairs_a_ld, .a_load = pairs_a_load, .a_weights = pairs_a_weights,                         \
                     .b_load_t = pairs_b_load_t, .b_load = pairs_b_load, .product = pairs_product,                     \
                     .product_rows = fxa__cpu_panels_product

const fxa__cpu_format fxa__cpu_format_pairs = {PAIRS_FORMAT, FXA__CPU_PANELS_SUM};

const fxa__cpu_format fxa__cpu_format_transposed = {
    PAIRS_FORMAT,
    .sum_layout = transposed_sum_layout,
    .sum_pack = transposed_sum_pack,
    .sum_add = transposed_sum_add,
    .sum_end = transposed_sum_end,
};
