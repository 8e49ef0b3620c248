/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of programs inside attention that every engine follows: results of ints, floats, loads and derivatives, and
 * what a user-written backward replaces. Expected values are literals.
 */
#include "support/oracle/rules.h"

/* ---- A user's backward program ----------------------------------------------------------------------------------- */

RULE_PAIR(bprop_replaces_the_derivative_by_score_only, own) { /* F-03 */
    const char *text = "param x : float\ntensor t : f64[1]\nscore = score * score * x + t[k]";
    r->x = own->x = 0.5;
    rules_both(r, text);
    rules_forward(own, text);
    rules_pass(own, FXA_BACKWARD, text, "dscore = 2.0 * (2.0 * score * 0.5 * dscore)"); /* twice the derivative */
    for (int i = 0; i < rows * WIDTH; i++) R_NEAR(own->dq[i], 2 * r->dq[i]);
    for (int i = 0; i < keys * WIDTH; i++) R_NEAR(own->dk[i], 2 * r->dk[i]);
    T_CHECK(memcmp(own->dv, r->dv, sizeof r->dv) == 0 && memcmp(own->dt, r->dt, sizeof r->dt) == 0);
    T_SAME(own->dx, r->dx);
}

RULE_PAIR(bprop_leaves_the_gradient_of_params_alone, own) {
    const char *text = "param x : float\nscore = score * x";
    r->x = own->x = 0.5;
    rules_both(r, text);
    rules_forward(own, text);
    rules_pass(own, FXA_BACKWARD, text, "dscore = 0.0");
    T_CHECK(r->dx != 0);
    T_SAME(own->dx, r->dx);
    T_CHECK(rules_all_zero(own->dq, rows * WIDTH) && rules_all_zero(own->dk, keys * WIDTH));
}

RULE_PAIR(bprop_has_params_and_tensors_of_its_own,
          own) { /* both programs use the same names for different params and tensors */
    const char *text = "param x : float\ntensor t : f64[1]\nscore = score + x * t[q]";
    r->x = own->x = 0.5;
    own->own_x = 3;
    for (int k = 0; k < keys; k++) own->own_t[k] = k + 1;
    rules_both(r, text);
    rules_forward(own, text);
    rules_pass(own, FXA_BACKWARD, text, "param x : float\ntensor t : f64[1]\ndscore = dscore * x * t[k]");
    for (int i = 0; i < keys * WIDTH; i++) R_NEAR(own->dk[i] / (3 * (i / WIDTH + 1)), r->dk[i]);
    T_SAME(own->dx, r->dx);
    T_CHECK(memcmp(own->dt, r->dt, sizeof r->dt) == 0);
}

RULE(bprop_is_not_asked_about_pairs_without_gradient) {
    rules_forward(r, "mask = k != 2");
    rules_pass(r, FXA_BACKWARD, "mask = k != 2", "dscore = k == 2 ? inf : dscore + 1.0");
    T_CHECK(rules_gradients_are_finite(r) && rules_all_zero(r->dk + 2 * WIDTH, WIDTH));
    memset(r->dout, 0, sizeof r->dout);
    memset(r->dlse, 0, sizeof r->dlse);
    rules_pass(r, FXA_BACKWARD, "mask = k != 2", "dscore = dscore + 1.0");
    T_CHECK(rules_all_zero(r->dq, rows * WIDTH) && rules_all_zero(r->dk, keys * WIDTH));
}

/* ---- Ints, floats, loads: one pair whose new score is the maximum of its row ------------------------------------- */

static const struct {
    const char *expression;
    double want;
} rules_values[] = {
    {"float(2147483647 + 1 + q)", -2147483648.0}, /* ints have 32 bits and wrap */
    {"float((q + 65536) * 65536)", 0},
    {"float(-(-2147483647 - 1 + q))", -2147483648.0},
    {"float((q + 7) // 0)", 0}, /* x // 0 and x % 0 are 0 */
    {"float((q + 7) % 0)", 0},
    {"float((q - 7) // 2)", -4}, /* floor */
    {"float((q - 7) % 4)", 1},
    {"float((q - 7) >> 1)", -4}, /* arithmetic */
    {"float((q + 1) << 33)", 2}, /* counts modulo 32 */
    {"float((q + 8) >> 33)", 4},
    {"float(int(float(q) + 3e9))", 2147483647.0}, /* int() truncates, saturates */
    {"float(int(float(q) - 2.7))", -2},
    {"float(int(float(q) + (inf - inf)))", 0},            /* NaN gives 0 */
    {"round(float(q) + 2.5) + round(float(q) + 3.5)", 6}, /* to even */
    {"float(q + 7) / 2", 3.5},                            /* / is a float division */
    {"min(float(q) + 1.0, inf - inf)", NAN},              /* NaN if either operand is NaN */
    {"max(inf - inf, float(q) + 1.0)", NAN},
    {"float(q - 7) % 4.0", 1},
    {"score * 0.0 + 3.0", 3},
};

