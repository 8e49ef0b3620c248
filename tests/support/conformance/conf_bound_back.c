/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of gradients (conf_bound.c explains the method). O and LSE are inputs of backward, so errors of forward
 * do not count.
 */
#include "conf_bound.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* State of a row of a backward pass, with its errors. */
typedef struct bound_back {
    int64_t b, h, hkv, q, row; /* row: contiguous index of (b, h, q) */
    int64_t at;                /* index of (h, q) among the rows of the KV head */
    double lse, dlse, delta, e_delta;
} bound_back;

/* Returns d/dscore of pair k and its error, for a dscore of typical size, and adds the errors of the gradients of
 * params and tensors. */
static double bound_through_program(conf_work *w, const fxa_program *p, int64_t k, double dscore, double e_dscore,
                                    double *error) {
    conf_case *c = w->c;
    w->env.dscore = dscore;
    w->env.params = p == c->bprop ? c->own_params : c->params;
    w->env.tensors = p == c->bprop ? w->own_views : w->views;
    fxa__program_eval(p, &w->env, w->vals);
    fxa__program_error(p, &w->arithmetic, w->e_score[k], e_dscore, w->vals, w->errors);
    for (int32_t i = 0; i < p->n_outputs; i++) {
        const fxa__output *out = &p->outputs[i];
        double value = fabs(w->vals[out->value].f), e = w->errors[out->value];
        int32_t index[FXA_MAX_RANK];
        int64_t offset;
        if (out->kind == FXA__OUT_DPARAM && (c->base.data.problem.param_grads >> out->slot & 1)) {
            c->error_dparams[out->slot] += e, c->size_dparams[out->slot] += value;
            c->unsure = c->unsure || e == INFINITY;
        }
        if (out->kind != FXA__OUT_DLOAD || !c->captures[out->slot].grad) continue;
        conf_buffer *t = &c->dtensor[out->slot];
        fxa_view view = {t->origin, t->dtype, t->rank, {0}, {0}};
        memcpy(view.size, t->n, sizeof t->n);
        memcpy(view.stride, t->stride, sizeof t->stride);
        for (int32_t j = 0; j < out->n_index; j++) index[j] = w->vals[out->index[j]].i;
        if (!fxa__view_offset(&view, index, &offset)) continue;
        conf_bound_add(t, offset + (t->origin - t->memory) / (int64_t)fxa_dtype_size(t->dtype), e, value);
        c->unsure = c->unsure || e == INFINITY;
    }
    w->env.params = c->params, w->env.tensors = w->views;
    int32_t out = fxa__program_output(p, FXA__OUT_DSCORE);
    *error = w->errors[out];
    return w->vals[out].f;
}

static void bound_pair_score_grads(conf_work *w, const bound_back *r, int64_t k, double ds, double e_ds) {
    const oracle *x = &w->c->base.x;
    conf_buffer *dq = &w->c->slot[FXA_SLOT_DQ], *dk = &w->c->slot[FXA_SLOT_DK];
    const double *row = x->q + r->row * x->d, *key = x->k + ((r->b * x->hkv + r->hkv) * x->sk + k) * x->d;
    double scale = fabs(x->scale);
    int64_t at_q[4], at_k[4];
    attn_case_at(&w->c->base, FXA_SLOT_DQ, r->b, r->q, at_q);
    attn_case_at(&w->c->base, FXA_SLOT_DK, r->b, k, at_k);
    at_q[1] = r->h, at_k[1] = r->hkv, at_q[3] = at_k[3] = 0;
    int64_t to_q = conf_place(dq, at_q), to_k = conf_place(dk, at_k);
    for (int64_t i = 0; i < x->d; i++) {
        if (dq->error)
            conf_bound_add(dq, to_q + i * dq->stride[3], e_ds * scale * fabs(key[i]), ds * scale * fabs(key[i]));
        if (dk->error)
            conf_bound_add(dk, to_k + i * dk->stride[3], e_ds * scale * fabs(row[i]), ds * scale * fabs(row[i]));
    }
}

