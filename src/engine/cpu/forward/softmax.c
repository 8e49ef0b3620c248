/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes weights from scores, for a row block and sub-blocks of a key block:
 *
 *     s' = program(s)                        by bytecode; -inf where the mask is false
 *     m' = max(m, max s')                    while m' is -inf, 0 is subtracted instead, so nothing becomes NaN
 *     t  = exp(s' - m')                      the difference comes first: exact at the maximum, however large it is
 *     l  = l exp(m - m') + sum t,  beta = exp(m - m')
 *     t  = 0 or t / (1 - p)                  dropout, which does not change l
 *
 * The maximum ignores NaN. The weight of a NaN score is NaN, and so are l and the output of the row.
 */
#include "../bytecode/tape_ops.h"
#include "../real.h"
#include "forward.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"

#include <string.h>

static bool softmax_has_dropout(const fxa__cpu_forward_worker *w) { return (w->g.p->in.flags & FXA_DROPOUT) != 0; }

void fxa__cpu_softmax_rows(fxa__cpu_forward_worker *w) {
    const fxa__cpu_kv_group *g = &w->g;
    const fxa__tape *tapes[2] = {g->code->score, g->code->masked};
    fxa__cpu_row_coords(g, w->task.first, w->task.n, w->h, w->qc);
    for (int i = 0; i < 2; i++) {
        w->tape[i] = fxa__tape_run_make(tapes[i], g->bound->params, g->bound->tensors, w->tape[i].scratch,
                                        w->run->sizes.tile_rows, w->run->sizes.keys);
        if (!w->tape[i].tape) continue;
        fxa__cpu_tape_batch(g, &w->tape[i]);
        fxa__cpu_tape_rows(g, &w->tape[i], w->task.first, w->task.n, w->h, w->qc);
    }
}

fxa__tape_run *fxa__cpu_softmax_tape(fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s) {
    return &w->tape[s->masked && !w->masked.bits];
}

void fxa__cpu_softmax_keys(fxa__cpu_forward_worker *w, fxa__tape_run *tape) {
    int64_t n = w->masked.keys;
    if (tape->tape || softmax_has_dropout(w))
        w->keys_are_consecutive = fxa__cpu_key_coords(&w->g, w->masked.key, n, w->kc);
    if (tape->tape) fxa__tape_columns(tape, n, w->kc, w->masked.key);
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

static bool softmax_has_nan(const fxa__cpu_forward_worker *w, const void *t, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double x = fxa__cpu_real_get(w->kernels, t, i);
        if (x != x) return true;
    }
    return false;
}

/* Returns the part of a row's scores t that includes all keys to which the row attends. t[0] is in column `column`.
 * Sets *from to the column of the part's first score. If the mask is a band, columns outside of the row's range are
 * left out. */
static fxa__cpu_score_row softmax_columns(const fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s, int64_t row,
                                          void *t, int64_t column, int64_t *from) {
    int64_t q = w->qc[row], to = s->end;
    *from = s->begin;
    if (s->banded) {
        *from = fxa__min_i64(fxa__max_i64(q + w->masked.band_begin, s->begin), s->end);
        to = fxa__min_i64(fxa__max_i64(q + w->masked.band_end, *from), s->end);
    }
    return (fxa__cpu_score_row){fxa__cpu_real_at(w->kernels, t, *from - column), to - *from, 0};
}

/* Runs the program on scores that start at column `from`. The program's bytecode is fastest on multiples of
 * FXA__TAPE_STEP scores, so it also computes some scores past the end, which are unused. */
static void softmax_program(fxa__tape_run *run, int64_t row, int64_t from, const fxa__cpu_score_row *x) {
    int64_t steps = fxa__round_up(x->n, FXA__TAPE_STEP);
    fxa__tape_row(run, row, from, fxa__min_i64(steps, run->columns - from), x->s, NULL, x->s);
}

/* Replaces the scores of a row in a sub-block by the program's results, and by -inf where the mask is false. */
static void softmax_scores_row(fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s, int64_t row, int64_t from,
                               const fxa__cpu_score_row *x) {
    fxa__tape_run *tape = fxa__cpu_softmax_tape(w, s);
    if (tape->tape && x->n > 0) softmax_program(tape, row, from, x);
    if (s->masked && w->masked.bits) w->kernels->row_mask(x->s, fxa__cpu_masked_tile_bits(&w->masked, row), from, x->n);
}

/* Runs the program on the scores of row i of the row block in `count` sub-blocks (runs of columns), and returns the
 * results. Sets *from to the column of the first result. */
