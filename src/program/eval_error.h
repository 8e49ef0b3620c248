/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a program in narrow arithmetic may be from its meaning in f64: a running error analysis, to first order, node
 * by node. A node whose value is decided by less than its operands' error (a comparison of floats that are nearly
 * equal, a floor near a whole number, a division by nearly 0, an overflow of the narrow type) may be anything: its
 * error is infinite. Such an error counts only where it arrives: not in a branch that is not taken.
 */
#ifndef FXA_PROGRAM_EVAL_ERROR_H
#define FXA_PROGRAM_EVAL_ERROR_H

#include "program.h"

typedef struct fxa__arithmetic {
    double unit;    /* relative error of one operation: 2^-24 in f32 */
    double tiny;    /* results below it may become 0 */
    double largest; /* results above it may become inf */
    bool narrow;    /* constants and loads round to f32 */
    /* What a function (or a quotient) may be off by at x, where it is y; below 0: nothing else is said of it. NULL: all
     * are ours, as function_ulps.h has them. */
    double (*function)(uint32_t op, double x, double y);
} fxa__arithmetic;

fxa__arithmetic fxa__arithmetic_of(bool f64);

/* error[i] of every node, from vals of fxa__program_eval with the same env; of ints and bools 0 or INFINITY. */
void fxa__program_error(const fxa_program *p, const fxa__arithmetic *a, const fxa__env *env, double e_score,
                        double e_dscore, const fxa__val *vals, double *error);

#endif
