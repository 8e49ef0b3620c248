/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares row bytecode with the evaluator (tape_case.h). Rows and scratch memory end at inaccessible pages.
 */
#include "tape_case.h"

#include "attn_case.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double check_get(const tape_case *c, const void *row, int64_t i) {
    return c->kernels->real_size == 4 ? (double)((const float *)row)[i] : ((const double *)row)[i];
}

static void check_put(const tape_case *c, void *row, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (c->kernels->real_size == 4)
            ((float *)row)[i] = (float)x[i];
        else
            ((double *)row)[i] = x[i];
    }
}

/* Returns true if both have equal bits or both are NaN. Unless `signs`, 0 equals -0. */
static bool check_same(double got, double want, bool signs) {
    if (got != got || want != want) return got != got && want != want;
    return got == want && (!signs || !signbit(got) == !signbit(want));
}

/* Returns the expected output for the pair that was evaluated last: the score or, in backward, its gradient. */
static double check_want(const tape_case *c, uint32_t flags, bool back, double dscore) {
    const fxa_program *p = c->program;
    if (back) return dscore == 0 ? 0 : c->vals[fxa__program_output(p, FXA__OUT_DSCORE)].f;
    if ((flags & FXA__TAPE_MASK) && !c->vals[fxa__program_output(p, FXA__OUT_MASK)].i) return -INFINITY;
    return c->vals[fxa__program_output(p, FXA__OUT_SCORE)].f;
}

static void check_add_grads(tape_case *c, double dscore) {
    for (int32_t o = 0; o < c->program->n_outputs && dscore != 0; o++) {
        const fxa__output *out = &c->program->outputs[o];
        double x = c->vals[out->value].f;
        int32_t index[FXA_MAX_RANK] = {0};
        int64_t at;
        if (out->kind == FXA__OUT_DPARAM) {
            c->want_dparams[out->slot] += x;
            c->sum_dparams[out->slot] += fabs(x);
        }
        if (out->kind != FXA__OUT_DLOAD) continue;
        for (int i = 0; i < out->n_index; i++) index[i] = c->vals[out->index[i]].i;
        if (!fxa__view_offset(&c->sums[out->slot].view, index, &at)) continue;
        c->want[out->slot][at] += x;
        c->size[out->slot][at] += fabs(x);
    }
}

static bool check_columns(tape_case *c, uint32_t flags, bool back, int64_t row, int64_t first, int64_t n,
                          const void *out) {
    for (int64_t i = 0; i < n; i++) {
        double dscore = c->dscore[row][first + i];
        tape_case_eval(c, row, first + i);
        double want = check_want(c, flags, back, dscore);
        if (back && (flags & (FXA__TAPE_GRADS | FXA__TAPE_NO_DSCORE))) check_add_grads(c, dscore);
        double got = check_get(c, out, i), off = c->tolerance * (1 + fabs(want));
        if ((back && (flags & FXA__TAPE_NO_DSCORE)) || check_same(got, want, !back)) continue;
        if (c->tolerance > 0 && fabs(got - want) <= off && isfinite(want)) continue;
        snprintf(c->why, sizeof c->why, "%s f%d: row %d, column %d + %d of %d: %.17g, not %.17g", c->kernels->isa,
                 (int)c->kernels->real_size * 8, (int)row, (int)first, (int)i, (int)n, got, want);
        return false;
    }
    return true;
}

/* Runs columns first..first+n of a row, in memory of exactly that size. With `apart` the output is in separate memory,
 * else in place. */
static bool check_piece(tape_case *c, fxa__tape_run *run, uint32_t flags, int64_t row, int64_t first, int64_t n,
                        bool apart) {
    size_t bytes = (size_t)n * c->kernels->real_size;
    bool joint = flags & FXA__TAPE_JOINT, is_score = c->program->kind == FXA_PROGRAM_SCORE || joint;
    guard score = guard_open(bytes), dscore = guard_open(bytes), out = guard_open(bytes);
    check_put(c, score.data, &c->score[row][first], n);
    check_put(c, dscore.data, &c->dscore[row][first], n);
    void *to = apart || joint ? out.data : is_score ? score.data : dscore.data;
    fxa__tape_row(run, row, first, n, score.data, is_score ? NULL : dscore.data, to);
    bool ok = check_columns(c, flags, !is_score, row, first, n, to);
    if (ok && joint) {
        to = apart ? out.data : dscore.data;
        fxa__tape_row_back(run, n, dscore.data, to);
        ok = check_columns(c, flags, true, row, first, n, to);
    }
    for (int64_t i = 0; ok && apart && i < n; i++)
        if (!check_same(check_get(c, score.data, i), c->score[row][first + i], true)) {
            snprintf(c->why, sizeof c->why, "an input was written to");
            ok = false;
        }
    guard_close(&score);
    guard_close(&dscore);
    guard_close(&out);
    return ok;
}

