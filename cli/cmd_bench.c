/* SPDX-License-Identifier: Apache-2.0
 *
 * bench: times one pass of the engine at hand on random data. Work is counted by the pairs that the mask leaves: a
 * forward multiplies-and-adds d + dv times per pair, a backward 3 d + 2 dv times. */
#include "explain.h"
#include "pairs.h"
#include "trial.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_result {
    fxa_pass pass;
    const char *engine;
    size_t workspace;
    double best, median, gflops;
    int64_t reps;
    uint64_t pairs;
    bool exact;
} bench_result;

static int bench_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int bench_read_pass(cli *c, fxa_pass *out) {
    const char *text = opt_get(c, OPT_PASS);
    *out = text && strcmp(text, "bwd") == 0 ? FXA_BACKWARD : FXA_FORWARD;
    if (text && *out == FXA_FORWARD && strcmp(text, "fwd") != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--pass %.20s: accepted are fwd, bwd", text);
    return CLI_OK;
}

static int bench_time(cli *c, trial *t, bench_result *out) {
    double *seconds = cli_alloc_array(c, out->reps, sizeof *seconds);
    int rc = trial_run(c, t, FXA_FORWARD);
    progress_begin("bench", (uint64_t)out->reps + 1);
    for (int64_t i = -1; rc == CLI_OK && i < out->reps; i++) {
        double start = cli_seconds();
        rc = trial_run(c, t, out->pass);
        if (i >= 0) seconds[i] = cli_seconds() - start;
        progress_step((uint64_t)(i + 2));
    }
    progress_end();
    qsort(seconds, (size_t)out->reps, sizeof *seconds, bench_order);
    out->best = seconds[0];
    out->median = out->reps % 2 ? seconds[out->reps / 2] : 0.5 * (seconds[out->reps / 2 - 1] + seconds[out->reps / 2]);
    return rc;
}

static void bench_report(cli *c, const cli_job *job, const bench_result *r) {
    const char *dtype = fxa_dtype_name((fxa_dtype)job->problem.q.dtype), *pass = r->pass ? "backward" : "forward";
    if (c->json) {
        json j = json_begin(&c->out);
        json_open(&j, NULL, '{');
        json_string(&j, "engine", r->engine);
        json_string(&j, "pass", pass);
        problem_shape_json(&j, "shape", &job->problem);
        json_string(&j, "dtype", dtype);
        json_int(&j, "reps", r->reps);
        json_number(&j, "seconds", r->best);
        json_number(&j, "median_seconds", r->median);
        json_number(&j, "gflops", r->gflops);
        json_uint(&j, "pairs", r->pairs);
        json_bool(&j, "pairs_exact", r->exact);
        json_uint(&j, "workspace", r->workspace);
        json_close(&j, '}');
        return;
    }
    buf_printf(&c->out, "%s %s, %s, %s\n", r->engine, pass, problem_shape_text(c, &job->problem), dtype);
    buf_printf(&c->out, "best %.4g s, median %.4g s of %" PRId64 ", %.4g GFLOP/s over %" PRIu64 " pairs%s\n", r->best,
               r->median, r->reps, r->gflops, r->pairs,
               r->exact ? "" : " (all of them: what the mask leaves was not counted)");
}

int cmd_bench(cli *c) {
    cli_job *job;
    bench_result r = {.reps = 5};
    cli_random random = {0};
    trial_data data;
    trial *t;
    fxa_program *whole;
    int rc = job_make(c, false, &job);
    if (rc == CLI_OK) rc = job_require_small(c, job);
    if (rc == CLI_OK) rc = bench_read_pass(c, &r.pass);
    if (rc == CLI_OK) rc = opt_int(c, OPT_REPS, 1, 1000000, &r.reps);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &random.state);
    if (rc == CLI_OK) rc = job_whole_program(c, job, &whole);
    if (rc != CLI_OK) return rc;
    job_fill(c, job, &random);
    trial_data_make(c, &job->problem, &random, &data);
    rc = trial_make(c, job, &data, (fxa_dtype)job->problem.q.dtype, job->problem.engine, r.pass == FXA_BACKWARD, true,
                    &t);
    if (rc == CLI_OK) rc = pairs_count(c, job, whole, &r.pairs, &r.exact);
    if (rc == CLI_OK) rc = bench_time(c, t, &r);
    if (rc != CLI_OK) return rc;
    double d = (double)job->problem.d, dv = (double)job->problem.dv;
    double flops = (double)r.pairs * 2 * (r.pass ? 3 * d + 2 * dv : d + dv);
    r.gflops = r.best > 0 ? flops / r.best * 1e-9 : 0;
    r.engine = fxa_plan_engine(t->plan[r.pass]);
    r.workspace = fxa_plan_workspace(t->plan[r.pass]);
    bench_report(c, job, &r);
    return CLI_OK;
}
