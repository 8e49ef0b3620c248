/* SPDX-License-Identifier: Apache-2.0
 *
 * Error bounds of programs, by operation: moving a score within its error changes the result by no more than the bound,
 * and where no bound exists (a jump, the end of a domain) it is infinite. Away from such points bounds are finite, so
 * an analysis that always gives up fails too.
 */
#include "t.h"

#include "program/eval_error.h"
#include "program/function_ulps.h"
#include "program/program.h"

static const double move_to[] = {-1, -0.6, -0.01, 0.3, 0.99, 1};
static const double scores[] = {0.0, -0.0, 1e-3, -1e-3, 0.5,   -0.5, 0.7,  1.0,   -1.0,     1.4,       1.5,
                                2.0, 2.5,  -2.5, 3.3,   1e-30, 1e30, 40.0, -40.0, INFINITY, -INFINITY, NAN};
static const double errors[] = {0, 1e-12, 1e-6, 1e-3, 0.05, 0.3};
enum { N_MOVES = 6, N_SCORES = sizeof scores / sizeof *scores, N_ERRORS = 6 };

static const float table32[4] = {1, 2.5f, -3, 0.1f};
static const double table64[4] = {1, 2.5, -3, 0.1};
static const int32_t table_int[4] = {3, 1, 2, 0};
static const fxa_view views[3] = {{table_int, FXA_I32, 1, {4}, {1}}, /* sorted by name, like the slots of programs */
                                  {table32, FXA_F32, 1, {4}, {1}},
                                  {table64, FXA_F64, 1, {4}, {1}}};
#define BOUND_TABLES "tensor n : i32[1]\ntensor t : f32[1]\ntensor u : f64[1]\nparam c : float\nparam m : int\n"

