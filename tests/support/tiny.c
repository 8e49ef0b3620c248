/* SPDX-License-Identifier: Apache-2.0
 *
 * The small problem of the plan tests: see tiny.h.
 */
#include "support/tiny.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char tiny_text[] = "param softcap : float\n"
                         "tensor slopes : f32[1]\n"
                         "score = softcap * tanh((score + slopes[h] * float(q - k)) / softcap)\n"
                         "mask = k <= q\n";

static void tiny_fill(double *x, size_t n, double phase) {
    for (size_t i = 0; i < n; i++) x[i] = 2 * sin(phase + 1.7 * (double)i);
}

fxa_status tiny_forward(fxa_context *ctx, tiny *t, fxa_error *err) {
    memset(t, 0, sizeof *t);
    fxa_status status = fxa_program_parse(ctx, tiny_text, SIZE_MAX, &t->program, err);
    if (status != FXA_OK) return status;
    tiny_fill(t->q, TINY_Q_COUNT, 0.1);
    tiny_fill(t->k, TINY_KV_COUNT, 0.2);
    tiny_fill(t->v, TINY_KV_COUNT, 0.3);
    tiny_fill(t->dout, TINY_Q_COUNT, 0.4);
    t->cap = 1.5;
    for (int h = 0; h < TINY_H; h++) t->slopes[h] = -0.25f * (float)(h + 1);
    t->tensors[0] = t->slopes;
    t->capture.size[0] = TINY_H;

    fxa_problem *p = &t->problem;
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->program = t->program;
    p->b = TINY_B, p->hq = TINY_H, p->hkv = TINY_HKV, p->sq = p->sk = TINY_S, p->d = TINY_D;
    p->q.dtype = FXA_F64;
    p->flags = FXA_WANT_LSE;
    p->captures = &t->capture;
    p->n_captures = 1;

    fxa_args *a = &t->args;
    *a = (fxa_args)FXA_ARGS_INIT;
    a->slot[FXA_SLOT_Q] = t->q;
    a->slot[FXA_SLOT_K] = t->k;
    a->slot[FXA_SLOT_V] = t->v;
    a->slot[FXA_SLOT_O] = t->o;
    a->slot[FXA_SLOT_LSE] = t->lse;
    a->params = &t->cap;
    a->n_params = 1;
    a->tensors = t->tensors;
    a->n_tensors = 1;
    return FXA_OK;
}

fxa_status tiny_backward(fxa_context *ctx, tiny *t, fxa_error *err) {
    fxa_status status = tiny_forward(ctx, t, err);
    if (status == FXA_OK) status = fxa_attention(ctx, &t->problem, &t->args, err);
    if (status != FXA_OK) {
        tiny_end(t);
        return status;
    }
    t->capture.grad = 1;
    t->dtensors[0] = t->dslopes;
    t->problem.pass = FXA_BACKWARD;
    t->problem.flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    t->problem.param_grads = 1;
    fxa_args *a = &t->args;
    a->slot[FXA_SLOT_DO] = t->dout;
    a->slot[FXA_SLOT_DQ] = t->dq;
    a->slot[FXA_SLOT_DK] = t->dk;
    a->slot[FXA_SLOT_DV] = t->dv;
    a->dtensors = t->dtensors;
    a->n_dtensors = 1;
    a->dparams = &t->dcap;
    a->n_dparams = 1;
    return FXA_OK;
}

void tiny_end(tiny *t) {
    fxa_program_destroy(t->program);
    t->program = NULL;
}

/* One row: the scores of keys 0 to q, their softmax, the mix of V. */
static void tiny_expect_row(const tiny *t, int b, int h, int q, double *o) {
    double s[TINY_S], max = -INFINITY, sum = 0;
    const double *kv_k = t->k + (size_t)b * TINY_S * TINY_D, *kv_v = t->v + (size_t)b * TINY_S * TINY_D;
    const double *row = t->q + (size_t)((b * TINY_H + h) * TINY_S + q) * TINY_D;
    for (int k = 0; k <= q; k++) {
        double dot = 0;
        for (int d = 0; d < TINY_D; d++) dot += row[d] * kv_k[k * TINY_D + d];
        s[k] = t->cap * tanh((dot / sqrt(TINY_D) + (double)t->slopes[h] * (q - k)) / t->cap);
        max = fmax(max, s[k]);
    }
    memset(o, 0, TINY_D * sizeof *o);
    for (int k = 0; k <= q; k++) {
        sum += exp(s[k] - max);
        for (int d = 0; d < TINY_D; d++) o[d] += exp(s[k] - max) * kv_v[k * TINY_D + d];
    }
    for (int d = 0; d < TINY_D; d++) o[d] /= sum;
}

void tiny_expect(const tiny *t, double o[TINY_Q_COUNT]) {
    for (int b = 0; b < TINY_B; b++)
        for (int h = 0; h < TINY_H; h++)
            for (int q = 0; q < TINY_S; q++)
                tiny_expect_row(t, b, h, q, o + (size_t)((b * TINY_H + h) * TINY_S + q) * TINY_D);
}

double tiny_error(const tiny *t) {
    double want[TINY_Q_COUNT], worst = 0;
    tiny_expect(t, want);
    for (int i = 0; i < TINY_Q_COUNT; i++) {
        double off = fabs(t->o[i] - want[i]);
        if (!(off <= worst)) worst = off == off ? off : INFINITY;
    }
    return worst;
}

fxa_status tiny_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err) {
    fxa_args own = *args;
    own.workspace_size = fxa_plan_workspace(plan);
    if (own.workspace_size > 0 && posix_memalign(&own.workspace, FXA_WORKSPACE_ALIGN, own.workspace_size) != 0) abort();
    fxa_status status = fxa_plan_run(plan, &own, err);
    free(own.workspace);
    return status;
}
