/* SPDX-License-Identifier: Apache-2.0
 *
 * One small attention problem with data, for tests that are about plans and not about numbers: f64, GQA, a soft cap by
 * a param, a bias by a captured tensor, causal. An attn_data with values of its own; the expected forward result is
 * computed here by plain loops.
 */
#ifndef FXA_TESTS_TINY_H
#define FXA_TESTS_TINY_H

#include "attn_data.h"

enum { TINY_B = 2, TINY_H = 2, TINY_HKV = 1, TINY_S = 5, TINY_D = 3 };
enum { TINY_Q_COUNT = TINY_B * TINY_H * TINY_S * TINY_D, TINY_KV_COUNT = TINY_B * TINY_HKV * TINY_S * TINY_D };
enum { TINY_ROWS = TINY_B * TINY_H * TINY_S };

extern const char tiny_text[];

typedef struct tiny {
    attn_data data;
    attn_call call;
    fxa_program *program; /* that of data */
    fxa_problem problem;  /* of the pass, to be changed at will */
    fxa_args args;        /* without workspace */
    fxa_capture *capture; /* of the problem: call's */
    double *q, *k, *v, *o, *lse, *dout, *dq, *dk, *dv;
    double *cap, *dcap;
    float *slopes, *dslopes;
} tiny;

/* Forward with LSE; outputs are 0. The struct must not move after this: args and problem point into it. */
fxa_status tiny_forward(fxa_context *ctx, tiny *t, fxa_error *err);
/* Backward with all gradients; o and lse hold what forward gives. */
fxa_status tiny_backward(fxa_context *ctx, tiny *t, fxa_error *err);
void tiny_end(tiny *t);
void tiny_end_program(tiny *t); /* the data stays */

/* What O must be for the data in t. A few dozen roundings of numbers below 8: an error of 1e-13 is generous. */
void tiny_expect(const tiny *t, double o[TINY_Q_COUNT]);
#define TINY_TOLERANCE 1e-13

/* The largest difference of t->o to what it must be; infinity when there is a NaN. */
double tiny_error(const tiny *t);

/* Runs the plan with a workspace of its own from malloc. */
fxa_status tiny_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

#endif
