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

enum { ATTEND_SPAN = 8 }; /* blocks of rows */

/* A packed block of keys. */
typedef struct attend_keys {
    int64_t key, n;
    int64_t begin, end; /* columns that the rows of a span attend to, from a whole panel on */
    bool band;          /* what rows attend to is a band, see fxa__cpu_band_columns */
    bool ready[2];      /* the tape without and with its mask knows the block */
} attend_keys;

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
    it->v_rows = !it->dirty && fxa__cpu_keys_are_panels(&it->g, FXA_SLOT_V, key) ? v : NULL;
    if (it->v_rows) return;
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
        kernels->sums(o, fxa__real_at(it, it->s.t, i * blocks->ldt), fxa__real_at(it, it->s.x, column * blocks->ldv),
                      dtype, blocks->ldv, n, dv);
    }
}

/* t = Q K^T for columns column..end of the block; what lies before a whole panel is a product of its own. */
static void attend_scores(fxa__cpu_item *it, int64_t row, int64_t n_rows, int64_t column, int64_t end) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    const fxa_problem *p = &it->g.p->p;
    const void *q = fxa__real_at(it, it->s.q, row * blocks->ldq);
    for (int64_t nr = kernels->nr, at = column, inside, to; at < end; at = to) {
        inside = at % nr;
        to = inside ? fxa__min_i64(end, at - inside + nr) : end;
        kernels->gemm(n_rows, to - at, p->d, q, blocks->ldq, 1,
                      fxa__real_at(it, it->s.k_panels, (at - inside) * p->d + inside), nr * p->d,
                      fxa__real_at(it, it->s.t, at - column), blocks->ldt, NULL);
    }
    double factor = fxa__cpu_score_factor(kernels, it->g.bind->scale);
    for (int64_t i = 0; factor != 1 && i < n_rows; i++)
        kernels->row_scale(fxa__real_at(it, it->s.t, i * blocks->ldt), end - column, factor);
}

/* Rows row..row+n_rows of the item against columns begin..end of the block, which has n keys. */
static void attend_rows(fxa__cpu_item *it, int64_t row, int64_t n_rows, bool masked, int64_t n, int64_t begin,
                        int64_t end) {
    const fxa__cpu_kernels *kernels = it->kernels;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    int64_t column = begin / kernels->nr_step * kernels->nr_step;
    for (int64_t i = 0; it->tape[masked].tape && i < n_rows; i++) /* it arrives while scores are computed */
        fxa__tape_prefetch(&it->tape[masked], row + i, column, end - column);
    attend_scores(it, row, n_rows, column, end);
    fxa__cpu_softmax(it, masked, row, n_rows, column, end - column);
    if (it->dirty) {
        attend_careful(it, row, n_rows, column, end - column);
        return;
    }
    int64_t from = kernels->rounds ? column : begin, dv = it->g.p->p.dv; /* weights before `begin` are 0 */
    const void *t = fxa__real_at(it, it->s.t, from - column);
    void *o = fxa__real_at(it, it->s.o, row * blocks->ldo);
    if (it->v_rows)
        kernels->gemm_rows(n_rows, dv, end - from, t, blocks->ldt, 1,
                           (const char *)it->v_rows + from * dv * (int64_t)kernels->real_size, dv, o, blocks->ldo,
                           it->s.beta);
    else
        kernels->gemm(n_rows, dv, end - from, t, blocks->ldt, 1,
                      fxa__real_at(it, it->s.v_panels, from * kernels->panel_row), n * kernels->nr, o, blocks->ldo,
                      it->s.beta);
}

/* Rows first..first+n of the item against a packed block; `part` is what the mask leaves of them. */
static void attend_span(fxa__cpu_item *it, attend_keys *keys, int64_t first, int64_t n, fxa_tile part) {
    for (int64_t row = first, rows; row < first + n; row += rows) {
        int64_t begin = 0, end = keys->end - keys->begin;
        fxa_tile tile = part;
        rows = fxa__min_i64(it->run->blocks.rows, first + n - row);
        if (part == FXA_TILE_MIXED)
            tile = fxa__cpu_columns(&it->g, it->first + row, rows, keys->key + keys->begin, end, &begin, &end);
        if (tile == FXA_TILE_EMPTY) continue;
        bool masked = tile == FXA_TILE_MIXED && !keys->band;
        it->banded = tile == FXA_TILE_MIXED && keys->band;
        if (!keys->ready[masked]) fxa__cpu_softmax_keys(it, masked, keys->key, keys->n);
        keys->ready[masked] = true;
        attend_rows(it, row, rows, masked, keys->n, keys->begin + begin, keys->begin + end);
    }
}

