/* SPDX-License-Identifier: Apache-2.0
 *
 * How far the functions of programs may be off: the table of docs/numerics.md. test_cpu_math.c holds every instruction
 * set to it, and eval_error.c counts with it, so that no engine is allowed more than it promises.
 */
#ifndef FXA_PROGRAM_FUNCTION_ULPS_H
#define FXA_PROGRAM_FUNCTION_ULPS_H

#include "fxattn/fxattn.h"

#include <stdbool.h>

/* Largest error of an fxa_op in ulps of the exact result, in f32 or f64; 0 for what is no function. */
double fxa__function_ulps(uint32_t op, bool f64);

#endif
