/* SPDX-License-Identifier: Apache-2.0
 *
 * check: compares engine with reference, derivative with finite differences, the user-written backward with the derived
 * one, and two runs with each other. Exit code 1 if one of the checks fails.
 */
#include "check/check.h"
#include "explain/explain.h"
#include "input/invented_values.h"

#define CHECK_SAMPLES 24
#define CHECK_RUNS 16
#define CHECK_WORK 0x1p32 /* program nodes evaluated for finite differences, in about ten seconds */

static const char *const check_words[] = {"passed", "FAILED", "skipped", "warning"};

void check_add(check_state *s, check_finding finding) {
    finding.silent = finding.silent || (finding.tally && finding.verdict == CHECK_SKIPPED);
    if (s->n < CHECK_MAX_FINDINGS) s->findings[s->n++] = finding;
    s->failed = s->failed || finding.verdict == CHECK_FAILED;
    s->warned = s->warned || finding.verdict == CHECK_WARNED;
}

/* Returns the number of checks in which every comparison was inconclusive. */
static size_t check_silent(const check_state *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += s->findings[i].silent;
    return n;
}

static void check_report_tally(json *j, const fd_tally *t) {
    if (!t) return;
    json_int(j, "compared", fd_compared(t));
    json_open(j, "left_out", '{');
    for (int i = 0; i < FD_VERDICTS; i++)
        if (fd_left_out[i][1]) json_int(j, fd_left_out[i][1], t->count[i]);
    json_close(j, '}');
}

/* Writes the last line of the report. Inconclusive checks are not reported as passed. */
static void check_report_end(cli *c, const check_state *s) {
    size_t silent = check_silent(s);
    const char *before = ": ";
    if (s->failed)
        buf_text(&c->out, "a check FAILED");
    else if (!silent)
        buf_text(&c->out, "all checks passed");
    else
        buf_printf(&c->out, "no check failed, %zu inconclusive", silent);
    for (size_t i = 0; !s->failed && i < s->n; i++)
        if (s->findings[i].silent) {
            buf_printf(&c->out, "%s%s of %s", before, s->findings[i].check, s->findings[i].what);
            before = ", ";
        }
    buf_text(&c->out, s->warned && !s->failed ? ", with a warning\n" : "\n");
}

static void check_report_json(cli *c, const check_state *s, const char *random) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_bool(&j, "passed", !s->failed);
    json_uint(&j, "inconclusive", check_silent(s));
    json_string(&j, "engine", s->engine);
    problem_shape_json(&j, "shape", &s->job->problem);
    json_string(&j, "dtype", fxa_dtype_name((fxa_dtype)s->job->problem.q.dtype));
    json_string(&j, "random", random);
    invented_json(&j, s->job);
    json_open(&j, "checks", '[');
    for (size_t i = 0; i < s->n; i++) {
        const check_finding *f = &s->findings[i];
        json_open(&j, NULL, '{');
        json_string(&j, "check", f->check);
        json_string(&j, "what", f->what);
        json_string(&j, "verdict", f->verdict == CHECK_FAILED ? "failed" : check_words[f->verdict]);
        json_number(&j, "worst_error", f->error);
        json_number(&j, "tolerance", f->tolerance);
        json_string(&j, "where", f->where);
        json_string(&j, "note", f->note);
        check_report_tally(&j, f->tally);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    index_report_json(&j, s->job, &s->outside);
    json_warnings(&j, c);
    json_close(&j, '}');
}

