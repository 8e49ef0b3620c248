/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of cuDNN's functions, compared with the bounds in docs/numerics.md that all comparisons use
 * (support/conformance/conf_functions.c), and the effect of non-finite V at keys with a weight of 0. On a device these
 * tests measure cuDNN (`make test-gpu`); on the stand-ins, which compute in f64, they test the measurement.
 */
#include "device_fixture.h"
#include "support/conformance/conf_case.h"

#include <math.h>

/* ---- Functions --------------------------------------------------------------------------------------------------- */

enum { FUNCTION_ROWS = 4096 };

static double of_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double of_rsqrt(double x) { return 1 / sqrt(x); }
static double of_quotient(double x) { return 0.7 / x; }
static double of_square(double x) { return x * x; }

static const struct function {
    fxa_op op;
    const char *text;
    double (*exact)(double x);
    double lo, hi; /* range of the operands */
} functions[] = {
    {FXA_OP_EXP, "exp(score)", exp, -20, 20},
    {FXA_OP_EXP2, "exp2(score)", exp2, -20, 20},
    {FXA_OP_LOG, "log(score)", log, 1e-3, 50},
    {FXA_OP_LOG2, "log2(score)", log2, 1e-3, 50},
    {FXA_OP_TANH, "tanh(score)", tanh, -6, 6},
    {FXA_OP_TANH, "tanh(score)", tanh, -0.02, 0.02},
    {FXA_OP_SIGMOID, "sigmoid(score)", of_sigmoid, -12, 12},
    {FXA_OP_SIN, "sin(score)", sin, -20, 20},
    {FXA_OP_COS, "cos(score)", cos, -20, 20},
    {FXA_OP_TAN, "tan(score)", tan, -1.4, 1.4},
    {FXA_OP_SQRT, "sqrt(score)", sqrt, 1e-3, 50},
    {FXA_OP_RSQRT, "rsqrt(score)", of_rsqrt, 1e-3, 50},
    {FXA_OP_DIV, "0.7 / score", of_quotient, 1e-3, 50},
    {FXA_OP_POW, "score ** 2", of_square, -20, 20},
};

/* Sets one key and a scale of 1, so that the LSE of a row is the new score of its pair, a sum of two elements of Q. */
static void function_operands(attn_data *x, double lo, double hi, double *operand) {
    t_rng rng = {t_seed()};
    attn_tensor *q = &x->t[FXA_SLOT_Q], *k = &x->t[FXA_SLOT_K];
    for (int64_t i = 0; i < 8; i++) attn_set(k, i, i < 2);
    for (int64_t row = 0; row < FUNCTION_ROWS; row++) {
        double want = t_real(&rng, lo, hi), high = attn_round(FXA_BF16, want), step = ldexp(1, ilogb(high) - 15);
        double low = step * rint((want - high) / step); /* the next seven bits after those of `high` */
        for (int64_t i = 0; i < 8; i++) attn_set(q, 8 * row + i, i == 0 ? high : i == 1 ? low : 0);
        operand[row] = high + low;
    }
    x->scale = 1;
}

static void function_measure(fxa_context *ctx, const struct function *f) {
    static double operand[FUNCTION_ROWS];
    char text[80];
    attn_owned x = {0};
    fxa_error err;
    double worst = 0, at = 0, off = 0, relative = 0;
    (void)snprintf(text, sizeof text, "score = %s", f->text);
    const attn_spec s = {.b = 1,
                         .hq = 1,
                         .sq = FUNCTION_ROWS,
                         .sk = 1,
                         .d = 8,
                         .dtype = FXA_BF16,
                         .flags = FXA_RETURN_LSE,
                         .text = text};
    T_REQUIRE(device_data_make(&x, ctx, &s));
    function_operands(&x, f->lo, f->hi, operand);
    T_OK(device_data_run(&x, ctx, FXA_FORWARD, &err));
    for (int64_t i = 0; i < FUNCTION_ROWS && err.status == FXA_OK; i++) {
        double want = f->exact(operand[i]), got = attn_get(&x.t[FXA_SLOT_LSE], i);
        double allowed = conf_cudnn_function(f->op, operand[i], want) + 0x1p-24 * fabs(want);
        double ratio = fabs(got - want) / allowed;
        if (want != 0) relative = fmax(relative, fabs(got - want) / fabs(want));
        if (!(ratio <= worst)) worst = ratio, at = operand[i], off = fabs(got - want);
    }
    printf("  %-15s %.2f of what is allowed, at %.9g off by %.3g; relative at most 2^%.1f\n", f->text, worst, at, off,
           log2(relative));
    T_CHECK(worst <= 1);
}

CONTEXT_TEST(functions_are_within_their_bounds) {
    NEEDS_DEVICE;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) function_measure(ctx, &functions[i]);
}

/* ---- Weights of 0 ------------------------------------------------------------------------------------------------ */

/* Returns the number of NaN results if V is NaN at keys that no row attends to. */
static int64_t zeroes_count(fxa_context *ctx, const char *engine) {
    attn_spec s = device_spec();
    attn_data x;
    fxa_error err;
    int64_t count = 0;
    s.text = "mask = k % 2 == 0";
    if (!device_data_make(&x, ctx, &s)) return -1;
    attn_tensor *v = &x.t[FXA_SLOT_V];
    for (int64_t i = 0; i < attn_tensor_places(v); i++)
        if (i / s.d % s.sk == 7) attn_set(v, i, NAN);
    T_OK(attn_data_run(&x, ctx, engine, FXA_FORWARD, &err));
    for (int64_t i = 0; i < attn_tensor_places(&x.t[FXA_SLOT_O]); i++) count += isnan(attn_get(&x.t[FXA_SLOT_O], i));
    attn_data_free(&x);
    return count;
}

/* Checks that 0 * NaN in P V gives what docs/numerics.md says of each engine. */
CONTEXT_TEST(a_weight_of_zero_and_a_value_that_is_none) {
    NEEDS_DEVICE;
    fxa_support reports[3];
    const attn_spec s = device_spec();
    fxa_problem p = attn_spec_problem(&s);
    for (uint32_t device = FXA_HOST; device <= FXA_CUDA; device++) {
        size_t count = 3;
        p.device = device, p.alignment = 16;
        T_OK(fxa_support_query(ctx, &p, reports, &count, &err));
        for (size_t i = 0; i < count; i++)
            if (reports[i].supported) T_INT(reports[i].multiplies_zeros, strcmp(reports[i].engine, "cudnn") == 0);
    }
    int64_t found = zeroes_count(ctx, "cudnn");
    printf("  %lld elements are NaN\n", (long long)found);
    T_CHECK(found > 0); /* otherwise docs/numerics.md says less than is true */
    T_INT(zeroes_count(ctx, "cpu"), 0);
    T_INT(zeroes_count(ctx, "ref"), 0);
}

T_MAIN
