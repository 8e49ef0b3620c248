/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of the functions of programs: the table of docs/numerics.md. test_cpu_math.c checks the bounds on every
 * instruction set, and eval_error.c computes with the bounds.
 */
#ifndef FXA_PROGRAM_FUNCTION_ULPS_H
#define FXA_PROGRAM_FUNCTION_ULPS_H

#include "fxattn/fxattn.h"

#include <stdbool.h>

/* Returns the maximum error of an fxa_op in ulps of the exact result, in f32 or f64; 0 for operations without a bound
 * in the table. */
double fxa__function_ulps(uint32_t op, bool f64);

#endif
