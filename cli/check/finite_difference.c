/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks a claimed derivative against central differences with halving steps, extrapolated to step 0 by Ridders'
 * tableau in h^2. The tableau estimates its own error, and the caller bounds rounding; no tolerance is chosen.
 *
 * If the differences to the left and right of a point do not converge to each other as steps shrink, the point counts
 * as a kink or a jump. A claim fails only if the finest steps contradict it too: a coarse step can look converged on
 * details that it does not resolve.
 */
#include "check/check.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#define FD_LEVELS 48  /* maximum number of halvings of the step; at the end the step vanishes against the point */
#define FD_ORDER 4    /* columns of the tableau: after this many levels, older differences have no influence */
#define FD_SAFETY 8   /* factor on the tableau's error estimate */
#define FD_SHARP 1e-6 /* maximum relative error of an estimate that is used */
#define FD_CALM 4     /* consecutive levels in which left and right must converge for a point to count as smooth */
/* Rounding error of the extrapolated value relative to that of the finest difference: weights of up to 2, two sides. */
#define FD_NOISE 4

typedef struct fd_search {
    double row[FD_ORDER + 1]; /* last row of the tableau */
    int rows;
    double value, error, noise; /* extrapolated value, its error, and the part of the error that is rounding */
    double gap;                 /* distance between the left and the right difference */
    /* number of levels since the gap last failed to shrink; only levels whose gap exceeds rounding count */
    int calm;
} fd_search;

static const fd_search fd_start = {.calm = FD_CALM};

/* Appends a row to the tableau and selects its best estimate. */
static void fd_extend(fd_search *s, double central) {
    double row[FD_ORDER + 1] = {central}, factor = 1;
    s->value = central;
    s->error = INFINITY;
    for (int m = 1; m <= FD_ORDER && m <= s->rows; m++) {
        factor *= 4;
        row[m] = (factor * row[m - 1] - s->row[m - 1]) / (factor - 1);
        double apart = fmax(fabs(row[m] - row[m - 1]), fabs(row[m] - s->row[m - 1]));
        if (s->rows < 2 || FD_SAFETY * apart + s->noise >= s->error) continue;
        s->value = row[m];
        s->error = FD_SAFETY * apart + s->noise;
    }
    for (int m = 0; m <= FD_ORDER; m++) s->row[m] = row[m];
    s->rows++;
}

/* Compares the left with the right difference: at a smooth point their distance halves with the step, at a kink it
 * stays, across jumps it grows. */
static void fd_compare_sides(fd_search *s, const fd_step *step) {
    double gap = fabs(step->rise_up / step->up - step->rise_down / step->down);
    if (s->rows > 0 && gap > s->noise) s->calm = gap > 0.75 * s->gap ? 0 : s->calm + 1;
    s->gap = gap;
}

/* Adds the differences of one step to the tableau. Returns false if the function is not finite near the point. */
static bool fd_add_level(fd_search *s, const fd_step *step) {
    double central = (step->rise_up + step->rise_down) / (step->up + step->down);
    double noise = step->noise + 4 * DBL_EPSILON * (fabs(step->rise_up) + fabs(step->rise_down));
    s->noise = FD_NOISE * noise / fmin(step->up, step->down);
    if (!isfinite(central) || !isfinite(s->noise)) {
        *s = fd_start;
        return false;
    }
    fd_compare_sides(s, step);
    fd_extend(s, central);
    return true;
}

/* Levels (step sizes) that contradict a claimed derivative. */
typedef struct fd_doubt {
    int refuted, quiet;     /* number of levels that contradict the claim; number of levels after the last of these */
    double slope, sharpest; /* derivative at the contradicting level with the smallest error, and that error */
    bool drifts;            /* two contradicting levels differ by more than their errors */
} fd_doubt;

static const fd_doubt fd_no_doubt = {.sharpest = INFINITY};

static void fd_refute(fd_doubt *d, double slope, double error) {
    d->refuted++;
    d->quiet = 0;
    d->drifts = d->drifts || fabs(slope - d->slope) > error + d->sharpest;
    if (error < d->sharpest) d->slope = slope, d->sharpest = error;
}

