/* SPDX-License-Identifier: Apache-2.0
 *
 * What every engine must agree on, rule by rule: where NaN, inf and zero go, which rows attend to nothing, what a sink
 * does, and what the ints, floats and derivatives of a program are when they run inside attention. The expected values
 * are written down here; nothing is computed twice.
 */
#include "t.h"

#define ENGINE "ref"
enum { ROWS = 3, KEYS = 4, WIDTH = 2 };

/* One head of 3 rows and 4 keys, f64. Programs may use one tensor `t` of rank 1 and one param `x`. */
typedef struct rules {
    fxa_context *ctx;
    fxa_problem p;
    fxa_args args;
    double q[ROWS * WIDTH], k[KEYS * WIDTH], v[KEYS * WIDTH], dout[ROWS * WIDTH], dlse[ROWS];
    double o[ROWS * WIDTH], lse[ROWS], max[ROWS], sink;
    double own_t[KEYS], own_x; /* of a user's backward program */
    double dq[ROWS * WIDTH], dk[KEYS * WIDTH], dv[KEYS * WIDTH], dsink, t[KEYS], dt[KEYS], x, dx;
} rules;

static void rules_start(rules *r) {
    t_rng rng = {t_seed()};
    double *const inputs[] = {r->q, r->k, r->v, r->dout, r->dlse, r->t};
    const int count[] = {ROWS * WIDTH, KEYS * WIDTH, KEYS * WIDTH, ROWS * WIDTH, ROWS, KEYS};
    fxa_error err;
    memset(r, 0, sizeof *r);
    T_OK(fxa_context_create(NULL, &r->ctx, &err));
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < count[i]; j++) inputs[i][j] = t_real(&rng, -1, 1);
    r->p = (fxa_problem)FXA_PROBLEM_INIT;
    r->p.b = r->p.hq = 1, r->p.sq = ROWS, r->p.sk = KEYS, r->p.d = WIDTH;
    r->p.q.dtype = FXA_F64;
    r->p.engine = ENGINE;
    r->args = (fxa_args)FXA_ARGS_INIT;
    r->args.slot[FXA_SLOT_Q] = r->q, r->args.slot[FXA_SLOT_K] = r->k, r->args.slot[FXA_SLOT_V] = r->v;
    r->args.slot[FXA_SLOT_O] = r->o, r->args.slot[FXA_SLOT_LSE] = r->lse;
}

static void rules_end(rules *r) { fxa_context_destroy(r->ctx); }

/* One pass with the program. Backward asks for every gradient there is. */
static void rules_pass(rules *r, fxa_pass pass, const char *text, const char *bprop_text) {
    fxa_error err;
    fxa_program *program = NULL, *bprop = NULL;
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_text bprop_part = {"bprop", bprop_text, SIZE_MAX};
    fxa_capture capture = {.size = {KEYS}, .grad = pass == FXA_BACKWARD}, own_capture = {.size = {KEYS}};
    const void *tensors[] = {r->t}, *own_tensors[] = {r->own_t};
    void *dtensors[] = {r->dt};
    config.kind = FXA_PROGRAM_BPROP, config.texts = &bprop_part, config.n_texts = 1;
    T_OK(fxa_program_parse(r->ctx, text, SIZE_MAX, &program, &err));
    if (bprop_text) T_OK(fxa_program_parse_texts(r->ctx, &config, &bprop, &err));
    fxa_problem p = r->p;
    fxa_args args = r->args;
    p.pass = (uint32_t)pass, p.program = program, p.bprop = bprop;
    p.captures = &capture, p.n_captures = args.n_tensors = fxa_program_tensor_count(program);
    args.params = &r->x, args.n_params = fxa_program_param_count(program), args.tensors = tensors;
    if (bprop) {
        p.bprop_captures = &own_capture, p.n_bprop_captures = args.n_bprop_tensors = fxa_program_tensor_count(bprop);
        args.bprop_params = &r->own_x, args.n_bprop_params = fxa_program_param_count(bprop);
        args.bprop_tensors = own_tensors;
    }
    args.slot[FXA_SLOT_SINK] = &r->sink;
    if (!(p.flags & FXA_SINK)) args.slot[FXA_SLOT_SINK] = NULL;
    if (pass == FXA_FORWARD) {
        p.flags |= FXA_WANT_LSE | FXA_WANT_MAX;
        args.slot[FXA_SLOT_MAX_ROW] = r->max;
    } else {
        p.flags |= FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_GRAD_LSE | (p.flags & FXA_SINK ? FXA_GRAD_SINK : 0u);
        p.param_grads = args.n_params ? 1 : 0;
        args.slot[FXA_SLOT_DO] = r->dout, args.slot[FXA_SLOT_DLSE] = r->dlse;
        args.slot[FXA_SLOT_DQ] = r->dq, args.slot[FXA_SLOT_DK] = r->dk, args.slot[FXA_SLOT_DV] = r->dv;
        args.slot[FXA_SLOT_DSINK] = p.flags & FXA_SINK ? &r->dsink : NULL;
        args.dtensors = dtensors, args.n_dtensors = args.n_tensors;
        args.dparams = &r->dx, args.n_dparams = args.n_params;
    }
    T_OK(fxa_attention(r->ctx, &p, &args, &err));
    fxa_program_destroy(program);
    fxa_program_destroy(bprop);
}

