/* SPDX-License-Identifier: Apache-2.0
 *
 * d score of single pairs, by fxa_program_eval: the derived derivative against finite differences of the program, and
 * the user's backward against the derived one, over sampled (b, h, q, k) and scores where the mask is true. */
#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define PAIRS_STEP       0x1p-9
#define PAIRS_TOLERANCE  1e-7
#define PAIRS_PER_SAMPLE 64

typedef struct pairs_worst {
    double error;
    int64_t compared, kinks;
    double at[FXA_INPUT_COUNT];
} pairs_worst;

static void pairs_note(pairs_worst *w, double got, double want, const double *in) {
    double error = got == want || (isnan(got) && isnan(want)) ? 0 : fabs(got - want) / (1 + fabs(want));
    if (isnan(error)) error = INFINITY;
    w->compared++;
    if (error > w->error) {
        w->error = error;
        memcpy(w->at, in, sizeof w->at);
    }
}

static const char *pairs_place(cli *c, const pairs_worst *w) {
    const double *at = w->at;
    if (!(w->error > 0)) return "";
    return cli_format(c, "b %.0f, h %.0f, q %.0f, k %.0f, score %.6g", at[FXA_INPUT_B], at[FXA_INPUT_H],
                      at[FXA_INPUT_Q], at[FXA_INPUT_K], at[FXA_INPUT_SCORE]);
}

static void pairs_draw(check_state *s, double *in) {
    const fxa_problem *p = &s->job->problem;
    cli_random *r = &s->random;
    in[FXA_INPUT_SCORE] = random_real(r, -3, 3);
    in[FXA_INPUT_B] = (double)(random_bits(r) % (uint64_t)p->b);
    in[FXA_INPUT_H] = (double)(random_bits(r) % (uint64_t)p->hq);
    in[FXA_INPUT_Q] = (double)(random_bits(r) % (uint64_t)p->sq);
    in[FXA_INPUT_K] = (double)(random_bits(r) % (uint64_t)p->sk);
    in[FXA_INPUT_Q_LEN] = (double)p->sq;
    in[FXA_INPUT_K_LEN] = (double)p->sk;
    in[FXA_INPUT_DSCORE] = random_real(r, 0.5, 1.5);
}

/* The program's value at `score`, everything else as in `in`. */
static int pairs_score(cli *c, check_state *s, const double *in, double score, double *value, int *mask) {
    double moved[FXA_INPUT_COUNT];
    fxa_error err;
    memcpy(moved, in, sizeof moved);
    moved[FXA_INPUT_SCORE] = score;
    if (fxa_program_eval(s->whole, moved, s->job->bind.params, s->job->bind.views, value, mask, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

static int pairs_difference(cli *c, check_state *s, const double *in, double derived, pairs_worst *w) {
    double v[4], x = in[FXA_INPUT_SCORE], h = PAIRS_STEP;
    static const double steps[4] = {1, -1, 2, -2};
    for (int i = 0; i < 4; i++) {
        int mask, rc = pairs_score(c, s, in, x + steps[i] * h, &v[i], &mask);
        if (rc != CLI_OK) return rc;
    }
    double fine = (v[0] - v[1]) / (2 * h), wide = (v[2] - v[3]) / (4 * h);
    if (!(fabs(fine - wide) <= 1e-3 * (1 + fabs(fine))))
        w->kinks++;
    else
        pairs_note(w, derived, in[FXA_INPUT_DSCORE] * (4 * fine - wide) / 3, in);
    return CLI_OK;
}

static int pairs_one(cli *c, check_state *s, const fxa_program *derivative, pairs_worst *differences,
                     pairs_worst *bprop) {
    const cli_binding *b = &s->job->bind, *own = &s->job->bprop_bind;
    double in[FXA_INPUT_COUNT], value, derived, users;
    fxa_error err;
    int mask, ignored;
    pairs_draw(s, in);
    int rc = pairs_score(c, s, in, in[FXA_INPUT_SCORE], &value, &mask);
    if (rc != CLI_OK || !mask) return rc;
    if (fxa_program_eval(derivative, in, b->params, b->views, &derived, &ignored, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    rc = pairs_difference(c, s, in, derived, differences);
    if (rc != CLI_OK || !s->job->bprop) return rc;
    if (fxa_program_eval(s->job->bprop, in, own->params, own->views, &users, &ignored, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    pairs_note(bprop, users, derived, in);
    return CLI_OK;
}

static void pairs_report(cli *c, check_state *s, const char *check, const pairs_worst *w, const char *what) {
    check_verdict verdict = !w->compared ? CHECK_SKIPPED : w->error <= PAIRS_TOLERANCE ? CHECK_PASSED : CHECK_FAILED;
    const char *note = cli_format(c, "%" PRId64 " pairs%s", w->compared,
                                  w->kinks ? cli_format(c, ", %" PRId64 " at kinks left out", w->kinks) : "");
    check_add(s, (check_finding){check, what, verdict, w->error, PAIRS_TOLERANCE, pairs_place(c, w), note});
}

int check_pairs(cli *c, check_state *s) {
    pairs_worst differences = {0}, bprop = {0};
    const fxa_problem *p = &s->job->problem;
    fxa_program *derivative;
    fxa_error err;
    int rc = CLI_OK;
    if (fxa_program_derivative(s->whole, &derivative, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, derivative);
    bool some = p->b > 0 && p->hq > 0 && p->sq > 0 && p->sk > 0;
    for (int64_t i = 0; some && rc == CLI_OK && i < s->samples * PAIRS_PER_SAMPLE; i++)
        rc = pairs_one(c, s, derivative, &differences, &bprop);
    if (rc != CLI_OK) return rc;
    pairs_report(c, s, "derivative", &differences, "d score");
    if (s->job->bprop) pairs_report(c, s, "bprop", &bprop, "d score");
    return CLI_OK;
}
