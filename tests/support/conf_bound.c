/* SPDX-License-Identifier: Apache-2.0
 *
 * How far from the reference an engine may be, element by element; docs/numerics.md, "How close is close", has the
 * derivation. For each output element these are gathered over all pairs that it is a sum of:
 *
 *   size    the magnitudes of the terms: what rounding in the sums, exp and products is relative to
 *   error   what the errors of the scores, of the program and of the dot products come to, passed on linearly
 *   noise   for engines with 16-bit products: squares of the terms, whose P or dS is rounded by itself
 *
 * Nothing here is shared with the engines but the evaluator and the derivative: dense arrays, one pair at a time.
 */
#include "conf_case.h"

#include "base/philox.h"
#include "program/eval_error.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bound_work {
    conf_case *c;
    fxa__arithmetic arithmetic;
    fxa_program *program, *derivative;
    fxa_view views[CONF_TENSORS], own_views[CONF_TENSORS];
    fxa__val *vals;
    double *errors;
    fxa__env env;
    bool
        equal_terms; /* expanded operands: equal terms round the same way, and errors add up instead of averaging out */
    /* one row */
    double *score, *e_score, *fresh, *e_fresh; /* [Sk]: scaled scores, new scores, their errors */
} bound_work;

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void bound_views(const conf_buffer *tensors, size_t n, fxa_view *views) {
    for (size_t i = 0; i < n; i++) {
        const conf_buffer *t = &tensors[i];
        views[i] = (fxa_view){t->origin, t->dtype, t->rank, {0}, {0}};
        memcpy(views[i].size, t->n, sizeof t->n);
        memcpy(views[i].stride, t->stride, sizeof t->stride);
    }
}

static bool bound_start(bound_work *w, conf_case *c, fxa_pass pass) {
    conf_call x;
    memset(w, 0, sizeof *w);
    w->c = c;
    w->arithmetic = fxa__arithmetic_of(c->slot[FXA_SLOT_Q].dtype == FXA_F64);
    c->unit = w->arithmetic.unit;
    w->arithmetic.function = c->function;
    conf_call_make(c, "ref", pass, false, &x);
    if (fxa_problem_program(c->base.ctx, &x.p, &w->program, NULL) != FXA_OK) return false;
    if (pass == FXA_BACKWARD && fxa_program_derivative(w->program, &w->derivative, NULL) != FXA_OK) return false;
    int32_t nodes = w->program->n_nodes;
    if (w->derivative && w->derivative->n_nodes > nodes) nodes = w->derivative->n_nodes;
    if (c->bprop && c->bprop->n_nodes > nodes) nodes = c->bprop->n_nodes;
    int64_t keys = c->base.x.sk + 1;
    w->vals = calloc((size_t)nodes, sizeof *w->vals);
    w->errors = calloc((size_t)nodes, sizeof *w->errors);
    w->score = calloc((size_t)(4 * keys), sizeof(double));
    if (!w->vals || !w->errors || !w->score) abort();
    w->e_score = w->score + keys, w->fresh = w->e_score + keys, w->e_fresh = w->fresh + keys;
    bound_views(c->tensor, c->n_tensors, w->views);
    bound_views(c->own_tensor, c->n_own_tensors, w->own_views);
    w->env.params = c->params, w->env.tensors = w->views;
    for (int i = 0; i < CONF_SLOTS; i++) w->equal_terms = w->equal_terms || c->base.data.t[i].style == ATTN_EXPANDED;
    return true;
}

static void bound_end(bound_work *w) {
    fxa_program_destroy(w->program);
    fxa_program_destroy(w->derivative);
    free(w->vals), free(w->errors), free(w->score);
}

/* A sum of products; *error: of a chain of additions, which err by a unit of each partial sum, in random directions. */
static double bound_dot(const bound_work *w, const double *x, const double *y, int64_t n, double *error) {
    double sum = 0, size = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * y[i];
        size += fabs(x[i] * y[i]);
        squares += sum * sum;
    }
    double chain = w->equal_terms ? (double)n * size : sqrt(squares);
    *error = w->arithmetic.unit * (chain + 2 * size);
    return sum;
}

static void bound_enter_row(bound_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    int32_t *at = w->env.coord;
    at[FXA_INPUT_B] = x->at_b[b], at[FXA_INPUT_H] = x->at_h[h], at[FXA_INPUT_Q] = oracle_row_at(x, b, q);
    at[FXA_INPUT_Q_LEN] = x->seen_q[b], at[FXA_INPUT_K_LEN] = x->seen_k[b];
    at[FXA_INPUT_HEADS] = x->seen_heads ? x->seen_heads : (int32_t)x->hq;
}

