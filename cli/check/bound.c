/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of an engine against the reference, element by element: docs/numerics.md, "Error bounds". Each
 * element is a sum over pairs. Three quantities are accumulated over these pairs:
 *
 *   size    sum of the magnitudes of the terms: the scale of rounding in sums, exp and products
 *   error   propagated errors of scores, program and dot products
 *   noise   sum of the squares of the terms, for engines that round P and dS to 16 bits
 *
 * An element is "unsure" if rounding decides between values (comparison of nearly equal floats, overflow of f32): its
 * bound holds only if the engine decides as the reference does. Probabilities lie between 0 and 1, so an error of P is
 * at most 1 however steep the program is.
 *
 * tests/support/conformance/conf_bound.c has the same bounds, written independently: the command judges results that
 * users bring, the tests judge engines, and a mistake in one of the two files is not in the other.
 */
#include "check/bound.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define BOUND_UNITS 16
#define BOUND_SAFETY 2 /* safety factor on propagated errors, whose bounds are of first order only */
#define BOUND_SIGMAS 7 /* standard deviations allowed for rounding to 16 bits */
/* Unit roundoffs that are allowed for an element without a bound; a larger difference there is not a failure. */
#define BOUND_NOMINAL 64

/* Returns the absolute error that is allowed for underflow. */
static double bound_floor(const check_bound *b) { return b->arithmetic == FXA_F64 ? 1e-304 : 1e-34; }

double bound_allowed(const check_bound *b, size_t array, int64_t index, bound_products product) {
    double unit = b->arithmetic == FXA_F64 ? 0x1p-52 : 0x1p-24, size = b->size[array][index];
    double units = BOUND_UNITS + 2 * sqrt((double)b->terms[array]);
    double rounded = fmin(size, BOUND_SIGMAS * sqrt(b->noise[array][index] / 3));
    return BOUND_SAFETY * b->error[array][index] + units * unit * size + product.unit * rounded + product.heads * size +
           product.least + bound_floor(b);
}

bool bound_tells(const check_bound *b, size_t array, int64_t index, bound_products product) {
    double allowed = bound_allowed(b, array, index, product);
    return allowed <= 2 * bound_floor(b) || allowed < b->size[array][index];
}

bool bound_is_unsure(const check_bound *b, size_t array, int64_t index) {
    return b->unsure[array][index] || b->all_unsure[array];
}