static void bound_pair_backward(conf_work *w, const bound_back *r, int64_t k) {
    conf_case *c = w->c;
    const oracle *x = &c->base.x;
    double unit = w->arithmetic.unit, e_dp, s = w->fresh[k];
    double p = s == -INFINITY ? 0 : exp(s - r->lse), rate = conf_bound_exp(w, k, r->lse);
    if (p == 0) return;
    w->env.coord[FXA_INPUT_K] = x->at_k[k], w->env.coord[FXA_INPUT_K_ROW] = (int32_t)k;
    double dropout = conf_bound_dropout(w);
    int64_t value = (r->b * x->hkv + r->hkv) * x->sk + k, at[4];
    const double *dout = x->dout + r->row * x->dv;
    double dp = dropout * conf_bound_dot(w, dout, x->v + value * x->dv, x->dv, &e_dp);
    if (dropout == 0) dp = e_dp = 0; /* whatever V is */
    conf_buffer *dv = &c->slot[FXA_SLOT_DV];
    attn_case_at(&c->base, FXA_SLOT_DV, r->b, k, at);
    at[1] = r->hkv, at[3] = 0;
    for (int64_t i = 0, to = conf_place(dv, at); dv->error && i < x->dv; i++, to += dv->stride[3])
        conf_bound_add(dv, to, (p * rate + w->arithmetic.tiny) * dropout * fabs(dout[i]), p * dropout * fabs(dout[i]));
    int64_t pair = r->at * x->sk + k;
    w->weights[pair] = (conf_term){p * dropout, p * dropout, dout};

    double sum = fabs(dp) + fabs(r->delta) + fabs(r->dlse), size = p * sum, real = p * (dp - r->delta + r->dlse);
    double e_ds, ds;
    c->steepest = fmax(c->steepest, sum);
    double error = size * rate + p * (e_dp * dropout + r->e_delta + 4 * unit * sum);
    error += w->arithmetic.tiny * (sum + 1); /* P and dS' may be flushed to 0, which a steep program amplifies */
    if (size == 0) return;
    w->env.score = w->score[k];
    ds = bound_through_program(w, w->derivative, k, size, error, &e_ds);
    real *= ds / size;
    if (c->bprop) { /* a user-written backward need not be linear in dscore */
        ds = fabs(bound_through_program(w, c->bprop, k, size, error, &e_ds));
        real = bound_through_program(w, c->bprop, k, p * (dp - r->delta + r->dlse), error, &e_ds);
        ds += fabs(real);
    }
    w->slopes[pair] = (conf_term){real, fabs(ds * x->scale), ds != 0 ? x->q + r->row * x->d : NULL};
    if (e_ds == INFINITY)
        c->unsure = true;
    else if (ds != 0 || e_ds > 0) /* otherwise dS is 0, and K and Q do not contribute */
        bound_pair_score_grads(w, r, k, fabs(ds), e_ds);
}

/* Adds the noise of dQ, a sum of rows of K with rounded factors. */
static void bound_row_noise(conf_work *w, const bound_back *r) {
    const oracle *x = &w->c->base.x;
    conf_term *slopes = w->slopes + r->at * x->sk;
    int64_t at[4], count = 0;
    attn_case_at(&w->c->base, FXA_SLOT_DQ, r->b, r->q, at);
    at[1] = r->h, at[3] = 0;
    for (int64_t k = 0; k < x->k_len[r->b]; k++) {
        if (!slopes[k].row) continue;
        w->line[count] = slopes[k];
        w->line[count++].row = x->k + ((r->b * x->hkv + r->hkv) * x->sk + k) * x->d;
    }
    conf_buffer *dq = &w->c->slot[FXA_SLOT_DQ];
    if (dq->noise) conf_add_noise(w->c, dq, conf_place(dq, at), x->d, w->line, count);
}