static fxa_program *bound_parse(const char *expression) {
    static fxa_context *ctx;
    if (!ctx && fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    char text[512];
    snprintf(text, sizeof text, BOUND_TABLES "score = %s", expression);
    fxa_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    return p;
}

static double bound_value(const fxa_program *p, double score) {
    double in[FXA_INPUT_COUNT] = {[FXA_INPUT_SCORE] = score, [FXA_INPUT_Q] = 3, [FXA_INPUT_K] = 16777219};
    double params[2] = {0.1, 2}, value = 0;
    fxa_error err;
    T_OK(fxa_program_eval(p, in, params, views, &value, NULL, &err));
    return value;
}

static double bound_of(const fxa_program *p, double score, double e, fxa_dtype arithmetic) {
    double in[FXA_INPUT_COUNT] = {[FXA_INPUT_SCORE] = score, [FXA_INPUT_Q] = 3, [FXA_INPUT_K] = 16777219};
    double params[2] = {0.1, 2}, off[FXA_INPUT_COUNT] = {[FXA_INPUT_SCORE] = e};
    fxa_bounded_result terms[2] = {{.error = NAN}};
    size_t count = 2;
    fxa_error err;
    T_OK(fxa_program_eval_bounds(p, in, off, arithmetic, params, views, terms, &count, &err));
    T_CHECK(terms[0].kind == FXA_RESULT_SCORE && terms[0].error >= 0);
    return terms[0].error;
}

/* Returns true if the bound holds to first order: the neglected terms are e times the bound, times a factor for
 * steepness. */
static bool bound_holds(double before, double after, double bound, double e) {
    if (bound == INFINITY || before == after || (before != before && after != after)) return true;
    return fabs(after - before) <= bound * (1 + 8 * e) + 1e-14 * fabs(before);
}

/* score + by, but no further than e when the sum is rounded. */
static double bound_moved(double score, double by, double e) {
    double moved = score + by;
    while (fabs(moved - score) > e) moved = nextafter(moved, score);
    return moved;
}

static void check_bounds(const char *expression, fxa_dtype arithmetic) {
    t_program *p = bound_parse(expression);
    int finite = 0;
    for (int i = 0; i < N_SCORES; i++)
        for (int j = 0; j < N_ERRORS; j++) {
            double e = errors[j], bound = bound_of(p, scores[i], e, arithmetic), before = bound_value(p, scores[i]);
            finite += bound < INFINITY;
            for (int k = 0; k < N_MOVES; k++) {
                double after = bound_value(p, bound_moved(scores[i], move_to[k] * e, e));
                if (!bound_holds(before, after, bound, e))
                    T_FAIL("%s, %s: score %g, error %g: %.17g comes to %.17g, the bound is %g\n", expression,
                           fxa_dtype_name(arithmetic), scores[i], e, before, after, bound);
            }
        }
    if (finite < N_SCORES / 2) T_FAIL("%s, %s: only %d bounds\n", expression, fxa_dtype_name(arithmetic), finite);
}

static const char *const bounded[] = {
    "score + 1",
    "1 - score",
    "-score",
    "abs(score)",
    "score * (score + 1)",
    "score * c",
    "score * 1e-20 * 1e-20",
    "score / 3",
    "1 / score",
    "score / (score - 2)",
    "(score - 1) / (score - 1.4)",
    "(score + 5) / 0",
    "score / inf",
    "1 / (score * inf)",
    "score // 0.7",
    "score % 0.7",
    "score // 0.5",
    "score % 0.5",
    "3 // (score + 0.1)",
    "5 % (score + 0.1)",
    "7.5 % 2.5 + score",
    "score ** 2",
    "score ** 3",
    "score ** 0.5",
    "score ** -1.5",
    "score ** 0",
    "1.5 ** score",
    "score ** (score + 1)",
    "(score - 0.7) ** 0.5",
    "inf ** score",
    "score ** inf",
    "0 ** score",
    "(-1.5) ** score",
    "(-2) ** floor(score)",
    "min(score, 1)",
    "max(score, 2 * score)",
    "max(nan, score)",
    "min(score, nan)",
    "max(-score, score)",
    "mulz(score - 1, exp(score))",
    "mulz(score, inf)",
    "mulz(q - 3, score)",
    "mulz(q - 3, 1 / score)",
    "divz(score - 1, score)",
    "divz(q - 3, score)",
    "divz(score, 2)",
    "clamp(score, -1, 1)",
    "clamp(score, 1, -1)",
    "clamp(0.5, score, score + 1)",
    "clamp(score, score * 2, 3)",
    "sqrt(score)",
    "rsqrt(score)",
    "log(score)",
    "log2(score)",
    "exp(score)",
    "exp2(score)",
    "tanh(score)",
    "sigmoid(score)",
    "erf(score)",
    "log1p(score)",
    "atan(score)",
    "softplus(score)",
    "relu(score) + sign(score)",
    "sin(score)",
    "cos(score)",
    "tan(score)",
    "floor(score)",
    "ceil(score)",
    "round(score)",
    "trunc(score)",
    "float(int(score))",
    "float(int(score) + q)",
    "score < 1 ? 2.0 : 3.0",
    "score < 1 ? score : 2 * score - 1",
    "score <= nan ? 1.0 : score",
    "(score < 1 ? q : q + m) * 0.5",
    "(score < 1 ? q : q + m - 2) * 0.5",
    "q == 3 && score < 1 ? 2.0 : 3.0",
    "q == 4 && score < 1 ? 2.0 : 3.0",
    "score < 1 && q == 4 ? 2.0 : 3.0",
    "q == 3 || score < 1 ? 2.0 : 3.0",
    "score < 1 || q == 3 ? 2.0 : 3.0",
    "q == 4 || score < 1 ? 2.0 : 3.0",
    "score < 1 || q == 4 ? 2.0 : 3.0",
    "score < 1 || score < 2 ? 2.0 : 3.0",
    "!(score < 1) ? 2.0 : 3.0",
    "(score < 1) ^ (q == 3) ? 2.0 : 3.0",
    "(score < 1) == (score > 0) ? 2.0 : 3.0",
    "(int(score) & 1) * 0.5",
    "(int(score) | 1) * 0.5",
    "t[int(score)]",
    "u[int(score)] * score",
    "n[int(score)] * 0.5",
    "t[q] * score",
    "u[3] + score",
    "n[1] + score",
    "float(k) + score",
    "float(q) + score",
    "m * score",
    "q == 3 ? score : 1 / score",
    "q == 4 ? score : 1 / score",
    "score * 1e-40",
    "score + 1e-320",
    "score + 1e39 * 1e-39",
    "exp(score * 1e-3) * 1e-35",
};

TEST(bounds_hold_for_f64) {
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++) check_bounds(bounded[i], FXA_F64);
}