/* Returns the verdict on a claim that agrees with no level. If large and small steps give different derivatives, there
 * are jumps between them. */
static fd_verdict fd_judge(const fd_search *s, const fd_doubt *d) {
    if (s->calm < FD_CALM || d->drifts) return FD_KINK;
    return d->refuted >= 2 && d->quiet <= 2 ? FD_DIFFERS : FD_UNKNOWN;
}

int fd_compare(cli *c, fd_fn f, void *user, double h, double claimed, double claimed_error, double scale,
               fd_result *out) {
    fd_search s = fd_start;
    fd_doubt doubt = fd_no_doubt;
    bool finite = false, jump = false;
    *out = (fd_result){FD_ROUNDING, 0, 0};
    if (claimed_error == INFINITY) return CLI_OK;
    for (int level = 0; level < FD_LEVELS; level++, h /= 2) {
        fd_step step;
        int rc = f(c, user, h, &step);
        if (rc != CLI_OK) return rc;
        if (step.up == 0 || step.down == 0) break;
        if (step.jump) { /* coarser steps contain the same jump */
            s = fd_start;
            doubt = fd_no_doubt;
            jump = true;
            continue;
        }
        if (!fd_add_level(&s, &step)) continue;
        finite = true;
        /* at finer steps the rounding error exceeds the difference to be measured */
        if (doubt.refuted && s.noise + claimed_error >= out->error) break;
        doubt.quiet++;
        bool still = step.rise_up == 0 && step.rise_down == 0;
        double size = fmax(fmax(fabs(s.value), fabs(claimed)), scale);
        if (!(s.error <= FD_SHARP * size || (s.error <= 2 * s.noise && (still || s.error <= size)))) continue;
        *out = (fd_result){FD_AGREES, fabs(s.value - claimed), s.error + claimed_error};
        if (out->error <= out->tolerance) return CLI_OK;
        fd_refute(&doubt, s.value, out->tolerance);
    }
    out->verdict = finite ? fd_judge(&s, &doubt) : jump ? FD_KINK : FD_NOT_FINITE;
    return CLI_OK;
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

bool fd_count(fd_tally *t, const fd_result *r, int64_t index) {
    t->count[r->verdict]++;
    if (r->verdict != FD_AGREES && r->verdict != FD_DIFFERS) return false;
    double error = isnan(r->error) ? INFINITY : r->error;
    if (error == 0 || (t->tolerance > 0 && error / r->tolerance <= t->error / t->tolerance)) return false;
    t->error = error;
    t->tolerance = r->tolerance;
    t->at = index;
    return true;
}

int64_t fd_compared(const fd_tally *t) { return t->count[FD_AGREES] + t->count[FD_DIFFERS]; }

const char *const fd_left_out[FD_VERDICTS][2] = {
    [FD_KINK] = {"at kinks or jumps", "kinks"},
    [FD_NOT_FINITE] = {"not finite", "not_finite"},
    [FD_ROUNDING] = {"where rounding decides a jump", "rounding"},
    [FD_UNKNOWN] = {"too steep to tell", "steep"},
};

const char *fd_note(cli *c, const fd_tally *t, const char *unit) {
    cli_buf b = {0};
    int64_t compared = fd_compared(t);
    buf_printf(&b, "%" PRId64 " %s%s", compared, unit, plural(compared));
    for (int i = 0; i < FD_VERDICTS; i++)
        if (fd_left_out[i][0] && t->count[i])
            buf_printf(&b, ", %" PRId64 " left out: %s", t->count[i], fd_left_out[i][0]);
    const char *text = cli_format(c, "%s", b.data);
    buf_free(&b);
    return text;
}

check_verdict fd_verdict_of(const fd_tally *t) {
    return t->count[FD_DIFFERS] ? CHECK_FAILED : t->count[FD_AGREES] ? CHECK_PASSED : CHECK_SKIPPED;
}

const fd_tally *fd_keep(cli *c, const fd_tally *t) {
    fd_tally *copy = cli_alloc(c, sizeof *copy);
    *copy = *t;
    return copy;
}
