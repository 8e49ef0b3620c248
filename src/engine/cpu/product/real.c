/* SPDX-License-Identifier: Apache-2.0
 *
 * The format of product operands for float and double (real). A packed A is a row-major matrix of reals. A packed B
 * [k,n] is in panels of nr columns, [ceil(n/nr)][k][nr]. B is used in place, without packing, if it is stored as a
 * contiguous matrix of reals whose number of columns is a multiple of nr.
 */
#include "product.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

/* ---- A ----------------------------------------------------------------------------------------------------------- */

static int64_t reals_a_ld(const fxa__cpu_kernels *kernels, int64_t k) {
    return fxa__round_up(k, FXA__CPU_PAD / (int64_t)kernels->real_size);
}

static void reals_a_load(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first,
                         int64_t n, double factor, void *a, int64_t ld, void *room) {
    (void)kernels, (void)room;
    (void)fxa__cpu_load_rows(g, slot, first, n, factor, a, ld);
}

static void reals_a_weights(const fxa__cpu_kernels *kernels, void *weights, int64_t ld, int64_t rows, int64_t begin,
                            int64_t end, int64_t columns) {
    size_t before = (size_t)begin * kernels->real_size, after = (size_t)(columns - end) * kernels->real_size;
    for (int64_t i = 0; before + after > 0 && i < rows; i++) {
        memset(fxa__cpu_real_at(kernels, weights, i * ld), 0, before);
        memset(fxa__cpu_real_at(kernels, weights, i * ld + end), 0, after);
    }
}

/* ---- B ----------------------------------------------------------------------------------------------------------- */

static void reals_b_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key,
                           int64_t n, fxa__cpu_packed_b *b, void *room) {
    if (!fxa__cpu_has_dense_keys(g, slot, kernels->real_dtype)) {
        fxa__cpu_panels_load_t(kernels, g, slot, key, n, b, room);
        return;
    }
    fxa__cpu_address at = fxa__cpu_key_address(g, slot, key);
    fxa__cpu_panels_pack_t(kernels, b, at.data, at.next / (int64_t)kernels->real_size, n, at.n);
}

/* Returns true if the keys from `at` on can be used without packing: a contiguous matrix of reals, aligned to vectors,
 * whose number of columns is a multiple of nr. */
static bool reals_is_panels(const fxa__cpu_kernels *kernels, const fxa__cpu_address *at) {
    size_t vector = (size_t)kernels->width * kernels->real_size;
    return at->n % kernels->nr == 0 && (uintptr_t)at->data % vector == 0 &&
           at->next == at->n * (int64_t)kernels->real_size;
}

static bool reals_b_load(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key,
                         int64_t n, fxa__cpu_packed_b *b, void *room, int64_t ld) {
    fxa__cpu_address at = fxa__cpu_key_address(g, slot, key);
    if (fxa__cpu_has_dense_keys(g, slot, kernels->real_dtype)) {
        bool is_panels = reals_is_panels(kernels, &at);
        if (!is_panels) kernels->micro.pack_n(b->panels, at.data, at.next / (int64_t)kernels->real_size, n, at.n);
        b->rows = is_panels ? at.data : NULL;
        b->k = n;
        return true;
    }
    if (!fxa__cpu_load_keys(g, slot, key, n, room, ld)) return false;
    fxa__cpu_panels_pack(kernels, b, room, ld, n, at.n);
    return true;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

static void reals_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x) {
    if (!x->b->rows) {
        fxa__cpu_panels_product(kernels, x);
        return;
    }
    int64_t n = x->end; /* if B is used in place, products compute all columns of C, so n is also the pitch of B */
    FXA__ASSERT(x->begin == 0 && n % kernels->nr == 0 && x->k_end <= x->b->k && x->a_first <= x->k_begin);
    kernels->real.gemm_rows(x->rows, n, x->k_end - x->k_begin, fxa__cpu_real_at(kernels, x->a, x->k_begin - x->a_first),
                            x->lda, 1, fxa__cpu_real_at(kernels, x->b->rows, x->k_begin * n), n, x->c, x->ldc, x->beta);
}

const fxa__cpu_format fxa__cpu_format_real = {
    FXA__CPU_PANELS,
    .a_ld = reals_a_ld,
    .a_load = reals_a_load,
    .a_weights = reals_a_weights,
    .b_load_t = reals_b_load_t,
    .b_load = reals_b_load,
    .product = reals_product,
    .product_rows = reals_product,
    FXA__CPU_PANELS_SUM,
};
