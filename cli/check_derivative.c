/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients against central finite differences of L = sum(dO * O) + sum(dLSE * LSE), in f64 on the reference engine, at
 * sampled elements of Q, K, V, every float tensor and every float param. Float tensors are widened to f64 for it, so
 * that steps are exact. Two step sizes give one Richardson value of order h^4. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIFF_STEP 0x1p-9
/* Truncation is about h^4 = 1.5e-11 times a fifth derivative, rounding about 1e-16 / h times the size of L. */
#define DIFF_TOLERANCE 1e-6

/* The canonical text with every float tensor declared as f64. */
static int diff_widen_program(cli *c, const fxa_program *program, fxa_program **out) {
    const char *text = program_text(c, program);
    static const char *const narrow[] = {"f32[", "bf16[", "f16["};
    cli_buf wide = {0};
    fxa_error err;
    if (!text) return cli_exit_code(c->error.status);
    while (*text) {
        size_t n = strcspn(text, "\n") + 1, cut = 0;
        const char *colon = strncmp(text, "tensor ", 7) == 0 ? memchr(text, ':', n) : NULL;
        if (!text[n - 1]) n--;
        for (int i = 0; colon && i < 3; i++)
            if (strncmp(colon + 2, narrow[i], strlen(narrow[i])) == 0) cut = strlen(narrow[i]);
        if (cut) {
            buf_add(&wide, text, (size_t)(colon + 2 - text));
            buf_text(&wide, "f64[");
            buf_add(&wide, colon + 2 + cut, n - (size_t)(colon + 2 + (ptrdiff_t)cut - text));
        } else
            buf_add(&wide, text, n);
        text += n;
    }
    fxa_status status = fxa_program_parse(c->ctx, wide.data ? wide.data : "", wide.size, out, &err);
    buf_free(&wide);
    if (status != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, *out);
    return CLI_OK;
}

/* A copy of the job in which float tensors are f64, dense and writable. */
static int diff_widen(cli *c, const cli_job *job, cli_job **out) {
    cli_job *wide = *out = cli_alloc(c, sizeof *wide);
    *wide = *job;
    int rc = diff_widen_program(c, job->program, &wide->program);
    wide->problem.program = wide->program;
    wide->problem.captures = wide->bind.captures;
    for (size_t i = 0; rc == CLI_OK && i < wide->bind.n_tensors; i++) {
        fxa_view *view = &wide->bind.views[i];
        npy a = {.dtype = view->dtype, .rank = view->rank, .count = 1, .data = (void *)(uintptr_t)view->data};
        if (!dtype_is_float(view->dtype)) continue;
        for (int d = 0; d < a.rank; d++) {
            a.size[d] = view->size[d];
            a.stride[d] = view->stride[d];
            a.count *= a.size[d];
        }
        view->dtype = FXA_F64;
        view->data = wide->bind.data[i] = npy_as_float(c, &a, FXA_F64);
        wide->bind.captures[i].strided = 0;
    }
    return rc;
}

typedef struct diff_state {
    trial *t;
    const trial_data *data;
    double *o, *lse; /* of the run before */
} diff_state;

/* (L(x + h) - L(x - h)) / 2h, summed element by element so that little cancels. */
static int diff_central(cli *c, diff_state *d, double *x, double h, double *out) {
    double keep = *x, sum = 0;
    const double *o = d->t->args.slot[FXA_SLOT_O], *lse = d->t->args.slot[FXA_SLOT_LSE];
    int64_t n_o = d->data->count[DATA_DO], n_lse = d->data->count[DATA_DLSE];
    volatile double hi = keep + h, lo = keep - h;
    *x = hi;
    int rc = trial_run(c, d->t, FXA_FORWARD);
    memcpy(d->o, o, (size_t)n_o * sizeof(double));
    memcpy(d->lse, lse, (size_t)n_lse * sizeof(double));
    *x = lo;
    if (rc == CLI_OK) rc = trial_run(c, d->t, FXA_FORWARD);
    *x = keep;
    for (int64_t i = 0; i < n_o; i++) sum += d->data->value[DATA_DO][i] * (d->o[i] - o[i]);
    for (int64_t i = 0; i < n_lse; i++)
        if (d->lse[i] != lse[i]) sum += d->data->value[DATA_DLSE][i] * (d->lse[i] - lse[i]);
    *out = sum / (hi - lo);
    return rc;
}

