/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine against the reference on the same rounded data, and against itself: two runs must be equal bit by bit. */
#include "check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *check_place(cli *c, const trial_array *a, int64_t index) {
    static const char *const axes[] = {"b", "h", "row", "feature"};
    cli_buf b = {0};
    int64_t at[FXA_MAX_RANK] = {0};
    bool named = a->rank >= 3 && (a->name[0] != 'd' || a->name[1] != ' ');
    for (int d = a->rank - 1; d >= 0; d--) {
        at[d] = index % a->size[d];
        index /= a->size[d];
    }
    for (int d = 0; d < a->rank; d++) {
        if (named)
            buf_printf(&b, "%s%s %" PRId64, d ? ", " : "", axes[d], at[d]);
        else
            buf_printf(&b, "%s%" PRId64, d ? ", " : "element ", at[d]);
    }
    const char *text = cli_format(c, "%s", b.size ? b.data : "");
    buf_free(&b);
    return text;
}

/* Errors of an array are measured against its largest element: sums round relative to their largest terms. The factor
 * leaves room for sums over some thousand terms in the engine's arithmetic and one rounding to storage. */
static double check_tolerance(fxa_dtype dtype) {
    switch ((int)dtype) {
    case FXA_F64:
        return 4096 * 0x1p-53;
    case FXA_F32:
        return 4096 * 0x1p-24;
    case FXA_F16:
        return 8 * 0x1p-11;
    default:
        return 8 * 0x1p-8;
    }
}

static void check_compare(cli *c, check_state *s, const trial_array *got, const trial_array *want) {
    double scale = 0, worst = 0;
    int64_t at = 0, bad = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double w = fabs(element_get(want->dtype, want->data, i));
        if (isfinite(w) && w > scale) scale = w;
    }
    for (int64_t i = 0; i < want->count; i++) {
        double g = element_get(got->dtype, got->data, i), w = element_get(want->dtype, want->data, i);
        bool same = g == w || (isnan(g) && isnan(w));
        double error = same ? 0 : isfinite(g) && isfinite(w) ? fabs(g - w) / (scale > 0 ? scale : 1) : INFINITY;
        bad += isinf(error);
        if (error > worst) {
            worst = error;
            at = i;
        }
    }
    double stored = check_tolerance(want->dtype), shared = check_tolerance((fxa_dtype)s->job->problem.q.dtype);
    double tolerance = stored > shared ? stored : shared; /* O, which backward reads again, was rounded to q's dtype */
    check_add(s, (check_finding){"engine", want->name, worst <= tolerance ? CHECK_PASSED : CHECK_FAILED, worst,
                                 tolerance, worst > 0 ? check_place(c, want, at) : "",
                                 bad ? "one is finite and the other is not" : ""});
}

static int check_against_ref(cli *c, check_state *s, trial *t) {
    trial *ref;
    if (strcmp(s->engine, "ref") == 0) {
        check_add(s, (check_finding){"engine", "all", CHECK_SKIPPED, 0, 0, "",
                                     "the engine is ref itself, the definition of every result"});
        return CLI_OK;
    }
    int rc = trial_make(c, s->job, &s->data, (fxa_dtype)s->job->problem.q.dtype, "ref", true, true, &ref);
    if (rc == CLI_OK) rc = trial_run(c, ref, FXA_FORWARD);
    if (rc == CLI_OK) rc = trial_run(c, ref, FXA_BACKWARD);
    for (size_t i = 0; rc == CLI_OK && i < ref->n_arrays; i++) check_compare(c, s, &t->arrays[i], &ref->arrays[i]);
    return rc;
}

static int check_repeat(cli *c, check_state *s, trial *t) {
    void *copies[TRIAL_MAX_ARRAYS];
    int rc = CLI_OK;
    for (size_t i = 0; i < t->n_arrays; i++) {
        size_t bytes = (size_t)t->arrays[i].count * fxa_dtype_size(t->arrays[i].dtype);
        copies[i] = cli_alloc(c, bytes);
        memcpy(copies[i], t->arrays[i].data, bytes);
        memset(t->arrays[i].data, 0xA5, bytes);
    }
    rc = trial_run(c, t, FXA_FORWARD);
    if (rc == CLI_OK) rc = trial_run(c, t, FXA_BACKWARD);
    for (size_t i = 0; rc == CLI_OK && i < t->n_arrays; i++) {
        const trial_array *a = &t->arrays[i];
        size_t size = fxa_dtype_size(a->dtype), bytes = (size_t)a->count * size, at = 0;
        bool promised = fxa_plan_is_deterministic(t->plan[a->backward]);
        while (at < bytes && ((char *)copies[i])[at] == ((char *)a->data)[at]) at++;
        check_verdict verdict = at == bytes ? CHECK_PASSED : promised ? CHECK_FAILED : CHECK_SKIPPED;
        check_add(
            s, (check_finding){"determinism", a->name, verdict, 0, 0,
                               at == bytes ? "" : check_place(c, a, (int64_t)(at / size)),
                               verdict == CHECK_SKIPPED ? "differs, and the engine does not promise otherwise" : ""});
    }
    return rc;
}

int check_engine(cli *c, check_state *s) {
    trial *t;
    int rc =
        trial_make(c, s->job, &s->data, (fxa_dtype)s->job->problem.q.dtype, s->job->problem.engine, true, true, &t);
    if (rc != CLI_OK) return rc;
    s->engine = fxa_plan_engine(t->plan[FXA_FORWARD]);
    progress_begin("engine", 0);
    rc = trial_run(c, t, FXA_FORWARD);
    if (rc == CLI_OK) rc = trial_run(c, t, FXA_BACKWARD);
    if (rc == CLI_OK) rc = check_against_ref(c, s, t);
    if (rc == CLI_OK) rc = check_repeat(c, s, t);
    progress_end();
    return rc;
}
