/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of functions on devices, as stated in docs/numerics.md. The bounds of cuDNN exceed the errors that were
 * measured on a device; tests/device/c/test_cudnn_functions.c measures them again. The cuda engine has the bounds of
 * cpu, except for the tanh of soft caps, which some kernels evaluate four pairs at a time.
 */
#include "conf_case.h"

#include "program/program.h"

#include <math.h>

#define UNIT 0x1p-24

/* Error of a function y of x: relative |y| + by_x |x y| + absolute. */
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
    /* range reduction subtracts multiples of pi, which costs digits for large x */
    if (op == FXA_OP_SIN || op == FXA_OP_COS || op == FXA_OP_TAN) absolute += fabs(x) * 0x1p-26;
    return f->relative * fabs(y) + f->by_x * fabs(x * y) + absolute;
}

/* ---- Soft caps of the cuda engine -------------------------------------------------------------------------------- */

enum { CAP_NODES = 64 };

double conf_cuda_cap(uint32_t op, double x, double y) {
    if (op != FXA_OP_TANH) return -1;
    return fmax(8 * UNIT * fabs(y), fabs(x) < 9.8 ? 0x1p-20 : 0); /* 4 ulps; 28 / (2 log2(e)) */
}

/* Returns the value of a node that depends only on constants and params; NaN for other nodes. */
static double cap_number(const fxa__node *n, const double *params, const double *number) {
    double x = n->n_args > 0 ? number[n->arg[0]] : 0, y = n->n_args > 1 ? number[n->arg[1]] : 0;
    if (n->type != FXA_FLOAT) return NAN;
    switch (n->op) {
    case FXA_OP_CONST: return n->f;
    case FXA_OP_PARAM: return params[n->imm];
    case FXA_OP_NEG: return -x;
    case FXA_OP_ADD: return x + y;
    case FXA_OP_SUB: return x - y;
    case FXA_OP_MUL: return x * y;
    case FXA_OP_DIV: return x / y;
    default: return NAN;
    }
}

/* Returns the maximum factor by which a change of the tanh changes the node. */
static double cap_gain(const fxa__node *n, const double *number, const double *gain) {
    double sum = 0, by = NAN;
    for (int k = 0; k < n->n_args; k++) sum += gain[n->arg[k]];
    if (n->op == FXA_OP_TANH) return sum == 0 ? 1 : INFINITY;
    if (sum == 0 || n->op == FXA_OP_ADD || n->op == FXA_OP_SUB || n->op == FXA_OP_NEG) return sum;
    for (int k = 0; n->op == FXA_OP_MUL && k < 2; k++)
        if (gain[n->arg[k]] == 0) by = number[n->arg[k]];
    if (n->op == FXA_OP_DIV && gain[n->arg[1]] == 0) by = 1 / number[n->arg[1]];
    return by == by ? sum * fabs(by) : INFINITY;
}

/* Returns true if the program has one tanh, of the score times a constant, and uses the score nowhere else. */
static bool cap_is_one(const fxa_program *p, const double *number) {
    int tanhs = 0, reads = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        for (int k = 0; k < n->n_args; k++) reads += fxa__node_input(&p->nodes[n->arg[k]]) == 1u << FXA_INPUT_SCORE;
        if (n->op != FXA_OP_TANH) continue;
        tanhs++;
        const fxa__node *x = &p->nodes[n->arg[0]];
        while (x->op == FXA_OP_MUL || x->op == FXA_OP_DIV) {
            int at = x->op == FXA_OP_MUL && !isnan(number[x->arg[0]]);
            if (isnan(number[x->arg[1 - at]])) return false;
            x = &p->nodes[x->arg[at]];
        }
        if (fxa__node_input(x) != 1u << FXA_INPUT_SCORE) return false;
    }
    return tanhs == 1 && reads == 1;
}

bool conf_is_cuda_cap(const fxa_program *p, const double *params) {
    double number[CAP_NODES], gain[CAP_NODES];
    if (p->n_nodes > CAP_NODES) return false;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        number[i] = cap_number(&p->nodes[i], params, number);
        gain[i] = cap_gain(&p->nodes[i], number, gain);
    }
    return cap_is_one(p, number) && gain[fxa__program_output(p, FXA__OUT_SCORE)] <= 64;
}
