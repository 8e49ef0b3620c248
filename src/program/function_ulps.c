/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of error bounds; see function_ulps.h. The bounds are measured, not derived: each is less than an ulp above
 * the largest error found. For each function test_cpu_math has an operand with which the cpu engine reaches the largest
 * error. The largest errors of f32 tanh and erf over all operands are 5.22 and 5.89 ulps with hardware fma, 5.95 and
 * 6.58 without. pow in f64 is the C library's; glibc documents 1 ulp.
 */
#include "function_ulps.h"

static const struct {
    double f32, f64;
} function_table[FXA_OP_COUNT] = {
    [FXA_OP_EXP] = {1.5, 1.5},  [FXA_OP_EXP2] = {1.5, 1.5},   [FXA_OP_LOG] = {1.0, 1.0},
    [FXA_OP_LOG2] = {2.0, 2.0}, [FXA_OP_TANH] = {6.0, 3.0},   [FXA_OP_SIGMOID] = {3.0, 3.0},
    [FXA_OP_ERF] = {7.0, 4.0},  [FXA_OP_SIN] = {2.0, 3.0},    [FXA_OP_COS] = {2.0, 3.0},
    [FXA_OP_TAN] = {4.0, 4.0},  [FXA_OP_SQRT] = {0.5, 0.501}, [FXA_OP_RSQRT] = {1.5, 1.5},
    [FXA_OP_POW] = {0.51, 1.0}, [FXA_OP_LOG1P] = {1.5, 1.5},  [FXA_OP_ATAN] = {2.5, 2.0},
};

double fxa__function_ulps(uint32_t op, bool f64) { return f64 ? function_table[op].f64 : function_table[op].f32; }
