/* SPDX-License-Identifier: Apache-2.0
 *
 * A small attention problem with data, for tests of plans: f64, GQA, a soft cap from a param, a bias from a captured
 * tensor, causal. The data is an attn_data; plain loops compute the expected forward result.
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
    fxa_program *program; /* the program of `data` */
    fxa_problem problem;  /* problem of the pass; tests may change it */
    fxa_args args;        /* without workspace */
    fxa_capture *capture; /* the capture of `problem`, stored in `call` */
    double *q, *k, *v, *o, *lse, *dout, *dq, *dk, *dv;
    double *cap, *dcap;
    float *slopes, *dslopes;
} tiny;

/* Makes a forward pass with LSE, whose outputs start as 0. args and problem point into *t, which must not move
 * afterwards. */
fxa_status tiny_forward(fxa_context *ctx, tiny *t, fxa_error *err);
/* Makes a backward pass with all gradients, whose inputs o and lse are the results of forward. */
fxa_status tiny_backward(fxa_context *ctx, tiny *t, fxa_error *err);
void tiny_end(tiny *t);
void tiny_end_program(tiny *t); /* keeps the data */

/* Computes the expected O. A few dozen roundings of numbers below 8 have errors well below 1e-13. */
void tiny_expect(const tiny *t, double o[TINY_Q_COUNT]);
#define TINY_TOLERANCE 1e-13

/* Returns the largest difference between t->o and the expected O; infinity if t->o has a NaN. */
double tiny_error(const tiny *t);

/* Runs the plan with a workspace from malloc. */
fxa_status tiny_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

#endif
