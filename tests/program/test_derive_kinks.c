/* SPDX-License-Identifier: Apache-2.0
 *
 * Derivatives where calculus leaves a choice or gives no number: a table per operation, and the rules of
 * docs/program.md for derivatives, one named test each. x is the score, y and z are params.
 */
#include "t.h"
#include "program/program.h"
#include "support/oracle/grads.h"

static fxa_program *kink_derive(fxa_context *ctx, const char *text) {
    fxa_error err;
    fxa_program *p = NULL, *derivative = NULL;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    if (p) T_OK(fxa_program_derivative(p, &derivative, &err));
    fxa_program_destroy(p);
    return derivative;
}

/* ---- The table -------------------------------------------------------------------------------------------------- */

#define ANY (-12345.678) /* not compared: the expression does not read it */

typedef struct kink {
    const char *expr;  /* over score, y, z */
    double x, y, z;    /* at this point */
    double dx, dy, dz; /* expected derivatives for dscore 1 */
} kink;

static const kink kinks[] = {
    /* min and max: ties share, including zeros of both signs and infinities; NaN selects no side */
    {"min(score, y)", 1, 2, 0, 1, 0, ANY},
    {"min(score, y)", 2, 1, 0, 0, 1, ANY},
    {"min(score, y)", 2, 2, 0, 0.5, 0.5, ANY},
    {"min(score, y)", 0.0, -0.0, 0, 0.5, 0.5, ANY},
    {"min(score, y)", INFINITY, INFINITY, 0, 0.5, 0.5, ANY},
    {"min(score, y)", -INFINITY, 1, 0, 1, 0, ANY},
    {"min(score, y)", NAN, 1, 0, 0, 0, ANY},
    {"min(score, y)", 1, NAN, 0, 0, 0, ANY},
    {"max(score, y)", 1, 2, 0, 0, 1, ANY},
    {"max(score, y)", 2, 1, 0, 1, 0, ANY},
    {"max(score, y)", 2, 2, 0, 0.5, 0.5, ANY},
    {"max(score, y)", -0.0, 0.0, 0, 0.5, 0.5, ANY},
    {"max(score, y)", -INFINITY, -INFINITY, 0, 0.5, 0.5, ANY},
    {"max(score, y)", NAN, 1, 0, 0, 0, ANY},
    {"max(score, y)", 1, NAN, 0, 0, 0, ANY},
    {"max(score, 0.0)", 0, 0, 0, 0.5, ANY, ANY},
    {"min(max(score, y), y)", 1, 1, 0, 0.25, 0.75, ANY},
    /* with_grad: the gradient of its second operand only, whatever the values */
    {"with_grad(round(score), score * y)", 2, 3, 0, 3, 2, ANY},
    {"with_grad(score * y, 0.0) * z", 2, 3, 4, 0, 0, 6},
    {"with_grad(with_grad(score, y), z * 2)", 1, 2, 3, 0, 0, 2},
    {"with_grad(score, y) * score", 2, 3, 0, 2, 2, ANY},
    {"with_grad(sqrt(score) / score, y)", 0, 1, 0, 0, 1, ANY},
    /* clamp: passes at the bounds; lo > hi means hi */
    {"clamp(score, y, z)", 1, 0, 2, 1, 0, 0},
    {"clamp(score, y, z)", 0, 0, 2, 1, 0, 0},
    {"clamp(score, y, z)", 2, 0, 2, 1, 0, 0},
    {"clamp(score, y, z)", -1, 0, 2, 0, 1, 0},
    {"clamp(score, y, z)", 3, 0, 2, 0, 0, 1},
    {"clamp(score, y, z)", 1, 1, 1, 1, 0, 0},
    {"clamp(score, y, z)", 0, 1, 1, 0, 1, 0},
    {"clamp(score, y, z)", 2, 1, 1, 0, 0, 1},
    {"clamp(score, y, z)", 5, 3, 1, 0, 0, 1},
    {"clamp(score, y, z)", 2, 3, 1, 0, 0, 1},
    {"clamp(score, y, z)", 0, 3, 1, 0, 0, 1},
    {"clamp(score, y, z)", -INFINITY, 0, 2, 0, 1, 0},
    {"clamp(score, y, z)", INFINITY, 0, INFINITY, 1, 0, 0},
    {"clamp(score, y, z)", NAN, 0, 2, 0, 0, 0},
    {"clamp(score, y, z)", 1, NAN, 2, 0, 0, 0},
    {"clamp(score, y, z)", 1, 0, NAN, 0, 0, 0},
    /* abs */
    {"abs(score)", 2, 0, 0, 1, ANY, ANY},
    {"abs(score)", -2, 0, 0, -1, ANY, ANY},
    {"abs(score)", 0, 0, 0, 0, ANY, ANY},
    {"abs(score)", -0.0, 0, 0, 0, ANY, ANY},
    {"abs(score)", -INFINITY, 0, 0, -1, ANY, ANY},
    {"abs(score)", NAN, 0, 0, 0, ANY, ANY},
    /* products and quotients */
    {"score * y", 0, INFINITY, 0, INFINITY, 0, ANY},
    {"score * y", NAN, 3, 0, 3, NAN, ANY},
    {"score * score", -0.0, 0, 0, 0, ANY, ANY},
    {"score / y", 3, 2, 0, 0.5, -0.75, ANY},
    {"score / y", 3, 0, 0, INFINITY, -INFINITY, ANY},
    {"score / y", 3, -0.0, 0, -INFINITY, -INFINITY, ANY},
    {"score / y", 0, 0, 0, INFINITY, NAN, ANY},
    {"score / y", 3, INFINITY, 0, 0, 0, ANY},
    {"score / y", INFINITY, 2, 0, 0.5, -INFINITY, ANY},
    {"mulz(score, y)", 0, 5, 0, 5, 0, ANY},
    {"mulz(score, y)", 2, 5, 0, 5, 2, ANY},
    {"divz(score, y)", 3, 2, 0, 0.5, -0.75, ANY},
    {"divz(score, y)", 0, 2, 0, 0.5, 0, ANY},
    {"score - y", INFINITY, INFINITY, 0, 1, -1, ANY},
    {"-score", NAN, 0, 0, -1, ANY, ANY},
    /* remainder and rounding */
    {"score % y", 7, 3, 0, 1, -2, ANY},
    {"score % y", -7, 3, 0, 1, 3, ANY},
    {"score % y", 7, -3, 0, 1, 3, ANY},
    {"score % y", 6, 3, 0, 1, -2, ANY},
    {"score % y", 7, INFINITY, 0, 1, 0, ANY},
    {"score // y", 7, 3, 0, 0, 0, ANY},
    {"floor(score) + ceil(score) + round(score) + trunc(score)", 1.5, 0, 0, 0, ANY, ANY},
    {"floor(score)", 2, 0, 0, 0, ANY, ANY},
    {"float(int(score))", 1.25, 0, 0, 0, ANY, ANY},
    /* roots, exponentials, logarithms */
    {"sqrt(score)", 4, 0, 0, 0.25, ANY, ANY},
    {"sqrt(score)", 0, 0, 0, INFINITY, ANY, ANY},
    {"sqrt(score)", -0.0, 0, 0, -INFINITY, ANY, ANY}, /* sqrt(-0) is -0 */
    {"sqrt(score)", -1, 0, 0, NAN, ANY, ANY},
    {"sqrt(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"rsqrt(score)", 4, 0, 0, -0.0625, ANY, ANY},
    {"rsqrt(score)", 0, 0, 0, -INFINITY, ANY, ANY},
    {"rsqrt(score)", -1, 0, 0, NAN, ANY, ANY},
    {"rsqrt(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"exp(score)", 0, 0, 0, 1, ANY, ANY},
    {"exp(score)", -INFINITY, 0, 0, 0, ANY, ANY},
    {"exp(score)", INFINITY, 0, 0, INFINITY, ANY, ANY},
    {"exp(score)", NAN, 0, 0, NAN, ANY, ANY},
    {"exp2(score)", -INFINITY, 0, 0, 0, ANY, ANY},
    {"exp2(score)", 2000, 0, 0, INFINITY, ANY, ANY},
    {"log(score)", 0.5, 0, 0, 2, ANY, ANY},
    {"log(score)", 0, 0, 0, INFINITY, ANY, ANY},
    {"log(score)", -0.0, 0, 0, -INFINITY, ANY, ANY},
    {"log(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"log(score)", NAN, 0, 0, NAN, ANY, ANY},
    {"log2(score)", 0, 0, 0, INFINITY, ANY, ANY},
    {"log2(score)", INFINITY, 0, 0, 0, ANY, ANY},
    /* powers */
    {"score ** y", 3, 2, 0, 6, 9 * 1.0986122886681098, ANY},
    {"score ** y", 0, 0, 0, 0, 0, ANY},
    {"score ** y", NAN, 0, 0, 0, NAN, ANY},
    {"score ** y", 0, 1, 0, 1, 0, ANY},
    {"score ** y", 0, 2, 0, 0, 0, ANY},
    {"score ** y", -0.0, 3, 0, 0, 0, ANY},
    {"score ** y", 0, 0.5, 0, INFINITY, 0, ANY},
    {"score ** y", 0, -1, 0, -INFINITY, -INFINITY, ANY},
    {"score ** y", -2, 3, 0, 12, NAN, ANY}, /* no derivative by the exponent of a negative number */
    {"score ** y", INFINITY, 2, 0, INFINITY, INFINITY, ANY},
    {"score ** 2", -3, 0, 0, -6, ANY, ANY},
    {"score ** 0", 0, 0, 0, 0, ANY, ANY},
    {"2.0 ** score", 3, 0, 0, 8 * 0.6931471805599453, ANY, ANY},
    {"0.0 ** score", 3, 0, 0, 0, ANY, ANY},
    /* other functions at 0, at large values and at NaN */
    {"tanh(score)", 0, 0, 0, 1, ANY, ANY},
    {"tanh(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"tanh(score)", -INFINITY, 0, 0, 0, ANY, ANY},
    {"tanh(score)", NAN, 0, 0, NAN, ANY, ANY},
    {"sigmoid(score)", 0, 0, 0, 0.25, ANY, ANY},
    {"sigmoid(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"sigmoid(score)", -INFINITY, 0, 0, 0, ANY, ANY},
    {"sigmoid(score)", NAN, 0, 0, NAN, ANY, ANY},
    {"relu(score)", 0, 0, 0, 0, ANY, ANY},
    {"relu(score)", -1, 0, 0, 0, ANY, ANY},
    {"relu(score)", 2, 0, 0, 1, ANY, ANY},
    {"relu(score)", INFINITY, 0, 0, 1, ANY, ANY},
    {"sign(score)", 0, 0, 0, 0, ANY, ANY},
    {"sign(score)", -3, 0, 0, 0, ANY, ANY},
    {"sign(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"softplus(score)", 0, 0, 0, 0.5, ANY, ANY},
    {"softplus(score)", 800, 0, 0, 1, ANY, ANY},
    {"softplus(score)", -800, 0, 0, 0, ANY, ANY},
    {"softplus(score)", INFINITY, 0, 0, 1, ANY, ANY},
    {"softplus(score)", -INFINITY, 0, 0, 0, ANY, ANY},
    {"log1p(score)", 0, 0, 0, 1, ANY, ANY},
    {"log1p(score)", 1, 0, 0, 0.5, ANY, ANY},
    {"log1p(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"atan(score)", 0, 0, 0, 1, ANY, ANY},
    {"atan(score)", 1, 0, 0, 0.5, ANY, ANY},
    {"atan(score)", -INFINITY, 0, 0, 0, ANY, ANY},
    {"erf(score)", 0, 0, 0, 1.1283791670955126, ANY, ANY},
    {"erf(score)", INFINITY, 0, 0, 0, ANY, ANY},
    {"erf(score)", NAN, 0, 0, NAN, ANY, ANY},
    {"sin(score)", 0, 0, 0, 1, ANY, ANY},
    {"sin(score)", INFINITY, 0, 0, NAN, ANY, ANY},
    {"cos(score)", 0, 0, 0, 0, ANY, ANY},
    {"cos(score)", INFINITY, 0, 0, NAN, ANY, ANY},
    {"tan(score)", 0, 0, 0, 1, ANY, ANY},
    {"tan(score)", INFINITY, 0, 0, NAN, ANY, ANY},
    /* select, comparisons, casts */
    {"where(score > 0, y, z)", 0, 1, 2, 0, 0, 1},
    {"where(score > 0, y, z)", NAN, 1, 2, 0, 0, 1},
    {"where(y < z, score, -score)", 3, 1, 2, 1, 0, 0},
    {"where(y < z, score, -score)", 3, 2, 2, -1, 0, 0},
    {"float(score > y) * z", 2, 1, 5, 0, 0, 1},
    {"score * int(y)", 2, 3.75, 0, 3, 0, ANY},
};

static void kink_check(fxa_context *ctx, const kink *k) {
    char text[256];
    snprintf(text, sizeof text, "param y : float\nparam z : float\nscore = %s", k->expr);
    t_program *derivative = kink_derive(ctx, text);
    if (!derivative) return;
    double params[2] = {k->y, k->z}, got[3], want[3] = {k->dx, k->dy, k->dz};
    fxa__env env = {.score = k->x, .dscore = 1, .params = params};
    grads g = grads_eval(derivative, &env);
    got[0] = g.score, got[1] = g.param[0], got[2] = g.param[1];
    for (int i = 0; i < 3; i++) {
        bool same = got[i] == want[i] || (got[i] != got[i] && want[i] != want[i]) ||
                    fabs(got[i] - want[i]) <= 4e-16 * fabs(want[i]);
        if (want[i] != ANY && !same)
            T_FAIL("%s at %g, %g, %g: d%c is %.17g, not %.17g\n", k->expr, k->x, k->y, k->z, "xyz"[i], got[i], want[i]);
        if (want[i] == ANY && got[i] != 0) T_FAIL("%s: d%c is %g and should not exist\n", k->expr, "xyz"[i], got[i]);
    }
    /* Zero wins: at the same points, an incoming gradient of exactly 0, of either sign, gives exactly 0. */
    for (int sign = 0; sign < 2; sign++) {
        env.dscore = sign ? -0.0 : 0.0;
        g = grads_eval(derivative, &env);
        if (g.score != 0 || g.param[0] != 0 || g.param[1] != 0)
            T_FAIL("%s at %g, %g, %g: not 0 for an adjoint of 0\n", k->expr, k->x, k->y, k->z);
    }
}

CONTEXT_TEST(table_of_kinks_and_special_values) {
    for (size_t i = 0; i < sizeof kinks / sizeof *kinks; i++) kink_check(ctx, &kinks[i]);
}

/* ---- Rules by name ---------------------------------------------------------------------------------------------- */

/* Every program reads score, params y and z, and tensors t f64[4] and w i32[4]; it is evaluated for q = 1 and k as
 * given. */
static const char rule_head[] = "param y : float\nparam z : float\ntensor t : f64[1]\ntensor w : i32[1]\n";

typedef struct rule {
    grads g;
    double t[4];
    bool ok;
} rule;

static rule rule_run(const char *body, double score, double y, double z, int32_t k) {
    t_ctx *ctx = t_context();
    rule r = {.t = {0.5, 0.0, -1.0, 2.0}};
    int32_t w[4] = {0, 1, 1, 3};
    char text[512];
    snprintf(text, sizeof text, "%s%s", rule_head, body);
    t_program *derivative = kink_derive(ctx, text);
    if (derivative) {
        double params[2] = {y, z};
        fxa_view views[2] = {{r.t, FXA_F64, 1, {4}, {1}}, {w, FXA_I32, 1, {4}, {1}}};
        fxa__env env = {.score = score, .dscore = 1, .params = params, .tensors = views};
        env.coord[FXA_INPUT_Q] = 1, env.coord[FXA_INPUT_K] = k;
        r.g = grads_eval(derivative, &env);
        r.ok = true;
    }
    return r;
}

TEST(select_selects_and_contains_a_bad_branch_by_score) {
    const char *bodies[] = {
        "score = where(k > 0, score * log(float(k)), score)",
        "score = k > 0 ? score / k : score",
        "score = where(score > 0, sqrt(score), score)",
        "score = where(k > 0, score ** -k, score)",
        "score = where(k > 0, rsqrt(score - score), score)",
        "score = k > 0 ? 1 / log(score) : score",
        "score = where(k > 0, tan(exp(exp(score * -1000))), score)",
        "score = where(k > 0, (score % 0.0) / 0.0, score)",
        "score = where(k > 0, clamp(score * inf, score / 0, inf * 0), score)",
        "score = where(k > 0, max(score * inf, sqrt(score)), score)",
        "score = where(k > 0, abs(log(score)) * inf, score)",
        "score = where(k > 0, erf(sin(cos(score * inf))) + log2(score) + exp2(-score * inf), score)",
        "score = where(k > 0, sigmoid(score / 0) * tanh(0 / score) ** (1 / score), score)",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        rule r = rule_run(bodies[i], -3, 1, 1, 0);
        if (r.ok && r.g.score != 1) T_FAIL("%s: dscore is %g, not 1\n", bodies[i], r.g.score);
    }
}

TEST(select_contains_a_bad_branch_by_param) {
    rule r = rule_run("score = score + where(k > 0, log(y) / z, y * z)", 1, -2, 0, 0);
    T_SAME(r.g.param[0], 0.0); /* z: only through the branch taken */
    T_SAME(r.g.param[1], -2.0);
    r = rule_run("score = score + where(k > 0, log(y) / z, 5.0)", 1, 0, 0, 0);
    T_CHECK(r.g.param[0] == 0 && r.g.param[1] == 0);
    /* Both branches read y, but the NaN of the unused branch does not reach its gradient. */
    r = rule_run("let m = max(y, 0.0)\nscore = score + (y > 0 ? log(m) : m * 3)", 1, -1, 0, 0);
    T_CHECK(r.g.param[0] == 0);
}

TEST(select_contains_a_bad_branch_by_tensor) {
    rule r = rule_run("score = score + where(t[k] > 0, log(t[k]), t[k] * 7)", 1, 0, 0, 1);
    T_SAME(r.g.tensor[0][1], 7.0);
    r = rule_run("score = score + where(t[k] > 0, sqrt(log(t[k])), 0.0)", 1, 0, 0, 2);
    for (int i = 0; i < 4; i++) T_CHECK(r.g.tensor[0][i] == 0);
}

TEST(select_with_a_bad_condition_operand) { /* A NaN that only affects the condition reaches no gradient. */
    rule r = rule_run("score = where(log(y) > 0, score * 2, score * 3)", 1, -1, 0, 0);
    T_SAME(r.g.score, 3.0);
    T_CHECK(r.g.param[0] == 0);
}

TEST(nested_selects_contain) {
    rule r = rule_run("score = where(k > 0, where(k > 1, score / (k - k), log(score)), score * z)", -1, 0, 4, 0);
    T_SAME(r.g.score, 4.0);
    T_SAME(r.g.param[1], -1.0);
}

TEST(zero_wins_after_a_flat_spot) {
    /* d sqrt(0) is inf, but the incoming gradient is 0: clamp saturates, or a factor is exactly 0. */
    rule r = rule_run("score = clamp(sqrt(y) * 1e9, 1.0, 2.0) + score", 1, 0, 0, 0);
    T_CHECK(r.g.param[0] == 0);
    r = rule_run("score = score + z * log(y)", 1, 0, 0, 0);
    T_CHECK(r.g.param[0] == 0);
    T_SAME(r.g.param[1], -INFINITY);
    r = rule_run("score = score + abs(y * log(z))", 1, 0, 1, 0);
    T_CHECK(r.g.param[0] == 0 && r.g.param[1] == 0);
}

CONTEXT_TEST(masked_pair_with_zero_adjoint_gives_nothing) {
    /* For a masked pair engines pass dscore 0: intermediate NaN and inf still give gradients of 0. */
    const char *text = "param y : float\ntensor t : f64[1]\n"
                       "score = log(score) * t[k] / y + (1 / t[q]) ** score - exp(t[k + 1] / y)";
    t_program *derivative = kink_derive(ctx, text);
    T_REQUIRE(derivative);
    double values[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, -1, 1e308}, y, t[3];
    fxa_view view = {t, FXA_F64, 1, {3}, {1}};
    fxa__env env = {.params = &y, .tensors = &view};
    for (int i = 0; i < 7 * 7 * 7 * 7; i++) {
        env.score = values[i % 7], y = values[i / 7 % 7], t[0] = values[i / 49 % 7];
        t[1] = values[i / 343], t[2] = values[(i + 3) % 7];
        env.dscore = i % 2 ? -0.0 : 0.0;
        grads g = grads_eval(derivative, &env);
        T_CHECK(g.score == 0 && g.param[0] == 0 && g.tensor[0][0] == 0 && g.tensor[0][1] == 0 && g.tensor[0][2] == 0);
    }
}

TEST(same_tensor_loaded_several_times_adds_up) {
    /* t[1] is loaded three ways: by a constant, by q (1) and through w (w[2] is 1); t[3] by -1. */
    rule r = rule_run("score = score + 2 * t[1] + 3 * t[q] + 5 * t[w[2]] + 7 * t[-1]", 1, 0, 0, 0);
    T_SAME(r.g.tensor[0][1], 10.0);
    T_SAME(r.g.tensor[0][3], 7.0);
    T_CHECK(r.g.tensor[0][0] == 0 && r.g.tensor[0][2] == 0);
    r = rule_run("score = score * t[k] * t[k]", 3, 0, 0, 3);
    T_SAME(r.g.tensor[0][3], 12.0); /* 2 * 3 * t[3] */
}

CONTEXT_TEST(one_statement_per_distinct_index) {
    t_program *derivative =
        kink_derive(ctx, "tensor t : f64[1]\nscore = score + t[q] * t[k] + sin(t[q + 0]) + cos(t[k])");
    T_REQUIRE(derivative);
    int loads = 0;
    for (int32_t i = 0; i < derivative->n_outputs; i++) loads += derivative->outputs[i].kind == FXA__OUT_DLOAD;
    T_INT(loads, 2);
}

TEST(index_outside_receives_no_gradient) {
    rule r = rule_run("score = score + 2 * t[k] + 3 * t[k - 9] + 5 * t[q]", 1, 0, 0, 4);
    T_SAME(r.g.tensor[0][1], 5.0);
    T_CHECK(r.g.tensor[0][0] == 0 && r.g.tensor[0][2] == 0 && r.g.tensor[0][3] == 0);
}

TEST(floor_compare_int_have_none) {
    const char *body = "score = floor(score * y) + float(score < y) * 4 + int(z * 3) + (score // z) + w[int(y)]";
    rule r = rule_run(body, 2.5, 1.5, 0.3, 0);
    T_CHECK(r.g.score == 0 && r.g.param[0] == 0 && r.g.param[1] == 0);
}

TEST(mask_has_no_derivative) {
    rule r = rule_run("mask = score * y > t[k]", 2, 3, 0, 0);
    T_SAME(r.g.score, 1.0);
    T_CHECK(r.g.param[0] == 0 && r.g.tensor[0][0] == 0);
}

TEST(score_that_is_not_read_has_derivative_zero) {
    rule r = rule_run("score = t[k] * y", 2, 3, 0, 3);
    T_SAME(r.g.score, 0.0);
    T_SAME(r.g.param[0], 2.0);
    T_SAME(r.g.tensor[0][3], 3.0);
}

T_MAIN
