/* SPDX-License-Identifier: Apache-2.0
 *
 * What bounds of both passes have in common: conf_bound.c has the derivation's place and the forward pass,
 * conf_bound_back.c the backward pass, conf_noise.c roundings to 16 bits.
 */
#ifndef FXA_TESTS_CONF_BOUND_H
#define FXA_TESTS_CONF_BOUND_H

#include "conf_case.h"
#include "program/eval_error.h"

/* One term of a row of sums: `rounded`, which rounds to 16 bits, and is no larger than `size` in magnitude, times each
 * element of `row`. */
typedef struct conf_term {
    double rounded, size;
    const double *row;
} conf_term;
/* Adds their squares to t->noise, from `place` on; terms that round alike are added up before (conf_noise.c). */
void conf_add_noise(const conf_case *c, conf_buffer *t, int64_t place, int64_t width, conf_term *terms, int64_t n);

typedef struct conf_work {
    conf_case *c;
    fxa__arithmetic arithmetic;
    fxa_program *program, *derivative;
    fxa_view views[CONF_TENSORS], own_views[CONF_TENSORS];
    fxa__val *vals;
    double *errors;
    fxa__env env;
    bool equal_terms; /* expanded operands: they round the same way, and errors add up instead of averaging out */
    /* one row */
    double *score, *e_score, *fresh, *e_fresh; /* [Sk]: scaled scores, new scores, their errors */
    /* what rounds before products, by pair of a KV head: [group * Sq, Sk]; rows with nothing have no `row` */
    conf_term *weights, *slopes;
    conf_term *line; /* [the longer of both]: one row or column of these */
} conf_work;

bool conf_bound_start(conf_work *w, conf_case *c, fxa_pass pass);
void conf_bound_end(conf_work *w);
/* A sum of products; *error: of a chain of additions, which err by a unit of each partial sum, in random directions. */
double conf_bound_dot(const conf_work *w, const double *x, const double *y, int64_t n, double *error);
/* The scores of row (b, h, q) with all keys. */
void conf_bound_row_scores(conf_work *w, int64_t b, int64_t h, int64_t q);
/* Returns true if rounding decides both whether a pair of the row attends and whether its new score overflows. */
bool conf_bound_row_may_overflow(conf_work *w, int64_t b, int64_t h, int64_t q);
/* What a weight at the coordinates of w->env is multiplied by. */
double conf_bound_dropout(const conf_work *w);
/* Relative error of exp(s' - m). Scores of which not even one digit is sure say nothing. */
double conf_bound_exp(const conf_work *w, int64_t k, double m);
void conf_bound_add(conf_buffer *t, int64_t place, double error, double size);
/* Noise of a row of t, of every `step`-th of n terms. */
void conf_bound_add_noise(conf_work *w, conf_buffer *t, const int64_t *at, int64_t width, const conf_term *from,
                          int64_t n, int64_t step);

#endif
