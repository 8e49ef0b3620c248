/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the error bounds of forward (conf_bound.c), of backward (conf_bound_back.c), and of rounding
 * to 16 bits (conf_noise.c).
 */
#ifndef FXA_TESTS_CONF_BOUND_H
#define FXA_TESTS_CONF_BOUND_H

#include "conf_case.h"
#include "program/eval_error.h"

/* One term of a row of sums: `rounded` times each element of `row`. The engine rounds `rounded`, whose magnitude is at
 * most `size`, to 16 bits. */
typedef struct conf_term {
    double rounded, size;
    const double *row;
} conf_term;
/* Adds the squares of the terms to t->noise from `place` on. Terms with equal rounding errors are summed first
 * (conf_noise.c). */
void conf_add_noise(const conf_case *c, conf_buffer *t, int64_t place, int64_t width, conf_term *terms, int64_t n);

typedef struct conf_work {
    conf_case *c;
    fxa__arithmetic arithmetic;
    fxa_program *program, *derivative;
    fxa_view views[CONF_TENSORS], own_views[CONF_TENSORS];
    fxa__val *vals;
    double *errors;
    fxa__env env;
    bool equal_terms; /* operands with stride 0: equal terms have equal rounding errors, which add up */
    /* scores of one row */
    double *score, *e_score, *fresh, *e_fresh; /* [Sk] scaled scores, new scores, and the errors of both */
    /* [group * Sq, Sk] values of each pair of a KV head that are rounded before products; row NULL = none. */
    conf_term *weights, *slopes;
    conf_term *line; /* [max(rows, keys)] one row or one column of `weights` or `slopes` */
} conf_work;

bool conf_bound_start(conf_work *w, conf_case *c, fxa_pass pass);
void conf_bound_end(conf_work *w);
/* Returns the dot product of x and y. *error bounds a chain of additions, each of which errs by up to a unit of its
 * partial sum, in random directions. */
double conf_bound_dot(const conf_work *w, const double *x, const double *y, int64_t n, double *error);
/* Computes the scores of row (b, h, q) with all keys. */
void conf_bound_row_scores(conf_work *w, int64_t b, int64_t h, int64_t q);
/* Returns true if, for a pair of the row, rounding decides both whether the pair is attended and whether its new score
 * overflows. */
bool conf_bound_row_may_overflow(conf_work *w, int64_t b, int64_t h, int64_t q);
/* Returns the dropout factor of the pair at the coordinates of w->env. */
double conf_bound_dropout(const conf_work *w);
/* Returns the relative error of exp(s' - m). Marks the case as inconclusive if the score itself is too inaccurate. */
double conf_bound_exp(const conf_work *w, int64_t k, double m);
void conf_bound_add(conf_buffer *t, int64_t place, double error, double size);
/* Adds the noise of a row of t, from every `step`-th of n terms. */
void conf_bound_add_noise(conf_work *w, conf_buffer *t, const int64_t *at, int64_t width, const conf_term *from,
                          int64_t n, int64_t step);

#endif