typedef struct diff_tally {
    double worst;
    int64_t at, compared, kinks, not_finite;
} diff_tally;

/* Steps shrink until the values agree. When they never do, it is a failure only if finite differences agree with
 * themselves; else the point lies at a kink or jump. */
static int diff_point(cli *c, diff_state *d, double *x, double gradient, int64_t index, diff_tally *tally) {
    double least = INFINITY, h = DIFF_STEP * fmax(1, fabs(*x));
    bool steady = false, finite = false;
    for (int try = 0; try < 4 && !(least <= DIFF_TOLERANCE); try++, h /= 16) {
        double wide, fine;
        int rc = diff_central(c, d, x, 2 * h, &wide);
        if (rc == CLI_OK) rc = diff_central(c, d, x, h, &fine);
        if (rc != CLI_OK) return rc;
        double best = (4 * fine - wide) / 3, error = fabs(best - gradient) / (1 + fabs(gradient));
        finite = finite || isfinite(best);
        steady = steady || fabs(fine - wide) <= DIFF_TOLERANCE * (1 + fabs(fine));
        if (error < least) least = error;
    }
    if (!finite && !isfinite(gradient))
        tally->not_finite++;
    else if (!(least <= DIFF_TOLERANCE) && !steady && isfinite(gradient))
        tally->kinks++;
    else {
        tally->compared++;
        if (least > tally->worst) {
            tally->worst = least;
            tally->at = index;
        }
    }
    return CLI_OK;
}

/* All of a small array, else `samples` elements by chance. */
static int diff_array(cli *c, check_state *s, diff_state *d, const char *what, double *x, const trial_array *gradient) {
    diff_tally tally = {0, 0, 0, 0, 0};
    int64_t n = gradient->count < s->samples ? gradient->count : s->samples;
    for (int64_t i = 0; i < n; i++) {
        int64_t index = n == gradient->count ? i : (int64_t)(random_bits(&s->random) % (uint64_t)gradient->count);
        int rc = diff_point(c, d, x + index, ((const double *)gradient->data)[index], index, &tally);
        if (rc != CLI_OK) return rc;
        progress_step((uint64_t)i);
    }
    const char *note =
        cli_format(c, "%lld points%s%s", (long long)tally.compared,
                   tally.kinks ? cli_format(c, ", %lld at kinks left out", (long long)tally.kinks) : "",
                   tally.not_finite ? cli_format(c, ", %lld not finite", (long long)tally.not_finite) : "");
    check_verdict verdict = !tally.compared                 ? CHECK_SKIPPED
                            : tally.worst <= DIFF_TOLERANCE ? CHECK_PASSED
                                                            : CHECK_FAILED;
    check_add(s, (check_finding){"derivative", what, verdict, tally.worst, DIFF_TOLERANCE,
                                 tally.worst > 0 ? check_place(c, gradient, tally.at) : "", note});
    return CLI_OK;
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
    cli_job *wide;
    diff_state d = {NULL, &s->data, NULL, NULL};
    int rc = diff_widen(c, s->job, &wide);
    if (rc == CLI_OK) rc = trial_make(c, wide, &s->data, FXA_F64, "ref", true, false, &d.t);
    if (rc == CLI_OK) rc = trial_run(c, d.t, FXA_FORWARD);
    if (rc == CLI_OK) rc = trial_run(c, d.t, FXA_BACKWARD);
    if (rc != CLI_OK) return rc;
    d.o = cli_alloc_array(c, s->data.count[DATA_DO], sizeof(double));
    d.lse = cli_alloc_array(c, s->data.count[DATA_DLSE], sizeof(double));
    for (size_t i = 0; rc == CLI_OK && i < d.t->n_arrays; i++) {
        const trial_array *a = &d.t->arrays[i];
        if (!a->backward || a->count == 0) continue;
        progress_begin(cli_format(c, "finite differences of %s", a->name),
                       (uint64_t)(a->count < s->samples ? a->count : s->samples));
        rc = diff_array(c, s, &d, a->name, diff_input(d.t, wide, a), a);
        progress_end();
    }
    return rc;
}