/* Keys key..key+n. Masks are asked about many rows before they are asked about few, which costs as much. */
static void attend_block(fxa__cpu_item *it, int64_t key, int64_t n) {
    int64_t begin, end, span = ATTEND_SPAN * it->run->blocks.rows;
    fxa_tile all = fxa__cpu_columns(&it->g, it->first, it->n, key, n, &begin, &end);
    if (all == FXA_TILE_EMPTY) return;
    attend_keys keys = {.key = key + begin, .n = end - begin, .end = end - begin};
    keys.band = fxa__cpu_band_columns(&it->g, it->first, it->n, keys.key, keys.n, &it->band_begin, &it->band_end);
    attend_pack_k(it, keys.key, keys.n);
    attend_pack_v(it, keys.key, keys.n);
    if (all == FXA_TILE_FULL || keys.band) {
        attend_span(it, &keys, 0, it->n, all);
        return;
    }
    for (int64_t row = 0, rows; row < it->n; row += rows) {
        int64_t first = it->first + row;
        rows = fxa__min_i64(span, it->n - row);
        fxa_tile part = fxa__cpu_columns(&it->g, first, rows, keys.key, keys.n, &keys.begin, &keys.end);
        if (part == FXA_TILE_MIXED) fxa__cpu_columns_trim(&it->g, first, rows, keys.key, &keys.begin, &keys.end);
        keys.begin = keys.begin / it->kernels->nr * it->kernels->nr; /* products do not begin anywhere */
        if (part != FXA_TILE_EMPTY) attend_span(it, &keys, row, rows, part);
    }
}

static void attend_all(fxa__cpu_item *it) {
    int64_t step = it->run->blocks.keys, begin, end;
    if (fxa__cpu_columns(&it->g, it->first, it->n, it->key, it->key_end - it->key, &begin, &end) == FXA_TILE_EMPTY)
        return;
    for (int64_t key = it->key + begin, last = it->key + end; key < last; key += step)
        attend_block(it, key, fxa__min_i64(step, last - key));
}

/* False when a row whose scores are in order has an output that is not finite: V is to blame. */
static bool attend_is_finite(const fxa__cpu_item *it) {
    int64_t ldo = it->run->blocks.ldo, dv = it->g.p->p.dv;
    uint32_t dtype = it->kernels->real_size == sizeof(float) ? FXA_F32 : FXA_F64;
    for (int64_t i = 0, count; i < it->n; i += count) { /* rows together, as many as s.x has room for */
        count = fxa__min_i64(it->n - i, fxa__max_i64(1, it->run->blocks.keys * it->run->blocks.ldv / ldo));
        if (it->kernels->load(it->s.x, fxa__real_at(it, it->s.o, i * ldo), dtype, 1, (count - 1) * ldo + dv)) continue;
        for (int64_t row = i; row < i + count; row++) {
            bool in_order = !it->s.nan[row] && it->s.m[row] < INFINITY;
            if (in_order && !it->kernels->load(it->s.x, fxa__real_at(it, it->s.o, row * ldo), dtype, 1, dv))
                return false;
        }
    }
    return true;
}

void fxa__cpu_attend(fxa__cpu_item *it) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    double factor = fxa__cpu_q_factor(it->kernels, it->g.bind->scale);
    fxa__cpu_load_rows(&it->g, FXA_SLOT_Q, it->first, it->n, factor, it->s.q, blocks->ldq);
    attend_all(it);
    if (it->dirty || attend_is_finite(it)) return;
    fxa__cpu_item_clear(it);
    it->dirty = true;
    attend_all(it);
}
