/* SPDX-License-Identifier: Apache-2.0
 *
 * The small problem of the plan tests (tiny.h).
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

static void tiny_set(tiny *t, fxa_pass pass) {
    attn_call_make(&t->data, pass, &t->call);
    t->problem = t->call.p, t->args = t->call.args;
}

static void tiny_name(tiny *t) {
    double **const by_slot[] = {&t->q, &t->k, &t->v, &t->o, &t->lse, NULL, &t->dout, NULL, &t->dq, &t->dk, &t->dv};
    for (int i = FXA_SLOT_Q; i <= FXA_SLOT_DV; i++)
        if (by_slot[i]) *by_slot[i] = attn_f64(&t->data.t[i]);
    t->program = t->data.program;
    t->capture = t->call.captures;
    t->cap = t->data.params, t->dcap = attn_f64(&t->data.dparam);
    t->slopes = (float *)(void *)t->data.tensor[0].origin, t->dslopes = (float *)(void *)t->data.dtensor[0].origin;
}

fxa_status tiny_forward(fxa_context *ctx, tiny *t, fxa_error *err) {
    static const fxa_slot outputs[] = {FXA_SLOT_O, FXA_SLOT_LSE, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    attn_spec s = {.b = TINY_B, .hq = TINY_H, .hkv = TINY_HKV, .sq = TINY_S, .sk = TINY_S, .d = TINY_D};
    s.dtype = FXA_F64, s.text = tiny_text, s.tensor[0][0] = TINY_H;
    memset(t, 0, sizeof *t);
    fxa_status status = attn_data_make(&t->data, ctx, &s, 1, err);
    if (status != FXA_OK) return status;
    tiny_name(t);
    tiny_fill(t->q, TINY_Q_COUNT, 0.1);
    tiny_fill(t->k, TINY_KV_COUNT, 0.2);
    tiny_fill(t->v, TINY_KV_COUNT, 0.3);
    tiny_fill(t->dout, TINY_Q_COUNT, 0.4);
    for (int i = 0; i < 5; i++)
        for (int64_t j = 0; j < attn_tensor_places(&t->data.t[outputs[i]]); j++) attn_set(&t->data.t[outputs[i]], j, 0);
    *t->cap = 1.5, *t->dcap = 0;
    for (int h = 0; h < TINY_H; h++) t->slopes[h] = -0.25f * (float)(h + 1), t->dslopes[h] = 0;
    t->data.backward_flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    tiny_set(t, FXA_FORWARD);
    return FXA_OK;
}

fxa_status tiny_backward(fxa_context *ctx, tiny *t, fxa_error *err) {
    fxa_status status = tiny_forward(ctx, t, err);
    if (status != FXA_OK) return status;
    status = fxa_attention(ctx, &t->problem, &t->args, err);
    if (status == FXA_OK)
        tiny_set(t, FXA_BACKWARD);
    else
        tiny_end(t);
    return status;
}

void tiny_end(tiny *t) { attn_data_free(&t->data); }

void tiny_end_program(tiny *t) {
    fxa_program_destroy(t->program);
    t->program = t->data.program = NULL;
}

/* Computes one row of O: scores of keys 0 to q, their softmax, the weighted sum of V. */
static void tiny_expect_row(const tiny *t, int b, int h, int q, double *o) {
    double s[TINY_S], max = -INFINITY, sum = 0;
    const double *kv_k = t->k + (size_t)b * TINY_S * TINY_D, *kv_v = t->v + (size_t)b * TINY_S * TINY_D;
    const double *row = t->q + (size_t)((b * TINY_H + h) * TINY_S + q) * TINY_D;
    for (int k = 0; k <= q; k++) {
        double dot = 0;
        for (int d = 0; d < TINY_D; d++) dot += row[d] * kv_k[k * TINY_D + d];
        s[k] = *t->cap * tanh((dot / sqrt(TINY_D) + (double)t->slopes[h] * (q - k)) / *t->cap);
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