static void rules_forward(rules *r, const char *text) { rules_pass(r, FXA_FORWARD, text, NULL); }
static void rules_both(rules *r, const char *text) {
    rules_pass(r, FXA_FORWARD, text, NULL);
    rules_pass(r, FXA_BACKWARD, text, NULL);
}

static bool rules_all_finite(const double *x, int n) {
    for (int i = 0; i < n; i++)
        if (!(fabs(x[i]) < INFINITY)) return false;
    return true;
}
static bool rules_all_nan(const double *x, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] == x[i]) return false;
    return true;
}
static bool rules_all_zero(const double *x, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] != 0) return false;
    return true;
}
static bool rules_gradients_are_finite(const rules *r) {
    return rules_all_finite(r->dq, ROWS * WIDTH) && rules_all_finite(r->dk, KEYS * WIDTH) &&
           rules_all_finite(r->dv, KEYS * WIDTH) && rules_all_finite(r->dt, KEYS) && rules_all_finite(&r->dx, 1);
}

/* ---- Rows: NaN, +inf, nothing attended --------------------------------------------------------------------------- */

/* Row 1 is NaN, its maximum as given, and the others are what they are without the fault. */
static void rules_only_row_1_is_nan(rules *faulty, const char *text, double max) {
    rules clean;
    rules_start(&clean);
    rules_forward(&clean, "");
    rules_forward(faulty, text);
    T_CHECK(rules_all_nan(faulty->o + WIDTH, WIDTH));
    T_SAME(faulty->lse[1], NAN);
    T_SAME(faulty->max[1], max);
    for (int q = 0; q < ROWS; q += 2) {
        T_CHECK(memcmp(faulty->o + q * WIDTH, clean.o + q * WIDTH, WIDTH * sizeof(double)) == 0);
        T_SAME(faulty->lse[q], clean.lse[q]);
        T_SAME(faulty->max[q], clean.max[q]);
    }
    rules_end(&clean);
}

TEST(nan_score_makes_nan_of_its_own_row_and_no_other) {
    rules r;
    rules_start(&r);
    rules_only_row_1_is_nan(&r, "score = q == 1 && k == 2 ? inf - inf : score", NAN);
    rules_end(&r);
}

TEST(plus_inf_score_makes_nan_of_its_own_row_and_no_other) {
    rules r;
    rules_start(&r);
    rules_only_row_1_is_nan(&r, "score = q == 1 && k == 2 ? inf : score", INFINITY);
    rules_end(&r);
}

TEST(nan_query_makes_nan_of_its_own_row_and_no_other) {
    rules r;
    rules_start(&r);
    r.q[1 * WIDTH] = NAN;
    rules_only_row_1_is_nan(&r, "", NAN);
    rules_end(&r);
}

