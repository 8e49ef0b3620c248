/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the engine with the reference, each element within its bound, and two runs of the engine bit by bit. The
 * backward passes of engine and reference read the same O and LSE: those of the reference, rounded to storage.
 */
#include "check/bound.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *check_place(cli *c, const trial_array *a, int64_t index) {
    static const char *const axes[] = {"b", "h", "row", "d"};
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

static double engine_round(fxa_dtype dtype, double x) {
    double stored[1];
    element_set(dtype, stored, 0, x);
    return element_get(dtype, stored, 0);
}

/* Rounds the data to the engine's storage, so that the reference reads the same numbers. */
static void engine_round_inputs(check_state *s) {
    fxa_dtype dtype = (fxa_dtype)s->job->problem.q.dtype;
    for (int i = 0; i < DATA_COUNT; i++)
        for (int64_t k = 0; k < s->data.count[i]; k++)
            s->data.value[i][k] = engine_round(i == DATA_DLSE ? trial_row_dtype(dtype) : dtype, s->data.value[i][k]);
}

/* Returns true if canonical text uses with_grad outside of the mask (the mask has no derivative). The name with_grad is
 * reserved, so a search of the text suffices. */
static bool engine_find_with_grad(const char *text) {
    for (size_t n; *text; text += n, text += *text == '\n') {
        const char *at = strncmp(text, "mask =", 6) == 0 ? NULL : strstr(text, "with_grad(");
        n = strcspn(text, "\n");
        if (at && at < text + n) return true;
    }
    return false;
}

