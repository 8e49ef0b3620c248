/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of gradients that every engine follows: which operands a weight or derivative of exactly 0 excludes from
 * gradients, including NaN and inf, and how backward uses the given LSE. Rules of rows are in test_rules_rows.c.
 */
#include "support/oracle/rules.h"

/* ---- Zero wins --------------------------------------------------------------------------------------------------- */

/* Checks that key 2, which contains NaN and inf only and which no row attends to, affects no gradient of its own or of
 * others. */
static void rules_key_2_is_out(const char *text) {
    rules r;
    rules_start(&r);
    double *key = r.k + 2 * WIDTH, *value = r.v + 2 * WIDTH;
    key[0] = NAN, key[1] = INFINITY, value[0] = INFINITY, value[1] = NAN, r.t[2] = NAN, r.x = 0.5;
    rules_both(&r, text);
    T_CHECK(rules_all_finite(r.o, rows * WIDTH) && rules_all_finite(r.lse, rows) && rules_all_finite(r.max, rows));
    T_CHECK(rules_gradients_are_finite(&r));
    T_CHECK(rules_all_zero(r.dk + 2 * WIDTH, WIDTH) && rules_all_zero(r.dv + 2 * WIDTH, WIDTH) && r.dt[2] == 0);
    rules_end(&r);
}

RULE_ALONE(zero_wins_nan_and_inf_in_a_masked_pair_reach_nothing) {
    rules_key_2_is_out("mask = k != 2");
    rules_key_2_is_out("param x : float\ntensor t : f64[1]\nscore = score * t[k] + x * t[k]\nmask = k != 2");
}

RULE_ALONE(zero_wins_nan_and_inf_in_a_pair_of_probability_zero_reach_nothing) {
    rules_key_2_is_out("score = k == 2 ? -inf : score");
    rules_key_2_is_out("param x : float\ntensor t : f64[1]\nscore = k == 2 ? -inf : score * t[k] + x");
    /* exp(-1e9) underflows to 0 */
    rules_key_2_is_out("param x : float\ntensor t : f64[1]\nscore = k == 2 ? -1e9 : score * t[k] + x");
}

RULE_PAIR(zero_wins_inf_value_of_a_dropped_pair_reaches_nothing, kept) {
    r->a.problem.flags = kept->a.problem.flags = FXA_DROPOUT;
    r->a.problem.dropout_p = kept->a.problem.dropout_p = 0.5;
    kept->a.problem.sq = r->a.problem.sq = 1;
    memset(kept->v, 0, sizeof kept->v);
    kept->v[3 * WIDTH] = 1; /* keeps O at 0 where the seed drops key 3 of row 0 */
    for (uint64_t seed = 0; seed < 64; seed++) {
        kept->a.seed = r->a.seed = seed;
        rules_forward(kept, "");
        if (kept->o[0] == 0) break;
    }
    T_SAME(kept->o[0], 0);
    r->v[3 * WIDTH] = INFINITY, r->v[3 * WIDTH + 1] = NAN;
    rules_both(r, "");
    T_CHECK(rules_all_finite(r->o, WIDTH) && rules_gradients_are_finite(r));
    T_CHECK(rules_all_zero(r->dv + 3 * WIDTH, WIDTH));
}

RULE(zero_wins_nan_in_a_branch_not_taken_reaches_no_gradient) {
    memset(r->t, 0, sizeof r->t);
    r->t[0] = -1, r->t[1] = 0.5, r->t[2] = -3;
    r->x = -2;
    rules_both(r, "param x : float\ntensor t : f64[1]\nscore = score + (t[k] > 0 ? log(t[k]) + sqrt(t[k]) : 0.0)\n"
                  "score = x > 0 ? score * log(x) : score");
    T_CHECK(rules_gradients_are_finite(r));
    T_CHECK(r->dt[0] == 0 && r->dt[2] == 0 && r->dt[3] == 0 && r->dt[1] != 0 && r->dx == 0);
}

