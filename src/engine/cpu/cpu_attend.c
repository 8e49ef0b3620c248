/* SPDX-License-Identifier: Apache-2.0
 *
 * One item by packed panels. The keys of the item go by in blocks; what the mask leaves of none of its rows is not even
 * loaded. A block is packed once for all rows: K^T in panels of keys, V in panels of features. Then a few rows at a
 * time go the whole way, Q K^T -> softmax -> P V, while their scores stay in the first-level cache:
 *
 *     t = Q K^T [rows, columns]    only the panels that the mask leaves of these rows
 *     o = beta o + t V             the product summed apart first, so that errors do not grow with the length
 */
#include "cpu_forward.h"

#include "../../base/num.h"

#include <string.h>

/* Keys key..key+n as panels of x^T; straight from storage where that is a matrix of real, or of bf16 if that is
 * wanted. */
static void attend_pack_k(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa_problem *p = &it->g.p->p;
    bool stored = kernels->pack_t_stored && fxa__cpu_keys_are(&it->g, FXA_SLOT_K, FXA_BF16);
    if (stored || fxa__cpu_keys_are(&it->g, FXA_SLOT_K, it->g.p->f64 ? FXA_F64 : FXA_F32)) {
        const void *rows = fxa__cpu_key_place(&it->g, FXA_SLOT_K, key).data;
        (stored ? kernels->pack_t_stored : kernels->pack_t)(it->s.k_panels, rows, p->k.stride[2], n, p->d);
        return;
    }
    for (int64_t i = 0; i < n; i += kernels->nr) { /* a panel at a time */
        int64_t left = fxa__min_i64(kernels->nr, n - i);
        fxa__cpu_load_keys(&it->g, FXA_SLOT_K, key + i, left, it->s.x, p->d);
        kernels->pack_t(fxa__real_at(it, it->s.k_panels, i * p->d), it->s.x, p->d, left, p->d);
    }
}

/* V of the block. Infinities and NaN make the item dirty: it is then left as rows, not panels. Rows of real are packed
 * straight from storage without a look at them: the outputs will tell. */
static void attend_pack_v(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa_problem *p = &it->g.p->p;
    int64_t ldv = it->run->blocks.ldv;
    const void *v = fxa__cpu_key_place(&it->g, FXA_SLOT_V, key).data;
    if (!it->dirty && fxa__cpu_keys_are(&it->g, FXA_SLOT_V, it->g.p->f64 ? FXA_F64 : FXA_F32)) {
        kernels->pack_n(it->s.v_panels, v, p->v.stride[2], n, p->dv);
        return;
    }
    if (!it->dirty && kernels->pack_n_stored && fxa__cpu_keys_are(&it->g, FXA_SLOT_V, FXA_BF16) &&
        kernels->pack_n_stored(it->s.v_panels, v, p->v.stride[2], n, p->dv))
        return;
    if (!fxa__cpu_load_keys(&it->g, FXA_SLOT_V, key, n, it->s.x, ldv)) it->dirty = true;
    if (!it->dirty) kernels->pack_n(it->s.v_panels, it->s.x, ldv, n, p->dv);
}

/* o = beta o + t V where a number may be infinite or NaN: weights of 0 and outputs of weight 0 count for nothing. */
static void attend_careful(fxa__cpu_item *it, int64_t row, int64_t n_rows, int64_t column, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t dv = it->g.p->p.dv;
    uint32_t dtype = kernels->real_size == sizeof(float) ? FXA_F32 : FXA_F64;
    for (int64_t i = 0; i < n_rows; i++) {
        void *o = fxa__real_at(it, it->s.o, (row + i) * blocks->ldo);
        double beta = fxa__real_get(it->s.beta, kernels->real_size, i);
        if (beta == 0)
            memset(o, 0, (size_t)blocks->ldo * kernels->real_size);
        else if (beta != 1)
            kernels->row_scale(o, dv, beta);
        fxa__cpu_stored v = {.data = fxa__real_at(it, it->s.x, column * blocks->ldv), .dtype = dtype,
                             .ld = blocks->ldv, .n = n, .d = dv};
        kernels->sums(o, blocks->ldo, fxa__real_at(it, it->s.t, i * blocks->ldt), blocks->ldt, 1, &v);
    }
}

