/* SPDX-License-Identifier: Apache-2.0
 *
 * One item of very few rows (decoding: one position, all query heads of a KV head). Each key is used by those rows
 * only, so packing would cost as much as the work: scores and outputs come straight from storage, whatever its dtype.
 * What counts is that memory never waits: while the keys of a block are multiplied its values are fetched, and while
 * those are, the keys of the next block. Chunks of keys share the work.
 */
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

/* Lets x fetch keys of a slot from key on, if there are as many. */
static void decode_fetch(const fxa__cpu_item *it, fxa__cpu_stored *x, fxa_slot slot, int64_t key) {
    if (key + x->n > it->key_end) return;
    fxa__cpu_place next = fxa__cpu_key_place(&it->g, slot, key);
    if (next.count < x->n) return;
    x->next = next.data;
    x->next_step = next.next;
}

/* t [rows,ldt] = Q K^T for n keys. */
static void decode_scores(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    fxa__cpu_stored k;
    for (int64_t i = 0; i < n; i += k.n) {
        k = fxa__cpu_take_keys(&it->g, FXA_SLOT_K, key + i, n - i);
        decode_fetch(it, &k, FXA_SLOT_V, key + i);
        it->kernels->dots(fxa__real_at(it, it->s.t, i), blocks->ldt, it->s.q, blocks->ldq, it->n, &k);
    }
    double factor = fxa__cpu_score_factor(it->kernels, it->g.bound->scale);
    for (int64_t row = 0; factor != 1 && row < it->n; row++)
        it->kernels->row_scale(fxa__real_at(it, it->s.t, row * blocks->ldt), n, factor);
}

/* o = beta o + t V of rows that are computed again. */
static void decode_large(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    (void)fxa__cpu_load_keys(&it->g, FXA_SLOT_V, key, n, it->s.x, blocks->ldv);
    for (int64_t row = 0; row < it->n; row++)
        fxa__cpu_large_add(it, row, fxa__real_at(it, it->s.t, row * blocks->ldt), it->s.x, n,
                           fxa__real_get(it->s.beta, it->kernels->real_size, row));
}

/* The same of all rows. An output of weight 0 counts for nothing, also when it is infinite. */
static void decode_outputs(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    const fxa__cpu_kernels *kernels = it->kernels;
    for (int64_t row = 0; row < it->n; row++) {
        void *o = fxa__real_at(it, it->s.o, row * blocks->ldo);
        double beta = fxa__real_get(it->s.beta, kernels->real_size, row);
        if (beta == 0)
            memset(o, 0, (size_t)blocks->ldo * kernels->real_size);
        else if (beta != 1)
            kernels->row_scale(o, it->g.p->in.d_v, beta);
    }
    fxa__cpu_stored v;
    for (int64_t i = 0; i < n; i += v.n) {
        v = fxa__cpu_take_keys(&it->g, FXA_SLOT_V, key + i, n - i);
        decode_fetch(it, &v, FXA_SLOT_K, key + n + i);
        kernels->sums(it->s.o, blocks->ldo, fxa__real_at(it, it->s.t, i), blocks->ldt, it->n, &v);
    }
}

static void decode_all(fxa__cpu_item *it) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    for (int64_t key = it->key; key < it->key_end; key += blocks->keys) {
        const fxa__tape_run *ready = NULL;
        fxa__cpu_strip strip;
        if (!fxa__cpu_cut_block(&it->cut, key, fxa__min_i64(blocks->keys, it->key_end - key))) continue;
        for (int64_t at = 0; fxa__cpu_cut_next(&it->cut, 0, it->n, &at, &strip);) {
            fxa__tape_run *tape = fxa__cpu_softmax_tape(it, &strip);
            int64_t first = it->cut.key + strip.begin, n = strip.end - strip.begin;
            if (it->looking) {
                fxa__cpu_large_look(it, first, n);
                continue;
            }
            if (tape != ready) fxa__cpu_softmax_keys(it, tape);
            ready = tape;
            decode_scores(it, first, n);
            fxa__cpu_softmax(it, &strip, 1, strip.begin);
            if (it->large_end == 0)
                decode_outputs(it, first, n);
            else
                decode_large(it, first, n);
        }
    }
}

void fxa__cpu_decode(fxa__cpu_item *it) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    double factor = fxa__cpu_q_factor(it->kernels, it->g.bound->scale);
    FXA__ASSERT(it->n <= FXA__CPU_FEW_ROWS && it->g.p->in.d_qk <= FXA_MAX_D && it->g.p->in.d_v <= FXA_MAX_D);
    memset(it->s.o, 0, (size_t)(it->n * blocks->ldo) * it->kernels->real_size);
    fxa__cpu_load_rows(&it->g, FXA_SLOT_Q, it->first, it->n, factor, it->s.q, blocks->ldq);
    decode_all(it);
    fxa__cpu_large_sum(it, fxa__cpu_large_find(it, 0), decode_all);
}
