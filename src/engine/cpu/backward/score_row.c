/* SPDX-License-Identifier: Apache-2.0
 *
 * One row of a tile of scores in backward: the program, probabilities, dropout, and the gradient's way back through the
 * program. backward/tile.c has the products before and after.
 */
#include "backward.h"
#include "../bytecode/tape_ops.h"

#include "../../../base/num.h"
#include "../../../base/philox.h"

#include <string.h>

/* A row whose LSE is NaN: so is every probability but those of pairs that are not attended. */
static void back_row_nan(const fxa__back *job, void *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (job->p->f64)
            ((double *)x)[i] = ((double *)x)[i] == -INFINITY ? 0 : NAN;
        else
            ((float *)x)[i] = ((float *)x)[i] == -INFINITY ? 0 : NAN;
}

/* Which of columns begin..end dropout keeps. */
static const int32_t *back_row_keep(const fxa__back_worker *w, int64_t row, int64_t begin, int64_t end) {
    const fxa__back *job = w->job;
    fxa__cpu_drop drop = {.seed = job->bound->seed,
                          .threshold = fxa__dropout_threshold(job->p->in.dropout_p),
                          .b = fxa__coord(job->p, job->bound, FXA_INPUT_B, w->g.b),
                          .h = w->h[row],
                          .q = w->q_at[row]};
    return job->code->kernels->row_keep(w->keep, &drop, w->k_at + begin, end - begin, w->keys_run);
}

/* ds, the gradient by new scores, becomes that by scaled scores; captured tensors and params get their part. */
static void back_row_through(fxa__back_worker *w, int64_t row, int64_t first, int64_t n, const void *s, void *ds) {
    fxa__tape_run *derivative = &w->tape[FXA__BACK_DERIVATIVE], *bprop = &w->tape[FXA__BACK_BPROP];
    if (w->job->code->joined) fxa__tape_row_back(&w->tape[FXA__BACK_SCORE], n, ds, ds);
    if (derivative->tape) fxa__tape_row(derivative, row, first, n, s, ds, ds); /* beside a bprop it leaves ds alone */
    if (bprop->tape) fxa__tape_row(bprop, row, first, n, s, ds, ds);
}

/* Tapes work best on whole steps: what lies in ds past the end is 0 for them, what they find there is not used. */
void fxa__back_row(fxa__back_worker *w, int64_t first, int64_t row, bool masked, int64_t begin, int64_t end) {
    const fxa__back *job = w->job;
    const fxa__cpu_kernels *kernels = job->code->kernels;
    int64_t at = row * job->cut.ld + begin, n = end - begin;
    int64_t steps = fxa__min_i64(fxa__round_up(n, FXA__TAPE_STEP), w->n_keys - begin);
    void *s = fxa__back_at(job, w->s, at), *p = fxa__back_at(job, w->p, at);
    void *ds = job->cut.want_ds ? fxa__back_at(job, w->ds, at) : NULL;
    const uint64_t *bits = masked ? fxa__cpu_cut_bits(&w->cut, row) : NULL;
    fxa__tape_run *program = &w->tape[masked && !bits ? FXA__BACK_MASKED : FXA__BACK_SCORE];
    double lse = w->lse[first + row], delta = fxa__back_get(job, w->delta, first + row);
    double factor = 1 / (1 - job->p->in.dropout_p);
    const int32_t *keep = NULL;
    if (program->tape)
        fxa__tape_row(program, row, begin, steps, s, NULL, p);
    else if (p != s)
        memcpy(p, s, (size_t)n * kernels->real_size);
    if (bits) kernels->row_mask(p, bits, begin - (w->cut.key - w->key), n);
    if (lse == lse)
        kernels->row_probability(p, n, lse);
    else
        back_row_nan(job, p, n);
    if (job->p->in.flags & FXA_DROPOUT) keep = back_row_keep(w, row, begin, end);
    if (ds) {
        if (keep) kernels->row_drop(ds, keep, factor, n);
        kernels->row_grad(ds, p, ds, delta, n);
        if (job->cut.keep_score) {
            memset(fxa__back_at(job, ds, n), 0, (size_t)(steps - n) * kernels->real_size);
            back_row_through(w, row, begin, steps, s, ds);
        }
        fxa__cpu_amax_ds(kernels, job->bound, ds, n);
    }
    if (keep) kernels->row_drop(p, keep, factor, n);
}

void fxa__back_row_clear(const fxa__back_worker *w, int64_t row, int64_t begin, int64_t end) {
    const fxa__back *job = w->job;
    size_t bytes = (size_t)(end - begin) * job->code->kernels->real_size;
    if (begin >= end) return;
    memset(fxa__back_at(job, w->p, row * job->cut.ld + begin), 0, bytes);
    if (job->cut.want_ds) memset(fxa__back_at(job, w->ds, row * job->cut.ld + begin), 0, bytes);
}
