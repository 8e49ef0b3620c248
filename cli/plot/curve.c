/* SPDX-License-Identifier: Apache-2.0
 *
 * Curves of the new score and its derivative over the raw score, for programs that are not linear in the score: soft
 * caps, powers, temperatures. There is one curve if the new score depends only on the raw score; else there are curves
 * of three attended pairs: near the diagonal, half way, far from it.
 */
#include "plot/plot.h"

#include <math.h>

#define CURVE_REACH 6.0
#define CURVE_WALK 1024

/* Returns the range of raw scores of a curve: three times a soft cap, so that the saturation is visible. */
static double curve_reach(const cli_job *job, const fxa_properties *properties) {
    double cap = properties->softcap_param >= 0 ? job->bind.params[properties->softcap_param] : properties->softcap;
    bool capped = properties->flags & FXA_PROPERTY_SOFTCAP && isfinite(cap) && cap != 0;
    return capped ? fmax(3 * fabs(cap), 1e-3) : CURVE_REACH;
}

static int curve_fill(cli *c, const cli_job *job, const fxa_program *program, const fxa_program *derivative, plot *p,
                      plot_curve *curve, bool *attended) {
    double in[FXA_INPUT_COUNT] = {0,
                                  (double)p->b,
                                  (double)p->h,
                                  (double)(curve->q + problem_row_shift(&job->problem)),
                                  (double)curve->k,
                                  (double)p->q.size,
                                  (double)p->k.size,
                                  1,
                                  (double)job->problem.hq,
                                  (double)curve->q,
                                  (double)curve->k};
    fxa_error err;
    *attended = false;
    for (int i = 0; i < PLOT_POINTS; i++) {
        int mask, ignored;
        in[FXA_INPUT_SCORE] = p->reach * (2.0 * i / (PLOT_POINTS - 1) - 1);
        if (fxa_program_eval(program, in, job->bind.params, job->bind.views, &curve->value[i], &mask, &err) != FXA_OK ||
            fxa_program_eval(derivative, in, job->bind.params, job->bind.views, &curve->slope[i], &ignored, &err) !=
                FXA_OK)
            return cli_fail_library(c, &err, NULL);
        if (!mask || !isfinite(curve->value[i])) {
            curve->value[i] = mask && curve->value[i] != -INFINITY ? (double)NAN : -INFINITY;
            curve->slope[i] = (double)NAN;
            continue;
        }
        *attended = true;
        p->curve_lo = fmin(p->curve_lo, curve->value[i]);
        p->curve_hi = fmax(p->curve_hi, curve->value[i]);
    }
    return CLI_OK;
}

/* Sets *k to the largest key below *k that row q attends to, skipping a limited number of masked keys. */
static int curve_find_key(cli *c, const cli_job *job, const fxa_program *program, const plot *p, int64_t q,
                          int64_t *k) {
    double in[FXA_INPUT_COUNT] = {p->at,
                                  (double)p->b,
                                  (double)p->h,
                                  (double)(q + problem_row_shift(&job->problem)),
                                  0,
                                  (double)p->q.size,
                                  (double)p->k.size,
                                  0,
                                  (double)job->problem.hq,
                                  (double)q};
    for (int64_t at = *k; at >= 0 && at > *k - CURVE_WALK; at--) {
        double value;
        int mask;
        fxa_error err;
        in[FXA_INPUT_K] = in[FXA_INPUT_K_ROW] = (double)at;
        if (fxa_program_eval(program, in, job->bind.params, job->bind.views, &value, &mask, &err) != FXA_OK)
            return cli_fail_library(c, &err, NULL);
        if (!mask || !isfinite(value)) continue;
        *k = at;
        break;
    }
    return CLI_OK;
}

static bool curve_is_same(const plot_curve *a, const plot_curve *b) {
    for (int i = 0; i < PLOT_POINTS; i++)
        if (a->value[i] != b->value[i] && !(isnan(a->value[i]) && isnan(b->value[i]))) return false;
    return true;
}

/* Returns true if the derivative is 1 wherever there is a value: such a curve is a bias, which the cells show
 * already. */
static bool curve_is_straight(const plot_curve *a) {
    for (int i = 0; i < PLOT_POINTS; i++)
        if (isfinite(a->value[i]) && a->slope[i] != 1) return false;
    return true;
}

int plot_make_curves(cli *c, const cli_job *job, const fxa_program *program, plot *p) {
    fxa_properties properties;
    fxa_program *derivative;
    fxa_error err;
    fxa_program_properties(program, &properties);
    uint32_t pair = 1u << FXA_INPUT_Q | 1u << FXA_INPUT_K | 1u << FXA_INPUT_Q_ROW | 1u << FXA_INPUT_K_ROW;
    bool bends = properties.score_depends >> FXA_INPUT_SCORE & 1 &&
                 !(properties.flags & (FXA_PROPERTY_PURE_MASK | FXA_PROPERTY_ADDITIVE | FXA_PROPERTY_IDENTITY));
    int64_t last_q = p->q.size - 1, last_k = p->k.size - 1;
    int64_t diagonal = last_q + p->first_q;
    int64_t at[PLOT_CURVES][2] = {{last_q, diagonal < last_k ? diagonal : last_k}, {last_q, last_k / 2}, {last_q, 0}};
    if (!bends) return CLI_OK;
    if (fxa_program_derivative(program, &derivative, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, derivative);
    p->reach = curve_reach(job, &properties);
    p->curve_lo = INFINITY;
    p->curve_hi = -INFINITY;
    for (int i = 0; i < PLOT_CURVES; i++) {
        plot_curve *curve = &p->curve[p->curves];
        bool attended;
        curve->q = at[i][0];
        curve->k = at[i][1];
        int rc = curve_find_key(c, job, program, p, curve->q, &curve->k);
        if (rc == CLI_OK) rc = curve_fill(c, job, program, derivative, p, curve, &attended);
        if (rc != CLI_OK) return rc;
        p->curves += attended && !(p->curves && curve_is_same(curve, curve - 1));
        if (attended && !(properties.score_depends & pair)) break; /* all pairs have this curve */
    }
    p->curve_by_pair = properties.score_depends & pair;
    bends = false;
    for (int i = 0; i < p->curves; i++) bends = bends || !curve_is_straight(&p->curve[i]);
    if (!bends) p->curves = 0;
    return CLI_OK;
}
