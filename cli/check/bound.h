/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the bounds of forward (check/bound.c) and backward (check/bound_back.c): the scores of one row
 * and their errors.
 */
#ifndef FXA_CLI_CHECK_BOUND_H
#define FXA_CLI_CHECK_BOUND_H

#include "check/check.h"

/* Indices of arrays in a trial; gradients of captured tensors and params follow. */
enum { BOUND_O, BOUND_LSE, BOUND_DQ, BOUND_DK, BOUND_DV };

typedef struct bound_work {
    check_state *s;
    const fxa_problem *p;
    const trial *t;
    check_bound *out;
    double unit, tiny, scale, dropout; /* dropout: maximum factor of a probability, 1 / (1 - p) */
    const double *q, *k, *v;           /* [B,H,S,D] */
    double *score, *e_score, *fresh,
        *e_fresh; /* [Sk] for one row: scaled scores, new scores, and the error bounds of both */
    bool *unsure; /* [Sk] true = rounding decides the mask or the score of the pair */
    double in[FXA_INPUT_COUNT];
    fxa_bounded_result *terms; /* [n_terms] results of one evaluation; n_terms is large enough for each program */
    size_t n_terms;
} bound_work;

int bound_start(cli *c, check_state *s, const trial *t, check_bound *out, bound_work *w);
double bound_dot(const bound_work *w, const double *x, const double *y, int64_t n, double *error);
/* Computes scores, new scores and their errors of row (b, h, q) with all keys. Returns an exit code. */
int bound_row_scores(cli *c, bound_work *w, int64_t b, int64_t h, int64_t q);
/* Returns the error bound of exp(s' - m) of key k. */
double bound_exp(const bound_work *w, int64_t k, double m);
/* Returns `error` if it is finite; else the error under the assumption that the engine decides every jump as the
 * reference does. */
double bound_nominal(const bound_work *w, double error, double value);
int bound_terms(cli *c, bound_work *w, const fxa_program *program, const cli_binding *bind, double e_score,
                double e_dscore);

#endif
