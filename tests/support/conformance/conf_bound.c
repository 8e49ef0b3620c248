/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of an engine against the reference, element by element; docs/numerics.md, "Error bounds", has the
 * derivation. For each output element, three quantities are accumulated over all pairs that contribute to the element:
 *
 *   size    sum of the magnitudes of the terms: the scale of rounding in sums, exp and products
 *   error   propagated errors of scores, program and dot products, linearly
 *   noise   sum of squares of the terms, for engines with 16-bit products that round P or dS separately (conf_noise.c)
 *
 * Of the engines' code this file uses only the evaluator and the derivative. It computes with dense arrays, one pair at
 * a time. cli/check/bound.c, which the command has, is an independent second implementation of these bounds: a mistake
 * in one of the two files is not in the other.
 */
#include "conf_bound.h"

#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void bound_views(const conf_buffer *tensors, size_t n, fxa_view *views) {
    for (size_t i = 0; i < n; i++) {
        const conf_buffer *t = &tensors[i];
        views[i] = (fxa_view){t->origin, t->dtype, t->rank, {0}, {0}};
        memcpy(views[i].size, t->n, sizeof t->n);
        memcpy(views[i].stride, t->stride, sizeof t->stride);
    }
}

bool conf_bound_start(conf_work *w, conf_case *c, fxa_pass pass) {
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
    int64_t keys = c->base.x.sk + 1, rows = c->base.x.sq * (c->base.x.hq / c->base.x.hkv) + 1;
    w->weights = calloc((size_t)(pass == FXA_FORWARD ? keys : rows * keys), sizeof *w->weights);
    w->slopes = calloc((size_t)(pass == FXA_FORWARD ? 1 : rows * keys), sizeof *w->slopes);
    w->line = calloc((size_t)(keys > rows ? keys : rows), sizeof *w->line);
    w->vals = calloc((size_t)nodes, sizeof *w->vals);
    w->errors = calloc((size_t)nodes, sizeof *w->errors);
    w->score = calloc((size_t)(4 * keys), sizeof(double));
    if (!w->vals || !w->errors || !w->score || !w->weights || !w->slopes || !w->line) abort();
    w->e_score = w->score + keys, w->fresh = w->e_score + keys, w->e_fresh = w->fresh + keys;
    bound_views(c->tensor, c->n_tensors, w->views);
    bound_views(c->own_tensor, c->n_own_tensors, w->own_views);
    w->env.params = c->params, w->env.tensors = w->views;
    for (int i = 0; i < CONF_SLOTS; i++) w->equal_terms = w->equal_terms || c->base.data.t[i].style == ATTN_EXPANDED;
    return true;
}

void conf_bound_end(conf_work *w) {
    fxa_program_destroy(w->program);
    fxa_program_destroy(w->derivative);
    free(w->vals), free(w->errors), free(w->score), free(w->weights), free(w->slopes), free(w->line);
}