RULE_ALONE(program_values_inside_attention) {
    for (size_t i = 0; i < sizeof rules_values / sizeof rules_values[0]; i++) {
        rules r;
        char text[256];
        rules_start(&r);
        r.a.problem.sq = r.a.problem.sk = 1;
        snprintf(text, sizeof text, "score = %s", rules_values[i].expression);
        rules_forward(&r, text);
        double want = rules_row_value(rules_values[i].want);
        if (r.max[0] != want && want == want) T_FAIL("%s is %.17g, not %.17g\n", text, r.max[0], want);
        if (want != want) T_SAME(r.max[0], NAN);
        rules_end(&r);
    }
}

RULE(loads_count_from_the_end_and_read_zero_outside) {
    r->a.problem.sq = 1;
    memset(r->q, 0, sizeof r->q);
    const int32_t index[] = {0, 3, 4, -1, -4, -5, 2147483647, -2147483647};
    for (int i = 0; i < 8; i++) {
        char text[128];
        snprintf(text, sizeof text, "tensor t : f64[1]\nscore = t[%d + q]", index[i]);
        rules_both(r, text);
        int at = index[i] < 0 ? index[i] + keys : index[i];
        bool inside = at >= 0 && at < keys;
        T_SAME(r->max[0], rules_row_value(inside ? r->t[at] : 0));
        for (int k = 0; k < keys; k++) /* with equal scores all of dLSE goes to that element */
            R_NEAR(r->dt[k], inside && k == at ? r->dlse[0] : 0);
    }
}

RULE_ALONE(wide_ints_saturate_when_loaded) {
    fxa_error err;
    t_ctx *ctx = t_context();
    t_program *program = NULL;
    T_OK(fxa_program_parse(ctx, "tensor n : i64[1]\nscore = float(n[k])", SIZE_MAX, &program, &err));
    double one = 1, o, max[2];
    int64_t n[2] = {5000000000, -5000000000};
    const void *tensors[] = {n};
    fxa_capture capture = {.size = {2}};
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    p.b = p.hq = p.sq = p.sk = p.d_qk = 1, p.q.dtype = FXA_F64, p.engine = rules_engine, p.flags = FXA_RETURN_ROW_MAX;
    p.device = attn_device(rules_engine);
    p.program = program, p.captures = &capture, p.n_captures = args.n_tensors = 1;
    args.slot[FXA_SLOT_Q] = args.slot[FXA_SLOT_K] = args.slot[FXA_SLOT_V] = &one;
    args.slot[FXA_SLOT_O] = &o, args.tensors = tensors;
    for (int i = 0; i < 2; i++) {
        p.map_k.base = i;
        args.slot[FXA_SLOT_ROW_MAX] = &max[i];
        T_OK(fxa_attention(ctx, &p, &args, &err));
    }
    T_SAME(max[0], 2147483647.0);
    T_SAME(max[1], -2147483648.0);
}

/* ---- Derivatives: one pair with dLSE = 1 has exactly d score / d x as its gradient ------------------------------- */

static const struct {
    const char *expression;
    double x, want;
} rules_slopes[] = {
    {"min(x, 2.0)", 2, 0.5}, /* ties share */
    {"max(2.0, x)", 2, 0.5},
    {"min(x, x)", 2, 1},
    {"clamp(x, 0.0, 1.0)", 1, 1}, /* the gradient also passes at the bounds */
    {"clamp(x, 0.0, 1.0)", 0, 1},
    {"clamp(x, 0.0, 1.0)", 1.5, 0},
    {"abs(x)", 0, 0},
    {"abs(x)", -3, -1},
    {"floor(x) + ceil(x) + round(x)", 1.25, 0}, /* none */
    {"float(int(x))", 1.25, 0},
    {"float(x > 1.0)", 1.25, 0},
    {"x > 1.0 ? x * x : 5.0", 3, 6}, /* select selects */
    {"x > 1.0 ? 5.0 : x * x", 3, 0},
    {"x > 0.0 ? log(x) : 0.0", 0, 0}, /* zero wins over 1 / 0 */
    {"x * x * x", 2, 12},
    {"sqrt(x)", 0.25, 1},
};

RULE_ALONE(program_derivatives_inside_attention) {
    for (size_t i = 0; i < sizeof rules_slopes / sizeof rules_slopes[0]; i++) {
        rules r;
        char text[256];
        rules_start(&r);
        r.a.problem.sq = r.a.problem.sk = 1;
        r.dlse[0] = 1;
        r.x = rules_slopes[i].x;
        memset(r.dout, 0, sizeof r.dout);
        snprintf(text, sizeof text, "param x : float\nscore = score * 0.0 + (%s)", rules_slopes[i].expression);
        rules_both(&r, text);
        if (!(fabs(r.dx - rules_slopes[i].want) <= rules_allowed(rules_slopes[i].want)))
            T_FAIL("d/dx %s at %g is %.17g, not %.17g\n", rules_slopes[i].expression, r.x, r.dx, rules_slopes[i].want);
        rules_end(&r);
    }
}

RULE(several_loads_of_one_tensor_add_up) { /* */
    r->a.problem.sq = r->a.problem.sk = 1;
    memset(r->dout, 0, sizeof r->dout);
    r->dlse[0] = 1;
    r->t[1] = 3;
    char text[128];
    snprintf(text, sizeof text, "tensor t : f64[1]\nscore = t[q + 1] * t[1] + 2.0 * t[%d]", 1 - keys);
    rules_both(r, text);
    R_NEAR(r->dt[1], 8);
}

T_MAIN
