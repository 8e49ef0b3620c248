/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores to weights, for a few rows and a block of keys at a time:
 *
 *     s' = program(s)                        by the tape, -inf where its mask is false
 *     m' = max(m, max s')                    the reference is 0 as long as that is -inf, so nothing becomes NaN
 *     t  = exp(s' - m')                      (s' - m') first: exact at the maximum, whatever its size
 *     l  = l exp(m - m') + sum t,  beta = exp(m - m')
 *     t  = 0 or t / (1 - p)                  dropout, which l knows nothing of
 *
 * The maximum ignores NaN; the weight of such a score is NaN, and so are l and the output of its row.
 */
#include "forward.h"
#include "../bytecode/tape_ops.h"

#include "../../../base/invariant.h"
#include "../../../base/num.h"
#include "../../../base/philox.h"

#include <string.h>

static const fxa__tape *softmax_tape(const fxa__cpu_code *code, bool masked) {
    return masked ? code->masked : code->score;
}

static bool softmax_drops(const fxa__cpu_item *it) { return (it->g.p->in.flags & FXA_DROPOUT) != 0; }

void fxa__cpu_softmax_rows(fxa__cpu_item *it) {
    const fxa__cpu_group *g = &it->g;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    fxa__cpu_row_coords(g, it->first, it->n, it->s.h, it->s.qc);
    for (int masked = 0; masked < 2; masked++) {
        it->tape[masked] = (fxa__tape_run){.tape = softmax_tape(g->code, masked),
                                           .params = g->bound->params,
                                           .tensors = g->bound->tensors,
                                           .scratch = it->s.tape[masked],
                                           .max_rows = blocks->tile_rows,
                                           .max_columns = blocks->keys};
        if (!it->tape[masked].tape) continue;
        fxa__tape_batch(&it->tape[masked], it->b, g->seq.q_len_seen, g->seq.k_len_seen, g->seq.heads_seen);
        fxa__tape_rows(&it->tape[masked], it->n, it->s.h, it->s.qc, fxa__cpu_row_q(g, it->first), g->seq.q_len);
    }
}

fxa__tape_run *fxa__cpu_softmax_tape(fxa__cpu_item *it, const fxa__cpu_strip *strip) {
    return &it->tape[strip->masked && !it->cut.bits];
}

void fxa__cpu_softmax_keys(fxa__cpu_item *it, fxa__tape_run *tape) {
    int64_t n = it->cut.keys;
    if (tape->tape || softmax_drops(it)) it->keys_run = fxa__cpu_key_coords(&it->g, it->cut.key, n, it->s.kc);
    if (tape->tape) fxa__tape_columns(tape, n, it->s.kc, it->cut.key);
}

static bool softmax_has_nan(const fxa__cpu_item *it, const void *t, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double x = fxa__real_get(t, it->kernels->real_size, i);
        if (x != x) return true;
    }
    return false;
}

/* Of the columns of a row whose scores are t, those that it attends to as far as that is known; *from is the first of
 * them. */
static fxa__cpu_part softmax_part(const fxa__cpu_item *it, const fxa__cpu_strip *strip, int64_t row, void *t,
                                  int64_t column, int64_t *from) {
    int64_t q = it->s.qc[row], to = strip->end;
    *from = strip->begin;
    if (strip->banded) {
        *from = fxa__min_i64(fxa__max_i64(q + it->cut.band_begin, strip->begin), strip->end);
        to = fxa__min_i64(fxa__max_i64(q + it->cut.band_end, *from), strip->end);
    }
    return (fxa__cpu_part){fxa__real_at(it, t, *from - column), to - *from, 0};
}

/* The program. It works best on whole steps: what it finds past the part is not used. */
static void softmax_program(fxa__tape_run *run, int64_t row, int64_t from, const fxa__cpu_part *x) {
    int64_t steps = fxa__round_up(x->n, FXA__TAPE_STEP);
    fxa__tape_row(run, row, from, fxa__min_i64(steps, run->columns - from), x->s, NULL, x->s);
}

/* The n columns of t outside of the part get weight 0. */
static void softmax_clear(const fxa__cpu_item *it, void *t, int64_t n, const fxa__cpu_part *x) {
    size_t size = it->kernels->real_size, before = (size_t)((char *)x->s - (char *)t);
    size_t after = (size_t)(n - x->n) * size - before;
    if (before > 0) memset(t, 0, before);
    if (after > 0) memset(fxa__real_at(it, x->s, x->n), 0, after);
}

static void softmax_drop(const fxa__cpu_item *it, int64_t row, const fxa__cpu_part *x, int64_t from) {
    double p = it->g.p->in.dropout_p;
    fxa__cpu_drop drop = {.seed = it->g.bound->seed,
                          .threshold = fxa__dropout_threshold(p),
                          .b = it->b,
                          .h = it->s.h[row],
                          .q = it->s.qc[row]};
    const int32_t *keep = it->kernels->row_keep(it->s.keep, &drop, it->s.kc + from, x->n, it->keys_run);
    it->kernels->row_drop(x->s, keep, 1 / (1 - p), x->n);
}

