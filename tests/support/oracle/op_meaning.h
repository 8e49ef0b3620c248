/* SPDX-License-Identifier: Apache-2.0
 *
 * Meaning of each operation, implemented independently of ops.def: operand types, conversions and values. Tests of
 * builder, constant folding and evaluator compare with this implementation.
 */
#ifndef FXA_TESTS_OP_MEANING_H
#define FXA_TESTS_OP_MEANING_H

#include "fxattn/fxattn.h"

#include <stdbool.h>

typedef struct meaning {
    fxa_type type; /* type of the result; 0 = the operation does not accept these operand types */
    double f;
    int64_t i; /* value of an int or a bool (0 or 1) */
} meaning;

meaning meaning_float(double x);
meaning meaning_int(int64_t x); /* wraps to 32 bits */
meaning meaning_bool(bool x);

/* Returns the value as a float, whatever its type. */
double meaning_number(meaning x);

int meaning_arity(fxa_op op); /* returns the number of operands; 0 for leaves and unknown codes */
meaning meaning_op(fxa_op op, const meaning *x);

/* Returns true if types and values are equal. NaN equals NaN; zeroes of different sign are equal only if `zeroes`. */
bool meaning_same(meaning x, meaning y, bool zeroes);

#endif
