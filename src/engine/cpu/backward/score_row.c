/* SPDX-License-Identifier: Apache-2.0
 *
 * One row of a tile of scores in backward: the program, probabilities, dropout, and the derivative of the program.
 * tile.c computes the matrix products before and after.
 */
#include "backward.h"
#include "../bytecode/tape_ops.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

/* Sets the probabilities of a row whose LSE is NaN: 0 for pairs that are not attended (score -inf), else NaN. */
static void score_row_nan(const fxa__cpu_kernels *kernels, void *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        fxa__cpu_real_set(kernels, x, i, fxa__cpu_real_get(kernels, x, i) == -INFINITY ? 0 : NAN);
}

/* Returns the dropout decisions for columns begin..end of a row: -1 = kept, 0 = dropped. */
static const int32_t *score_row_keep(const fxa__cpu_backward_worker *w, int64_t row, int64_t begin, int64_t end) {
    fxa__cpu_dropout_row drop = fxa__cpu_dropout_row_make(&w->g, w->h[row], w->q_at[row]);
    return w->run->code->kernels->row_keep(w->keep, &drop, w->k_at + begin, end - begin, w->keys_are_consecutive);
}

/* On entry, ds is the gradient with respect to the scores after the program; on return, with respect to the scaled
 * scores before the program. Adds the row's gradients of captured tensors and params to the sums. */
static void score_row_derive(fxa__cpu_backward_worker *w, int64_t row, int64_t first, int64_t n, const void *s,
                             void *ds) {
    fxa__tape_run *derivative = &w->tape[FXA__CPU_TAPE_DERIVATIVE], *bprop = &w->tape[FXA__CPU_TAPE_BPROP];
    if (w->run->code->joined) fxa__tape_row_back(&w->tape[FXA__CPU_TAPE_SCORE], n, ds, ds);
    /* if the user has given a bprop, `derivative` only adds gradients to sums, and bprop changes ds */
    if (derivative->tape) fxa__tape_row(derivative, row, first, n, s, ds, ds);
    if (bprop->tape) fxa__tape_row(bprop, row, first, n, s, ds, ds);
}

/* Tapes (compiled programs) are fastest on a multiple of FXA__TAPE_STEP elements: ds is padded with zeroes, and the
 * results of the padding are unused. */
void fxa__cpu_score_row_back(fxa__cpu_backward_worker *w, int64_t first, int64_t row, bool masked, int64_t begin,
                             int64_t end) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    int64_t at = row * run->split.ld + begin, n = end - begin;
    int64_t steps = fxa__min_i64(fxa__round_up(n, FXA__TAPE_STEP), w->n_keys - begin);
    void *s = fxa__cpu_real_at(kernels, w->s, at), *p = fxa__cpu_real_at(kernels, w->p, at);
    void *ds = run->split.want_ds ? fxa__cpu_real_at(kernels, w->ds, at) : NULL;
    const uint64_t *bits = masked ? fxa__cpu_masked_tile_bits(&w->masked, row) : NULL;
    fxa__tape_run *program = &w->tape[masked && !bits ? FXA__CPU_TAPE_MASKED : FXA__CPU_TAPE_SCORE];
    double lse = w->lse[first + row], delta = fxa__cpu_real_get(kernels, w->delta, first + row);
    double factor = 1 / (1 - run->p->in.dropout_p);
    const int32_t *keep = NULL;
    FXA__ASSERT(0 <= begin && begin < end && end <= w->n_keys && row < run->split.tile_rows);
    if (program->tape)
        fxa__tape_row(program, row, begin, steps, s, NULL, p);
    else if (p != s)
        memcpy(p, s, (size_t)n * kernels->real_size);
    if (bits) kernels->row_mask(p, bits, begin - (w->masked.key - w->key), n);
    if (lse == lse)
        kernels->row_probability(p, n, lse);
    else
        score_row_nan(kernels, p, n);
    if (run->p->in.flags & FXA_DROPOUT) keep = score_row_keep(w, row, begin, end);
    if (ds) {
        if (keep) kernels->row_drop(ds, keep, factor, n);
        kernels->row_grad(ds, p, ds, delta, n);
        if (run->split.keeps_scores) {
            memset(fxa__cpu_real_at(kernels, ds, n), 0, (size_t)(steps - n) * kernels->real_size);
            score_row_derive(w, row, begin, steps, s, ds);
        }
        fxa__cpu_amax_ds(kernels, run->bound, ds, n);
        /* A score scale of 0 is applied to dS too: products skip zeroes of dS, while 0 times an infinity or NaN of Q or
         * K would be NaN. */
        if (run->bound->scale == 0) kernels->row_scale(ds, n, 0);
    }
    if (keep) kernels->row_drop(p, keep, factor, n);
}

void fxa__cpu_score_row_clear(const fxa__cpu_backward_worker *w, int64_t row, int64_t begin, int64_t end) {
    const fxa__cpu_backward_run *run = w->run;
    const fxa__cpu_kernels *kernels = run->code->kernels;
    int64_t at = row * run->split.ld + begin;
    size_t bytes = (size_t)(end - begin) * kernels->real_size;
    if (begin >= end) return;
    memset(fxa__cpu_real_at(kernels, w->p, at), 0, bytes);
    if (run->split.want_ds) memset(fxa__cpu_real_at(kernels, w->ds, at), 0, bytes);
}
