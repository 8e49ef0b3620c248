/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes a key block for a task of very few rows (decoding: one position, all query heads of a KV head). Only those
 * rows use a key, so packing would cost as much as the products. Scores and outputs are therefore computed from K and V
 * as they are stored, in any dtype. Memory bandwidth is the limit. Therefore V of a block is prefetched while K of the
 * block is multiplied, and K of the next block is prefetched while V is multiplied.
 */
#include "../real.h"
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

/* Sets x->next, the rows to prefetch, to rows key..key+x->n of `slot` (K or V). Does nothing if some of these keys are
 * not in the task, or if their rows are not evenly spaced. */
static void decode_prefetch(const fxa__cpu_forward_worker *w, fxa__cpu_stored_rows *x, fxa_slot slot, int64_t key) {
    if (key + x->n > w->task.key_end) return;
    fxa__cpu_address next = fxa__cpu_key_address(&w->g, slot, key);
    if (next.count < x->n) return;
    x->next = next.data;
    x->next_step = next.next;
}

/* Computes t [rows,ldt] = Q K^T for n keys. */
static void decode_scores(fxa__cpu_forward_worker *w, int64_t key, int64_t n) {
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    const fxa__cpu_kernels *kernels = w->kernels;
    fxa__cpu_stored_rows k;
    for (int64_t i = 0; i < n; i += k.n) {
        k = fxa__cpu_stored_keys(&w->g, FXA_SLOT_K, key + i, n - i);
        decode_prefetch(w, &k, FXA_SLOT_V, key + i);
        kernels->dots(fxa__cpu_real_at(kernels, w->t, i), sizes->ldt, w->q, sizes->ldq, w->task.n, &k);
    }
    double factor = fxa__cpu_score_factor(kernels, w->g.bound->scale);
    for (int64_t row = 0; factor != 1 && row < w->task.n; row++)
        kernels->row_scale(fxa__cpu_real_at(kernels, w->t, row * sizes->ldt), n, factor);
}

/* Computes o = beta o + t V for n keys. t: weights of these keys; beta: factor by which the softmax rescales the
 * outputs so far. If the beta of a row is 0, its output is set to 0 and not multiplied: 0 * inf would be NaN. */
static void decode_outputs(fxa__cpu_forward_worker *w, int64_t key, int64_t n) {
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    const fxa__cpu_kernels *kernels = w->kernels;
    for (int64_t row = 0; row < w->task.n; row++) {
        void *o = fxa__cpu_real_at(kernels, w->o, row * sizes->ldo);
        double beta = fxa__cpu_real_get(kernels, w->beta, row);
        if (beta == 0)
            memset(o, 0, (size_t)sizes->ldo * kernels->real_size);
        else if (beta != 1)
            kernels->row_scale(o, w->g.p->in.d_v, beta);
    }
    fxa__cpu_stored_rows v;
    for (int64_t i = 0; i < n; i += v.n) {
        v = fxa__cpu_stored_keys(&w->g, FXA_SLOT_V, key + i, n - i);
        decode_prefetch(w, &v, FXA_SLOT_K, key + n + i);
        kernels->sums(w->o, sizes->ldo, fxa__cpu_real_at(kernels, w->t, i), sizes->ldt, w->task.n, &v);
    }
}

/* Adds t V for n keys to the f64 sums of the rows that overflow. */
static void decode_rescaled(fxa__cpu_forward_worker *w, int64_t key, int64_t n) {
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    (void)fxa__cpu_load_keys(&w->g, FXA_SLOT_V, key, n, w->x, sizes->ldv);
    for (int64_t row = 0; row < w->task.n; row++)
        fxa__cpu_rescaled_add(w, row, fxa__cpu_real_at(w->kernels, w->t, row * sizes->ldt), w->x, n,
                              fxa__cpu_real_get(w->kernels, w->beta, row));
}

/* Computes the weights of each sub-block (run of keys) of the key block, and calls `add` for these keys. */
static void decode_sub_blocks(fxa__cpu_forward_worker *w,
                              void (*add)(fxa__cpu_forward_worker *w, int64_t key, int64_t n)) {
    /* the tape (compiled program) that already has the coordinates of the block's keys */
    const fxa__tape_run *ready = NULL;
    fxa__cpu_sub_block s;
    for (int64_t at = 0; fxa__cpu_sub_block_next(&w->masked, 0, w->task.n, &at, &s);) {
        fxa__tape_run *tape = fxa__cpu_softmax_tape(w, &s);
        int64_t first = w->masked.key + s.begin, n = s.end - s.begin;
        if (tape != ready) fxa__cpu_softmax_keys(w, tape);
        ready = tape;
        decode_scores(w, first, n);
        fxa__cpu_softmax(w, &s, 1, s.begin);
        add(w, first, n);
    }
}

void fxa__cpu_decode_block(fxa__cpu_forward_worker *w) { decode_sub_blocks(w, decode_outputs); }

void fxa__cpu_decode_block_rescaled(fxa__cpu_forward_worker *w) { decode_sub_blocks(w, decode_rescaled); }

void fxa__cpu_decode_start(fxa__cpu_forward_worker *w) {
    const fxa__cpu_sizes *sizes = &w->run->sizes;
    double factor = fxa__cpu_q_factor(w->kernels, w->g.bound->scale);
    FXA__ASSERT(w->task.n <= FXA__CPU_DECODE_ROWS && w->task.n <= sizes->tile_rows);
    FXA__ASSERT(w->g.p->in.d_qk <= FXA_MAX_D && w->g.p->in.d_v <= FXA_MAX_D);
    memset(w->o, 0, (size_t)(w->task.n * sizes->ldo) * w->kernels->real_size);
    fxa__cpu_load_rows(&w->g, FXA_SLOT_Q, w->task.first, w->task.n, factor, w->q, sizes->ldq);
}