TEST(bounds_hold_for_f32) {
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++) check_bounds(bounded[i], FXA_F32);
}

/* For an exact operand the error of a function is its row of function_ulps.c: an ulp of the result is at most
 * two units of 2^-24, and one of 2^-52, where the reference may be off by two ulps of its own. */
TEST(functions_are_off_by_their_ulps) {
    static const struct {
        const char *text;
        uint32_t op;
    } rows[] = {{"exp(score)", FXA_OP_EXP},   {"exp2(score)", FXA_OP_EXP2},   {"log(score)", FXA_OP_LOG},
                {"log2(score)", FXA_OP_LOG2}, {"tanh(score)", FXA_OP_TANH},   {"sigmoid(score)", FXA_OP_SIGMOID},
                {"erf(score)", FXA_OP_ERF},   {"sin(score)", FXA_OP_SIN},     {"cos(score)", FXA_OP_COS},
                {"tan(score)", FXA_OP_TAN},   {"sqrt(score)", FXA_OP_SQRT},   {"rsqrt(score)", FXA_OP_RSQRT},
                {"score ** 1.5", FXA_OP_POW}, {"log1p(score)", FXA_OP_LOG1P}, {"atan(score)", FXA_OP_ATAN}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t_program *p = bound_parse(rows[i].text);
        for (double score = 0.375; score < 5; score += 1.125) {
            double y = fabs(bound_value(p, score));
            double f32 = 2 * fxa__function_ulps(rows[i].op, false) * 0x1p-24 * y;
            double f64 = (fxa__function_ulps(rows[i].op, true) + 2) * 0x1p-52 * y;
            T_CHECK(fabs(bound_of(p, score, 0, FXA_F32) - f32) <= 1e-9 * f32);
            T_CHECK(fabs(bound_of(p, score, 0, FXA_F64) - f64) <= 1e-9 * f64);
        }
    }
}

/* The rounding error of an operation on exact operands, in units of the result. */
TEST(operations_are_off_by_their_units) {
    static const struct {
        const char *text;
        double units;
    } rows[] = {
        {"-score", 0},       {"abs(-score)", 0},    {"min(score, 2)", 0}, {"max(score, 2)", 0},
        {"floor(score)", 0}, {"ceil(score)", 0},    {"round(score)", 0},  {"trunc(score)", 0},
        {"score + 1", 1},    {"score - 7", 1},      {"score * 1.25", 1},  {"mulz(score, 1.25)", 1},
        {"1 / score", 2},    {"divz(score, 3)", 2}, {"score // 0.75", 1}, {"clamp(score, 1, 2)", 0},
        {"float(q)", 0},     {"t[int(score)]", 0},  {"n[1] * 1.0", 0},    {"score // 0.0", 0},
        {"score % 0.0", 0},  {"score / 0.0", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t_program *p = bound_parse(rows[i].text);
        for (double score = 0.375; score < 5; score += 1.125)
            for (int f64 = 0; f64 < 2; f64++) {
                double y = bound_value(p, score), got = bound_of(p, score, 0, f64 ? FXA_F64 : FXA_F32);
                double want = rows[i].units != 0 ? rows[i].units * (f64 ? 0x1p-52 : 0x1p-24) * fabs(y) : 0;
                if (!(fabs(got - want) <= 1e-9 * want))
                    T_FAIL("%s of %g: %g, not %g\n", rows[i].text, score, got, want);
            }
    }
}

/* Bounds are not much larger than the change of the result when the score moves by its error to either side. */
TEST(bounds_of_smooth_functions_are_sharp) {
    static const struct {
        const char *text;
        double factor;
    } rows[] = {
        {"score + 1", 1},     {"score * 3", 1},      {"score * score", 1},    {"score / 3", 1},
        {"1 / score", 1},     {"sqrt(score)", 1},    {"rsqrt(score)", 1},     {"log(score)", 1},
        {"log2(score)", 1},   {"log1p(score)", 1},   {"exp(score)", 1},       {"exp2(score)", 1.01},
        {"tanh(score)", 1},   {"sigmoid(score)", 1}, {"erf(score)", 1},       {"atan(score)", 1},
        {"tan(score)", 1.31}, {"score ** 3", 1},     {"score ** -1.5", 1},    {"2 ** score", 1},
        {"abs(score)", 1},    {"score % 4", 1},      {"min(score, 9)", 1},    {"clamp(score, 0, 9)", 1},
        {"max(score, 0)", 1}, {"mulz(score, 3)", 1}, {"divz(1.0, score)", 1}, {"9.5 % (score + 1)", 1},
    };
    const double e = 1e-7;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        t_program *p = bound_parse(rows[i].text);
        for (double score = 0.4; score < 1.3; score += 0.2) {
            double y = bound_value(p, score), bound = bound_of(p, score, e, FXA_F64);
            double moved = fmax(fabs(bound_value(p, score + e) - y), fabs(bound_value(p, score - e) - y));
            if (!(bound <= moved * rows[i].factor * (1 + 1e-4)))
                T_FAIL("%s of %g: moves by %g, the bound is %g\n", rows[i].text, score, moved, bound);
        }
    }
}