TEST(a_nan_row_reaches_no_other_rows_gradient) {
    rules r, clean;
    rules_start(&r);
    rules_start(&clean);
    rules_both(&r, "score = q == 1 && k == 2 ? inf - inf : score");
    rules_both(&clean, "");
    T_CHECK(rules_all_nan(r.dq + WIDTH, WIDTH));
    T_CHECK(memcmp(r.dq, clean.dq, WIDTH * sizeof(double)) == 0);
    T_CHECK(memcmp(r.dq + 2 * WIDTH, clean.dq + 2 * WIDTH, WIDTH * sizeof(double)) == 0);
    T_CHECK(rules_all_nan(r.dv, KEYS * WIDTH)); /* row 1 attends to every key, */
    T_CHECK(rules_all_nan(r.dk, 2 * WIDTH) && rules_all_nan(r.dk + 3 * WIDTH, WIDTH));
    T_CHECK(rules_all_finite(r.dk + 2 * WIDTH, WIDTH)); /* but does not use its score with key 2 */
    rules_end(&r);
    rules_end(&clean);
}

TEST(row_that_attends_to_nothing_is_zero_with_lse_minus_inf_and_no_gradient) {
    const char *const texts[] = {"mask = q != 1", "score = q == 1 ? -inf : score",
                                 "score = q == 1 ? -inf : score\nmask = k > q"};
    for (int i = 0; i < 3; i++) {
        rules r;
        rules_start(&r);
        rules_both(&r, texts[i]);
        T_CHECK(rules_all_zero(r.o + WIDTH, WIDTH) && rules_all_zero(r.dq + WIDTH, WIDTH));
        T_SAME(r.lse[1], -INFINITY);
        T_SAME(r.max[1], -INFINITY);
        T_CHECK(rules_gradients_are_finite(&r));
        rules_end(&r);
    }
}

TEST(keys_of_a_row_that_attends_to_nothing_get_no_gradient_whatever_it_holds) {
    rules r;
    rules_start(&r);
    for (int q = 0; q < ROWS; q++) r.q[q * WIDTH] = NAN;
    r.dout[1] = INFINITY;
    rules_both(&r, "mask = false");
    T_CHECK(rules_all_zero(r.dq, ROWS * WIDTH) && rules_all_zero(r.dk, KEYS * WIDTH));
    T_CHECK(rules_all_zero(r.dv, KEYS * WIDTH) && rules_all_zero(r.o, ROWS * WIDTH));
    rules_end(&r);
}

TEST(no_keys_at_all) {
    rules r;
    rules_start(&r);
    r.p.sk = 0;
    rules_both(&r, "");
    T_CHECK(rules_all_zero(r.o, ROWS * WIDTH) && rules_all_zero(r.dq, ROWS * WIDTH));
    for (int q = 0; q < ROWS; q++) T_SAME(r.lse[q], -INFINITY);
    rules_end(&r);
}

/* ---- Zero wins --------------------------------------------------------------------------------------------------- */

/* Key 2 holds NaN and inf everywhere and takes part in no row: nothing of it shows. */
static void rules_key_2_is_out(const char *text) {
    rules r;
    rules_start(&r);
    double *key = r.k + 2 * WIDTH, *value = r.v + 2 * WIDTH;
    key[0] = NAN, key[1] = INFINITY, value[0] = INFINITY, value[1] = NAN, r.t[2] = NAN, r.x = 0.5;
    rules_both(&r, text);
    T_CHECK(rules_all_finite(r.o, ROWS * WIDTH) && rules_all_finite(r.lse, ROWS) && rules_all_finite(r.max, ROWS));
    T_CHECK(rules_gradients_are_finite(&r));
    T_CHECK(rules_all_zero(r.dk + 2 * WIDTH, WIDTH) && rules_all_zero(r.dv + 2 * WIDTH, WIDTH) && r.dt[2] == 0);
    rules_end(&r);
}

TEST(zero_wins_nan_and_inf_in_a_masked_pair_reach_nothing) {
    rules_key_2_is_out("mask = k != 2");
    rules_key_2_is_out("param x : float\ntensor t : f64[1]\nscore = score * t[k] + x * t[k]\nmask = k != 2");
}

TEST(zero_wins_nan_and_inf_in_a_pair_of_probability_zero_reach_nothing) {
    rules_key_2_is_out("score = k == 2 ? -inf : score");
    rules_key_2_is_out("param x : float\ntensor t : f64[1]\nscore = k == 2 ? -inf : score * t[k] + x");
    /* exp(-1e9) underflows to 0 */
    rules_key_2_is_out("param x : float\ntensor t : f64[1]\nscore = k == 2 ? -1e9 : score * t[k] + x");
}

