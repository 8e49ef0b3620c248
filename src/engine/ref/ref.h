/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference engine: attention in simple f64 loops, not optimized. This engine defines the library's results
 * (docs/numerics.md), and the tests compare every other engine with it.
 *
 *   ref_work.c       workspace, and rows of the operands to and from f64
 *   ref_score.c      one pair of a query row and a key: scaled score, program, mask, dropout
 *   ref_forward.c    O, LSE, row maximum
 *   ref_backward.c   dQ, dK, dV, dsink
 *   ref_gradient.c   backward of the program for one pair; gradients of captured tensors and params
 *   engine_ref.c     the table of functions
 *
 * Conventions: b, h, q, k are local indices (h a query head, hkv a KV head); env.coord holds the coordinates that the
 * program reads, which are indices plus offsets. The new score of a pair is the program's result, or -inf where the
 * program's mask is false. A pair is masked exactly if its new score is -inf.
 */
#ifndef FXA_ENGINE_REF_REF_H
#define FXA_ENGINE_REF_REF_H

#include "../../base/carve.h"
#include "../engine.h"
#include "../../problem/geometry.h"

/* Dense f64 sum of one captured tensor's gradient. */
typedef struct fxa__ref_sum {
    fxa_view view; /* the tensor's shape, and the dense strides of `sum`; data is NULL */
    double *sum;   /* [elements] sum of each element; NULL: the gradient is not requested */
} fxa__ref_sum;

/* State of one run: arguments, position in the loops, arrays in the workspace. */
typedef struct fxa__ref {
    const fxa__problem *p;
    const fxa_program *derivative; /* backward: derivative of p->program */
    const fxa__bound_args *bound;  /* arguments of the run */

    int64_t b;    /* current batch entry */
    fxa__seq seq; /* sequence bounds of b */
    fxa__env env; /* coordinates of the current pair */

    fxa__val *vals; /* [nodes of the largest program] value of each node for the current pair */
    double *k, *v;  /* [Sk,D], [Sk,Dv] keys and values of the current batch entry and KV head */
    double *q, *o;  /* [D], [Dv] current row of Q and O */
    double *s;      /* forward: [Sk] new scores (results of the program) of the current row */
    double *o_old;  /* forward: [Dv] stored row of O, which FXA_ACCUMULATE_O merges with `o` */

    double *dout, *dq;     /* backward: [Dv], [D] current row of dO and dQ */
    double *dk, *dv;       /* backward: [fxa__ref_key_rows,D], [fxa__ref_key_rows,Dv] dK and dV of one KV head */
    double *dsink;         /* backward: [Hq] sums of the sink gradients */
    double *dparams;       /* backward: [params] sums of the param gradients */
    fxa__ref_sum *dtensor; /* backward: [captured tensors] sums of the tensor gradients */
} fxa__ref;

/* ---- ref_work.c -------------------------------------------------------------------------------------------------- */

/* Lays out the workspace of one run: sets *bytes to the exact size of the workspace and, unless c only adds up sizes,
 * the pointers of r. Returns false if the size does not fit in size_t. */
bool fxa__ref_layout(const fxa__problem *p, const fxa_program *derivative, fxa__carver c, fxa__ref *r, size_t *bytes);

/* fxa__ref_load and fxa__ref_store read and write row (r->b, h, s) of the operand in `slot` as f64 and apply fp8
 * scales. LSE, ROW_MAX and DLSE have one element per row. A store rounds once; with `add`, the store adds to the
 * element in memory. */
void fxa__ref_load(const fxa__ref *r, fxa_slot slot, int64_t h, int64_t s, double *out);
void fxa__ref_store(const fxa__ref *r, fxa_slot slot, int64_t h, int64_t s, const double *x, bool add);
/* Stores x as the element at element offset `at` of the slot's data; with `add`, adds x to the stored value. */
void fxa__ref_store_one(const fxa__ref *r, fxa_slot slot, uint32_t dtype, int64_t at, double x, bool add);

/* Sets the current batch entry. */
void fxa__ref_enter_batch(fxa__ref *r, int64_t b);
/* Loads keys and values of one KV head of the current batch entry into r->k and r->v. */
void fxa__ref_load_keys(fxa__ref *r, int64_t hkv);

/* Returns the number of rows in the dK and dV sums of one KV head. Without pages the sums cover one batch entry; with
 * pages, which batch entries may share, they cover the entire page pool. */
int64_t fxa__ref_key_rows(const fxa__problem *p);
/* Returns the row of the dK and dV sums that key k of the current batch entry adds to. */
int64_t fxa__ref_key_row(const fxa__ref *r, int64_t k);

/* ---- ref_score.c ------------------------------------------------------------------------------------------------- */

/* Sets the current query head. */
void fxa__ref_enter_head(fxa__ref *r, int64_t h);
/* Sets the current row, row q of query head h, and loads it into r->q. */
void fxa__ref_enter_row(fxa__ref *r, int64_t h, int64_t q);

/* Returns the new score (the program's result) of the current row and key k, -inf if k is masked for this row. Sets the
 * coordinates in r->env to this pair. */
double fxa__ref_score(fxa__ref *r, int64_t k);
/* Returns the dropout factor of the pair in env: 0 or 1 / (1 - p); 1 without dropout. */
double fxa__ref_dropout(const fxa__ref *r);
/* Returns the score of the sink of head h; -inf if there are no sinks. */
double fxa__ref_sink(const fxa__ref *r, int64_t h);

double fxa__ref_dot(const double *x, const double *y, int64_t n);    /* returns the sum of x[i] * y[i] */
void fxa__ref_axpy(double *y, double a, const double *x, int64_t n); /* y += a * x; does nothing if a is 0 */

/* ---- The passes -------------------------------------------------------------------------------------------------- */

void fxa__ref_forward(fxa__ref *r);
void fxa__ref_backward(fxa__ref *r);

/* Returns the gradient of the scaled score of the pair in r->env. dnew: gradient of the pair's new score (the program's
 * result), not 0. Adds the pair's terms to the gradient sums of captured tensors and params (ref_gradient.c). */
double fxa__ref_program_backward(fxa__ref *r, double dnew);
void fxa__ref_clear_sums(fxa__ref *r);       /* sets the sums of captured tensors and params to 0 */
void fxa__ref_store_sums(const fxa__ref *r); /* stores the sums as the gradients of captured tensors and params */

#endif