static double said_of_exp(uint32_t op, double x, double y) {
    (void)x, (void)y;
    return op == FXA_OP_EXP ? 0x1p-130 : -1;
}

/* The bound of a result near zero, which a device may flush to 0, includes 2 * tiny. A device's own bound of a function
 * replaces the row of function_ulps.c. */
TEST(functions_with_results_near_zero) {
    static const char *const texts[] = {"exp(score)", "exp2(score)"};
    for (int t = 0; t < 2; t++)
        for (int way = 0; way < 2; way++)
            for (double score = -126; score <= 1; score += 127) {
                t_program *p = bound_parse(texts[t]);
                fxa__arithmetic m = fxa__arithmetic_of(false);
                fxa__env env = {.score = score};
                fxa__val vals[4];
                double error[4], unit = 2 * fxa__function_ulps(t ? FXA_OP_EXP2 : FXA_OP_EXP, false);
                T_CHECK(p->n_nodes <= 4 && m.tiny > 0);
                m.function = way ? said_of_exp : NULL;
                fxa__program_eval(p, &env, vals);
                fxa__program_error(p, &m, 0, 0, vals, error);
                int32_t at = fxa__program_output(p, FXA__OUT_SCORE);
                double want = way && !t ? 0x1p-130 : unit * m.unit * vals[at].f;
                want += score < 0 ? 2 * m.tiny : 0;
                if (fabs(error[at] - want) > 1e-9 * want)
                    T_FAIL("%s of %g, way %d: %g, not %g\n", texts[t], score, way, error[at], want);
            }
}

/* f64 represents these numbers, f32 does not. */
TEST(numbers_beyond_f32_have_no_bounds_there) {
    static const char *const large[] = {"score + 1e39", "score * 1e300", "score * score * 1e300"};
    for (int i = 0; i < 3; i++) {
        check_bounds(large[i], FXA_F64);
        t_program *p = bound_parse(large[i]);
        for (int j = 0; j < N_SCORES; j++) T_CHECK(bound_of(p, scores[j], 0, FXA_F32) == INFINITY);
    }
}