TEST(zero_wins_inf_value_of_a_dropped_pair_reaches_nothing) {
    rules r, kept;
    rules_start(&r);
    rules_start(&kept);
    r.p.flags = kept.p.flags = FXA_DROPOUT;
    r.p.dropout_p = kept.p.dropout_p = 0.5;
    kept.p.sq = r.p.sq = 1;
    memset(kept.v, 0, sizeof kept.v);
    kept.v[3 * WIDTH] = 1; /* so that O is 0 where a seed drops key 3 of row 0 */
    for (uint64_t seed = 0; seed < 64; seed++) {
        kept.args.seed = r.args.seed = seed;
        rules_forward(&kept, "");
        if (kept.o[0] == 0) break;
    }
    T_SAME(kept.o[0], 0);
    r.v[3 * WIDTH] = INFINITY, r.v[3 * WIDTH + 1] = NAN;
    rules_both(&r, "");
    T_CHECK(rules_all_finite(r.o, WIDTH) && rules_gradients_are_finite(&r));
    T_CHECK(rules_all_zero(r.dv + 3 * WIDTH, WIDTH));
    rules_end(&r);
    rules_end(&kept);
}

TEST(zero_wins_nan_in_a_branch_not_taken_reaches_no_gradient) {
    rules r;
    rules_start(&r);
    r.t[0] = -1, r.t[1] = 0.5, r.t[2] = -3, r.t[3] = 0;
    r.x = -2;
    rules_both(&r, "param x : float\ntensor t : f64[1]\nscore = score + (t[k] > 0 ? log(t[k]) + sqrt(t[k]) : 0.0)\n"
                   "score = x > 0 ? score * log(x) : score");
    T_CHECK(rules_gradients_are_finite(&r));
    T_CHECK(r.dt[0] == 0 && r.dt[2] == 0 && r.dt[3] == 0 && r.dt[1] != 0 && r.dx == 0);
    rules_end(&r);
}

TEST(zero_wins_an_inf_key_of_a_pair_without_score_gradient_stays_out_of_dq) {
    rules r;
    rules_start(&r);
    r.k[2 * WIDTH] = INFINITY; /* its score is not used, so its gradient is exactly 0 */
    rules_both(&r, "score = k == 2 ? 0.25 : score");
    T_CHECK(rules_gradients_are_finite(&r) && rules_all_zero(r.dk + 2 * WIDTH, WIDTH));
    T_CHECK(r.dv[2 * WIDTH] != 0);
    rules_end(&r);
}

TEST(zero_wins_over_an_infinite_derivative_when_nothing_is_asked) { /* dO = 0 and dLSE = 0 */
    rules r;
    rules_start(&r);
    memset(r.dout, 0, sizeof r.dout);
    memset(r.dlse, 0, sizeof r.dlse);
    rules_both(&r, "param x : float\ntensor t : f64[1]\nscore = score + sqrt(x) + sqrt(t[k] - t[k])");
    T_CHECK(rules_all_zero(r.dq, ROWS * WIDTH) && rules_all_zero(r.dk, KEYS * WIDTH));
    T_CHECK(rules_all_zero(r.dt, KEYS) && r.dx == 0);
    rules_end(&r);
}

/* ---- LSE as it is given ------------------------------------------------------------------------------------------ */

TEST(lse_minus_inf_given_to_backward_means_no_gradient) {
    rules r;
    rules_start(&r);
    rules_forward(&r, "");
    r.lse[0] = r.lse[1] = r.lse[2] = -INFINITY;
    r.o[0] = NAN; /* not looked at */
    rules_pass(&r, FXA_BACKWARD, "", NULL);
    T_CHECK(rules_all_zero(r.dq, ROWS * WIDTH) && rules_all_zero(r.dk, KEYS * WIDTH));
    T_CHECK(rules_all_zero(r.dv, KEYS * WIDTH));
    rules_end(&r);
}