RULE(zero_wins_an_inf_key_of_a_pair_without_score_gradient_stays_out_of_dq) {
    r->k[2 * WIDTH] = INFINITY; /* the score is not used, so its gradient is exactly 0 */
    rules_both(r, "score = k == 2 ? 0.25 : score");
    T_CHECK(rules_gradients_are_finite(r) && rules_all_zero(r->dk + 2 * WIDTH, WIDTH));
    T_CHECK(r->dv[2 * WIDTH] != 0);
}

/* NaN and inf in Q and K do not reach P, because the new score does not read the score; its derivative is 2. */
RULE(zero_wins_a_scale_of_zero_keeps_nan_and_inf_of_q_and_k_out_of_dq_and_dk) {
    r->q[WIDTH] = NAN, r->q[2 * WIDTH + 1] = INFINITY, r->k[2 * WIDTH] = INFINITY, r->k[3 * WIDTH] = NAN;
    r->a.scale = 0;
    rules_both(r, "score = with_grad(float(q - k), score * 2.0)");
    T_CHECK(rules_all_finite(r->o, rows * WIDTH) && rules_all_finite(r->dv, keys * WIDTH));
    T_CHECK(rules_all_zero(r->dq, rows * WIDTH) && rules_all_zero(r->dk, keys * WIDTH));
}

RULE(zero_wins_over_an_infinite_derivative_when_nothing_is_asked) { /* dO = 0 and dLSE = 0 */
    memset(r->dout, 0, sizeof r->dout);
    memset(r->dlse, 0, sizeof r->dlse);
    rules_both(r, "param x : float\ntensor t : f64[1]\nscore = score + sqrt(x) + sqrt(t[k] - t[k])");
    T_CHECK(rules_all_zero(r->dq, rows * WIDTH) && rules_all_zero(r->dk, keys * WIDTH));
    T_CHECK(rules_all_zero(r->dt, keys) && r->dx == 0);
}

/* ---- LSE as given
 * ------------------------------------------------------------------------------------------------- */

RULE(lse_minus_inf_given_to_backward_means_no_gradient) {
    rules_forward(r, "");
    for (int q = 0; q < rows; q++) r->lse[q] = -INFINITY;
    r->o[0] = NAN; /* not looked at */
    rules_pass(r, FXA_BACKWARD, "", NULL);
    T_CHECK(rules_all_zero(r->dq, rows * WIDTH) && rules_all_zero(r->dk, keys * WIDTH));
    T_CHECK(rules_all_zero(r->dv, keys * WIDTH));
}

RULE(lse_nan_given_to_backward_makes_nan_of_its_row_and_of_the_keys_it_attends) {
    rules_forward(r, "mask = q != 1 || k < 2");
    r->lse[1] = NAN;
    rules_pass(r, FXA_BACKWARD, "mask = q != 1 || k < 2", NULL);
    T_CHECK(rules_all_finite(r->dq, WIDTH) && rules_all_nan(r->dq + WIDTH, WIDTH));
    T_CHECK(rules_all_finite(r->dq + 2 * WIDTH, (rows - 2) * WIDTH));
    T_CHECK(rules_all_nan(r->dk, 2 * WIDTH) && rules_all_finite(r->dk + 2 * WIDTH, (keys - 2) * WIDTH));
    T_CHECK(rules_all_nan(r->dv, 2 * WIDTH) && rules_all_finite(r->dv + 2 * WIDTH, (keys - 2) * WIDTH));
}

RULE_PAIR(lse_is_never_computed_again, half) { /* keys of another shard have half of the probability */
    rules_both(r, "");
    rules_forward(half, "");
    for (int q = 0; q < rows; q++) half->lse[q] += log(2);
    rules_pass(half, FXA_BACKWARD, "", NULL);
    for (int i = 0; i < keys * WIDTH; i++) R_NEAR(half->dv[i], r->dv[i] / 2);
}

T_MAIN
