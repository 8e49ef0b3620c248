/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounds the difference between the results of a program that an engine computes in f32 or f64 and the results of the
 * reference evaluation in f64 (eval.c): a first-order running error analysis, node by node. A node has an infinite
 * error if errors of its operands can change it arbitrarily: a comparison of nearly equal floats, a floor near an
 * integer, a division by nearly 0, an overflow of f32. An infinite error of the operand that a select does not choose
 * does not propagate.
 */
#ifndef FXA_PROGRAM_EVAL_ERROR_H
#define FXA_PROGRAM_EVAL_ERROR_H

#include "program.h"

typedef struct fxa__arithmetic {
    double unit;    /* relative error of one operation: 2^-24 in f32 */
    double tiny;    /* results with a magnitude below `tiny` may become 0 */
    double largest; /* results with a magnitude above `largest` may become infinite */
    bool narrow;    /* true = constants and loads are rounded to f32 */
    /* Returns the absolute error of y, the result of a function or division with first operand x; a negative number
     * selects the default bound of eval_error.c. NULL = the default bounds for all operations. */
    double (*function)(uint32_t op, double x, double y);
} fxa__arithmetic;

/* Returns the error bounds of f64 or f32 arithmetic; functions have the bounds of function_ulps.h. */
fxa__arithmetic fxa__arithmetic_of(bool f64);

/* Fills error[n_nodes] with bounds of the absolute error of every node (ints and bools: 0 or INFINITY). vals: the
 * values that fxa__program_eval computed. e_score and e_dscore are the errors of the inputs score and
 * dscore. */
void fxa__program_error(const fxa_program *p, const fxa__arithmetic *a, double e_score, double e_dscore,
                        const fxa__val *vals, double *error);

#endif
