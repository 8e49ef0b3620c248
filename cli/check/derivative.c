/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares gradients with finite differences of L = sum(dO * O) + sum(dLSE * LSE), in f64 on the reference engine, at
 * random elements of Q, K, V, every float tensor and every float param. The differences of O and LSE are summed element
 * by element, so that little cancels. An element that changed adds its error bound to the error of the difference; an
 * unchanged element adds half an ulp, which could hide a change.
 */
#include "check/bound.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define DIFF_STEP 0x1p-6
#define DIFF_GROSS 1e-6 /* relative error beyond which rounding in f64 is no explanation */

typedef struct diff_state {
    trial *t;
    const trial_data *data;
    check_bound bound;       /* bounds of forward and backward in f64 */
    double *base[2], *up[2]; /* O and LSE at the point, and at one step above the point */
    double *x;               /* the input element that is varied */
    size_t array;            /* index of the gradient that is checked, at element `index` */
    int64_t index;
    bool look;       /* true = search for jumps; set when finite differences contradict the claimed derivative */
    bound_work work; /* scratch memory of the search for jumps */
} diff_state;

/* Returns the error of a gradient element, under the assumption that rounding decides jumps as in the reference. The
 * engine checked here is the reference; if the assumption is wrong, the differences show it. */
static double diff_error(const diff_state *d, size_t array, int64_t index) {
    return bound_allowed(&d->bound, array, index, (bound_products){0});
}

/* Computes sum(weight * (to - from)) over O and LSE, and a bound of its rounding error. */
static void diff_difference(const diff_state *d, double *const from[2], double *const to[2], double *rise,
                            double *noise) {
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

/* Sets *jump if the pair jumps for a score with an error of `error`, but not for an exact score. Jumps whose cause is
 * other rounding (as in the bucket of a distance) do not count, because they have the same outcome in all runs of the
 * check. */
static int diff_pair_jumps(cli *c, bound_work *w, double error, bool *jump) {
    bool open[2];
    for (int moved = 0; moved < 2; moved++) {
        int rc = bound_terms(c, w, w->s->run_program, &w->s->wide->bind, moved ? error : 0, 0);
        if (rc != CLI_OK) return rc;
        open[moved] = w->terms[0].error == INFINITY || w->terms[1].error != 0;
    }
    *jump = open[1] && !open[0];
    return CLI_OK;
}

/* Sets *jump if a pair of row (b, h, q) may jump while *d->x moves by h. For an element of Q or K, scores move as the
 * product Q K^T does. An element of a tensor or param is assumed to affect a pair at least as much as a score that
 * moves by the same proportion. */
static int diff_row_jumps(cli *c, diff_state *d, int64_t row, double h, bool *jump) {
    bound_work *w = &d->work;
    const fxa_problem *p = w->p;
    int64_t head = row / p->sq % p->hq, b = row / p->sq / p->hq, kv = (b * p->hkv + head / problem_group(p)) * p->sk,
            at = d->index / p->d_qk, feature = d->index % p->d_qk;
    bool by_q = d->array == BOUND_DQ, by_k = d->array == BOUND_DK;
    if ((by_q && row != at) || (by_k && (at < kv || at >= kv + p->sk))) return CLI_OK;
    int rc = bound_row_scores(c, w, b, head, row % p->sq);
    for (int64_t k = by_k ? at - kv : 0; rc == CLI_OK && !*jump && k < (by_k ? at - kv + 1 : p->sk); k++) {
        double move = by_q   ? fabs(w->scale * w->k[(kv + k) * p->d_qk + feature])
                      : by_k ? fabs(w->scale * w->q[row * p->d_qk + feature])
                             : fmax(1, fabs(w->score[k]));
        w->in[FXA_INPUT_K] = w->in[FXA_INPUT_K_ROW] = (double)k;
        w->in[FXA_INPUT_SCORE] = w->score[k];
        rc = diff_pair_jumps(c, w, w->e_score[k] + h * move, jump);
    }
    return rc;
}

static int diff_find_jump(cli *c, diff_state *d, double h, bool *jump) {
    int rc = CLI_OK;
    *jump = false;
    if (!d->look || d->array == BOUND_DV) return CLI_OK; /* V does not affect scores */
    for (int64_t row = 0; rc == CLI_OK && !*jump && row < d->t->arrays[BOUND_LSE].count; row++)
        rc = diff_row_jumps(c, d, row, h, jump);
    return rc;
}

static int diff_step(cli *c, void *user, double h, fd_step *out) {
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
    diff_difference(d, d->base, d->up, &out->rise_up, &out->noise);
    diff_difference(d, now, d->base, &out->rise_down, &noise);
    out->noise = fmax(out->noise, noise);
    return rc == CLI_OK ? diff_find_jump(c, d, fmax(out->up, out->down), &out->jump) : rc;
}

static int diff_compare(cli *c, const check_state *s, diff_state *d, double *x, fd_result *r) {
    double claimed = ((const double *)d->t->arrays[d->array].data)[d->index];
    int rc = CLI_OK;
    d->x = x + d->index;
    *r = (fd_result){FD_NOT_FINITE, 0, 0};
    if (s->culprit.found && !isfinite(claimed)) return CLI_OK; /* L is not finite either: nothing to compare */
    for (int look = 0; rc == CLI_OK && look < 2 && (!look || r->verdict == FD_DIFFERS); look++) {
        d->look = look;
        rc = fd_compare(c, diff_step, d, DIFF_STEP * fmax(1, fabs(*d->x)), claimed, diff_error(d, d->array, d->index),
                        d->bound.size[d->array][d->index], r);
    }
    /* The difference is too large for rounding, and smaller than the claimed derivative. Its cause may be steps that
     * cross many small jumps, which look like another derivative. */
    bool gross = r->verdict == FD_DIFFERS && r->error > DIFF_GROSS * fabs(claimed) && r->error < fabs(claimed) / 2;
    if (r->verdict != FD_AGREES && !gross && bound_is_unsure(&d->bound, d->array, d->index))
        r->verdict = FD_ROUNDING; /* the error bound does not hold for an unsure element */
    return rc;
}

/* Returns a random element. Every second drawn element has a nonzero gradient, if the array has any: a sparsely read
 * table has few, and checking other elements shows only that no pair reads them. */
static int64_t diff_draw(check_state *s, const trial_array *gradient, int64_t sample) {
    const double *claimed = gradient->data;
    uint64_t bits = random_bits(&s->random);
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < gradient->count; i++) n += claimed[i] != 0;
    if (n == 0 || sample % 2) return (int64_t)(bits % (uint64_t)gradient->count);
    for (int64_t left = (int64_t)(bits % (uint64_t)n) + 1;; at++)
        if (claimed[at] != 0 && --left == 0) return at;
}

