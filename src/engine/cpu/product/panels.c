/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the formats of operands (fxa__cpu_format) share: packing a right operand B [k,n] in panels, products
 * A B, and transposed sums as products with A = W^T and B = X. Panels of nr columns are stored one after the other,
 * each with k rows of panel_row reals:
 *
 *     columns 0..nr        columns nr..2 nr
 *     [row 0 .. row k-1]   [row 0 .. row k-1]   ...          distance of panels: k * nr reals
 */
#include "product.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

int64_t fxa__cpu_panels_size(const fxa__cpu_kernels *kernels, int64_t k, int64_t n) {
    return k * fxa__round_up(n, kernels->nr);
}

void fxa__cpu_panels_pack_t(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t n,
                            int64_t k) {
    b->rows = NULL;
    b->k = k;
    kernels->micro.pack_t(b->panels, x, ld, n, k);
}

void fxa__cpu_panels_pack(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t k,
                          int64_t n) {
    b->rows = NULL;
    b->k = k;
    kernels->micro.pack_n(b->panels, x, ld, k, n);
}

/* Loads and packs one panel at a time, so that the loaded rows stay in the L1 cache. */
void fxa__cpu_panels_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key,
                            int64_t n, fxa__cpu_packed_b *b, void *room) {
    int64_t d = fxa__cpu_key_address(g, slot, key).n;
    fxa__cpu_packed_b panel = *b;
    for (int64_t i = 0; i < n; i += kernels->nr) {
        int64_t left = fxa__min_i64(kernels->nr, n - i);
        (void)fxa__cpu_load_keys(g, slot, key + i, left, room, d);
        panel.panels = fxa__cpu_real_at(kernels, b->panels, i * d);
        fxa__cpu_panels_pack_t(kernels, &panel, room, d, left, d);
    }
    b->rows = NULL;
    b->k = d;
}

/* If x->begin is inside of a panel, computes the rest of that panel first. */
void fxa__cpu_panels_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x) {
    int64_t nr = kernels->nr, k = x->k_end - x->k_begin, panel = x->b->k * nr;
    const void *a = fxa__cpu_real_at(kernels, x->a, x->k_begin - x->a_first);
    FXA__ASSERT(!x->b->rows && 0 <= x->k_begin && x->k_end <= x->b->k && x->a_first <= x->k_begin);
    FXA__ASSERT(x->begin % kernels->nr_step == 0 && x->k_begin * kernels->micro.panel_row % nr == 0);
    for (int64_t at = x->begin, inside, to; at < x->end; at = to) {
        inside = at % nr;
        to = inside ? fxa__min_i64(x->end, at - inside + nr) : x->end;
        int64_t first = at / nr * panel + x->k_begin * kernels->micro.panel_row + inside;
        kernels->micro.gemm(x->rows, to - at, k, a, x->lda, 1, fxa__cpu_real_at(kernels, x->b->panels, first), panel,
                            fxa__cpu_real_at(kernels, x->c, at - x->begin), x->ldc, x->beta);
    }
}

/* ---- Transposed sums --------------------------------------------------------------------------------------------- */

/* Number of columns of W per product `out` += W^T X if the columns of W have different nonzero rows: two micro-kernels
 * of 12 rows of `out`, or four of 6. Untuned: fewer columns follow the mask more closely; with more columns, a loaded
 * panel of X serves more rows of `out`. */
enum { PANELS_MASKED_STEP = 24 };

/* Products are added to `out` directly, so `sums` needs no memory. */
void fxa__cpu_panels_sum_layout(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum) {
    sum->x_size = fxa__cpu_panels_size(kernels, sum->capacity, sum->d);
    sum->sums_size = sum->room_size = 0;
    sum->depth = kernels->nr / kernels->micro.panel_row; /* 1, or 2 for bf16 pairs */
    sum->step = sum->columns;
    sum->masked_step = PANELS_MASKED_STEP;
}

void fxa__cpu_panels_sum_pack(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum, const void *x, int64_t ld,
                              int64_t n) {
    FXA__ASSERT(n <= sum->capacity);
    sum->rows = n;
    kernels->micro.pack_n(sum->x, x, ld, n, sum->d);
}

void fxa__cpu_panels_sum_add(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, const void *w,
                             int64_t ldw, int64_t begin, int64_t end, int64_t first, int64_t last) {
    first -= first % sum->depth;
    int64_t row = first * kernels->micro.panel_row;
    FXA__ASSERT(0 <= first && row % kernels->nr == 0 && last <= sum->rows && end <= sum->columns);
    kernels->micro.gemm(end - begin, sum->d, last - first, fxa__cpu_real_at(kernels, w, first * ldw + begin), 1, ldw,
                        fxa__cpu_real_at(kernels, sum->x, row), sum->rows * kernels->nr,
                        fxa__cpu_real_at(kernels, sum->out, begin * sum->ld_out), sum->ld_out, sum->ones);
}

void fxa__cpu_panels_sum_end(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, int64_t columns) {
    (void)kernels, (void)sum, (void)columns;
}
