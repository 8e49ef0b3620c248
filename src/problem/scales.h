/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales of operands of 8 bits (FXA_SCALED): which slot holds which operand's, when a run uses it, and its value.
 * The validator, the binder and engines ask here; the formulas are in docs/numerics.md.
 */
#ifndef FXA_PROBLEM_SCALES_H
#define FXA_PROBLEM_SCALES_H

#include "problem_private.h"

typedef enum fxa__scale_use {
    FXA__SCALE_NONE,    /* no such slot, or the problem says nothing of it: set, it is a mistake */
    FXA__SCALE_IGNORED, /* only the other pass uses it */
    FXA__SCALE_READ,
    FXA__SCALE_WRITTEN /* a largest value */
} fxa__scale_use;
fxa__scale_use fxa__scale_use_of(const fxa_problem *p, fxa_slot slot);
/* What a set slot lacks that would make the problem use it. */
const char *fxa__scale_lacks(const fxa_problem *p, fxa_slot slot);

/* FXA_SCALED scales something, and adds to nothing that is scaled: problem_check.c. */
fxa_status fxa__scales_check(const fxa_problem *p, fxa_error *err);
/* Values in memory of the host. */
fxa_status fxa__scales_check_values(const fxa_problem *p, void *const *slot, fxa_error *err);
/* The factors of a bind, whose slots are there: read here where the memory is the host's, else 1. */
void fxa__scales_fill(const fxa_problem *p, bool readable, fxa__bind *bind);

/* Largest values begin at 0. */
void fxa__amax_clear(const fxa__bind *bind);
/* *amax becomes the larger of itself and x, which is not negative; NaN is largest. Several threads may. */
void fxa__amax_add(float *amax, double x);

#endif
