/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the error bounds of forward (conf_bound.c), of backward (conf_bound_back.c), and of rounding to 16 bits
 * (conf_noise.c).
 */
#ifndef FXA_TESTS_CONF_BOUND_H
#define FXA_TESTS_CONF_BOUND_H

#include "conf_case.h"
#include "program/eval_error.h"

/* One term of a row of sums: `rounded`, which is rounded to 16 bits and at most `size` in magnitude, times each element
 * of `row`. */
typedef struct conf_term {
    double rounded, size;
    const double *row;
} conf_term;
/* Adds the squares of the terms to t->noise from `place` on. Terms that round alike are summed first (conf_noise.c). */
void conf_add_noise(const conf_case *c, conf_buffer *t, int64_t place, int64_t width, conf_term *terms, int64_t n);

typedef struct conf_work {
    conf_case *c;
    fxa__arithmetic arithmetic;
    fxa_program *program, *derivative;
    fxa_view views[CONF_TENSORS], own_views[CONF_TENSORS];
    fxa__val *vals;
    double *errors;
    fxa__env env;
    bool equal_terms; /* expanded operands: equal terms round alike, so errors add up instead of averaging out */
    /* state of one row */
    double *score, *e_score, *fresh, *e_fresh; /* [Sk] scaled scores, new scores, and the error of each */
    /* [group * Sq, Sk] values that are rounded before products, by pair of a KV head; row NULL = none */
    conf_term *weights, *slopes;
    conf_term *line; /* [max(rows, keys)] one row or column of these */
} conf_work;

bool conf_bound_start(conf_work *w, conf_case *c, fxa_pass pass);
void conf_bound_end(conf_work *w);
/* Returns a dot product; *error bounds a chain of additions that errs by a unit of each partial sum, in random
 * directions. */
double conf_bound_dot(const conf_work *w, const double *x, const double *y, int64_t n, double *error);
/* Computes the scores of row (b, h, q) with all keys. */
void conf_bound_row_scores(conf_work *w, int64_t b, int64_t h, int64_t q);
/* Returns true if rounding decides both whether a pair of the row attends and whether its new score overflows. */
bool conf_bound_row_may_overflow(conf_work *w, int64_t b, int64_t h, int64_t q);
/* Returns the dropout factor of the pair at the coordinates of w->env. */
double conf_bound_dropout(const conf_work *w);
/* Returns the relative error of exp(s' - m). If the score itself is too inaccurate, the case becomes inconclusive. */
double conf_bound_exp(const conf_work *w, int64_t k, double m);
void conf_bound_add(conf_buffer *t, int64_t place, double error, double size);
/* Adds the noise of a row of t, from every `step`-th of n terms. */
void conf_bound_add_noise(conf_work *w, conf_buffer *t, const int64_t *at, int64_t width, const conf_term *from,
                          int64_t n, int64_t step);

#endif