TEST(lse_nan_given_to_backward_makes_nan_of_its_row_and_of_the_keys_it_attends) {
    rules r;
    rules_start(&r);
    rules_forward(&r, "mask = q != 1 || k < 2");
    r.lse[1] = NAN;
    rules_pass(&r, FXA_BACKWARD, "mask = q != 1 || k < 2", NULL);
    T_CHECK(rules_all_finite(r.dq, WIDTH) && rules_all_nan(r.dq + WIDTH, WIDTH));
    T_CHECK(rules_all_finite(r.dq + 2 * WIDTH, WIDTH));
    T_CHECK(rules_all_nan(r.dk, 2 * WIDTH) && rules_all_finite(r.dk + 2 * WIDTH, 2 * WIDTH));
    T_CHECK(rules_all_nan(r.dv, 2 * WIDTH) && rules_all_finite(r.dv + 2 * WIDTH, 2 * WIDTH));
    rules_end(&r);
}

TEST(lse_is_never_computed_again) { /* half of the probability lies in keys of another shard */
    rules r, half;
    rules_start(&r);
    rules_start(&half);
    rules_both(&r, "");
    rules_forward(&half, "");
    for (int q = 0; q < ROWS; q++) half.lse[q] += log(2);
    rules_pass(&half, FXA_BACKWARD, "", NULL);
    for (int i = 0; i < KEYS * WIDTH; i++) T_NEAR(half.dv[i], r.dv[i] / 2, 1e-15);
    rules_end(&r);
    rules_end(&half);
}

/* ---- Sinks ------------------------------------------------------------------------------------------------------- */

TEST(with_a_sink_a_row_without_keys_attends_to_the_sink_alone) {
    rules r;
    rules_start(&r);
    r.p.flags = FXA_SINK;
    r.sink = 0.75;
    rules_both(&r, "mask = q != 1");
    T_CHECK(rules_all_zero(r.o + WIDTH, WIDTH) && rules_all_zero(r.dq + WIDTH, WIDTH));
    T_SAME(r.lse[1], 0.75);
    T_SAME(r.max[1], -INFINITY);
    rules_end(&r);

    rules_start(&r);
    r.p.flags = FXA_SINK;
    r.sink = 0.75;
    rules_both(&r, "mask = false");
    T_NEAR(r.dsink, r.dlse[0] + r.dlse[1] + r.dlse[2], 1e-15);
    rules_end(&r);

    rules_start(&r);
    r.p.flags = FXA_SINK_ZERO;
    rules_both(&r, "mask = false");
    T_SAME(r.lse[1], 0);
    rules_end(&r);
}

TEST(row_maximum_is_of_the_scores_without_the_sink) {
    rules r, plain;
    rules_start(&r);
    rules_start(&plain);
    r.p.flags = FXA_SINK;
    r.sink = 50;
    rules_forward(&r, "");
    rules_forward(&plain, "");
    for (int q = 0; q < ROWS; q++) T_SAME(r.max[q], plain.max[q]);
    T_CHECK(r.lse[0] >= 50);
    rules_end(&r);
    rules_end(&plain);
}

TEST(sink_of_minus_inf_is_no_sink_and_nan_or_plus_inf_makes_nan) {
    const double sinks[] = {-INFINITY, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        rules r, plain;
        rules_start(&r);
        rules_start(&plain);
        r.p.flags = FXA_SINK;
        r.sink = sinks[i];
        rules_both(&r, "");
        rules_both(&plain, "");
        if (i == 0) {
            T_CHECK(memcmp(r.o, plain.o, sizeof r.o) == 0 && memcmp(r.dk, plain.dk, sizeof r.dk) == 0);
            T_SAME(r.dsink, 0);
        } else {
            T_CHECK(rules_all_nan(r.o, ROWS * WIDTH) && rules_all_nan(r.lse, ROWS));
            T_CHECK(rules_all_finite(r.max, ROWS));
        }
        rules_end(&r);
        rules_end(&plain);
    }
}

TEST(sink_of_a_nan_row_that_is_minus_inf_gets_no_gradient) {
    rules r;
    rules_start(&r);
    r.p.flags = FXA_SINK;
    r.sink = -INFINITY;
    rules_both(&r, "score = q == 1 ? inf - inf : score");
    T_SAME(r.dsink, 0);
    rules_end(&r);
}