/* From the maxima of the parts, which go to top: m and beta move on, and the parts get their references. */
static void softmax_move(fxa__cpu_item *it, int64_t row, int64_t n_rows, fxa__cpu_part *part, double *top) {
    size_t real_size = it->kernels->real_size;
    bool moved = false;
    for (int64_t i = 0; i < n_rows; i++) {
        double *m = &it->s.m[row + i], max = part[i].x > *m ? part[i].x : *m;
        top[i] = part[i].x;
        if (top[i] == INFINITY && softmax_has_nan(it, part[i].s, part[i].n)) it->s.nan[row + i] = 1;
        part[i].x = max == -INFINITY ? 0 : max;
        fxa__real_set(it->s.beta, real_size, i, *m - part[i].x);
        moved = moved || *m != max;
        *m = max;
    }
    fxa__cpu_part beta = {it->s.beta, n_rows, 0};
    if (moved)
        it->kernels->rows_exp(&beta, 1);
    else
        for (int64_t i = 0; i < n_rows; i++) fxa__real_set(it->s.beta, real_size, i, 1);
}

/* Scores of a row and a strip become new scores, -inf where the pair is not attended. */
static void softmax_scores_row(fxa__cpu_item *it, const fxa__cpu_strip *strip, int64_t row, int64_t from,
                               const fxa__cpu_part *x) {
    fxa__tape_run *tape = fxa__cpu_softmax_tape(it, strip);
    if (tape->tape && x->n > 0) softmax_program(tape, row, from, x);
    if (strip->masked && it->cut.bits) it->kernels->row_mask(x->s, fxa__cpu_cut_bits(&it->cut, row), from, x->n);
}

/* What the first strip and those after it have of row i, side by side. */
static fxa__cpu_part softmax_scores(fxa__cpu_item *it, const fxa__cpu_strip *strip, int count, int64_t column,
                                    int64_t i, int64_t *from) {
    int64_t row = strip->row + i;
    void *t = fxa__real_at(it, it->s.t, i * it->run->blocks.ldt);
    fxa__cpu_part all = softmax_part(it, strip, row, t, column, from);
    softmax_scores_row(it, strip, row, *from, &all);
    for (int j = 1; j < count; j++) {
        fxa__cpu_part x = {fxa__real_at(it, all.s, all.n), strip[j].end - strip[j].begin, 0};
        softmax_scores_row(it, &strip[j], row, strip[j].begin, &x);
        all.n += x.n;
    }
    return all;
}

/* Dropout of the same; `from` is the column of the first. */
static void softmax_drop_all(const fxa__cpu_item *it, const fxa__cpu_strip *strip, int count, int64_t row,
                             const fxa__cpu_part *all, int64_t from) {
    fxa__cpu_part x = *all;
    if (count > 1) x.n = strip->end - from;
    softmax_drop(it, row, &x, from);
    for (int j = 1; j < count; j++) {
        x = (fxa__cpu_part){fxa__real_at(it, x.s, x.n), strip[j].end - strip[j].begin, 0};
        softmax_drop(it, row, &x, strip[j].begin);
    }
}

void fxa__cpu_softmax(fxa__cpu_item *it, const fxa__cpu_strip *strip, int count, int64_t column) {
    fxa__cpu_part part[FXA__CPU_MAX_ROWS];
    double top[FXA__CPU_MAX_ROWS];
    int64_t ldt = it->run->blocks.ldt, n = strip->end - column, row = strip->row, from[FXA__CPU_MAX_ROWS];
    FXA__ASSERT(strip->rows <= FXA__CPU_MAX_ROWS && (count == 1 || (it->cut.bits && column == strip->begin)));
    for (int j = 1; j < count; j++) n += strip[j].end - strip[j].begin;
    for (int64_t i = 0; i < strip->rows; i++) part[i] = softmax_scores(it, strip, count, column, i, &from[i]);
    it->kernels->rows_max(part, strip->rows);
    softmax_move(it, row, strip->rows, part, top);
    it->kernels->rows_exp(part, strip->rows);
    for (int64_t i = 0; i < strip->rows; i++) {
        double *l = &it->s.l[row + i];
        *l = *l * fxa__real_get(it->s.beta, it->kernels->real_size, i) + part[i].x;
        if (part[i].x != part[i].x && top[i] < INFINITY) it->s.nan[row + i] = 1;
        if (part[i].n < n) softmax_clear(it, fxa__real_at(it, it->s.t, i * ldt), n, &part[i]);
        if (softmax_drops(it)) softmax_drop_all(it, strip, count, row + i, &part[i], from[i]);
    }
}
