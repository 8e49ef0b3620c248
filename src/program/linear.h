/* SPDX-License-Identifier: Apache-2.0
 *
 * Affine forms of nodes, for range analysis, tile counting, detection of causal and window masks, and index
 * expressions:
 *
 *     value = c + sum of coef[i] * input[i] + non-affine part    (mod 2^32)
 *
 * src/lower/affine.h computes the forms of an entire program. Ints of a program wrap, so every int is congruent to its
 * form even if an intermediate result wraps: (q + c) - c is q. If a form has no non-affine part and all its values over
 * a box fit 32 bits, the form equals the value over the box (fxa__linear_bounds).
 */
#ifndef FXA_PROGRAM_LINEAR_H
#define FXA_PROGRAM_LINEAR_H

#include "range.h"

/* Bits of fxa__linear.nonaffine, the non-affine part. */
enum {
    FXA__NONAFFINE = 1 << FXA_INPUT_COUNT, /* the form has a non-affine part */
    /* the non-affine part may change if q and k shift by the same amount, or it reads q_row or k_row */
    FXA__NONAFFINE_SHIFTS = 2 << FXA_INPUT_COUNT,
    /* mask of the inputs that the non-affine part depends on; bit i: fxa_input i */
    FXA__NONAFFINE_READS = FXA__NONAFFINE - 1
};

/* An affine form with its non-affine part. Some values have only a non-affine part: params, loads, floats, bools, and
 * products of two inputs. Their coef and c are 0, and `nonaffine` records the inputs that the value depends on. */
typedef struct fxa__linear {
    int32_t coef[FXA_INPUT_COUNT]; /* coefficients as signed ints: 2^32 - 1 is stored as -1 */
    int32_t c;
    uint32_t nonaffine; /* FXA__NONAFFINE bits; 0 = no non-affine part */
} fxa__linear;

/* Largest coordinate and length that analysis assumes if no bounds are given; the smallest is 0. */
#define FXA__MAX_COORDINATE ((1 << 30) - 1)
/* returns the box of all coordinates and lengths from 0 to FXA__MAX_COORDINATE */
fxa_tile_bounds fxa__box_default(void);

/* Returns the affine form of a node from the forms of its operands.
 *   range NULL   The form is valid for all inputs. Exception: the bit FXA__NONAFFINE_SHIFTS of a comparison's form is
 *                valid only for coordinates and lengths in fxa__box_default.
 *   range given  The form is valid for the inputs in the box of `range`, an analysis that includes the node. An int
 *                that has a single value in this box gets a constant form. */
fxa__linear fxa__linear_of(const fxa_program *p, int32_t node, const fxa__linear *forms, const fxa__range *range);
/* Returns a * x + b * y. */
fxa__linear fxa__linear_sum(const fxa__linear *x, int32_t a, const fxa__linear *y, int32_t b);
/* Returns the inputs that the value may depend on (bit i: fxa_input i). */
uint32_t fxa__linear_reads(const fxa__linear *f);
/* Returns true if the value does not depend on q_row and k_row, nor change when q and k shift by the same amount. */
bool fxa__linear_is_shift_invariant(const fxa__linear *f);
/* Sets *lo and *hi to the smallest and largest value of the form over a box; the form attains both. Returns false if
 * the form may differ from the node's value: it has a non-affine part, or its values exceed 32 bits. */
bool fxa__linear_bounds(const fxa__linear *f, const fxa_tile_bounds *box, int64_t *lo, int64_t *hi);

#endif
