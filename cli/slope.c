/* SPDX-License-Identifier: Apache-2.0
 *
 * Is a claimed derivative the slope of a function? Central differences with halving steps, extrapolated to step 0 by
 * Ridders' tableau in h^2, which tells its own error; rounding is bounded by the caller. What is allowed is that error,
 * never a chosen tolerance.
 *
 * By rule and not by tolerance: where the slopes to both sides do not come together as steps shrink, the point lies at
 * a kink or jump and is counted as such. A claim is refuted only if the finest steps refute it too: a coarse step may
 * look converged on something that it does not resolve. */
#include "check.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#define SLOPE_LEVELS 48  /* halvings of the step: down to where it is lost in the point */
#define SLOPE_ORDER 4    /* columns: what lies between two kinks is forgotten after so many levels */
#define SLOPE_SAFETY 8   /* on the tableau's own estimate of its error */
#define SLOPE_SHARP 1e-6 /* relative error at which an estimate may speak */
#define SLOPE_CALM 4     /* levels in a row at which the sides come together, for a point to count as smooth */
#define SLOPE_NOISE 4    /* rounding of the finest difference in an extrapolated one: weights of up to 2, two sides */

typedef struct slope_search {
    double row[SLOPE_ORDER + 1]; /* the last one of the tableau */
    int rows;
    double value, error, noise; /* the estimate of this level; the part of its error that is rounding */
    double gap;                 /* between the slopes to both sides */
    int calm;                   /* levels since it last did not shrink, of those where it is more than rounding */
} slope_search;

static const slope_search slope_start = {.calm = SLOPE_CALM};

/* The tableau's next row, and the best estimate in it. */
static void slope_extend(slope_search *s, double central) {
    double row[SLOPE_ORDER + 1] = {central}, factor = 1;
    s->value = central;
    s->error = INFINITY;
    for (int m = 1; m <= SLOPE_ORDER && m <= s->rows; m++) {
        factor *= 4;
        row[m] = (factor * row[m - 1] - s->row[m - 1]) / (factor - 1);
        double apart = fmax(fabs(row[m] - row[m - 1]), fabs(row[m] - s->row[m - 1]));
        if (s->rows < 2 || SLOPE_SAFETY * apart + s->noise >= s->error) continue;
        s->value = row[m];
        s->error = SLOPE_SAFETY * apart + s->noise;
    }
    for (int m = 0; m <= SLOPE_ORDER; m++) s->row[m] = row[m];
    s->rows++;
}

/* The two sides: at a smooth point their distance halves with the step; at a kink it stays, over jumps it grows. */
static void slope_watch_sides(slope_search *s, const slope_step *step) {
    double gap = fabs(step->rise_up / step->up - step->rise_down / step->down);
    if (s->rows > 0 && gap > s->noise) s->calm = gap > 0.75 * s->gap ? 0 : s->calm + 1;
    s->gap = gap;
}

/* One level: false when the function is not finite around here. */
static bool slope_look(slope_search *s, const slope_step *step) {
    double central = (step->rise_up + step->rise_down) / (step->up + step->down);
    double noise = step->noise + 4 * DBL_EPSILON * (fabs(step->rise_up) + fabs(step->rise_down));
    s->noise = SLOPE_NOISE * noise / fmin(step->up, step->down);
    if (!isfinite(central) || !isfinite(s->noise)) {
        *s = slope_start;
        return false;
    }
    slope_watch_sides(s, step);
    slope_extend(s, central);
    return true;
}

/* What the levels so far hold against a claim. */
typedef struct slope_doubt {
    int refuted, quiet;     /* levels that refuted it, levels since the last of them */
    double slope, sharpest; /* of those the one with the least error, and that error */
    bool drifts;            /* another one says another slope */
} slope_doubt;

static const slope_doubt slope_no_doubt = {.sharpest = INFINITY};

static void slope_refute(slope_doubt *d, double slope, double error) {
    d->refuted++;
    d->quiet = 0;
    d->drifts = d->drifts || fabs(slope - d->slope) > error + d->sharpest;
    if (error < d->sharpest) d->slope = slope, d->sharpest = error;
}