/* Rows row..row+n_rows of the item against columns begin..end of the block at key, which has n keys. */
static void attend_rows(fxa__cpu_item *it, int64_t row, int64_t n_rows, bool masked, int64_t n, int64_t begin,
                        int64_t end) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    const fxa_problem *p = &it->g.p->p;
    int64_t nr = kernels->nr, column = begin / nr * nr, columns = end - column;
    kernels->gemm(n_rows, columns, p->d, fxa__real_at(it, it->s.q, row * blocks->ldq), blocks->ldq, 1,
                  fxa__real_at(it, it->s.k_panels, column * p->d), nr * p->d, it->s.t, blocks->ldt, NULL);
    double factor = fxa__cpu_score_factor(kernels, it->g.bind->scale);
    for (int64_t i = 0; factor != 1 && i < n_rows; i++)
        kernels->row_scale(fxa__real_at(it, it->s.t, i * blocks->ldt), columns, factor);
    fxa__cpu_softmax(it, masked, row, n_rows, column, columns);
    if (it->dirty)
        attend_careful(it, row, n_rows, column, columns);
    else
        kernels->gemm(n_rows, p->dv, columns, it->s.t, blocks->ldt, 1,
                      fxa__real_at(it, it->s.v_panels, column * kernels->panel_row), n * nr,
                      fxa__real_at(it, it->s.o, row * blocks->ldo), blocks->ldo, it->s.beta);
}

static void attend_block(fxa__cpu_item *it, int64_t key, int64_t n) {
    int64_t begin, end, step = it->run->blocks.rows;
    fxa_tile all = fxa__cpu_columns(&it->g, it->first, it->n, key, n, &begin, &end);
    bool ready[2] = {false, false};
    if (all == FXA_TILE_EMPTY) return;
    attend_pack_k(it, key, n);
    attend_pack_v(it, key, n);
    for (int64_t row = 0; row < it->n; row += step) {
        int64_t rows = fxa__min_i64(step, it->n - row);
        fxa_tile tile = all;
        if (all == FXA_TILE_MIXED) tile = fxa__cpu_columns(&it->g, it->first + row, rows, key, n, &begin, &end);
        if (tile == FXA_TILE_EMPTY) continue;
        bool masked = tile == FXA_TILE_MIXED;
        it->whole_begin = it->whole_end = 0;
        if (masked) fxa__cpu_whole_columns(&it->g, it->first + row, rows, key, n, &it->whole_begin, &it->whole_end);
        for (int i = 0; i < 2; i++) { /* rows with whole columns use both tapes */
            bool used = i == masked || it->whole_begin < it->whole_end;
            if (used && !ready[i]) fxa__cpu_softmax_keys(it, i, key, n);
            ready[i] = ready[i] || used;
        }
        attend_rows(it, row, rows, masked, n, begin, end);
    }
}

static void attend_keys(fxa__cpu_item *it) {
    int64_t step = it->run->blocks.keys;
    for (int64_t key = it->key; key < it->key_end; key += step)
        attend_block(it, key, fxa__min_i64(step, it->key_end - key));
}

/* False when a row whose scores are in order has an output that is not finite: V is to blame. */
static bool attend_is_finite(const fxa__cpu_item *it) {
    int64_t ldo = it->run->blocks.ldo;
    uint32_t dtype = it->kernels->real_size == sizeof(float) ? FXA_F32 : FXA_F64;
    for (int64_t i = 0; i < it->n; i++) {
        bool in_order = !it->s.nan[i] && it->s.m[i] < INFINITY;
        if (in_order && !it->kernels->load(it->s.x, fxa__real_at(it, it->s.o, i * ldo), dtype, 1, it->g.p->p.dv))
            return false;
    }
    return true;
}

void fxa__cpu_attend(fxa__cpu_item *it) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    double factor = fxa__cpu_q_factor(it->kernels, it->g.bind->scale);
    fxa__cpu_load_rows(&it->g, FXA_SLOT_Q, it->first, it->n, factor, it->s.q, blocks->ldq);
    attend_keys(it);
    if (it->dirty || attend_is_finite(it)) return;
    fxa__cpu_item_clear(it);
    it->dirty = true;
    attend_keys(it);
}
