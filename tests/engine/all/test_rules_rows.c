/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of rows that every engine follows: which rows NaN and inf affect, which rows attend to no key, what a sink
 * does, and accumulation. Gradients are in test_rules_gradients.c. Expected values are literals.
 */
#include "support/oracle/rules.h"

/* ---- Rows: NaN, +inf, no attended key ---------------------------------------------------------------------------- */

/* Checks that row 1 is NaN with the row maximum `max`, and that the other rows have the results of the data without the
 * fault. */
static void rules_only_row_1_is_nan(rules *faulty, const char *text, double max) {
    rules clean;
    rules_start(&clean);
    rules_forward(&clean, "");
    rules_forward(faulty, text);
    T_CHECK(rules_all_nan(faulty->o + WIDTH, WIDTH));
    T_SAME(faulty->lse[1], NAN);
    T_SAME(faulty->max[1], max);
    for (int q = 0; q < rows; q++) {
        if (q == 1) continue;
        T_CHECK(memcmp(faulty->o + q * WIDTH, clean.o + q * WIDTH, WIDTH * sizeof(double)) == 0);
        T_SAME(faulty->lse[q], clean.lse[q]);
        T_SAME(faulty->max[q], clean.max[q]);
    }
    rules_end(&clean);
}

RULE(nan_score_makes_nan_of_its_own_row_and_no_other) {
    rules_only_row_1_is_nan(r, "score = q == 1 && k == 2 ? inf - inf : score", NAN);
}

RULE(plus_inf_score_makes_nan_of_its_own_row_and_no_other) {
    rules_only_row_1_is_nan(r, "score = q == 1 && k == 2 ? inf : score", INFINITY);
}

RULE(nan_query_makes_nan_of_its_own_row_and_no_other) {
    r->q[1 * WIDTH] = NAN;
    rules_only_row_1_is_nan(r, "", NAN);
}

RULE_PAIR(a_nan_row_reaches_no_other_rows_gradient, clean) {
    rules_both(r, "score = q == 1 && k == 2 ? inf - inf : score");
    rules_both(clean, "");
    T_CHECK(rules_all_nan(r->dq + WIDTH, WIDTH));
    T_CHECK(memcmp(r->dq, clean->dq, WIDTH * sizeof(double)) == 0);
    T_CHECK(memcmp(r->dq + 2 * WIDTH, clean->dq + 2 * WIDTH, (size_t)(rows - 2) * WIDTH * sizeof(double)) == 0);
    T_CHECK(rules_all_nan(r->dv, keys * WIDTH)); /* row 1 attends to every key */
    T_CHECK(rules_all_nan(r->dk, 2 * WIDTH) && rules_all_nan(r->dk + 3 * WIDTH, (keys - 3) * WIDTH));
    T_CHECK(rules_all_finite(r->dk + 2 * WIDTH, WIDTH)); /* the new score of key 2 does not depend on its score */
}