int bound_start(cli *c, check_state *s, const trial *t, check_bound *out, bound_work *w) {
    const fxa_problem *p = &s->wide->problem;
    bool f64 = out->arithmetic == FXA_F64;
    int64_t keys = p->sk + 1;
    *w = (bound_work){.s = s, .p = p, .t = t, .out = out, .unit = f64 ? 0x1p-52 : 0x1p-24};
    w->tiny = f64 ? DBL_MIN : FLT_MIN;
    w->scale = isnan(t->args.scale) ? 1 / sqrt((double)(p->d_qk > 0 ? p->d_qk : 1)) : t->args.scale;
    w->dropout = p->flags & FXA_DROPOUT ? 1 / (1 - p->dropout_p) : 1;
    w->q = t->args.slot[FXA_SLOT_Q];
    w->k = t->args.slot[FXA_SLOT_K];
    w->v = t->args.slot[FXA_SLOT_V];
    w->score = cli_alloc_array(c, 4 * keys, sizeof(double));
    w->e_score = w->score + keys;
    w->fresh = w->e_score + keys;
    w->e_fresh = w->fresh + keys;
    w->unsure = cli_alloc_array(c, keys, sizeof *w->unsure);
    w->in[FXA_INPUT_Q_LEN] = (double)p->sq;
    w->in[FXA_INPUT_K_LEN] = (double)p->sk;
    w->in[FXA_INPUT_HEADS] = (double)p->hq;
    fxa_error err;
    if (fxa_program_eval_bounds(s->derivative, w->in, NULL, out->arithmetic, s->wide->bind.params, s->wide->bind.views,
                                NULL, &w->n_terms, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    w->n_terms = w->n_terms > 2 ? w->n_terms : 2; /* a SCORE program has at least two results */
    w->terms = cli_alloc_array(c, (int64_t)w->n_terms, sizeof *w->terms);
    for (size_t i = 0; i < t->n_arrays; i++) {
        const trial_array *a = &t->arrays[i];
        if (out->error[i]) continue;
        out->error[i] = cli_alloc_array(c, a->count, sizeof(double));
        out->size[i] = cli_alloc_array(c, a->count, sizeof(double));
        out->unsure[i] = cli_alloc_array(c, a->count, sizeof(bool));
        out->noise[i] = cli_alloc_array(c, a->count, sizeof(double));
        out->terms[i] = i <= BOUND_DQ                    ? p->sk
                        : i == BOUND_DK || i == BOUND_DV ? p->sq * problem_group(p)
                                                         : p->b * p->hq * p->sq * p->sk;
    }
    return CLI_OK;
}

/* Returns the dot product of x and y and sets *error to a bound of its error: each addition rounds its partial sum by
 * up to one unit, in random directions. */
double bound_dot(const bound_work *w, const double *x, const double *y, int64_t n, double *error) {
    double sum = 0, size = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * y[i];
        size += fabs(x[i] * y[i]);
        squares += sum * sum;
    }
    *error = w->unit * (sqrt(squares) + 2 * size);
    return sum;
}

int bound_terms(cli *c, bound_work *w, const fxa_program *program, const cli_binding *bind, double e_score,
                double e_dscore) {
    const double error[FXA_INPUT_COUNT] = {[FXA_INPUT_SCORE] = e_score, [FXA_INPUT_DSCORE] = e_dscore};
    size_t count = w->n_terms;
    fxa_error err;
    if (fxa_program_eval_bounds(program, w->in, error, w->out->arithmetic, bind->params, bind->views, w->terms, &count,
                                &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    for (size_t i = count; i < w->n_terms; i++) w->terms[i].kind = FXA_RESULT_FORCE_INT32;
    return CLI_OK;
}

static void bound_note_culprit(check_state *s, const double *in, double fresh) {
    if (s->culprit.found || !(isnan(fresh) || fresh == INFINITY)) return;
    s->culprit.found = true;
    s->culprit.value = fresh;
    memcpy(s->culprit.in, in, sizeof s->culprit.in);
}

double bound_nominal(const bound_work *w, double error, double value) {
    return error < INFINITY ? error : BOUND_NOMINAL * w->unit * (fabs(value) + 1);
}

int bound_row_scores(cli *c, bound_work *w, int64_t b, int64_t h, int64_t q) {
    const fxa_problem *p = w->p;
    int64_t hkv = h / problem_group(p);
    const double *row = w->q + ((b * p->hq + h) * p->sq + q) * p->d_qk,
                 *keys = w->k + (b * p->hkv + hkv) * p->sk * p->d_qk;
    w->in[FXA_INPUT_B] = (double)b;
    w->in[FXA_INPUT_H] = (double)h;
    w->in[FXA_INPUT_Q] = (double)(q + problem_row_shift(p));
    w->in[FXA_INPUT_Q_ROW] = (double)q;
    for (int64_t k = 0; k < p->sk; k++) {
        double e;
        w->score[k] = w->scale * bound_dot(w, row, keys + k * p->d_qk, p->d_qk, &e);
        w->e_score[k] = e * fabs(w->scale) + w->unit * fabs(w->score[k]);
        w->in[FXA_INPUT_K] = w->in[FXA_INPUT_K_ROW] = (double)k;
        w->in[FXA_INPUT_SCORE] = w->score[k];
        int rc = bound_terms(c, w, w->s->run_program, &w->s->wide->bind, w->e_score[k], 0);
        if (rc != CLI_OK) return rc;
        bool attended = w->terms[1].value != 0;
        w->fresh[k] = attended ? w->terms[0].value : -INFINITY;
        w->unsure[k] = w->terms[1].error != 0 || (attended && w->terms[0].error == INFINITY);
        w->e_fresh[k] = attended ? bound_nominal(w, w->terms[0].error, w->fresh[k]) : 0;
        bound_note_culprit(w->s, w->in, w->fresh[k]);
    }
    return CLI_OK;
}

static double bound_distance_error(const bound_work *w, int64_t k, double m) {
    return w->e_fresh[k] + w->unit * fabs(w->fresh[k] - m);
}

double bound_exp(const bound_work *w, int64_t k, double m) {
    double distance = w->fresh[k] - m, e = bound_distance_error(w, k, m);
    if (distance == -INFINITY) return 0; /* not attended */
    double weight = exp(distance);
    return weight > 0 ? weight * expm1(e)
                      : exp(distance + e); /* a weight that underflows here may be large if scores are inaccurate */
}

/* Accumulates the bounds of one row of O and LSE. */
static void bound_row_forward(bound_work *w, int64_t row, int64_t kv) {
    const fxa_problem *p = w->p;
    double m = p->flags & FXA_SINK_ZERO ? 0 : -INFINITY, sum = 0, shared = 0, most = 0;
    bool unsure = false;
    for (int64_t k = 0; k < p->sk; k++) {
        m = fmax(m, w->fresh[k]);
        unsure = unsure || w->unsure[k];
    }
    w->out->unsure[BOUND_LSE][row] = unsure;
    for (int64_t i = 0; i < problem_dv(p); i++) w->out->unsure[BOUND_O][row * problem_dv(p) + i] = unsure;
    if (m == -INFINITY) return;
    if (p->flags & FXA_SINK_ZERO) sum = exp(-m), shared = sum * w->unit * fabs(m);
    for (int64_t k = 0; k < p->sk; k++) {
        double weight = w->fresh[k] == -INFINITY ? 0 : exp(w->fresh[k] - m), off = bound_exp(w, k, m);
        sum += weight;
        shared += off;
        if (weight > 0 || off > 0) most = fmax(most, bound_distance_error(w, k, m));
    }
    shared /= sum;
    w->out->error[BOUND_LSE][row] = shared < 0.5 ? shared : most;
    w->out->size[BOUND_LSE][row] = fabs(m) + fabs(log(sum)) + 1;
    for (int64_t i = 0, at = row * problem_dv(p); i < problem_dv(p); i++, at++) {
        for (int64_t k = 0; k < p->sk; k++) {
            double x = w->fresh[k] == -INFINITY ? 0 : exp(w->fresh[k] - m) / sum,
                   v = fabs(w->v[(kv + k) * problem_dv(p) + i]);
            double off = bound_exp(w, k, m) / sum;
            if (x == 0 && off == 0) continue;
            /* The denominator of the softmax also has an error: its relative error, or that of its worst term. */
            double steep = exp(w->fresh[k] - m + 2 * most) / sum;
            double error = fmin(1, shared < 0.5 ? off + x * shared : fmax(off, steep));
            w->out->error[BOUND_O][at] += (error + w->tiny) * w->dropout * v;
            w->out->size[BOUND_O][at] += x * w->dropout * v;
            w->out->noise[BOUND_O][at] += x * w->dropout * v * x * w->dropout * v;
        }
    }
}

int bound_forward(cli *c, check_state *s, const trial *t, fxa_dtype arithmetic, check_bound *out) {
    bound_work w;
    const fxa_problem *p = &s->wide->problem;
    out->arithmetic = arithmetic;
    int rc = bound_start(c, s, t, out, &w);
    for (int64_t b = 0; b < p->b; b++)
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t q = 0; rc == CLI_OK && q < p->sq; q++) {
                rc = bound_row_scores(c, &w, b, h, q);
                int64_t kv = (b * p->hkv + h / problem_group(p)) * p->sk;
                if (rc == CLI_OK) bound_row_forward(&w, (b * p->hq + h) * p->sq + q, kv);
            }
    return rc;
}
