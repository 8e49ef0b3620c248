/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference engine: the meaning of the library in plain f64 loops, and the oracle of every other engine's tests.
 * docs/numerics.md states in words what these files state in C. Nothing here is fast and nothing is clever.
 *
 *   ref_work.c       workspace, and rows of the operands to and from f64
 *   ref_score.c      one pair: scaled score, program, mask, dropout
 *   ref_forward.c    O, LSE, row maximum
 *   ref_backward.c   dQ, dK, dV, dsink
 *   ref_gradient.c   one pair's way back through the program; gradients of captured tensors and params
 *   engine_ref.c     the table of functions
 *
 * Conventions: b, h, q, k are local indices (h a query head, hkv a KV head); what a program sees of them is in
 * env.coord. A pair that is not attended has the new score -inf: the two mean the same everywhere.
 */
#ifndef FXA_ENGINE_REF_REF_H
#define FXA_ENGINE_REF_REF_H

#include "../../base/carve.h"
#include "../engine.h"
#include "../../problem/geometry.h"

/* The sum of one captured tensor's gradient, dense. */
typedef struct fxa__ref_sum {
    fxa_view view; /* shape, dense strides, no data */
    double *sum;   /* NULL: not asked for */
} fxa__ref_sum;

/* One run: its arguments, its place in the loops, and the parts of its workspace. */
typedef struct fxa__ref {
    const fxa__problem *p;
    const fxa_program *derivative; /* backward: of p->program */
    const fxa__bound_args *bound;

    int64_t b;
    fxa__seq seq; /* of b */
    fxa__env env; /* coordinates follow the loops */

    fxa__val *vals; /* one evaluation of the largest program */
    double *k, *v;  /* [Sk,D], [Sk,Dv] of one (b, hkv) */
    double *q, *o;  /* [D], [Dv] of one row */
    double *s;      /* forward: [Sk], the new scores of one row */
    double *o_old;  /* forward: [Dv], the row that FXA_ACCUMULATE_O joins */

    double *dout, *dq;     /* backward: [Dv], [D] of one row */
    double *dk, *dv;       /* backward: [key rows,D], [key rows,Dv] of one KV head, see fxa__ref_key_rows */
    double *dsink;         /* backward: [Hq] */
    double *dparams;       /* backward: one per param */
    fxa__ref_sum *dtensor; /* backward: one per captured tensor */
} fxa__ref;

/* ---- ref_work.c -------------------------------------------------------------------------------------------------- */

/* Lays out the workspace of one run: *bytes is its exact size, and with a base the pointers of `r` are set. False: the
 * size does not fit in size_t. */
bool fxa__ref_layout(const fxa__problem *p, const fxa_program *derivative, fxa__carver c, fxa__ref *r, size_t *bytes);

/* One row of an operand, named by its slot (LSE, ROW_MAX and DLSE have one feature); position s is local to r->b.
 * Storing adds to what is there when `add`, and rounds once, from f64. Scales are applied here. */
void fxa__ref_load(const fxa__ref *r, fxa_slot slot, int64_t h, int64_t s, double *out);
void fxa__ref_store(const fxa__ref *r, fxa_slot slot, int64_t h, int64_t s, const double *x, bool add);
/* The same of one element, `at` elements from the slot's first. */
void fxa__ref_store_one(const fxa__ref *r, fxa_slot slot, uint32_t dtype, int64_t at, double x, bool add);

/* Moves to batch entry b, and reads its keys and values of one KV head. */
void fxa__ref_enter_batch(fxa__ref *r, int64_t b);
void fxa__ref_load_keys(fxa__ref *r, int64_t hkv);

/* Rows of the dK, dV sums of one KV head, and the one that key k of r->b adds to: pages may be shared between batch
 * entries, so the sums of a paged problem are those of the whole pool; others are summed per batch entry. */
int64_t fxa__ref_key_rows(const fxa__problem *p);
int64_t fxa__ref_key_row(const fxa__ref *r, int64_t k);

/* ---- ref_score.c ------------------------------------------------------------------------------------------------- */

/* Moves to query head h, then to row q of it: r->q and the coordinates. */
void fxa__ref_enter_head(fxa__ref *r, int64_t h);
void fxa__ref_enter_row(fxa__ref *r, int64_t h, int64_t q);

/* The new score of the current row and key k, -inf when the pair is not attended; env is left at the pair. */
double fxa__ref_score(fxa__ref *r, int64_t k);
/* What dropout multiplies the pair's probability with: 0 or 1 / (1 - p); 1 without dropout. */
double fxa__ref_dropout(const fxa__ref *r);
/* The score of the sink of head h; -inf, which is none, without one. */
double fxa__ref_sink(const fxa__ref *r, int64_t h);

double fxa__ref_dot(const double *x, const double *y, int64_t n);
void fxa__ref_axpy(double *y, double a, const double *x, int64_t n); /* y += a x, but nothing when a is exactly 0 */

/* ---- The passes -------------------------------------------------------------------------------------------------- */

void fxa__ref_forward(fxa__ref *r);
void fxa__ref_backward(fxa__ref *r);

/* ref_gradient.c: from the gradient by the new score of the pair in env to that by the scaled score; adds the pair's
 * part to the sums of captured tensors and params. dnew is not 0. */
double fxa__ref_through_program(fxa__ref *r, double dnew);
void fxa__ref_clear_sums(fxa__ref *r);
void fxa__ref_store_sums(const fxa__ref *r);

#endif
