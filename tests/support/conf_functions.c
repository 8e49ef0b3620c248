/* SPDX-License-Identifier: Apache-2.0
 *
 * What cuDNN's functions may be off by, as docs/numerics.md states it: chosen above what was measured on a device,
 * which tests/gpu/test_cudnn_functions.c measures again.
 */
#include "conf_case.h"

#include "program/program.h"

#include <math.h>

#define UNIT 0x1p-24

/* off = relative |y| + by_x |x y| + absolute */
static const struct cudnn_function {
    double relative, by_x, absolute;
} cudnn_functions[FXA_OP_COUNT] = {
    [FXA_OP_EXP] = {4 * UNIT, UNIT, 0},      [FXA_OP_EXP2] = {6 * UNIT, UNIT / 2, 0},
    [FXA_OP_LOG] = {4 * UNIT, 0, 0x1p-21},   [FXA_OP_LOG2] = {6 * UNIT, 0, 0x1p-20},
    [FXA_OP_TANH] = {0x1p-16, 0, 0},         [FXA_OP_SIGMOID] = {8 * UNIT, UNIT, 0},
    [FXA_OP_SIN] = {0, 0, 0x1.8p-21},        [FXA_OP_COS] = {0, 0, 0x1.8p-21},
    [FXA_OP_TAN] = {4 * UNIT, 0, 0x1.8p-21}, [FXA_OP_SQRT] = {4 * UNIT, 0, 0},
    [FXA_OP_RSQRT] = {6 * UNIT, 0, 0},       [FXA_OP_DIV] = {4 * UNIT, 0, 0},
    [FXA_OP_DIVZ] = {4 * UNIT, 0, 0},        [FXA_OP_POW] = {4 * UNIT, 0, 0},
};

double conf_cudnn_function(uint32_t op, double x, double y) {
    const struct cudnn_function *f = &cudnn_functions[op];
    if (f->relative == 0 && f->absolute == 0) return -1;
    double absolute = f->absolute;
    if (op == FXA_OP_TAN) absolute *= 1 + y * y;
    if (op == FXA_OP_SIN || op == FXA_OP_COS || op == FXA_OP_TAN) absolute += fabs(x) * 0x1p-26; /* turns taken off */
    return f->relative * fabs(y) + f->by_x * fabs(x * y) + absolute;
}