/* Checks all elements of a small array, or `samples` random elements of a larger one. Returns an exit code. */
static int diff_array(cli *c, check_state *s, diff_state *d, size_t array, double *x) {
    fd_tally tally = {0};
    const trial_array *gradient = &d->t->arrays[array];
    int64_t n = gradient->count < s->samples ? gradient->count : s->samples;
    progress_begin(c, cli_format(c, "finite differences of %s", gradient->name), (uint64_t)n);
    int rc = CLI_OK;
    for (int64_t i = 0; rc == CLI_OK && i < n; i++) {
        fd_result r;
        d->array = array;
        d->index = n == gradient->count ? i : diff_draw(s, gradient, i);
        rc = diff_compare(c, s, d, x, &r);
        if (rc == CLI_OK) fd_count(&tally, &r, d->index);
        progress_step((uint64_t)i);
    }
    progress_end();
    check_add(s, (check_finding){"derivative", gradient->name, fd_verdict_of(&tally), tally.error, tally.tolerance,
                                 tally.error > 0 ? check_place(c, gradient, tally.at) : "", fd_note(c, &tally, "point"),
                                 fd_keep(c, &tally), false});
    return rc;
}

/* Returns the input that a gradient belongs to: Q, K or V by slot, tensors and params in the binding. */
static double *diff_input(trial *t, cli_job *job, const trial_array *a) {
    if (strcmp(a->name, "dQ") == 0) return t->args.slot[FXA_SLOT_Q];
    if (strcmp(a->name, "dK") == 0) return t->args.slot[FXA_SLOT_K];
    if (strcmp(a->name, "dV") == 0) return t->args.slot[FXA_SLOT_V];
    int32_t tensor = fxa_program_tensor_find(job->program, a->name + 2),
            param = fxa_program_param_find(job->program, a->name + 2);
    return tensor >= 0 ? (double *)(uintptr_t)job->bind.data[tensor] : &job->bind.params[param];
}

void check_add_with_grad(check_state *s, const char *what) {
    check_add(s,
              (check_finding){"derivative", what, CHECK_SKIPPED, 0, 0, "",
                              "not compared: the program has a with_grad, whose derivative is meant to be another than "
                              "finite differences are",
                              /* ref is not compared with itself, so no engine was compared */
                              NULL, strcmp(s->engine, "ref") == 0});
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
    check_reach(s, d->t);
    for (size_t a = BOUND_O; a <= BOUND_LSE; a++) {
        int64_t count = d->t->arrays[a].count;
        d->base[a] = cli_alloc_array(c, count, sizeof(double));
        d->up[a] = cli_alloc_array(c, count, sizeof(double));
        memcpy(d->base[a], d->t->arrays[a].data, (size_t)count * sizeof(double));
    }
    rc = bound_start(c, s, d->t, &d->bound, &d->work);
    for (size_t i = BOUND_DQ; rc == CLI_OK && i < d->t->n_arrays; i++)
        if (s->has_with_grad && i != BOUND_DV) /* dV depends on scores, not on their derivative */
            check_add_with_grad(s, d->t->arrays[i].name);
        else if (d->t->arrays[i].count)
            rc = diff_array(c, s, d, i, diff_input(d->t, s->wide, &d->t->arrays[i]));
    return rc;
}