static void check_report(cli *c, const check_state *s) {
    buf_printf(&c->out, "engine %s, %s, %s\n", s->engine, problem_shape_text(c, &s->job->problem),
               fxa_dtype_name((fxa_dtype)s->job->problem.q.dtype));
    const char *unsaid = invented_text(c, s->job);
    if (*unsaid) buf_printf(&c->out, "%s\n", unsaid);
    buf_text(&c->out, "Q, K, V, dO, dLSE at random, -1.5 to 1.5; scores of single pairs -3 to 3, every fourth up to 64 "
                      "either way\n");
    for (size_t i = 0; i < s->n; i++) {
        const check_finding *f = &s->findings[i];
        buf_printf(&c->out, "%-7s  %-11s  %-10s", check_words[f->verdict], f->check, f->what);
        bool compared = f->tolerance > 0 || f->error > 0;
        if (compared) buf_printf(&c->out, "  worst error %.2g (allowed %.2g)", f->error, f->tolerance);
        if (*f->where) buf_printf(&c->out, " at %s", f->where);
        if (*f->note) buf_printf(&c->out, "%s%s", compared ? "; " : "  ", f->note);
        buf_text(&c->out, "\n");
    }
    check_report_end(c, s);
}

/* Returns the number of points per derivative: fewer for long passes, since each point takes CHECK_RUNS evaluations of
 * every pair. */
static int64_t check_default_samples(const cli_job *job) {
    const fxa_problem *p = &job->problem;
    double pass = (double)p->b * (double)p->hq * (double)p->sq * (double)p->sk *
                  (double)(fxa_program_node_count(job->program) + 8),
           arrays = (double)(3 + job->bind.n_tensors + job->bind.n_params),
           most = CHECK_WORK / (pass * arrays * CHECK_RUNS + 1);
    return most > CHECK_SAMPLES ? CHECK_SAMPLES : most < 2 ? 2 : (int64_t)most;
}

/* Fails for a shape without pairs, and for a shape whose check would take more than an hour. */
static int check_require_pairs(cli *c, const fxa_problem *p) {
    double pairs = problem_pairs(p);
    if (pairs == 0)
        return cli_fail(c, CLI_BAD_INPUT, "--shape %s: there is no pair to check; b, h, sq and sk are at least 1 here",
                        problem_shape_text(c, p));
    if (pairs > CHECK_MAX_PAIRS)
        return cli_fail(c, CLI_BAD_INPUT,
                        "--shape %s: %.3g pairs; at most %.3g are checked, one by one in f64 and many times over: a "
                        "program is the same for smaller sizes",
                        problem_shape_text(c, p), pairs, CHECK_MAX_PAIRS);
    return CLI_OK;
}

int cmd_check(cli *c) {
    check_state *s = cli_alloc(c, sizeof *s);
    s->findings = cli_alloc_array(c, CHECK_MAX_FINDINGS, sizeof *s->findings);
    s->n = 1; /* finding 0 is reserved for check_rows */
    int rc = job_make(c, true, &s->job);
    if (rc == CLI_OK) s->samples = check_default_samples(s->job);
    if (rc == CLI_OK) rc = job_require_small(c, s->job);
    if (rc == CLI_OK) rc = check_require_pairs(c, &s->job->problem);
    if (rc == CLI_OK) rc = job_require_memory(c, s->job);
    if (rc == CLI_OK) rc = opt_int(c, OPT_POINTS, 1, 1000000, &s->samples);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &s->random.state);
    if (rc != CLI_OK) return rc;
    if (values_large_negative_text(s->job->program)) cli_warn(c, "%s", values_large_negative_text(s->job->program));
    values_warn(c, s->job->program, &s->job->bind, s->job->problem.q.dtype == FXA_F64);
    values_warn_scale(c, s->job->problem.q.dtype == FXA_F64);
    const char *random = invented_fill(c, s->job, &s->random, false);
    trial_data_make(c, &s->job->problem, &s->random, &s->data);
    rc = check_prepare(c, s);
    if (rc == CLI_OK) rc = check_indices(c, s);
    if (rc == CLI_OK) rc = check_engine(c, s);
    if (rc == CLI_OK) rc = check_pairs(c, s);
    if (rc == CLI_OK) rc = check_derivative(c, s);
    if (rc != CLI_OK) return rc;
    check_rows(c, s);
    if (c->json)
        check_report_json(c, s, random);
    else
        check_report(c, s);
    return s->failed ? CLI_CHECK_FAILED : CLI_OK;
}
