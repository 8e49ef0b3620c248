/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks d score of single pairs, at random (b, h, q, k) and scores where the mask is true: the derived derivative
 * against finite differences of the program in f64, and the user-written backward against the derived one. The
 * user-written backward must agree within f32 arithmetic, because constants written by hand have no more digits.
 */
#include "check/check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define PAIRS_STEP 0x1p-4
#define PAIRS_PER_SAMPLE 64
#define PAIRS_SAFETY 2 /* factor on error bounds, which are of first order */

typedef struct pairs_point {
    check_state *s;
    double in[FXA_INPUT_COUNT];
    double value, error; /* value of the program at the point, in f64, and its error */
} pairs_point;

/* Evaluates a program at one pair. out[0] receives the program's first result: the new score or d score. Returns an
 * exit code. */
static int pairs_term(cli *c, const fxa_program *program, const cli_binding *b, const double *in, fxa_dtype arithmetic,
                      fxa_bounded_result out[2]) {
    fxa_error err;
    size_t count = 2;
    if (fxa_program_eval_bounds(program, in, NULL, arithmetic, b->params, b->views, out, &count, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

/* Returns a random score: from -3 to 3, or in one of four draws with a magnitude up to 64, to reach clamps and branches
 * that a wrong backward may lack. */
static double pairs_draw_score(cli_random *r) {
    if (random_bits(r) % 4 != 0) return random_real(r, -3, 3);
    double size = exp2(random_real(r, 1.5, 6));
    return random_bits(r) % 2 ? size : -size;
}

static void pairs_draw(check_state *s, double *in) {
    const fxa_problem *p = &s->job->problem;
    cli_random *r = &s->random;
    in[FXA_INPUT_SCORE] = pairs_draw_score(r);
    in[FXA_INPUT_B] = (double)(random_bits(r) % (uint64_t)p->b);
    in[FXA_INPUT_H] = (double)(random_bits(r) % (uint64_t)p->hq);
    in[FXA_INPUT_Q_ROW] = (double)(random_bits(r) % (uint64_t)p->sq);
    in[FXA_INPUT_Q] = in[FXA_INPUT_Q_ROW] + (double)problem_row_shift(p);
    in[FXA_INPUT_K] = in[FXA_INPUT_K_ROW] = (double)(random_bits(r) % (uint64_t)p->sk);
    in[FXA_INPUT_Q_LEN] = (double)p->sq;
    in[FXA_INPUT_K_LEN] = (double)p->sk;
    in[FXA_INPUT_HEADS] = (double)p->hq;
    in[FXA_INPUT_DSCORE] = random_real(r, 0.5, 1.5);
}

/* Sets *jump if the program may jump while its score moves by h, by evaluating the program with h as the error of the
 * score. */
static int pairs_find_jump(cli *c, const pairs_point *p, double h, bool *jump) {
    const double error[FXA_INPUT_COUNT] = {[FXA_INPUT_SCORE] = h};
    const cli_binding *b = &p->s->wide->bind;
    fxa_bounded_result terms[2];
    size_t count = 2;
    fxa_error err;
    if (fxa_program_eval_bounds(p->s->run_program, p->in, error, FXA_F64, b->params, b->views, terms, &count, &err) !=
        FXA_OK)
        return cli_fail_library(c, &err, NULL);
    *jump = terms[0].error == INFINITY;
    return CLI_OK;
}

/* Evaluates one step of the score. The differences are multiplied by dscore, because the derivative to compare contains
 * dscore as a factor. */
static int pairs_step(cli *c, void *user, double h, fd_step *out) {
    pairs_point *p = user;
    double in[FXA_INPUT_COUNT], x = p->in[FXA_INPUT_SCORE], dscore = p->in[FXA_INPUT_DSCORE];
    volatile double hi = x + h, lo = x - h;
    fxa_bounded_result up[2], down[2];
    memcpy(in, p->in, sizeof in);
    in[FXA_INPUT_SCORE] = hi;
    int rc = pairs_term(c, p->s->run_program, &p->s->wide->bind, in, FXA_F64, up);
    in[FXA_INPUT_SCORE] = lo;
    if (rc == CLI_OK) rc = pairs_term(c, p->s->run_program, &p->s->wide->bind, in, FXA_F64, down);
    if (rc != CLI_OK) return rc;
    double noise = p->error + fmax(up[0].error, down[0].error);
    *out = (fd_step){hi - x,         x - lo, dscore * (up[0].value - p->value), dscore * (p->value - down[0].value),
                     dscore * noise, false};
    return pairs_find_jump(c, p, fmax(out->up, out->down), &out->jump);
}

/* Compares the d score of the user-written backward with the derived one, in f32, then in f64 if f32 is too
 * inaccurate. */
static int pairs_compare_bprop(cli *c, const pairs_point *p, fd_result *out) {
    static const fxa_dtype arithmetic[] = {FXA_F32, FXA_F64};
    fxa_bounded_result derived[2], users[2];
    double allowed = INFINITY;
    for (int i = 0; i < 2 && !(allowed < INFINITY); i++) {
        int rc = pairs_term(c, p->s->derivative, &p->s->wide->bind, p->in, arithmetic[i], derived);
        if (rc == CLI_OK) rc = pairs_term(c, p->s->job->bprop, &p->s->job->bprop_bind, p->in, arithmetic[i], users);
        if (rc != CLI_OK) return rc;
        allowed = PAIRS_SAFETY * (derived[0].error + users[0].error);
    }
    double error = fabs(users[0].value - derived[0].value);
    *out = (fd_result){FD_AGREES, error, allowed};
    if (!isfinite(derived[0].value))
        out->verdict = FD_NOT_FINITE;
    else if (!(allowed < INFINITY))
        out->verdict = FD_ROUNDING;
    else if (!(error <= allowed))
        out->verdict = FD_DIFFERS;
    return CLI_OK;
}

typedef struct pairs_sum {
    fd_tally tally;
    double at[FXA_INPUT_COUNT]; /* inputs of the pair with the largest error / tolerance */
} pairs_sum;

static void pairs_count_result(pairs_sum *sum, const fd_result *r, const double *in) {
    if (fd_count(&sum->tally, r, 0)) memcpy(sum->at, in, sizeof sum->at);
}

static int pairs_one(cli *c, check_state *s, pairs_sum *differences, pairs_sum *bprop) {
    pairs_point p = {.s = s};
    fxa_bounded_result score[2], derived[2];
    fd_result r;
    pairs_draw(s, p.in);
    int rc = pairs_term(c, s->run_program, &s->wide->bind, p.in, FXA_F64, score);
    if (rc != CLI_OK || score[1].value == 0) return rc;
    p.value = score[0].value;
    p.error = score[0].error;
    rc = pairs_term(c, s->derivative, &s->wide->bind, p.in, FXA_F64, derived);
    if (rc == CLI_OK && !s->has_with_grad)
        rc = fd_compare(c, pairs_step, &p, PAIRS_STEP, derived[0].value,
                        p.error < INFINITY ? PAIRS_SAFETY * derived[0].error : INFINITY,
                        fabs(p.in[FXA_INPUT_DSCORE] * p.value), &r);
    if (rc != CLI_OK) return rc;
    if (!s->has_with_grad) pairs_count_result(differences, &r, p.in);
    if (!s->job->bprop) return CLI_OK;
    rc = pairs_compare_bprop(c, &p, &r);
    if (rc == CLI_OK) pairs_count_result(bprop, &r, p.in);
    return rc;
}

static void pairs_report(cli *c, check_state *s, const char *check, const pairs_sum *sum) {
    const double *at = sum->at;
    const char *place = "";
    if (sum->tally.error > 0)
        place = cli_format(c, "b %.0f, h %.0f, q %.0f, k %.0f, score %.6g", at[FXA_INPUT_B], at[FXA_INPUT_H],
                           at[FXA_INPUT_Q], at[FXA_INPUT_K], at[FXA_INPUT_SCORE]);
    check_add(s, (check_finding){check, "d score", fd_verdict_of(&sum->tally), sum->tally.error, sum->tally.tolerance,
                                 place, fd_note(c, &sum->tally, "pair"), fd_keep(c, &sum->tally), false});
}

int check_pairs(cli *c, check_state *s) {
    pairs_sum differences = {0}, bprop = {0};
    const fxa_problem *p = &s->job->problem;
    int rc = CLI_OK;
    bool some = p->b > 0 && p->hq > 0 && p->sq > 0 && p->sk > 0;
    for (int64_t i = 0; some && rc == CLI_OK && i < s->samples * PAIRS_PER_SAMPLE; i++)
        rc = pairs_one(c, s, &differences, &bprop);
    if (rc != CLI_OK) return rc;
    if (s->has_with_grad)
        check_add_with_grad(s, "d score");
    else
        pairs_report(c, s, "derivative", &differences);
    if (s->job->bprop) pairs_report(c, s, "bprop", &bprop);
    return CLI_OK;
}
