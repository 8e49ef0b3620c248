/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two halves of the bounds share: one row of pairs with the errors of their scores (check_bound.c), then
 * forward (check_bound.c) and backward (check_bound_back.c). */
#ifndef FXA_CLI_CHECK_BOUND_H
#define FXA_CLI_CHECK_BOUND_H

#include "check.h"

/* Arrays of a trial by position; captured tensors and params follow. */
enum { BOUND_O, BOUND_LSE, BOUND_DQ, BOUND_DK, BOUND_DV };

typedef struct bound_work {
    check_state *s;
    const fxa_problem *p;
    const trial *t;
    check_bound *out;
    double unit, tiny, scale, dropout;         /* dropout: the most that a probability is multiplied by */
    const double *q, *k, *v;                   /* [B,H,S,D] */
    double *score, *e_score, *fresh, *e_fresh; /* [Sk] of one row: scaled scores, new scores, their errors */
    bool *unsure;                              /* [Sk] */
    double in[FXA_INPUT_COUNT];
    fxa_bounded_result *terms; /* of any of the programs */
    size_t n_terms;
} bound_work;

int bound_start(cli *c, check_state *s, const trial *t, check_bound *out, bound_work *w);
double bound_dot(const bound_work *w, const double *x, const double *y, int64_t n, double *error);
/* Scores of row (b, h, q) with all keys. */
int bound_row_scores(cli *c, bound_work *w, int64_t b, int64_t h, int64_t q);
/* How far exp(s' - m) of key k may be off. */
double bound_exp(const bound_work *w, int64_t k, double m);
/* An error that is not finite, taken for what it is if the engine decides as the reference does. */
double bound_nominal(const bound_work *w, double error, double value);
int bound_terms(cli *c, bound_work *w, const fxa_program *program, const cli_binding *bind, double e_score,
                double e_dscore);

#endif
