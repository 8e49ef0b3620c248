/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients against finite differences of L = sum(dO * O) + sum(dLSE * LSE), in f64 on the reference engine, at sampled
 * elements of Q, K, V, every float tensor and every float param. Differences are summed element by element, so that
 * little cancels. Rounding counts by its bound where something moved, elsewhere by the half ulp that hides a move. */
#include "check_bound.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define DIFF_STEP 0x1p-6

typedef struct diff_state {
    trial *t;
    const trial_data *data;
    check_bound bound;       /* of forward and backward, in f64 */
    double *base[2], *up[2]; /* O and LSE at the point, and one step above it */
    double *x;               /* what is moved */
} diff_state;

/* What an element may be off by; INFINITY where a jump is too near to say. */
static double diff_error(const diff_state *d, size_t array, int64_t index) {
    return bound_is_unsure(&d->bound, array, index) ? INFINITY : bound_allowed(&d->bound, array, index, 0);
}

/* sum(weight * (to - from)) over O and LSE, and the rounding in it. */
static void diff_rise(const diff_state *d, double *const from[2], double *const to[2], double *rise, double *noise) {
    static const int weights[] = {DATA_DO, DATA_DLSE};
    *rise = *noise = 0;
    for (size_t a = BOUND_O; a <= BOUND_LSE; a++)
        for (int64_t i = 0; i < d->t->arrays[a].count; i++) {
            double weight = d->data->value[weights[a]][i], x = from[a][i], y = to[a][i];
            if ((isnan(x) && isnan(y)) || weight == 0) continue;
            if (x == y) {
                if (isfinite(x)) *noise += DBL_EPSILON * fabs(weight * x);
                continue;
            }
            *rise += weight * (y - x);
            *noise += 2 * fabs(weight) * diff_error(d, a, i);
        }
}

static int diff_step(cli *c, void *user, double h, slope_step *out) {
    diff_state *d = user;
    double keep = *d->x, noise;
    volatile double hi = keep + h, lo = keep - h;
    double *now[2] = {d->t->arrays[BOUND_O].data, d->t->arrays[BOUND_LSE].data};
    *d->x = hi;
    int rc = trial_run(c, d->t, FXA_FORWARD);
    for (size_t a = BOUND_O; a <= BOUND_LSE; a++)
        memcpy(d->up[a], now[a], (size_t)d->t->arrays[a].count * sizeof(double));
    *d->x = lo;
    if (rc == CLI_OK) rc = trial_run(c, d->t, FXA_FORWARD);
    *d->x = keep;
    out->up = hi - keep;
    out->down = keep - lo;
    diff_rise(d, d->base, d->up, &out->rise_up, &out->noise);
    diff_rise(d, now, d->base, &out->rise_down, &noise);
    out->noise = fmax(out->noise, noise);
    return rc;
}

/* All of a small array, else `samples` elements by chance. */
static int diff_array(cli *c, check_state *s, diff_state *d, size_t array, double *x) {
    slope_tally tally = {0};
    const trial_array *gradient = &d->t->arrays[array];
    int64_t n = gradient->count < s->samples ? gradient->count : s->samples;
    progress_begin(cli_format(c, "finite differences of %s", gradient->name), (uint64_t)n);
    int rc = CLI_OK;
    for (int64_t i = 0; rc == CLI_OK && i < n; i++) {
        int64_t index = n == gradient->count ? i : (int64_t)(random_bits(&s->random) % (uint64_t)gradient->count);
        slope_result r;
        double claimed = ((const double *)gradient->data)[index];
        d->x = x + index;
        if (s->culprit.found && !isfinite(claimed)) /* L is not finite either */
            r = (slope_result){SLOPE_NOT_FINITE, 0, 0};
        else
            rc = slope_compare(c, diff_step, d, DIFF_STEP * fmax(1, fabs(*d->x)), claimed, diff_error(d, array, index),
                               &r);
        if (rc == CLI_OK) slope_count(&tally, &r, index);
        progress_step((uint64_t)i);
    }
    progress_end();
    check_add(s, (check_finding){"derivative", gradient->name, slope_verdict_of(&tally), tally.error, tally.tolerance,
                                 tally.error > 0 ? check_place(c, gradient, tally.at) : "",
                                 slope_note(c, &tally, "points")});
    return rc;
}

/* Where the input of a gradient lies: Q K V by slot, tensors and params in the binding. */
static double *diff_input(trial *t, cli_job *job, const trial_array *a) {
    if (strcmp(a->name, "dQ") == 0) return t->args.slot[FXA_SLOT_Q];
    if (strcmp(a->name, "dK") == 0) return t->args.slot[FXA_SLOT_K];
    if (strcmp(a->name, "dV") == 0) return t->args.slot[FXA_SLOT_V];
    int32_t tensor = fxa_program_tensor_find(job->program, a->name + 2),
            param = fxa_program_param_find(job->program, a->name + 2);
    return tensor >= 0 ? (double *)(uintptr_t)job->bind.data[tensor] : &job->bind.params[param];
}

int check_derivative(cli *c, check_state *s) {
    diff_state *d = cli_alloc(c, sizeof *d);
    d->data = &s->data;
    int rc = trial_make(c, s->wide, &s->data, FXA_F64, "ref", true, false, &d->t);
    if (rc == CLI_OK) rc = trial_run(c, d->t, FXA_FORWARD);
    if (rc == CLI_OK) rc = bound_forward(c, s, d->t, FXA_F64, &d->bound);
    if (rc == CLI_OK) rc = trial_run(c, d->t, FXA_BACKWARD);
    if (rc == CLI_OK) rc = bound_backward(c, s, d->t, false, &d->bound);
    if (rc != CLI_OK) return rc;
    for (size_t a = BOUND_O; a <= BOUND_LSE; a++) {
        int64_t count = d->t->arrays[a].count;
        d->base[a] = cli_alloc_array(c, count, sizeof(double));
        d->up[a] = cli_alloc_array(c, count, sizeof(double));
        memcpy(d->base[a], d->t->arrays[a].data, (size_t)count * sizeof(double));
    }
    for (size_t i = BOUND_DQ; rc == CLI_OK && i < d->t->n_arrays; i++)
        if (d->t->arrays[i].count) rc = diff_array(c, s, d, i, diff_input(d->t, s->wide, &d->t->arrays[i]));
    return rc;
}