/* ---- Joining with what is there ---------------------------------------------------------------------------------- */

TEST(accumulating_into_rows_that_attend_to_nothing_makes_no_nan) {
    rules r, fresh;
    rules_start(&r);
    rules_start(&fresh);
    /* row 0: nothing was there; row 1: nothing comes; row 2: neither */
    const double old_lse[ROWS] = {-INFINITY, 0.5, -INFINITY}, old_o[ROWS * WIDTH] = {NAN, INFINITY, 3, 4, NAN, NAN};
    r.p.flags = FXA_ACC_OUT;
    memcpy(r.o, old_o, sizeof old_o);
    memcpy(r.lse, old_lse, sizeof old_lse);
    rules_forward(&r, "mask = q == 0");
    rules_forward(&fresh, "mask = q == 0");
    T_CHECK(memcmp(r.o, fresh.o, WIDTH * sizeof(double)) == 0);
    T_SAME(r.lse[0], fresh.lse[0]);
    T_SAME(r.o[WIDTH], 3);
    T_SAME(r.o[WIDTH + 1], 4);
    T_SAME(r.lse[1], 0.5);
    T_CHECK(rules_all_zero(r.o + 2 * WIDTH, WIDTH));
    T_SAME(r.lse[2], -INFINITY);
    rules_end(&r);
    rules_end(&fresh);
}

TEST(accumulating_with_a_nan_lse_makes_nan_of_that_row) {
    rules r;
    rules_start(&r);
    r.p.flags = FXA_ACC_OUT;
    r.lse[1] = NAN;
    rules_forward(&r, "");
    T_CHECK(rules_all_finite(r.o, WIDTH) && rules_all_nan(r.o + WIDTH, WIDTH));
    T_CHECK(rules_all_finite(r.o + 2 * WIDTH, WIDTH));
    T_SAME(r.lse[1], NAN);
    rules_end(&r);
}

/* ---- A user's backward program ----------------------------------------------------------------------------------- */

TEST(bprop_replaces_the_derivative_by_score_only) { /* F-03 */
    rules r, own;
    const char *text = "param x : float\ntensor t : f64[1]\nscore = score * score * x + t[k]";
    rules_start(&r);
    rules_start(&own);
    r.x = own.x = 0.5;
    rules_both(&r, text);
    rules_forward(&own, text);
    rules_pass(&own, FXA_BACKWARD, text, "dscore = 2.0 * (2.0 * score * 0.5 * dscore)"); /* twice the right one */
    for (int i = 0; i < ROWS * WIDTH; i++) T_NEAR(own.dq[i], 2 * r.dq[i], 1e-14);
    for (int i = 0; i < KEYS * WIDTH; i++) T_NEAR(own.dk[i], 2 * r.dk[i], 1e-14);
    T_CHECK(memcmp(own.dv, r.dv, sizeof r.dv) == 0 && memcmp(own.dt, r.dt, sizeof r.dt) == 0);
    T_SAME(own.dx, r.dx);
    rules_end(&r);
    rules_end(&own);
}

TEST(bprop_leaves_the_gradient_of_params_alone) {
    rules r, own;
    const char *text = "param x : float\nscore = score * x";
    rules_start(&r);
    rules_start(&own);
    r.x = own.x = 0.5;
    rules_both(&r, text);
    rules_forward(&own, text);
    rules_pass(&own, FXA_BACKWARD, text, "dscore = 0.0");
    T_CHECK(r.dx != 0);
    T_SAME(own.dx, r.dx);
    T_CHECK(rules_all_zero(own.dq, ROWS * WIDTH) && rules_all_zero(own.dk, KEYS * WIDTH));
    rules_end(&r);
    rules_end(&own);
}

