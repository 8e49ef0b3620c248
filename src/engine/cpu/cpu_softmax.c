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
#include "cpu_forward.h"
#include "tape_ops.h"

#include "../../base/num.h"
#include "../../base/philox.h"

#include <string.h>

static const fxa__tape *softmax_tape(const fxa__cpu_code *code, bool masked) {
    return masked ? code->masked : code->score;
}

static bool softmax_drops(const fxa__cpu_item *it) {
    return (it->g.p->p.flags & FXA_DROPOUT) != 0;
}

void fxa__cpu_softmax_rows(fxa__cpu_item *it) {
    const fxa__cpu_group *g = &it->g;
    const fxa__cpu_blocks *blocks = &it->run->blocks;
    if (it->n > 0) fxa__cpu_row_coords(g, it->first, it->n, it->s.h, it->s.qc);
    for (int masked = 0; masked < 2; masked++) {
        it->tape[masked] = (fxa__tape_run){.tape = softmax_tape(g->code, masked),
                                           .params = g->bind->params,
                                           .tensors = g->bind->tensors,
                                           .scratch = it->s.tape[masked],
                                           .max_rows = blocks->tile_rows,
                                           .max_columns = blocks->keys};
        if (!it->tape[masked].tape) continue;
        fxa__tape_batch(&it->tape[masked], it->b, g->seq.q_len_seen, g->seq.k_len_seen);
        fxa__tape_rows(&it->tape[masked], it->n, it->s.h, it->s.qc);
    }
}

void fxa__cpu_softmax_keys(fxa__cpu_item *it, bool masked, int64_t key, int64_t n) {
    if (it->tape[masked].tape || softmax_drops(it)) fxa__cpu_key_coords(&it->g, key, n, it->s.kc);
    if (it->tape[masked].tape) fxa__tape_columns(&it->tape[masked], n, it->s.kc);
}

static bool softmax_has_nan(const fxa__cpu_item *it, const void *t, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double x = fxa__real_get(t, it->kernels->real_size, i);
        if (x != x) return true;
    }
    return false;
}

/* Columns of a block, counted from its first; where they lie among the scores of a row. */
typedef struct softmax_part {
    void *t;
    int64_t from, n;
} softmax_part;

/* Of columns column..column+n, those that the row attends to as far as that is known. */
static softmax_part softmax_part_of(const fxa__cpu_item *it, int64_t row, void *t, int64_t column, int64_t n) {
    softmax_part part = {t, column, n};
    if (!it->banded) return part;
    int64_t q = it->s.qc[row], end = column + n;
    int64_t from = fxa__min_i64(fxa__max_i64(q + it->band_begin, column), end);
    int64_t to = fxa__min_i64(fxa__max_i64(q + it->band_end, from), end);
    return (softmax_part){fxa__real_at(it, t, from - column), from, to - from};
}

/* The program, and the maximum of what it gives. It works best on whole steps: what it finds past the part is not
 * used. */
static double softmax_scores(fxa__cpu_item *it, bool masked, int64_t row, const softmax_part *x) {
    fxa__tape_run *run = &it->tape[masked];
    if (x->n == 0) return -INFINITY;
    if (run->tape) {
        int64_t steps = (x->n + FXA__TAPE_STEP - 1) / FXA__TAPE_STEP * FXA__TAPE_STEP;
        fxa__tape_row(run, row, x->from, fxa__min_i64(steps, run->columns - x->from), x->t, NULL, x->t);
    }
    double max = it->kernels->row_max(x->t, x->n);
    if (max == INFINITY && softmax_has_nan(it, x->t, x->n)) it->s.nan[row] = 1;
    return max;
}

/* Columns column..column+n around the part get weight 0. */
static void softmax_clear(const fxa__cpu_item *it, void *t, int64_t column, int64_t n, const softmax_part *x) {
    int64_t before = x->from - column, after = n - before - x->n;
    size_t size = it->kernels->real_size;
    if (before > 0) memset(t, 0, (size_t)before * size);
    if (after > 0) memset(fxa__real_at(it, x->t, x->n), 0, (size_t)after * size);
}

/* Coordinates k & ~3 .. k | 3 share one call of Philox. */
static void softmax_drop(const fxa__cpu_item *it, int64_t row, void *t, const int32_t *k, int64_t n) {
    double p = it->g.p->p.dropout_p, keep = 1 / (1 - p);
    uint32_t threshold = fxa__dropout_threshold(p), word[4];
    if (n == 0) return;
    uint32_t counter[4] = {~((uint32_t)k[0] >> 2), (uint32_t)it->s.qc[row], (uint32_t)it->s.h[row], (uint32_t)it->b};
    for (int64_t i = 0; i < n; i++) {
        if (counter[0] != (uint32_t)k[i] >> 2) {
            counter[0] = (uint32_t)k[i] >> 2;
            fxa__philox(counter, it->g.bind->seed, word);
        }
        bool kept = word[(uint32_t)k[i] & 3u] >= threshold;
        fxa__real_set(t, it->kernels->real_size, i, kept ? fxa__real_get(t, it->kernels->real_size, i) * keep : 0);
    }
}

void fxa__cpu_softmax(fxa__cpu_item *it, bool masked, int64_t row, int64_t n_rows, int64_t column, int64_t n) {
    const fxa__cpu_kernels *kernels = it->kernels;
    double *m = it->s.m + row, *l = it->s.l + row, top[FXA__CPU_MAX_ROWS], reference[FXA__CPU_MAX_ROWS];
    softmax_part part[FXA__CPU_MAX_ROWS];
    int64_t ldt = it->run->blocks.ldt;
    bool moved = false;
    for (int64_t i = 0; i < n_rows; i++) {
        part[i] = softmax_part_of(it, row + i, fxa__real_at(it, it->s.t, i * ldt), column, n);
        top[i] = softmax_scores(it, masked, row + i, &part[i]);
        double max = top[i] > m[i] ? top[i] : m[i];
        reference[i] = max == -INFINITY ? 0 : max;
        fxa__real_set(it->s.beta, kernels->real_size, i, m[i] - reference[i]);
        moved = moved || m[i] != max;
        m[i] = max;
    }
    if (moved) kernels->row_exp(it->s.beta, n_rows, 0);
    for (int64_t i = 0; i < n_rows; i++) {
        double sum = kernels->row_exp(part[i].t, part[i].n, reference[i]);
        softmax_clear(it, fxa__real_at(it, it->s.t, i * ldt), column, n, &part[i]);
        if (!moved) fxa__real_set(it->s.beta, kernels->real_size, i, 1);
        l[i] = l[i] * fxa__real_get(it->s.beta, kernels->real_size, i) + sum;
        if (sum != sum && top[i] < INFINITY) it->s.nan[row + i] = 1;
        if (softmax_drops(it)) softmax_drop(it, row + i, part[i].t, it->s.kc + part[i].from, part[i].n);
    }
}