/* With an error of 1e-3: near a jump or the end of a domain there is no bound, slightly further away there is one. */
TEST(bounds_end_where_a_result_is_not_decided) {
    static const struct {
        const char *expression;
        double near, clear;
    } cases[] = {
        {"sqrt(score)", 0.001, 0.003},
        {"sqrt(score)", -0.0005, -0.01},
        {"rsqrt(score)", 0.002, 0.003},
        {"log(score)", 0.001, 0.003},
        {"log2(score)", -0.001, -0.0011},
        {"tan(score)", 1.5706, 0.5},
        {"floor(score)", 0.9995, 0.9985},
        {"floor(score)", 1.001, 1.0011},
        {"ceil(score)", 2.0005, 2.002},
        {"round(score)", 1.4995, 1.498},
        {"trunc(score)", -1.0005, -1.002},
        {"float(int(score))", 2.9995, 2.5},
        {"1 / score", 0.002, 0.003},
        {"1 / score", 0.0, INFINITY},
        {"score // 0.5", 0.5, 0.6},
        {"score % 0.5", 1.0005, 1.1},
        {"score ** 0.5", 0.0005, 0.1},
        {"score ** score", 0.0, 0.1},
        {"score ** (score + 2)", -0.5, 0.5},
        {"score < 1 ? 2.0 : 3.0", 1.0005, 1.002},
        {"score == 1 ? 2.0 : 3.0", 0.9995, 0.99},
        {"(score < 1 ? q : k) * 0.5", 1.0005, 1.002},
        {"score < 1 && q == 3 ? 2.0 : 3.0", 0.9995, 0.99},
        {"score < 1 || q == 4 ? 2.0 : 3.0", 1.0, 1.1},
        {"t[int(score)]", 0.9995, 1.5},
        {"mulz(floor(score), 2)", 1.0, 0.5},
        {"min(floor(score), 2)", 1.0, 0.5},
        {"2 * floor(score)", 1.0, 0.5},
        {"log(score) < 3 ? 2.0 : 3.0", -0.0005, -0.01}, /* a NaN that rounding could remove, and a certain one */
        {"3 > sqrt(score) ? 2.0 : 3.0", -0.0005, -0.01},
        {"float(int(log(score)))", -0.0005, -0.01},
        {"float(int(1 / score))", 0.0, INFINITY},
        {"(0 * score) // (0.5 * score)", 0.0, 1.0},
        {"score / 0.0", 0.0005, 0.5},
        {"q == 3 && score < 1 ? 2.0 : 3.0", 0.9995, 0.99},
        {"q == 4 || score < 1 ? 2.0 : 3.0", 1.0, 1.1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t_program *p = bound_parse(cases[i].expression);
        double near = bound_of(p, cases[i].near, 1e-3, FXA_F64), clear = bound_of(p, cases[i].clear, 1e-3, FXA_F64);
        if (near != INFINITY || clear == INFINITY)
            T_FAIL("%s: at %g a bound of %g, at %g of %g\n", cases[i].expression, cases[i].near, near, cases[i].clear,
                   clear);
    }
}

/* If one operand decides the result alone, the error of the other does not matter. */
TEST(bounds_ignore_what_does_not_count) {
    static const char *const decided[] = {
        "mulz(float(q - 3), floor(score))",
        "divz(float(q - 3), floor(score))",
        "q == 4 && score < 1 ? 2.0 : 3.0",
        "score < 1 && q == 4 ? 2.0 : 3.0",
        "q == 3 || score < 1 ? 2.0 : 3.0",
        "score < 1 || q == 3 ? 2.0 : 3.0",
        "score // 0.0",
        "score % 0.0",
        "nan < score ? 2.0 : 3.0",
        "score < log(float(q - 9)) ? 2.0 : 3.0",
        "floor(score) < nan ? 2.0 : 3.0",
    };
    for (size_t i = 0; i < sizeof decided / sizeof *decided; i++) {
        t_program *p = bound_parse(decided[i]);
        double bound = bound_of(p, 1.0, 1e-3, FXA_F64);
        if (bound != 0) T_FAIL("%s: a bound of %g\n", decided[i], bound);
    }
    t_program *p = bound_parse("0.001 ** score"); /* underflows, with an error that overflows on its way */
    T_CHECK(bound_of(p, 1e6, 200, FXA_F64) >= 0);
}

/* A gradient has two inputs with errors, whose product has both. */
TEST(bounds_of_gradients_count_both_errors) {
    t_program *p = bound_parse("score * score"), *d = NULL;
    T_OK(fxa_program_derivative(p, &d, &err));
    double in[FXA_INPUT_COUNT] = {[FXA_INPUT_SCORE] = 3, [FXA_INPUT_DSCORE] = 5}, params[2] = {0.1, 2};
    for (int both = 0; both < 4; both++) {
        double off[FXA_INPUT_COUNT] = {0}, e = both & 1 ? 0.25 : 0, f = both & 2 ? 0.5 : 0;
        off[FXA_INPUT_SCORE] = e;
        off[FXA_INPUT_DSCORE] = f;
        fxa_bounded_result terms[4];
        size_t count = 4;
        T_OK(fxa_program_eval_bounds(d, in, off, FXA_F64, params, views, terms, &count, &err));
        T_CHECK(terms[0].kind == FXA_RESULT_DSCORE && terms[0].value == 30);
        T_NEAR(terms[0].error, 2 * ((3 + e) * (5 + f) - 15), 1e-12);
    }
}

T_MAIN