TEST(bprop_has_params_and_tensors_of_its_own) { /* F-01, under names that the program uses for others */
    rules r, own;
    const char *text = "param x : float\ntensor t : f64[1]\nscore = score + x * t[q]";
    rules_start(&r);
    rules_start(&own);
    r.x = own.x = 0.5;
    own.own_x = 3;
    for (int k = 0; k < KEYS; k++) own.own_t[k] = k + 1;
    rules_both(&r, text);
    rules_forward(&own, text);
    rules_pass(&own, FXA_BACKWARD, text, "param x : float\ntensor t : f64[1]\ndscore = dscore * x * t[k]");
    for (int i = 0; i < KEYS * WIDTH; i++) T_NEAR(own.dk[i], r.dk[i] * 3 * (i / WIDTH + 1), 1e-14);
    T_SAME(own.dx, r.dx);
    T_CHECK(memcmp(own.dt, r.dt, sizeof r.dt) == 0);
    rules_end(&r);
    rules_end(&own);
}

TEST(bprop_is_not_asked_about_pairs_without_gradient) {
    rules r;
    rules_start(&r);
    rules_forward(&r, "mask = k != 2");
    rules_pass(&r, FXA_BACKWARD, "mask = k != 2", "dscore = k == 2 ? inf : dscore + 1.0");
    T_CHECK(rules_gradients_are_finite(&r) && rules_all_zero(r.dk + 2 * WIDTH, WIDTH));
    memset(r.dout, 0, sizeof r.dout);
    memset(r.dlse, 0, sizeof r.dlse);
    rules_pass(&r, FXA_BACKWARD, "mask = k != 2", "dscore = dscore + 1.0");
    T_CHECK(rules_all_zero(r.dq, ROWS * WIDTH) && rules_all_zero(r.dk, KEYS * WIDTH));
    rules_end(&r);
}

/* ---- Ints, floats, loads: one pair whose new score is the maximum of its row ------------------------------------- */

static const struct { const char *expression; double want; } rules_values[] = {
    {"float(2147483647 + 1 + q)", -2147483648.0},         /* ints are 32 bit and wrap */
    {"float((q + 65536) * 65536)", 0},
    {"float(-(-2147483647 - 1 + q))", -2147483648.0},
    {"float((q + 7) // 0)", 0},                           /* x // 0 and x % 0 are 0 */
    {"float((q + 7) % 0)", 0},
    {"float((q - 7) // 2)", -4},                          /* floor */
    {"float((q - 7) % 4)", 1},
    {"float((q - 7) >> 1)", -4},                          /* arithmetic */
    {"float((q + 1) << 33)", 2},                          /* counts modulo 32 */
    {"float((q + 8) >> 33)", 4},
    {"float(int(float(q) + 3e9))", 2147483647.0},         /* int() truncates, saturates */
    {"float(int(float(q) - 2.7))", -2},
    {"float(int(float(q) + (inf - inf)))", 0},            /* NaN gives 0 */
    {"round(float(q) + 2.5) + round(float(q) + 3.5)", 6}, /* to even */
    {"float(q + 7) / 2", 3.5},                            /* / is a float division */
    {"min(float(q) + 1.0, inf - inf)", NAN},              /* NaN if either is */
    {"max(inf - inf, float(q) + 1.0)", NAN},
    {"float(q - 7) % 4.0", 1},
    {"score * 0.0 + 3.0", 3},
};

TEST(program_values_inside_attention) {
    for (size_t i = 0; i < sizeof rules_values / sizeof rules_values[0]; i++) {
        rules r;
        char text[256];
        rules_start(&r);
        r.p.sq = r.p.sk = 1;
        snprintf(text, sizeof text, "score = %s", rules_values[i].expression);
        rules_forward(&r, text);
        if (r.max[0] != rules_values[i].want && rules_values[i].want == rules_values[i].want)
            T_FAIL("%s is %.17g, not %.17g\n", text, r.max[0], rules_values[i].want);
        if (rules_values[i].want != rules_values[i].want) T_SAME(r.max[0], NAN);
        rules_end(&r);
    }
}

TEST(loads_count_from_the_end_and_read_zero_outside) {
    rules r;
    rules_start(&r);
    r.p.sq = 1;
    memset(r.q, 0, sizeof r.q);
    const int32_t index[] = {0, 3, 4, -1, -4, -5, 2147483647, -2147483647};
    for (int i = 0; i < 8; i++) {
        char text[128];
        snprintf(text, sizeof text, "tensor t : f64[1]\nscore = t[%d + q]", index[i]);
        rules_both(&r, text);
        int at = index[i] < 0 ? index[i] + KEYS : index[i];
        bool inside = at >= 0 && at < KEYS;
        T_SAME(r.max[0], inside ? r.t[at] : 0);
        for (int k = 0; k < KEYS; k++) /* with all scores equal the whole of dLSE arrives at that element */
            T_NEAR(r.dt[k], inside && k == at ? r.dlse[0] : 0, 1e-15);
    }
    rules_end(&r);
}

