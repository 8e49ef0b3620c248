/* SPDX-License-Identifier: Apache-2.0
 *
 * One item of very few rows (decoding: one position, all query heads of a KV head). Each key is used by those rows
 * only, so packing would cost as much as the work: scores and outputs come straight from storage, whatever its dtype, a
 * few keys at a time, so that they are still in the first-level cache for the next row. Chunks of keys share the work.
 */
#include "cpu_forward.h"

#include "../../base/num.h"

#include <string.h>

enum { DECODE_KEYS = 32 }; /* read for all rows before the next ones */

/* Keys that are worked on together: they lie evenly. */
typedef struct decode_keys {
    const void *data;
    uint32_t dtype;
    int64_t ld, n;
} decode_keys;

/* Keys from key on, at most n; a page ends a run. Several rows share one conversion to real, in `room`. */
static decode_keys decode_take(const fxa__cpu_item *it, fxa_slot slot, void *room, int64_t key, int64_t n) {
    const fxa_problem *p = &it->g.p->p;
    uint32_t real = it->g.p->f64 ? FXA_F64 : FXA_F32;
    int64_t run = fxa__min_i64(n, fxa__min_i64(DECODE_KEYS, it->run->blocks.keys));
    if (p->flags & FXA_PAGED) run = fxa__min_i64(run, p->page_size - key % p->page_size);
    fxa__cpu_place at = fxa__cpu_key_place(&it->g, slot, key);
    decode_keys keys = {at.data, at.dtype, slot == FXA_SLOT_K ? p->k.stride[2] : p->v.stride[2], run};
    if (it->n == 1 || at.dtype == real) return keys;
    fxa__cpu_load_keys(&it->g, slot, key, run, room, at.n);
    return (decode_keys){room, real, at.n, run};
}

/* t [rows,ldt] = Q K^T for n keys. */
static void decode_scores(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    const fxa_problem *p = &it->g.p->p;
    decode_keys k;
    for (int64_t i = 0; i < n; i += k.n) {
        k = decode_take(it, FXA_SLOT_K, it->s.k_panels, key + i, n - i);
        for (int64_t row = 0; row < it->n; row++)
            it->kernels->dots(fxa__real_at(it, it->s.t, row * blocks->ldt + i),
                              fxa__real_at(it, it->s.q, row * blocks->ldq), k.data, k.dtype, k.ld, k.n, p->d);
    }
}

/* o = beta o + t V. The product is summed apart in acc [rows,ldo], so that errors do not grow with the length. */
static void decode_outputs(fxa__cpu_item *it, int64_t key, int64_t n) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    const fxa_problem *p = &it->g.p->p;
    size_t real_size = it->kernels->real_size;
    memset(it->s.x, 0, (size_t)(it->n * blocks->ldo) * real_size);
    decode_keys v;
    for (int64_t i = 0; i < n; i += v.n) {
        v = decode_take(it, FXA_SLOT_V, it->s.v_panels, key + i, n - i);
        for (int64_t row = 0; row < it->n; row++)
            it->kernels->sums(fxa__real_at(it, it->s.x, row * blocks->ldo),
                              fxa__real_at(it, it->s.t, row * blocks->ldt + i), v.data, v.dtype, v.ld, v.n, p->dv);
    }
    for (int64_t row = 0; row < it->n; row++) {
        void *o = fxa__real_at(it, it->s.o, row * blocks->ldo), *sum = fxa__real_at(it, it->s.x, row * blocks->ldo);
        double beta = fxa__real_get(it->s.beta, real_size, row);
        for (int64_t i = 0; i < p->dv; i++) { /* an output of weight 0 counts for nothing, also when it is infinite */
            double old = beta == 0 ? 0 : beta * fxa__real_get(o, real_size, i);
            fxa__real_set(o, real_size, i, old + fxa__real_get(sum, real_size, i));
        }
    }
}

void fxa__cpu_decode(fxa__cpu_item *it) {
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    it->banded = false; /* a worker may have come from an item by panels */
    fxa__cpu_load_rows(&it->g, FXA_SLOT_Q, it->first, it->n, it->g.bind->scale, it->s.q, blocks->ldq);
    for (int64_t key = it->key; key < it->key_end; key += blocks->keys) {
        int64_t n = fxa__min_i64(blocks->keys, it->key_end - key), begin, end;
        fxa_tile tile = fxa__cpu_columns(&it->g, it->first, it->n, key, n, &begin, &end);
        if (tile == FXA_TILE_EMPTY) continue;
        bool masked = tile == FXA_TILE_MIXED;
        fxa__cpu_softmax_keys(it, masked, key + begin, end - begin);
        decode_scores(it, key + begin, end - begin);
        fxa__cpu_softmax(it, masked, 0, it->n, 0, end - begin);
        decode_outputs(it, key + begin, end - begin);
    }
}