RULE_ALONE(row_that_attends_to_nothing_is_zero_with_lse_minus_inf_and_no_gradient) {
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

RULE(keys_of_a_row_that_attends_to_nothing_get_no_gradient_whatever_it_holds) {
    for (int q = 0; q < rows; q++) r->q[q * WIDTH] = NAN;
    r->dout[1] = INFINITY;
    rules_both(r, "mask = false");
    T_CHECK(rules_all_zero(r->dq, rows * WIDTH) && rules_all_zero(r->dk, keys * WIDTH));
    T_CHECK(rules_all_zero(r->dv, keys * WIDTH) && rules_all_zero(r->o, rows * WIDTH));
}

RULE(no_keys_at_all) {
    r->a.problem.sk = 0;
    rules_both(r, "");
    T_CHECK(rules_all_zero(r->o, rows * WIDTH) && rules_all_zero(r->dq, rows * WIDTH));
    for (int q = 0; q < rows; q++) T_SAME(r->lse[q], -INFINITY);
}

RULE_ALONE(nothing_at_all) { /* */
    rules r;
    for (int i = 0; i < 2; i++) {
        rules_start(&r);
        if (i == 0)
            r.a.problem.b = 0;
        else
            r.a.problem.sq = 0;
        rules_both(&r, "tensor t : f64[1]\nscore = score + t[k]");
        T_CHECK(rules_all_zero(r.o, rows * WIDTH) && rules_all_zero(r.lse, rows)); /* not written */
        if (i == 1) T_CHECK(rules_all_zero(r.dk, keys * WIDTH) && rules_all_zero(r.dv, keys * WIDTH));
        T_CHECK(rules_all_zero(r.dt, keys));
        rules_end(&r);
    }
}

RULE(absent_rows_and_keys_are_never_read_and_get_zeroes) {
    int32_t q_len = 2, k_len = 3;
    r->a.problem.flags = FXA_PADDING;
    r->a.ints[FXA_SLOT_Q_LENGTHS] = &q_len, r->a.ints[FXA_SLOT_K_LENGTHS] = &k_len;
    for (int i = q_len * WIDTH; i < rows * WIDTH; i++) r->q[i] = r->dout[i] = NAN;
    for (int i = k_len * WIDTH; i < keys * WIDTH; i++) r->k[i] = r->v[i] = INFINITY;
    for (int i = 0; i < RULES_MAX * WIDTH; i++) r->o[i] = r->dq[i] = r->dk[i] = r->dv[i] = 7;
    rules_both(r, "");
    T_CHECK(rules_all_finite(r->o, q_len * WIDTH) && rules_all_finite(r->lse, q_len) && rules_gradients_are_finite(r));
    T_CHECK(rules_all_zero(r->o + q_len * WIDTH, (rows - q_len) * WIDTH));
    T_CHECK(rules_all_zero(r->dq + q_len * WIDTH, (rows - q_len) * WIDTH));
    T_CHECK(rules_all_zero(r->dk + k_len * WIDTH, (keys - k_len) * WIDTH));
    T_CHECK(rules_all_zero(r->dv + k_len * WIDTH, (keys - k_len) * WIDTH));
    for (int q = q_len; q < rows; q++) T_SAME(r->lse[q], -INFINITY);
    for (int q = q_len; q < rows; q++) T_SAME(r->max[q], -INFINITY);
}

/* ---- Masks that are large negative numbers ----------------------------------------------------------------------- */

static const char *const rules_masks[] = {"-1e30", "-1e9", "-3.3e38", "-65504.0"};

RULE_ALONE(large_negative_scores_mask_like_minus_inf_where_others_are_attended) {
    for (int i = 0; i < 4; i++) {
        rules r, clean;
        char text[128];
        rules_start(&r);
        rules_start(&clean);
        snprintf(text, sizeof text, "score = k > 1 ? %s : score", rules_masks[i]);
        rules_both(&r, text);
        rules_both(&clean, "mask = k <= 1");
        for (int j = 0; j < rows * WIDTH; j++) R_NEAR(r.o[j], clean.o[j]);
        for (int j = 0; j < rows * WIDTH; j++) R_NEAR(r.dq[j], clean.dq[j]);
        T_CHECK(rules_all_zero(r.dv + 2 * WIDTH, (keys - 2) * WIDTH) && rules_gradients_are_finite(&r));
        rules_end(&r);
        rules_end(&clean);
    }
}

RULE_ALONE(a_row_of_equal_large_negative_scores_is_the_average) {
    for (int i = 0; i < 4; i++) {
        rules r;
        char text[128];
        double mean[WIDTH] = {0};
        rules_start(&r);
        snprintf(text, sizeof text, "score = q == 1 ? %s : score", rules_masks[i]);
        rules_forward(&r, text);
        for (int j = 0; j < keys * WIDTH; j++) mean[j % WIDTH] += r.v[j] / keys;
        for (int j = 0; j < WIDTH; j++) R_NEAR(r.o[WIDTH + j], mean[j]);
        T_SAME(r.max[1], rules_row_value(atof(rules_masks[i])));
        T_CHECK(rules_all_finite(r.o, rows * WIDTH) && rules_all_finite(r.lse, rows));
        rules_end(&r);
    }
}

/* ---- Sinks ------------------------------------------------------------------------------------------------------- */

RULE_ALONE(with_a_sink_a_row_without_keys_attends_to_the_sink_alone) {
    rules r;
    rules_start(&r);
    r.a.problem.flags = FXA_SINKS;
    r.sink = 0.75;
    rules_both(&r, "mask = q != 1");
    T_CHECK(rules_all_zero(r.o + WIDTH, WIDTH) && rules_all_zero(r.dq + WIDTH, WIDTH));
    T_SAME(r.lse[1], 0.75);
    T_SAME(r.max[1], -INFINITY);
    rules_end(&r);

    rules_start(&r);
    r.a.problem.flags = FXA_SINKS;
    r.sink = 0.75;
    rules_both(&r, "mask = false");
    double sum = 0;
    for (int q = 0; q < rows; q++) sum += r.dlse[q];
    R_NEAR(r.dsink, sum);
    rules_end(&r);

    rules_start(&r);
    r.a.problem.flags = FXA_SINK_ZERO;
    rules_both(&r, "mask = false");
    T_SAME(r.lse[1], 0);
    rules_end(&r);
}

RULE_PAIR(row_maximum_is_of_the_scores_without_the_sink, plain) {
    r->a.problem.flags = FXA_SINKS;
    r->sink = 50;
    rules_forward(r, "");
    rules_forward(plain, "");
    for (int q = 0; q < rows; q++) T_SAME(r->max[q], plain->max[q]);
    T_CHECK(r->lse[0] >= 50);
}

RULE_ALONE(sink_of_minus_inf_is_no_sink_and_nan_or_plus_inf_makes_nan) {
    const double sinks[] = {-INFINITY, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        rules r, plain;
        rules_start(&r);
        rules_start(&plain);
        r.a.problem.flags = FXA_SINKS;
        r.sink = sinks[i];
        rules_both(&r, "");
        rules_both(&plain, "");
        if (i == 0) {
            T_CHECK(memcmp(r.o, plain.o, sizeof r.o) == 0 && memcmp(r.dk, plain.dk, sizeof r.dk) == 0);
            T_SAME(r.dsink, 0);
        } else {
            T_CHECK(rules_all_nan(r.o, rows * WIDTH) && rules_all_nan(r.lse, rows));
            T_CHECK(rules_all_finite(r.max, rows));
        }
        rules_end(&r);
        rules_end(&plain);
    }
}

RULE(sink_of_a_nan_row_that_is_minus_inf_gets_no_gradient) {
    r->a.problem.flags = FXA_SINKS;
    r->sink = -INFINITY;
    rules_both(r, "score = q == 1 ? inf - inf : score");
    T_SAME(r->dsink, 0);
}

/* ---- Merging with existing rows ---------------------------------------------------------------------------------- */

RULE_PAIR(accumulating_into_rows_that_attend_to_nothing_makes_no_nan, fresh) {
    /* row 0: no existing result; row 1: no new result; other rows: neither */
    r->a.problem.flags = FXA_ACCUMULATE_O;
    for (int q = 0; q < rows; q++) r->lse[q] = -INFINITY, r->o[q * WIDTH] = NAN, r->o[q * WIDTH + 1] = INFINITY;
    r->lse[1] = 0.5, r->o[WIDTH] = 3, r->o[WIDTH + 1] = 4;
    rules_forward(r, "mask = q == 0");
    rules_forward(fresh, "mask = q == 0");
    for (int i = 0; i < WIDTH; i++) R_NEAR(r->o[i], fresh->o[i]);
    T_SAME(r->lse[0], fresh->lse[0]);
    T_SAME(r->o[WIDTH], 3);
    T_SAME(r->o[WIDTH + 1], 4);
    T_SAME(r->lse[1], 0.5);
    T_CHECK(rules_all_zero(r->o + 2 * WIDTH, (rows - 2) * WIDTH));
    for (int q = 2; q < rows; q++) T_SAME(r->lse[q], -INFINITY);
}

RULE(accumulating_with_a_nan_lse_makes_nan_of_that_row) {
    r->a.problem.flags = FXA_ACCUMULATE_O;
    r->lse[1] = NAN;
    rules_forward(r, "");
    T_CHECK(rules_all_finite(r->o, WIDTH) && rules_all_nan(r->o + WIDTH, WIDTH));
    T_CHECK(rules_all_finite(r->o + 2 * WIDTH, (rows - 2) * WIDTH));
    T_SAME(r->lse[1], NAN);
}

T_MAIN