/* Compares sums of n terms, which differ by rounding because the additions have another order. */
static bool check_sum(tape_case *c, const char *what, double got, double want, double size) {
    double tolerance = size * (double)(TAPE_CASE_ROWS * TAPE_CASE_COLUMNS) * 0x1p-52;
    if (check_same(got, want, false) || fabs(got - want) <= tolerance) return true;
    if (size - size != 0) return true; /* sums with an infinity or a NaN depend on the order of the terms */
    snprintf(c->why, sizeof c->why, "%s f%d: gradient of %s: %.17g, not %.17g", c->kernels->isa,
             (int)c->kernels->real_size * 8, what, got, want);
    return false;
}

static bool check_sums(tape_case *c) {
    for (int32_t i = 0; i < c->program->n_params; i++)
        if (!check_sum(c, c->program->params[i].name, c->dparams[i], c->want_dparams[i], c->sum_dparams[i]))
            return false;
    for (int32_t t = 0; t < c->program->n_tensors; t++) {
        const fxa_view *view = &c->sums[t].view;
        int64_t n = c->sums[t].sum ? 1 : 0;
        for (int d = 0; d < view->rank; d++) n *= view->size[d];
        for (int64_t i = 0; i < n; i++)
            if (!check_sum(c, c->program->tensors[t].name, c->sums[t].sum[i], c->want[t][i], c->size[t][i]))
                return false;
    }
    return true;
}

bool tape_case_check(tape_case *c, fxa__host *host, uint32_t flags, uint64_t *rng) {
    fxa__tape *tape = NULL;
    fxa_error err = {0};
    uint32_t plain = c->tolerance > 0 ? 0 : FXA__TAPE_PLAIN;
    if (fxa__tape_create(host, c->program, flags | plain, c->kernels, &tape, &err) != FXA_OK) {
        snprintf(c->why, sizeof c->why, "%.250s", err.text);
        return false;
    }
    fxa__carver count = fxa__carver_make(NULL); /* the size includes the last red zone */
    (void)fxa__tape_carve(&count, tape, c->rows, c->columns);
    bool ok = !count.failed;
    guard scratch = guard_open(count.used);
    fxa__poison_fill(scratch.data, count.used);
    fxa__tape_run run = {.tape = tape, .params = c->params, .tensors = c->tensors, .scratch = scratch.data};
    run.dparams = c->dparams, run.sums = c->sums, run.max_rows = c->rows, run.max_columns = c->columns;
    fxa__tape_batch(&run, c->b, c->q_len, c->k_len, c->heads);
    fxa__tape_rows(&run, c->rows, c->h, c->q, c->first_row, c->head_rows);
    fxa__tape_columns(&run, c->columns, c->k, c->first_key);
    for (int64_t row = 0; ok && row < c->rows; row++) {
        for (int64_t first = 0, n; ok && first < c->columns; first += n) {
            n = attn_int(rng, 0, 2) ? c->columns - first : attn_int(rng, 1, c->columns - first);
            ok = check_piece(c, &run, flags, row, first, n, attn_next(rng) & 1);
        }
    }
    if (ok && (flags & (FXA__TAPE_GRADS | FXA__TAPE_NO_DSCORE))) ok = check_sums(c);
    fxa__carver after = fxa__carver_after(scratch.data);
    (void)fxa__tape_carve(&after, tape, c->rows, c->columns);
    guard_close(&scratch);
    fxa__tape_destroy(tape);
    return ok;
}

size_t tape_allocations(fail_alloc *f, fxa_context *ctx, const fxa_program *program, uint32_t flags,
                        const fxa__cpu_kernels *kernels) {
    size_t live = f->live_bytes;
    for (size_t at = 1; at < 1000; at++) {
        fxa__tape *tape = NULL;
        fxa_error err;
        fail_alloc_arm(f, at, false);
        fxa_status status = fxa__tape_create(fxa__context_host(ctx), program, flags, kernels, &tape, &err);
        fail_alloc_arm(f, 0, false);
        fxa__tape_destroy(tape);
        if (f->live_bytes != live) return 0;
        if (status == FXA_OK) return at - 1;
        if (status != FXA_E_MEMORY || err.status != FXA_E_MEMORY) return 0;
    }
    return 0;
}