/* Adds the noise of dK and dV for all keys of a KV head, then clears the terms. */
static void bound_keys_noise(conf_work *w, int64_t b, int64_t hkv) {
    const oracle *x = &w->c->base.x;
    int64_t rows = x->sq * (x->hq / x->hkv), at[4];
    for (int64_t k = 0; k < x->k_len[b]; k++) {
        attn_case_at(&w->c->base, FXA_SLOT_DK, b, k, at);
        at[1] = hkv, at[3] = 0;
        conf_bound_add_noise(w, &w->c->slot[FXA_SLOT_DK], at, x->d, w->slopes + k, rows, x->sk);
        attn_case_at(&w->c->base, FXA_SLOT_DV, b, k, at);
        at[1] = hkv, at[3] = 0;
        conf_bound_add_noise(w, &w->c->slot[FXA_SLOT_DV], at, x->dv, w->weights + k, rows, x->sk);
    }
    memset(w->slopes, 0, (size_t)(rows * x->sk) * sizeof *w->slopes);
    memset(w->weights, 0, (size_t)(rows * x->sk) * sizeof *w->weights);
}

static void bound_row_backward(conf_work *w, int64_t b, int64_t h, int64_t q) {
    conf_case *c = w->c;
    const oracle *x = &c->base.x;
    bound_back r = {b, h, h / (x->hq / x->hkv), q, (b * x->hq + h) * x->sq + q, h % (x->hq / x->hkv) * x->sq + q, 0, 0,
                    0, 0};
    int64_t at[4];
    attn_case_at(&c->base, FXA_SLOT_LSE, b, q, at);
    at[1] = h, at[3] = 0;
    r.lse = attn_tensor_get(&c->base.data.t[FXA_SLOT_LSE], at);
    if (r.lse == -INFINITY) { /* if f32 attends a pair that f64 does not, cuda has P = exp(+inf): docs/numerics.md */
        c->unsure = conf_bound_row_may_overflow(w, b, h, q);
        return;
    }
    double *o = calloc((size_t)x->dv, sizeof(double));
    if (!o) abort();
    for (; at[3] < x->dv; at[3]++) o[at[3]] = attn_tensor_get(&c->base.data.t[FXA_SLOT_O], at);
    if (x->dlse) r.dlse = x->dlse[r.row];
    r.delta = conf_bound_dot(w, x->dout + r.row * x->dv, o, x->dv, &r.e_delta);
    for (int64_t i = 0; i < x->dv; i++) /* subnormal elements of O may be flushed to 0 */
        r.e_delta += fabs(x->dout[r.row * x->dv + i]) * FLT_MIN;
    free(o);
    conf_bound_row_scores(w, b, h, q);
    for (int64_t k = 0; k < x->k_len[b] && !c->unsure; k++) bound_pair_backward(w, &r, k);
    bound_row_noise(w, &r);
    double z = x->sink && (c->base.data.backward_flags & FXA_GRAD_SINKS) ? x->sink_score[h] : -INFINITY;
    if (z == -INFINITY) return;
    double p = exp(z - r.lse), size = p * (fabs(r.delta) + fabs(r.dlse)), unit = w->arithmetic.unit;
    const int64_t at_sink[4] = {0, h, 0, 0};
    conf_buffer *t = &c->slot[FXA_SLOT_DSINKS];
    conf_bound_add(t, conf_place(t, at_sink), p * r.e_delta + size * unit * (fabs(z) + fabs(z - r.lse) + 4), size);
}

bool conf_bound_backward(conf_case *c) {
    conf_work w;
    const oracle *x = &c->base.x;
    bool ok = conf_bound_start(&w, c, FXA_BACKWARD);
    c->unsure = false, c->steepest = 0;
    memset(c->error_dparams, 0, sizeof c->error_dparams);
    memset(c->size_dparams, 0, sizeof c->size_dparams);
    for (int64_t b = 0; ok && b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++) {
            for (int64_t q = 0; q < x->q_len[b] && !c->unsure; q++) bound_row_backward(&w, b, h, q);
            if ((h + 1) % (x->hq / x->hkv) == 0 && !c->unsure) bound_keys_noise(&w, b, h / (x->hq / x->hkv));
        }
    conf_bound_end(&w);
    return ok;
}
