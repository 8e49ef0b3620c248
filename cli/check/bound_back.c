/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of gradients (check/bound.c explains the method). O and LSE are inputs of backward, so errors of forward
 * do not count.
 */
#include "check/bound.h"

#include <float.h>
#include <math.h>

/* State of the bounds for one row of a backward pass. */
typedef struct bound_back {
    int64_t row, kv; /* contiguous indices: of row (b, h, q), and of the first key of its KV head */
    double lse, dlse, delta, e_delta;
    bool with_bprop;
} bound_back;

static void bound_add(check_bound *b, size_t array, int64_t at, double error, double size, bool unsure) {
    b->error[array][at] += error;
    b->unsure[array][at] = b->unsure[array][at] || unsure;
    b->size[array][at] += size;
    b->noise[array][at] += size * size;
}

/* Returns the index, among the arrays of t, of the gradient of a tensor or param; -1 = not computed. */
static int64_t bound_array_of(const trial *t, const fxa_bounded_result *term) {
    const void *data =
        term->kind == FXA_RESULT_DPARAM ? (const void *)&t->dparams[term->slot] : t->dtensors[term->slot];
    for (size_t i = BOUND_DV + 1; data && i < t->n_arrays; i++)
        if (t->arrays[i].data == data) return (int64_t)i;
    return -1;
}

/* Accumulates the bounds of gradients of params and tensors for one pair. */
static void bound_values(bound_work *w, bool unsure) {
    for (size_t i = 1; i < w->n_terms && w->terms[i].kind != FXA_RESULT_FORCE_INT32; i++) {
        const fxa_bounded_result *term = &w->terms[i];
        int64_t array = bound_array_of(w->t, term);
        if (array >= 0 && (unsure || term->error == INFINITY)) w->out->all_unsure[array] = true;
        if (array < 0 || (term->kind == FXA_RESULT_DTENSOR && term->offset < 0)) continue;
        bound_add(w->out, (size_t)array, term->kind == FXA_RESULT_DPARAM ? 0 : term->offset,
                  bound_nominal(w, term->error, term->value), fabs(term->value), false);
    }
}

/* Computes |dS| of pair k and its error, for a dS' with magnitude `size`. A user-written backward need not be linear in
 * dscore, so it is evaluated at two values of dscore. */
static int bound_through_program(cli *c, bound_work *w, const bound_back *r, int64_t k, double size, double value,
                                 double error, double *ds, double *e_ds) {
    const cli_job *job = w->s->wide;
    w->in[FXA_INPUT_DSCORE] = size;
    int rc = bound_terms(c, w, w->s->derivative, &job->bind, w->e_score[k], error);
    if (rc != CLI_OK) return rc;
    *ds = fabs(w->terms[0].value);
    *e_ds = w->terms[0].error;
    bound_values(w, w->unsure[k]);
    if (!r->with_bprop) return rc;
    *ds = *e_ds = 0;
    for (int i = 0; rc == CLI_OK && i < 2; i++) {
        w->in[FXA_INPUT_DSCORE] = i ? value : size;
        rc = bound_terms(c, w, job->bprop, &job->bprop_bind, w->e_score[k], error);
        *ds += fabs(w->terms[0].value);
        *e_ds = fmax(*e_ds, w->terms[0].error);
    }
    return rc;
}

static int bound_pair_backward(cli *c, bound_work *w, const bound_back *r, int64_t k) {
    const fxa_problem *p = w->p;
    double p_k = w->fresh[k] == -INFINITY ? 0 : exp(w->fresh[k] - r->lse), e_dp, ds = 0, e_ds = 0;
    bool unsure = w->unsure[k];
    double off = bound_exp(w, k, r->lse);
    if (p_k == 0 && off == 0 && !unsure) return CLI_OK;
    double e_p = fmin(off, fmax(1, p_k)) + w->tiny; /* P is at most 1, unless LSE is inaccurate */
    const double *dout = (const double *)w->t->args.slot[FXA_SLOT_DO] + r->row * problem_dv(p),
                 *row = w->q + r->row * p->d_qk, *key = w->k + (r->kv + k) * p->d_qk;
    double dp = w->dropout * bound_dot(w, dout, w->v + (r->kv + k) * problem_dv(p), problem_dv(p), &e_dp);
    for (int64_t i = 0; i < problem_dv(p); i++)
        bound_add(w->out, BOUND_DV, (r->kv + k) * problem_dv(p) + i, e_p * w->dropout * fabs(dout[i]),
                  p_k * w->dropout * fabs(dout[i]), unsure);
    double reach = fabs(dp) + fabs(r->delta) + fabs(r->dlse), size = p_k * reach;
    double error = e_p * reach + p_k * (e_dp * w->dropout + r->e_delta + 4 * w->unit * reach);
    w->in[FXA_INPUT_K] = w->in[FXA_INPUT_K_ROW] = (double)k;
    w->in[FXA_INPUT_SCORE] = w->score[k];
    int rc = bound_through_program(c, w, r, k, size, p_k * (dp - r->delta + r->dlse), error, &ds, &e_ds);
    unsure = unsure || e_ds == INFINITY;
    e_ds = bound_nominal(w, e_ds, ds);
    for (int64_t i = 0; rc == CLI_OK && i < p->d_qk; i++) {
        double x = fabs(w->scale * key[i]), y = fabs(w->scale * row[i]);
        bound_add(w->out, BOUND_DQ, r->row * p->d_qk + i, e_ds * x, ds * x, unsure);
        bound_add(w->out, BOUND_DK, (r->kv + k) * p->d_qk + i, e_ds * y, ds * y, unsure);
    }
    return rc;
}

static int bound_row_backward(cli *c, bound_work *w, int64_t b, int64_t h, int64_t q, bool with_bprop) {
    const fxa_problem *p = w->p;
    bound_back r = {.row = (b * p->hq + h) * p->sq + q, .with_bprop = with_bprop};
    const double *dout = (const double *)w->t->args.slot[FXA_SLOT_DO] + r.row * problem_dv(p),
                 *o = (const double *)w->t->args.slot[FXA_SLOT_O] + r.row * problem_dv(p);
    r.kv = (b * p->hkv + h / problem_group(p)) * p->sk;
    r.lse = ((const double *)w->t->args.slot[FXA_SLOT_LSE])[r.row];
    r.dlse = ((const double *)w->t->args.slot[FXA_SLOT_DLSE])[r.row];
    if (r.lse == -INFINITY) return CLI_OK;
    r.delta = bound_dot(w, dout, o, problem_dv(p), &r.e_delta);
    for (int64_t i = 0; i < problem_dv(p); i++)
        r.e_delta += fabs(dout[i]) * w->tiny; /* subnormal elements of O may be flushed to 0 */
    int rc = bound_row_scores(c, w, b, h, q);
    for (int64_t k = 0; rc == CLI_OK && k < p->sk; k++) rc = bound_pair_backward(c, w, &r, k);
    return rc;
}

int bound_backward(cli *c, check_state *s, const trial *t, bool with_bprop, check_bound *out) {
    bound_work w;
    const fxa_problem *p = &s->wide->problem;
    int rc = bound_start(c, s, t, out, &w);
    for (int64_t b = 0; b < p->b; b++)
        for (int64_t h = 0; h < p->hq; h++)
            for (int64_t q = 0; rc == CLI_OK && q < p->sq; q++)
                rc = bound_row_backward(c, &w, b, h, q, with_bprop && s->job->bprop);
    return rc;
}
