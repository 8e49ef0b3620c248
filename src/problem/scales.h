/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales of 8-bit operands (FXA_SCALED): the operand of each scale slot, whether a run uses the slot, and the value in
 * the slot. docs/numerics.md has the formulas.
 */
#ifndef FXA_PROBLEM_SCALES_H
#define FXA_PROBLEM_SCALES_H

#include "problem_private.h"

typedef enum fxa__scale_use {
    FXA__SCALE_NONE,    /* the problem has no use for the slot: setting it is an error */
    FXA__SCALE_IGNORED, /* only the other pass (backward or forward) uses the slot */
    FXA__SCALE_READ,
    FXA__SCALE_WRITTEN /* the run writes an amax to the slot */
} fxa__scale_use;
/* Returns how the problem uses a scale slot. */
fxa__scale_use fxa__scale_use_of(const fxa_problem *p, fxa_slot slot);
/* Returns, for messages, the name of the operand that must be 8-bit for the problem to use this slot; NULL without
 * FXA_SCALED. */
const char *fxa__scale_missing_operand(const fxa_problem *p, fxa_slot slot);

/* Checks a problem with FXA_SCALED, for fxa__problem_check: at least one operand must be 8-bit, and no result may be
 * accumulated into an operand that has a scale. */
fxa_status fxa__scales_check(const fxa_problem *p, fxa_error *err);
/* Checks that scales in host memory are finite and positive. */
fxa_status fxa__scales_check_values(const fxa_problem *p, void *const *slot, fxa_error *err);
/* Fills load, store and amax of *bound. If `readable` (host memory), the values come from the scale slots; else load
 * and store are 1. */
void fxa__scales_fill(const fxa_problem *p, bool readable, fxa__bound_args *bound);

/* Sets every amax to 0. */
void fxa__amax_clear(const fxa__bound_args *bound);
/* Atomically sets *amax to max(*amax, x), x >= 0. NaN counts as the largest value. */
void fxa__amax_add(float *amax, double x);

#endif