int check_prepare(cli *c, check_state *s) {
    fxa_error err;
    int rc = check_widen(c, s->job, &s->wide);
    if (rc == CLI_OK) rc = job_run_program(c, s->wide, &s->run_program);
    if (rc != CLI_OK) return rc;
    const char *text = program_text(c, s->run_program);
    if (!text) return cli_exit_code(c->error.status);
    s->has_with_grad = engine_find_with_grad(text);
    s->wide->qkv = false; /* --grads limits the engine only: the check covers all derivatives */
    if (fxa_program_derivative(s->run_program, &s->derivative, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    cli_own_program(c, s->derivative);
    engine_round_inputs(s);
    rc = trial_make(c, s->wide, &s->data, FXA_F64, "ref", true, true, &s->ref);
    if (rc == CLI_OK) rc = trial_run(c, s->ref, FXA_FORWARD);
    if (rc != CLI_OK) return rc;
    const trial_array *lse = &s->ref->arrays[BOUND_LSE];
    s->lse = cli_alloc_array(c, lse->count, sizeof(double));
    memcpy(s->lse, lse->data, (size_t)lse->count * sizeof(double));
    return CLI_OK;
}

/* Returns the error relative to the tolerance; at most 1 if `got` is a value within the tolerance, rounded to dtype. */
static double engine_ratio(fxa_dtype dtype, double got, double want, double tolerance) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (got == want || got == engine_round(dtype, want)) return 0;
    if (got < engine_round(dtype, want - tolerance) || got > engine_round(dtype, want + tolerance)) return INFINITY;
    return fmin(1, fabs(got - want) / tolerance);
}

/* Returns the largest accepted distance of `got` from `want`, on the side of `got`: the tolerance plus the rounding to
 * dtype. */
static double engine_tolerance(fxa_dtype dtype, double got, double want, double tolerance) {
    double side =
        got < want ? want - engine_round(dtype, want - tolerance) : engine_round(dtype, want + tolerance) - want;
    return fmax(side, fabs(engine_round(dtype, want) - want));
}

/* Result of comparing one array; the counts are numbers of elements. */
typedef struct engine_tally {
    double worst, error, allowed; /* ratio, error, tolerance of the worst element */
    int64_t at;                   /* index of the worst element */
    int64_t unsure;               /* elements outside of a bound that is infinite or relies on rounding */
    int64_t lost;                 /* unsure elements that are not finite although the reference is */
    int64_t compared, silent;     /* elements compared; elements with a bound too wide to detect an error */
    int64_t nonzero;              /* compared elements that are not 0 on both sides */
    bool finite_differs;          /* one is finite and the other is not */
} engine_tally;

static void engine_compare_element(engine_tally *t, const check_bound *bound, size_t array, int64_t i,
                                   bound_products product, fxa_dtype dtype, double g, double w) {
    double tolerance = bound_allowed(bound, array, i, product), ratio = engine_ratio(dtype, g, w, tolerance);
    if (ratio > 1 && (bound_is_unsure(bound, array, i) || !(tolerance < INFINITY))) {
        t->unsure++;
        t->lost += !isfinite(g) && isfinite(w);
        return;
    }
    /* elements with ratio 0 are equal, which is always conclusive */
    bool silent = ratio > 0 && ratio <= 1 && !bound_tells(bound, array, i, product);
    t->silent += silent;
    t->compared += !silent;
    t->nonzero += !silent && (g != 0 || w != 0);
    if (silent || ratio <= t->worst) return;
    t->worst = ratio;
    t->at = i;
    t->error = fabs(g - w);
    t->allowed = engine_tolerance(dtype, g, w, tolerance);
    t->finite_differs = isfinite(g) != isfinite(w);
}

static const char *engine_note(cli *c, const engine_tally *t, int64_t count, fxa_dtype arithmetic) {
    const char *note = t->finite_differs ? "one is finite and the other is not" : "";
    if (t->unsure)
        note =
            cli_format(c, "%s%s%" PRId64 " of %" PRId64 " elements left out: rounding decides a jump, or %s overflows",
                       note, *note ? "; " : "", t->unsure, count, fxa_dtype_name(arithmetic));
    if (t->lost) note = cli_format(c, "%s; %" PRId64 " of them are NaN or inf where f64 has numbers", note, t->lost);
    if (t->silent)
        note = cli_format(c,
                          "%s%s%" PRId64 " of %" PRId64 " elements are inconclusive: the program is so steep that %s "
                          "rounding may change them by as much as their size",
                          note, *note ? "; " : "", t->silent, count, fxa_dtype_name(arithmetic));
    return note;
}

static void engine_compare(cli *c, check_state *s, const trial_array *got, size_t array, const check_bound *bound,
                           bound_products product) {
    const trial_array *want = &s->ref->arrays[array];
    engine_tally t = {0};
    for (int64_t i = 0; i < want->count; i++)
        engine_compare_element(&t, bound, array, i, product, got->dtype, element_get(got->dtype, got->data, i),
                               element_get(want->dtype, want->data, i));
    bool silent = want->count && (!t.compared || (t.silent && !t.nonzero));
    check_verdict verdict = t.worst > 1 || (t.lost && t.lost == want->count) ? CHECK_FAILED
                            : t.lost                                         ? CHECK_WARNED
                            : silent                                         ? CHECK_SKIPPED
                                                                             : CHECK_PASSED;
    check_add(s, (check_finding){
                     "engine", want->name, verdict, t.error, t.allowed, t.worst > 0 ? check_place(c, want, t.at) : "",
                     engine_note(c, &t, want->count, bound->arithmetic), NULL, silent && verdict == CHECK_SKIPPED});
}

/* Rounds the reference's O and LSE to the engine's storage and makes both backward passes read these values. */
static void engine_share_forward(const check_state *s, trial *t) {
    for (size_t i = BOUND_O; i <= BOUND_LSE; i++)
        for (int64_t k = 0; k < t->arrays[i].count; k++) {
            double x = element_get(FXA_F64, s->ref->arrays[i].data, k);
            element_set(t->arrays[i].dtype, t->arrays[i].data, k, x);
            element_set(FXA_F64, s->ref->arrays[i].data, k, element_get(t->arrays[i].dtype, t->arrays[i].data, k));
        }
}

static double engine_amax(const check_state *s, int which) {
    double most = 0;
    for (int64_t i = 0; i < s->data.count[which]; i++) most = fmax(most, fabs(s->data.value[which][i]));
    return most;
}

/* Returns the additional errors of an array. The plan's description says whether its engine multiplies in 16 bits and
 * whether it rounds sums over heads that share keys. f16 values below 2^-14 round to multiples of 2^-24: an error of
 * 2^-25 for each pair in random directions (4 standard deviations are allowed), times the largest factor. */
static bound_products engine_products(const check_state *s, const fxa_plan *plan, size_t array) {
    static const int by[] = {[BOUND_O] = DATA_V, [BOUND_DQ] = DATA_K, [BOUND_DK] = DATA_Q, [BOUND_DV] = DATA_DO};
    const fxa_problem *p = &s->wide->problem;
    const char *detail = fxa_plan_description(plan);
    bool wide = strstr(detail, "bf16") || strstr(detail, "amx"), half = !wide && strstr(detail, "f16");
    bound_products r = {.unit = wide ? 0x1p-8 : half ? 0x1p-11 : 0};
    bool summed = array == BOUND_DK || array == BOUND_DV;
    if (summed && strstr(detail, "heads rounded")) r.heads = r.unit;
    double pairs = (double)(p->sk > p->sq ? p->sk : p->sq) * (double)problem_group(p);
    if (half && array <= BOUND_DV && array != BOUND_LSE)
        r.least = 4 * sqrt(pairs) * 0x1p-25 * engine_amax(s, by[array]);
    return r;
}

static int engine_against_ref(cli *c, check_state *s, trial *t) {
    check_bound bound = {0};
    fxa_dtype arithmetic = s->job->problem.q.dtype == FXA_F64 ? FXA_F64 : FXA_F32;
    int rc = bound_forward(c, s, s->ref, arithmetic, &bound);
    for (size_t i = 0; rc == CLI_OK && i <= BOUND_LSE; i++)
        engine_compare(c, s, &t->arrays[i], i, &bound, engine_products(s, t->plan[FXA_FORWARD], i));
    engine_share_forward(s, t);
    if (rc == CLI_OK) rc = trial_run(c, s->ref, FXA_BACKWARD);
    if (rc == CLI_OK) rc = trial_run(c, t, FXA_BACKWARD);
    if (rc == CLI_OK) rc = bound_backward(c, s, s->ref, true, &bound);
    for (size_t i = BOUND_DQ; rc == CLI_OK && i < t->n_arrays; i++)
        engine_compare(c, s, &t->arrays[i], i, &bound, engine_products(s, t->plan[FXA_BACKWARD], i));
    return rc;
}

static int engine_repeat(cli *c, check_state *s, trial *t) {
    void *copies[TRIAL_MAX_ARRAYS];
    int rc = trial_run(c, t, FXA_FORWARD); /* two backward runs then read the engine's own O and LSE */
    if (rc == CLI_OK) rc = trial_run(c, t, FXA_BACKWARD);
    for (size_t i = 0; i < t->n_arrays; i++) {
        size_t bytes = (size_t)t->arrays[i].count * fxa_dtype_size(t->arrays[i].dtype);
        copies[i] = cli_alloc(c, bytes);
        memcpy(copies[i], t->arrays[i].data, bytes);
        memset(t->arrays[i].data, 0xA5, bytes);
    }
    if (rc == CLI_OK) rc = trial_run(c, t, FXA_FORWARD);
    if (rc == CLI_OK) rc = trial_run(c, t, FXA_BACKWARD);
    for (size_t i = 0; rc == CLI_OK && i < t->n_arrays; i++) {
        const trial_array *a = &t->arrays[i];
        size_t size = fxa_dtype_size(a->dtype), bytes = (size_t)a->count * size, at = 0;
        bool promised = fxa_plan_is_deterministic(t->plan[a->backward]);
        while (at < bytes && ((char *)copies[i])[at] == ((char *)a->data)[at]) at++;
        check_verdict verdict = at == bytes ? CHECK_PASSED : promised ? CHECK_FAILED : CHECK_SKIPPED;
        check_add(s, (check_finding){"determinism", a->name, verdict, 0, 0,
                                     at == bytes ? "" : check_place(c, a, (int64_t)(at / size)),
                                     verdict == CHECK_SKIPPED ? "differs, which this engine does not exclude" : "",
                                     NULL, false});
    }
    return rc;
}

int check_engine(cli *c, check_state *s) {
    trial *t;
    int rc =
        trial_make(c, s->job, &s->data, (fxa_dtype)s->job->problem.q.dtype, s->job->problem.engine, true, true, &t);
    if (rc != CLI_OK) return rc;
    s->engine = fxa_plan_engine(t->plan[FXA_FORWARD]);
    progress_begin(c, "engine", 0);
    rc = trial_run(c, t, FXA_FORWARD);
    if (rc == CLI_OK && strcmp(s->engine, "ref") != 0)
        rc = engine_against_ref(c, s, t);
    else
        check_add(s, (check_finding){"engine", "all", CHECK_SKIPPED, 0, 0, "",
                                     "the engine is ref itself, the definition of every result", NULL, false});
    if (rc == CLI_OK) rc = engine_repeat(c, s, t);
    progress_end();
    return rc;
}