/* Scaled and new score of one pair; false: masked, as far as can be told. */
static void bound_pair(bound_work *w, const double *row, const double *key, int64_t k) {
    const oracle *x = &w->c->base.x;
    const fxa_program *p = w->program;
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    double e;
    w->score[k] = x->scale * bound_dot(w, row, key, x->d, &e);
    w->e_score[k] = e * fabs(x->scale) + w->arithmetic.unit * fabs(w->score[k]);
    w->env.coord[FXA_INPUT_K] = x->at_k[k];
    w->env.score = w->score[k];
    fxa__program_eval(p, &w->env, w->vals);
    fxa__program_error(p, &w->arithmetic, &w->env, w->e_score[k], 0, w->vals, w->errors);
    bool attended = w->vals[mask].i != 0;
    w->fresh[k] = attended ? w->vals[score].f : -INFINITY;
    w->e_fresh[k] = attended ? w->errors[score] : 0;
    if (w->errors[mask] != 0 || w->e_fresh[k] == INFINITY) w->c->unsure = true;
}

static double bound_dropout(const bound_work *w) {
    const oracle *x = &w->c->base.x;
    const int32_t *at = w->env.coord;
    if (!x->dropout) return 1;
    bool keep = fxa__dropout_keep(x->seed, fxa__dropout_threshold(x->dropout_p), at[FXA_INPUT_B], at[FXA_INPUT_H],
                                  at[FXA_INPUT_Q], at[FXA_INPUT_K]);
    return keep ? 1 / (1 - x->dropout_p) : 0;
}

static void bound_add(conf_buffer *t, int64_t place, double error, double size) {
    t->error[place] += error;
    t->size[place] += size;
}

/* The same for a term of a product of P or dS. */
static void bound_add_product(conf_buffer *t, int64_t place, double error, double size) {
    bound_add(t, place, error, size);
    t->noise[place] += size * size;
}