static fxa__cpu_score_row softmax_scores(fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s, int count,
                                         int64_t column, int64_t i, int64_t *from) {
    int64_t row = s->row + i;
    void *t = fxa__cpu_real_at(w->kernels, w->t, i * w->run->sizes.ldt);
    fxa__cpu_score_row all = softmax_columns(w, s, row, t, column, from);
    softmax_scores_row(w, s, row, *from, &all);
    for (int j = 1; j < count; j++) {
        fxa__cpu_score_row x = {fxa__cpu_real_at(w->kernels, all.s, all.n), s[j].end - s[j].begin, 0};
        softmax_scores_row(w, &s[j], row, s[j].begin, &x);
        all.n += x.n;
    }
    return all;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Sets the weights t[0..n] to 0, except the weights x->s, which are a part of t. */
static void softmax_clear_others(const fxa__cpu_forward_worker *w, void *t, int64_t n, const fxa__cpu_score_row *x) {
    size_t size = w->kernels->real_size, before = (size_t)((char *)x->s - (char *)t);
    size_t after = (size_t)(n - x->n) * size - before;
    if (before > 0) memset(t, 0, before);
    if (after > 0) memset(fxa__cpu_real_at(w->kernels, x->s, x->n), 0, after);
}

/* Applies dropout to the weights x of a row. The first weight is in column `from`. */
static void softmax_drop(const fxa__cpu_forward_worker *w, int64_t row, const fxa__cpu_score_row *x, int64_t from) {
    fxa__cpu_dropout_row drop = fxa__cpu_dropout_row_make(&w->g, w->h[row], w->qc[row]);
    const int32_t *keep = w->kernels->row_keep(w->keep, &drop, w->kc + from, x->n, w->keys_are_consecutive);
    w->kernels->row_drop(x->s, keep, 1 / (1 - w->g.p->in.dropout_p), x->n);
}

/* Applies dropout to the weights `all` of a row, which are in `count` sub-blocks (runs of columns). from: column of the
 * first weight. */
static void softmax_drop_all(const fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s, int count, int64_t row,
                             const fxa__cpu_score_row *all, int64_t from) {
    fxa__cpu_score_row x = *all;
    if (count > 1) x.n = s->end - from;
    softmax_drop(w, row, &x, from);
    for (int j = 1; j < count; j++) {
        x = (fxa__cpu_score_row){fxa__cpu_real_at(w->kernels, x.s, x.n), s[j].end - s[j].begin, 0};
        softmax_drop(w, row, &x, s[j].begin);
    }
}

/* Updates the running maxima m from the maxima x[i].x of the rows, and sets beta = exp(old m - new m), the factor of
 * the earlier sums. Copies the maxima x[i].x to `top`, and replaces x[i].x by the value that rows_exp must subtract. */
static void softmax_update_max(fxa__cpu_forward_worker *w, int64_t row, int64_t n_rows, fxa__cpu_score_row *x,
                               double *top) {
    bool changed = false;
    for (int64_t i = 0; i < n_rows; i++) {
        double *m = &w->state.m[row + i], max = x[i].x > *m ? x[i].x : *m;
        top[i] = x[i].x;
        if (top[i] == INFINITY && softmax_has_nan(w, x[i].s, x[i].n)) w->state.nan[row + i] = 1;
        x[i].x = max == -INFINITY ? 0 : max;
        fxa__cpu_real_set(w->kernels, w->beta, i, *m - x[i].x);
        changed = changed || *m != max;
        *m = max;
    }
    fxa__cpu_score_row beta = {w->beta, n_rows, 0};
    if (changed)
        w->kernels->rows_exp(&beta, 1);
    else
        for (int64_t i = 0; i < n_rows; i++) fxa__cpu_real_set(w->kernels, w->beta, i, 1);
}

void fxa__cpu_softmax(fxa__cpu_forward_worker *w, const fxa__cpu_sub_block *s, int count, int64_t column) {
    fxa__cpu_score_row x[FXA__CPU_ROW_BLOCK];
    double top[FXA__CPU_ROW_BLOCK];
    int64_t ldt = w->run->sizes.ldt, n = s->end - column, row = s->row, from[FXA__CPU_ROW_BLOCK];
    FXA__ASSERT(s->rows <= FXA__CPU_ROW_BLOCK && row + s->rows <= w->task.n);
    FXA__ASSERT(count == 1 || (w->masked.bits && column == s->begin));
    for (int j = 1; j < count; j++) n += s[j].end - s[j].begin;
    for (int64_t i = 0; i < s->rows; i++) x[i] = softmax_scores(w, s, count, column, i, &from[i]);
    w->kernels->rows_max(x, s->rows);
    softmax_update_max(w, row, s->rows, x, top);
    w->kernels->rows_exp(x, s->rows);
    for (int64_t i = 0; i < s->rows; i++) {
        double *l = &w->state.l[row + i];
        *l = *l * fxa__cpu_real_get(w->kernels, w->beta, i) + x[i].x;
        if (x[i].x != x[i].x && top[i] < INFINITY) w->state.nan[row + i] = 1;
        if (x[i].n < n) softmax_clear_others(w, fxa__cpu_real_at(w->kernels, w->t, i * ldt), n, &x[i]);
        if (softmax_has_dropout(w)) softmax_drop_all(w, s, count, row + i, &x[i], from[i]);
    }
}