TEST(wide_ints_saturate_when_loaded) {
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_OK(fxa_program_parse(ctx, "tensor n : i64[1]\nscore = float(n[k])", SIZE_MAX, &program, &err));
    double one = 1, o, max[2];
    int64_t n[2] = {5000000000, -5000000000};
    const void *tensors[] = {n};
    fxa_capture capture = {.size = {2}};
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    p.b = p.hq = p.sq = p.sk = p.d = 1, p.q.dtype = FXA_F64, p.engine = ENGINE, p.flags = FXA_WANT_MAX;
    p.program = program, p.captures = &capture, p.n_captures = args.n_tensors = 1;
    args.slot[FXA_SLOT_Q] = args.slot[FXA_SLOT_K] = args.slot[FXA_SLOT_V] = &one;
    args.slot[FXA_SLOT_O] = &o, args.tensors = tensors;
    for (int i = 0; i < 2; i++) {
        p.map_k.base = i;
        args.slot[FXA_SLOT_MAX_ROW] = &max[i];
        T_OK(fxa_attention(ctx, &p, &args, &err));
    }
    T_SAME(max[0], 2147483647.0);
    T_SAME(max[1], -2147483648.0);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

/* ---- Derivatives: one pair with dLSE = 1 has exactly d score / d x as its gradient ------------------------------- */

static const struct { const char *expression; double x, want; } rules_slopes[] = {
    {"min(x, 2.0)", 2, 0.5},                     /* ties share */
    {"max(2.0, x)", 2, 0.5},
    {"min(x, x)", 2, 1},
    {"clamp(x, 0.0, 1.0)", 1, 1},                /* passes at the bounds */
    {"clamp(x, 0.0, 1.0)", 0, 1},
    {"clamp(x, 0.0, 1.0)", 1.5, 0},
    {"abs(x)", 0, 0},
    {"abs(x)", -3, -1},
    {"floor(x) + ceil(x) + round(x)", 1.25, 0},  /* none */
    {"float(int(x))", 1.25, 0},
    {"float(x > 1.0)", 1.25, 0},
    {"x > 1.0 ? x * x : 5.0", 3, 6},             /* select selects */
    {"x > 1.0 ? 5.0 : x * x", 3, 0},
    {"x > 0.0 ? log(x) : 0.0", 0, 0},            /* zero wins over 1 / 0 */
    {"x * x * x", 2, 12},
    {"sqrt(x)", 0.25, 1},
};

TEST(program_derivatives_inside_attention) {
    for (size_t i = 0; i < sizeof rules_slopes / sizeof rules_slopes[0]; i++) {
        rules r;
        char text[256];
        rules_start(&r);
        r.p.sq = r.p.sk = 1;
        r.dlse[0] = 1;
        r.x = rules_slopes[i].x;
        memset(r.dout, 0, sizeof r.dout);
        snprintf(text, sizeof text, "param x : float\nscore = score * 0.0 + (%s)", rules_slopes[i].expression);
        rules_both(&r, text);
        if (!(fabs(r.dx - rules_slopes[i].want) <= 1e-14))
            T_FAIL("d/dx %s at %g is %.17g, not %.17g\n", rules_slopes[i].expression, r.x, r.dx, rules_slopes[i].want);
        rules_end(&r);
    }
}

TEST(several_loads_of_one_tensor_add_up) { /* */
    rules r;
    rules_start(&r);
    r.p.sq = r.p.sk = 1;
    memset(r.dout, 0, sizeof r.dout);
    r.dlse[0] = 1;
    r.t[1] = 3;
    rules_both(&r, "tensor t : f64[1]\nscore = t[q + 1] * t[1] + 2.0 * t[-3]");
    T_NEAR(r.dt[1], 8, 1e-14);
    rules_end(&r);
}

T_MAIN