double conf_bound_dot(const conf_work *w, const double *x, const double *y, int64_t n, double *error) {
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

static void bound_enter_row(conf_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    int32_t *at = w->env.coord;
    at[FXA_INPUT_B] = x->at_b[b], at[FXA_INPUT_H] = x->at_h[h], at[FXA_INPUT_Q] = oracle_row_at(x, b, q);
    at[FXA_INPUT_Q_ROW] = (int32_t)q;
    at[FXA_INPUT_Q_LEN] = x->seen_q[b], at[FXA_INPUT_K_LEN] = x->seen_k[b];
    at[FXA_INPUT_HEADS] = x->seen_heads ? x->seen_heads : (int32_t)x->hq;
}

/* Computes the scaled and the new score of one pair, and whether the pair is attended. */
static void bound_pair(conf_work *w, const double *row, const double *key, int64_t k) {
    const oracle *x = &w->c->base.x;
    const fxa_program *p = w->program;
    int32_t score = fxa__program_output(p, FXA__OUT_SCORE), mask = fxa__program_output(p, FXA__OUT_MASK);
    double e;
    w->score[k] = x->scale * conf_bound_dot(w, row, key, x->d, &e);
    w->e_score[k] = e * fabs(x->scale) + w->arithmetic.unit * fabs(w->score[k]);
    w->env.coord[FXA_INPUT_K] = x->at_k[k], w->env.coord[FXA_INPUT_K_ROW] = (int32_t)k;
    w->env.score = w->score[k];
    fxa__program_eval(p, &w->env, w->vals);
    fxa__program_error(p, &w->arithmetic, w->e_score[k], 0, w->vals, w->errors);
    bool attended = w->vals[mask].i != 0;
    w->fresh[k] = attended ? w->vals[score].f : -INFINITY;
    w->e_fresh[k] = attended ? w->errors[score] : 0;
    if (w->errors[mask] != 0 || w->e_fresh[k] == INFINITY) w->c->unsure = true;
}

double conf_bound_dropout(const conf_work *w) {
    const oracle *x = &w->c->base.x;
    const int32_t *at = w->env.coord;
    if (!x->dropout) return 1;
    bool keep = fxa__dropout_keep(x->seed, fxa__dropout_threshold(x->dropout_p), at[FXA_INPUT_B], at[FXA_INPUT_H],
                                  at[FXA_INPUT_Q], at[FXA_INPUT_K]);
    return keep ? 1 / (1 - x->dropout_p) : 0;
}

void conf_bound_add(conf_buffer *t, int64_t place, double error, double size) {
    t->error[place] += error;
    t->size[place] += size;
}

void conf_bound_add_noise(conf_work *w, conf_buffer *t, const int64_t *at, int64_t width, const conf_term *from,
                          int64_t n, int64_t step) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (from[i * step].row) w->line[count++] = from[i * step];
    if (t->noise) conf_add_noise(w->c, t, conf_place(t, at), width, w->line, count);
}

void conf_bound_row_scores(conf_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    int64_t hkv = h / (x->hq / x->hkv);
    bound_enter_row(w, b, h, q);
    for (int64_t k = 0; k < x->k_len[b] && !w->c->unsure; k++)
        bound_pair(w, x->q + ((b * x->hq + h) * x->sq + q) * x->d, x->k + ((b * x->hkv + hkv) * x->sk + k) * x->d, k);
}

bool conf_bound_row_may_overflow(conf_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    int64_t hkv = h / (x->hq / x->hkv);
    int32_t score = fxa__program_output(w->program, FXA__OUT_SCORE),
            mask = fxa__program_output(w->program, FXA__OUT_MASK);
    bool unsure = w->c->unsure, overflows = false;
    bound_enter_row(w, b, h, q);
    for (int64_t k = 0; k < x->k_len[b] && !overflows; k++) {
        bound_pair(w, x->q + ((b * x->hq + h) * x->sq + q) * x->d, x->k + ((b * x->hkv + hkv) * x->sk + k) * x->d, k);
        overflows = w->errors[mask] != 0 && w->errors[score] == INFINITY;
    }
    w->c->unsure = unsure;
    return overflows;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

double conf_bound_exp(const conf_work *w, int64_t k, double m) {
    double error = w->e_fresh[k] + w->arithmetic.unit * fabs(w->fresh[k] - m);
    if (error > 0.1 && w->fresh[k] - m > -80) w->c->unsure = true;
    return expm1(fmin(error, 1));
}

/* Computes LSE and maximum of a row. Returns the error that all probabilities of the row share. */
static double bound_row_softmax(conf_work *w, int64_t b, int64_t h, int64_t place_lse, int64_t place_max, double *m_out,
                                double *sum_out) {
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
        if (p > 0) shared += p * conf_bound_exp(w, k, m);
    }
    if (z != -INFINITY) sum += exp(z - m), shared += exp(z - m) * unit * (fabs(z) + fabs(z - m));
    if (m > -INFINITY) {
        conf_bound_add(&w->c->slot[FXA_SLOT_LSE], place_lse, shared / sum, fabs(m) + fabs(log(sum)) + 1);
        if (max > -INFINITY && w->c->slot[FXA_SLOT_ROW_MAX].error) /* ROW_MAX is an output */
            conf_bound_add(&w->c->slot[FXA_SLOT_ROW_MAX], place_max, fmax(upper - max, e_max), fabs(max));
    }
    *m_out = m, *sum_out = sum;
    return shared / sum;
}