/* Rows of x by dense index, and the scores of row (b, h, q) with all keys. */
static void bound_row_scores(bound_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    int64_t hkv = h / (x->hq / x->hkv);
    bound_enter_row(w, b, h, q);
    for (int64_t k = 0; k < x->k_len[b] && !w->c->unsure; k++)
        bound_pair(w, x->q + ((b * x->hq + h) * x->sq + q) * x->d, x->k + ((b * x->hkv + hkv) * x->sk + k) * x->d, k);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* Relative error of exp(s' - m). Scores of which not even one digit is sure say nothing. */
static double bound_exp(const bound_work *w, int64_t k, double m) {
    double error = w->e_fresh[k] + w->arithmetic.unit * fabs(w->fresh[k] - m);
    if (error > 0.1 && w->fresh[k] - m > -80) w->c->unsure = true;
    return expm1(fmin(error, 1));
}

/* LSE and the maximum of a row; returns the error that a change of all probabilities has in common. */
static double bound_row_softmax(bound_work *w, int64_t b, int64_t h, int64_t place_lse, int64_t place_max,
                                double *m_out, double *sum_out) {
    const oracle *x = &w->c->base.x;
    double z = x->sink ? x->sink_score[h] : -INFINITY, max = -INFINITY, upper = -INFINITY, e_max = 0, sum = 0,
           shared = 0;
    for (int64_t k = 0; k < x->k_len[b]; k++) {
        if (w->fresh[k] > max) max = w->fresh[k], e_max = w->e_fresh[k];
        upper = fmax(upper, w->fresh[k] + w->e_fresh[k]);
    }
    double m = fmax(max, z), unit = w->arithmetic.unit;
    for (int64_t k = 0; k < x->k_len[b]; k++) {
        double p = w->fresh[k] == -INFINITY ? 0 : exp(w->fresh[k] - m);
        sum += p;
        if (p > 0) shared += p * bound_exp(w, k, m);
    }
    if (z != -INFINITY) sum += exp(z - m), shared += exp(z - m) * unit * (fabs(z) + fabs(z - m));
    if (m > -INFINITY) {
        bound_add(&w->c->slot[FXA_SLOT_LSE], place_lse, shared / sum, fabs(m) + fabs(log(sum)) + 1);
        if (max > -INFINITY && w->c->slot[FXA_SLOT_MAX_ROW].error) /* an output */
            bound_add(&w->c->slot[FXA_SLOT_MAX_ROW], place_max, fmax(upper - max, e_max), fabs(max));
    }
    *m_out = m, *sum_out = sum;
    return shared / sum;
}

/* Joining with what was there: weights move by the error of LSE. */
static void bound_row_merge(bound_work *w, int64_t place, int64_t place_lse) {
    conf_buffer *o = &w->c->slot[FXA_SLOT_O], *lse = &w->c->slot[FXA_SLOT_LSE];
    double unit = w->arithmetic.unit, e_lse = lse->error[place_lse] + unit * (lse->size[place_lse] + 4);
    bound_add(o, place, e_lse * (2 + o->size[place]), 2);   /* the old elements are within -2..2, */
    if (lse->size[place_lse] < 4) lse->size[place_lse] = 4; /* and so are the old LSE */
}

static void bound_row_forward(bound_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    conf_buffer *o = &w->c->slot[FXA_SLOT_O];
    int64_t at[4], hkv = h / (x->hq / x->hkv);
    double m, sum, *size = calloc((size_t)(3 * x->dv), sizeof(double)), *error = size + x->dv, *noise = error + x->dv;
    if (!size) abort();
    attn_case_at(&w->c->base, FXA_SLOT_O, b, q, at);
    at[1] = h, at[3] = 0;
    int64_t place_lse = conf_place(&w->c->slot[FXA_SLOT_LSE], at);
    double shared = bound_row_softmax(w, b, h, place_lse, conf_place(&w->c->slot[FXA_SLOT_MAX_ROW], at), &m, &sum);
    for (int64_t k = 0; k < x->k_len[b]; k++) {
        w->env.coord[FXA_INPUT_K] = x->at_k[k];
        double kept = bound_dropout(w), p = w->fresh[k] == -INFINITY ? 0 : exp(w->fresh[k] - m) / sum * kept;
        double tiny = fmax(w->arithmetic.tiny, w->c->least_weight * kept);
        const double *v = x->v + ((b * x->hkv + hkv) * x->sk + k) * x->dv;
        for (int64_t i = 0; p != 0 && i < x->dv; i++) {
            size[i] += p * fabs(v[i]);
            noise[i] += p * v[i] * p * v[i];
            error[i] += (p * bound_exp(w, k, m) + tiny) * fabs(v[i]);
        }
    }
    for (at[3] = 0; at[3] < x->dv && m > -INFINITY; at[3]++) {
        int64_t place = conf_place(o, at);
        bound_add(o, place, error[at[3]] + size[at[3]] * shared, size[at[3]]);
        o->noise[place] += noise[at[3]];
        if (w->c->base.data.problem.flags & FXA_ACC_OUT) bound_row_merge(w, place, place_lse);
    }
    free(size);
}

bool conf_bound_forward(conf_case *c) {
    bound_work w;
    const oracle *x = &c->base.x;
    bool ok = bound_start(&w, c, FXA_FORWARD);
    c->unsure = false;
    for (int64_t b = 0; ok && b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++)
            for (int64_t q = 0; q < x->q_len[b] && !c->unsure; q++) {
                bound_row_scores(&w, b, h, q);
                if (!c->unsure) bound_row_forward(&w, b, h, q);
            }
    bound_end(&w);
    return ok;
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* What backward knows of a row, with errors. */
typedef struct bound_back {
    int64_t b, h, hkv, q, row; /* row: dense number of (b, h, q) */
    double lse, dlse, delta, e_delta;
} bound_back;

/* d/dscore and the gradients of params and tensors of pair k, for dscore of the natural size. |dS| and its error. */
static double bound_through_program(bound_work *w, const fxa_program *p, int64_t k, double dscore, double e_dscore,
                                    double *error) {
    conf_case *c = w->c;
    w->env.dscore = dscore;
    w->env.params = p == c->bprop ? c->own_params : c->params;
    w->env.tensors = p == c->bprop ? w->own_views : w->views;
    fxa__program_eval(p, &w->env, w->vals);
    fxa__program_error(p, &w->arithmetic, &w->env, w->e_score[k], e_dscore, w->vals, w->errors);
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
        bound_add(t, offset + (t->origin - t->memory) / (int64_t)fxa_dtype_size(t->dtype), e, value);
        c->unsure = c->unsure || e == INFINITY;
    }
    w->env.params = c->params, w->env.tensors = w->views;
    int32_t out = fxa__program_output(p, FXA__OUT_DSCORE);
    *error = w->errors[out];
    return fabs(w->vals[out].f);
}

static void bound_pair_score_grads(bound_work *w, const bound_back *r, int64_t k, double ds, double e_ds) {
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
            bound_add_product(dq, to_q + i * dq->stride[3], e_ds * scale * fabs(key[i]), ds * scale * fabs(key[i]));
        if (dk->error)
            bound_add_product(dk, to_k + i * dk->stride[3], e_ds * scale * fabs(row[i]), ds * scale * fabs(row[i]));
    }
}

static void bound_pair_backward(bound_work *w, const bound_back *r, int64_t k) {
    conf_case *c = w->c;
    const oracle *x = &c->base.x;
    double unit = w->arithmetic.unit, e_dp, s = w->fresh[k];
    double p = s == -INFINITY ? 0 : exp(s - r->lse), rate = bound_exp(w, k, r->lse);
    if (p == 0) return;
    w->env.coord[FXA_INPUT_K] = x->at_k[k];
    double dropout = bound_dropout(w);
    int64_t value = (r->b * x->hkv + r->hkv) * x->sk + k, at[4];
    const double *dout = x->dout + r->row * x->dv;
    double dp = dropout * bound_dot(w, dout, x->v + value * x->dv, x->dv, &e_dp);
    conf_buffer *dv = &c->slot[FXA_SLOT_DV];
    attn_case_at(&c->base, FXA_SLOT_DV, r->b, k, at);
    at[1] = r->hkv, at[3] = 0;
    for (int64_t i = 0, to = conf_place(dv, at); dv->error && i < x->dv; i++, to += dv->stride[3])
        bound_add_product(dv, to, (p * rate + w->arithmetic.tiny) * dropout * fabs(dout[i]),
                          p * dropout * fabs(dout[i]));

    double sum = fabs(dp) + fabs(r->delta) + fabs(r->dlse), size = p * sum, e_ds, ds;
    c->steepest = fmax(c->steepest, sum);
    double error = size * rate + p * (e_dp * dropout + r->e_delta + 4 * unit * sum);
    error += w->arithmetic.tiny * (sum + 1); /* P and dS' may be flushed, and a steep program makes much of them */
    if (size == 0) return;
    w->env.score = w->score[k];
    ds = bound_through_program(w, w->derivative, k, size, error, &e_ds);
    if (c->bprop) { /* it need not be linear in dscore */
        ds = bound_through_program(w, c->bprop, k, size, error, &e_ds);
        ds += bound_through_program(w, c->bprop, k, p * (dp - r->delta + r->dlse), error, &e_ds);
    }
    if (e_ds == INFINITY)
        c->unsure = true;
    else
        bound_pair_score_grads(w, r, k, ds, e_ds);
}

static void bound_row_backward(bound_work *w, int64_t b, int64_t h, int64_t q) {
    conf_case *c = w->c;
    const oracle *x = &c->base.x;
    bound_back r = {b, h, h / (x->hq / x->hkv), q, (b * x->hq + h) * x->sq + q, 0, 0, 0, 0};
    int64_t at[4];
    attn_case_at(&c->base, FXA_SLOT_LSE, b, q, at);
    at[1] = h, at[3] = 0;
    r.lse = attn_tensor_get(&c->base.data.t[FXA_SLOT_LSE], at);
    if (r.lse == -INFINITY) return;
    double *o = calloc((size_t)x->dv, sizeof(double));
    if (!o) abort();
    for (; at[3] < x->dv; at[3]++) o[at[3]] = attn_tensor_get(&c->base.data.t[FXA_SLOT_O], at);
    if (x->dlse) r.dlse = x->dlse[r.row];
    r.delta = bound_dot(w, x->dout + r.row * x->dv, o, x->dv, &r.e_delta);
    for (int64_t i = 0; i < x->dv; i++) /* subnormal elements of O may count as 0 */
        r.e_delta += fabs(x->dout[r.row * x->dv + i]) * FLT_MIN;
    free(o);
    bound_row_scores(w, b, h, q);
    for (int64_t k = 0; k < x->k_len[b] && !c->unsure; k++) bound_pair_backward(w, &r, k);
    double z = x->sink && (c->base.data.backward_flags & FXA_GRAD_SINK) ? x->sink_score[h] : -INFINITY;
    if (z == -INFINITY) return;
    double p = exp(z - r.lse), size = p * (fabs(r.delta) + fabs(r.dlse)), unit = w->arithmetic.unit;
    const int64_t at_sink[4] = {0, h, 0, 0};
    conf_buffer *t = &c->slot[FXA_SLOT_DSINK];
    bound_add(t, conf_place(t, at_sink), p * r.e_delta + size * unit * (fabs(z) + fabs(z - r.lse) + 4), size);
}

bool conf_bound_backward(conf_case *c) {
    bound_work w;
    const oracle *x = &c->base.x;
    bool ok = bound_start(&w, c, FXA_BACKWARD);
    c->unsure = false, c->steepest = 0;
    memset(c->error_dparams, 0, sizeof c->error_dparams);
    memset(c->size_dparams, 0, sizeof c->size_dparams);
    for (int64_t b = 0; ok && b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++)
            for (int64_t q = 0; q < x->q_len[b] && !c->unsure; q++) bound_row_backward(&w, b, h, q);
    bound_end(&w);
    return ok;
}