/* Of a claim that no level agreed with. One slope at large steps and another at small ones: jumps in between. */
static slope_verdict slope_judge(const slope_search *s, const slope_doubt *d) {
    if (s->calm < SLOPE_CALM || d->drifts) return SLOPE_KINK;
    return d->refuted >= 2 && d->quiet <= 2 ? SLOPE_DIFFERS : SLOPE_UNKNOWN;
}

int slope_compare(cli *c, slope_fn f, void *user, double h, double claimed, double claimed_error, double scale,
                  slope_result *out) {
    slope_search s = slope_start;
    slope_doubt doubt = slope_no_doubt;
    bool finite = false, jump = false;
    *out = (slope_result){SLOPE_ROUNDING, 0, 0};
    if (claimed_error == INFINITY) return CLI_OK;
    for (int level = 0; level < SLOPE_LEVELS; level++, h /= 2) {
        slope_step step;
        int rc = f(c, user, h, &step);
        if (rc != CLI_OK) return rc;
        if (step.up == 0 || step.down == 0) break;
        if (step.jump) { /* what coarser steps said holds jumps as well */
            s = slope_start;
            doubt = slope_no_doubt;
            jump = true;
            continue;
        }
        if (!slope_look(&s, &step)) continue;
        finite = true;
        if (doubt.refuted && s.noise + claimed_error >= out->error) break; /* finer steps drown in rounding */
        doubt.quiet++;
        bool still = step.rise_up == 0 && step.rise_down == 0;
        double size = fmax(fmax(fabs(s.value), fabs(claimed)), scale);
        if (!(s.error <= SLOPE_SHARP * size || (s.error <= 2 * s.noise && (still || s.error <= size)))) continue;
        *out = (slope_result){SLOPE_AGREES, fabs(s.value - claimed), s.error + claimed_error};
        if (out->error <= out->tolerance) return CLI_OK;
        slope_refute(&doubt, s.value, out->tolerance);
    }
    out->verdict = finite ? slope_judge(&s, &doubt) : jump ? SLOPE_KINK : SLOPE_NOT_FINITE;
    return CLI_OK;
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

bool slope_count(slope_tally *t, const slope_result *r, int64_t index) {
    t->count[r->verdict]++;
    if (r->verdict != SLOPE_AGREES && r->verdict != SLOPE_DIFFERS) return false;
    double error = isnan(r->error) ? INFINITY : r->error;
    if (error == 0 || (t->tolerance > 0 && error / r->tolerance <= t->error / t->tolerance)) return false;
    t->error = error;
    t->tolerance = r->tolerance;
    t->at = index;
    return true;
}

int64_t slope_compared(const slope_tally *t) { return t->count[SLOPE_AGREES] + t->count[SLOPE_DIFFERS]; }

const char *const slope_left_out[SLOPE_VERDICTS][2] = {
    [SLOPE_KINK] = {"at kinks or jumps", "kinks"},
    [SLOPE_NOT_FINITE] = {"not finite", "not_finite"},
    [SLOPE_ROUNDING] = {"where rounding decides a jump", "rounding"},
    [SLOPE_UNKNOWN] = {"too steep to tell", "steep"},
};

const char *slope_note(cli *c, const slope_tally *t, const char *unit) {
    cli_buf b = {0};
    int64_t compared = slope_compared(t);
    buf_printf(&b, "%" PRId64 " %s%s", compared, unit, plural(compared));
    for (int i = 0; i < SLOPE_VERDICTS; i++)
        if (slope_left_out[i][0] && t->count[i])
            buf_printf(&b, ", %" PRId64 " left out: %s", t->count[i], slope_left_out[i][0]);
    const char *text = cli_format(c, "%s", b.data);
    buf_free(&b);
    return text;
}

check_verdict slope_verdict_of(const slope_tally *t) {
    return t->count[SLOPE_DIFFERS] ? CHECK_FAILED : t->count[SLOPE_AGREES] ? CHECK_PASSED : CHECK_SKIPPED;
}

const slope_tally *slope_keep(cli *c, const slope_tally *t) {
    slope_tally *copy = cli_alloc(c, sizeof *copy);
    *copy = *t;
    return copy;
}