/* Adds the errors of a merge with old contents, whose weights change by the error of LSE. */
static void bound_row_merge(conf_work *w, int64_t place, int64_t place_lse) {
    conf_buffer *o = &w->c->slot[FXA_SLOT_O], *lse = &w->c->slot[FXA_SLOT_LSE];
    double unit = w->arithmetic.unit, e_lse = lse->error[place_lse] + unit * (lse->size[place_lse] + 4);
    conf_bound_add(o, place, e_lse * (2 + o->size[place]), 2); /* old elements of O are in -2..2 */
    if (lse->size[place_lse] < 4) lse->size[place_lse] = 4;    /* old values of LSE are also in -2..2 */
}

/* Returns true if the weight of key k is so small relative to its row that an engine may use 0 for it. */
static bool bound_is_faint(const conf_work *w, int64_t k, double m) {
    double least = fmax(w->c->least_mark, w->arithmetic.tiny), rate = w->e_fresh[k];
    return w->fresh[k] - m < log(least) + rate + w->arithmetic.unit * fabs(w->fresh[k] - m);
}

static void bound_row_forward(conf_work *w, int64_t b, int64_t h, int64_t q) {
    const oracle *x = &w->c->base.x;
    conf_buffer *o = &w->c->slot[FXA_SLOT_O];
    int64_t at[4], hkv = h / (x->hq / x->hkv);
    double m, sum, *size = calloc((size_t)(4 * x->dv), sizeof(double)), *error = size + x->dv;
    /* for each element of O: size, error, value, and the part of the value from keys whose weight may be 0 */
    double *value = error + x->dv, *gone = value + x->dv;
    if (!size) abort();
    attn_case_at(&w->c->base, FXA_SLOT_O, b, q, at);
    at[1] = h, at[3] = 0;
    int64_t place_lse = conf_place(&w->c->slot[FXA_SLOT_LSE], at);
    double shared = bound_row_softmax(w, b, h, place_lse, conf_place(&w->c->slot[FXA_SLOT_ROW_MAX], at), &m, &sum);
    for (int64_t k = 0; k < x->k_len[b]; k++) {
        w->env.coord[FXA_INPUT_K] = x->at_k[k], w->env.coord[FXA_INPUT_K_ROW] = (int32_t)k;
        double kept = conf_bound_dropout(w), p = w->fresh[k] == -INFINITY ? 0 : exp(w->fresh[k] - m) / sum * kept;
        double tiny = fmax(w->arithmetic.tiny, w->c->least_weight * kept);
        const double *v = x->v + ((b * x->hkv + hkv) * x->sk + k) * x->dv;
        bool faint = bound_is_faint(w, k, m);
        w->weights[k] = (conf_term){p, p, p != 0 ? v : NULL};
        for (int64_t i = 0; p != 0 && i < x->dv; i++) {
            if (faint && !isfinite(v[i])) {
                gone[i]++;
                continue;
            }
            value[i] += p * v[i];
            size[i] += p * fabs(v[i]);
            error[i] += (p * conf_bound_exp(w, k, m) + tiny) * fabs(v[i]);
        }
    }
    for (at[3] = 0; at[3] < x->dv && m > -INFINITY; at[3]++) {
        int64_t place = conf_place(o, at);
        conf_bound_add(o, place, error[at[3]] + size[at[3]] * shared, size[at[3]]);
        if (gone[at[3]] > 0) o->spared[place] = isnan(value[at[3]]) ? INFINITY : value[at[3]];
        if (w->c->base.data.problem.flags & FXA_ACCUMULATE_O) bound_row_merge(w, place, place_lse);
    }
    at[3] = 0;
    if (m > -INFINITY) conf_bound_add_noise(w, o, at, x->dv, w->weights, x->k_len[b], 1);
    free(size);
}

bool conf_bound_forward(conf_case *c) {
    conf_work w;
    const oracle *x = &c->base.x;
    bool ok = conf_bound_start(&w, c, FXA_FORWARD);
    c->unsure = false;
    for (int64_t b = 0; ok && b < x->b; b++)
        for (int64_t h = 0; h < x->hq; h++)
            for (int64_t q = 0; q < x->q_len[b] && !c->unsure; q++) {
                conf_bound_row_scores(&w, b, h, q);
                if (!c->unsure) bound_row_forward(&w, b, h, q);
            }
    conf_bound_end(&w);
    return ok;
}
