/* SPDX-License-Identifier: Apache-2.0
 *
 * bench: times one pass of the engine at hand on random data, and what the machine could do in the same run. Work is
 * counted by the pairs that the mask leaves: a forward multiplies-and-adds d + dv times per pair (with d = dv that is
 * 4 d operations), a backward 3 d + 2 dv times (10 d). */
#include "explain.h"
#include "invent.h"
#include "machine.h"
#include "pairs.h"
#include "trial.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_LEAST 5
#define BENCH_MOST 1000
#define BENCH_SECONDS 0.5
#define BENCH_DECODE 16 /* rows up to which a forward is bound by memory, and told in bytes too */

typedef struct bench_result {
    fxa_pass pass;
    const char *engine, *detail;
    int32_t threads;
    size_t workspace;
    double best, median, gflops, peak_gflops;
    double gbytes, copy_gbytes; /* per second; decode only, else 0 */
    int64_t reps;               /* 0: not said */
    uint64_t pairs;
    bool exact;
} bench_result;

static int bench_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int bench_read_words(cli *c, fxa_pass *pass) {
    const char *text = opt_get(c, OPT_PASS), *grads = opt_get(c, OPT_GRADS);
    *pass = text && strcmp(text, "bwd") == 0 ? FXA_BACKWARD : FXA_FORWARD;
    if (text && *pass == FXA_FORWARD && strcmp(text, "fwd") != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--pass %.20s: accepted are fwd, bwd", text);
    if (grads && strcmp(grads, "all") != 0 && strcmp(grads, "qkv") != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--grads %.20s: accepted are all, qkv", grads);
    return CLI_OK;
}

/* As many runs as were asked for, else at least BENCH_LEAST and as many as fit into BENCH_SECONDS. */
static int bench_time(cli *c, trial *t, bench_result *out) {
    int64_t most = out->reps ? out->reps : BENCH_MOST, n = 0;
    double *seconds = cli_alloc_array(c, most, sizeof *seconds);
    int rc = trial_run(c, t, FXA_FORWARD); /* a backward reads O and LSE */
    if (rc == CLI_OK) rc = trial_run(c, t, out->pass);
    double begin = cli_seconds();
    progress_begin("bench", (uint64_t)(out->reps ? out->reps : BENCH_LEAST));
    while (rc == CLI_OK && n < most) {
        if (!out->reps && n >= BENCH_LEAST && cli_seconds() - begin > BENCH_SECONDS) break;
        double start = cli_seconds();
        rc = trial_run(c, t, out->pass);
        seconds[n++] = cli_seconds() - start;
        if (out->reps || n <= BENCH_LEAST) progress_step((uint64_t)n);
    }
    progress_end();
    if (rc != CLI_OK) return rc;
    qsort(seconds, (size_t)n, sizeof *seconds, bench_order);
    out->best = seconds[0];
    out->median = 0.5 * (seconds[(n - 1) / 2] + seconds[n / 2]);
    out->reps = n;
    return CLI_OK;
}

/* Rates of the result, and of the machine before and after: the better of the two. */
static int bench_rate(cli *c, const fxa_problem *p, trial *t, bench_result *r) {
    double d = (double)p->d, dv = (double)p->dv, before = machine_flops(r->threads);
    int rc = bench_time(c, t, r);
    if (rc != CLI_OK) return rc;
    double after = machine_flops(r->threads);
    r->peak_gflops = 1e-9 * (before > after ? before : after);
    r->gflops = r->best > 0 ? 1e-9 * (double)r->pairs * 2 * (r->pass ? 3 * d + 2 * dv : d + dv) / r->best : 0;
    if (r->pass == FXA_BACKWARD || p->sq > BENCH_DECODE) return CLI_OK;
    double rows = (double)p->b * (double)(p->hq * p->sq), keys = (double)p->b * (double)(p->hkv * p->sk);
    r->gbytes = 1e-9 * (rows + keys) * (d + dv) * (double)fxa_dtype_size((fxa_dtype)p->q.dtype) / r->best;
    r->copy_gbytes = 1e-9 * machine_copy(c, r->threads);
    return CLI_OK;
}

static void bench_report_json(cli *c, const cli_job *job, const bench_result *r) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_string(&j, "engine", r->engine);
    json_string(&j, "isa", cli_format(c, "%.*s", (int)strcspn(r->detail, ","), r->detail));
    json_string(&j, "detail", r->detail);
    json_int(&j, "threads", r->threads);
    json_string(&j, "pass", r->pass ? "backward" : "forward");
    problem_shape_json(&j, "shape", &job->problem);
    json_string(&j, "dtype", fxa_dtype_name((fxa_dtype)job->problem.q.dtype));
    json_int(&j, "reps", r->reps);
    json_number(&j, "seconds", r->best);
    json_number(&j, "median_seconds", r->median);
    json_number(&j, "gflops", r->gflops);
    json_number(&j, "peak_gflops", r->peak_gflops);
    json_uint(&j, "pairs", r->pairs);
    json_bool(&j, "pairs_exact", r->exact);
    if (r->gbytes > 0) {
        json_number(&j, "gbytes_per_second", r->gbytes);
        json_number(&j, "copy_gbytes_per_second", r->copy_gbytes);
    }
    json_uint(&j, "workspace", r->workspace);
    invent_json(&j, job);
    json_warnings(&j, c);
    json_close(&j, '}');
}

static void bench_report(cli *c, const cli_job *job, const bench_result *r) {
    buf_printf(&c->out, "%s %s, %s, %s%s%s\n", r->engine, r->pass ? "backward" : "forward",
               problem_shape_text(c, &job->problem), fxa_dtype_name((fxa_dtype)job->problem.q.dtype),
               *r->detail ? ", " : "", r->detail);
    const char *unsaid = invent_text(c, job);
    if (*unsaid) buf_printf(&c->out, "%s\n", unsaid);
    buf_printf(&c->out, "best %.4g s, median %.4g s of %" PRId64 ", %.4g GFLOP/s over %" PRIu64 " pairs%s\n", r->best,
               r->median, r->reps, r->gflops, r->pairs,
               r->exact ? "" : " (all of them: what the mask leaves was not counted)");
    buf_printf(&c->out, "%.3g %% of the %.4g GFLOP/s that f32 multiply-adds reach in registers on %d thread%s\n",
               100 * r->gflops / r->peak_gflops, r->peak_gflops, (int)r->threads, plural(r->threads));
    if (r->gbytes > 0)
        buf_printf(&c->out, "%.4g GB/s, %.3g %% of the %.4g GB/s of a copy\n", r->gbytes,
                   100 * r->gbytes / r->copy_gbytes, r->copy_gbytes);
}

int cmd_bench(cli *c) {
    cli_job *job;
    bench_result r = {.reps = 0};
    cli_random random = {0};
    trial_data data;
    trial *t;
    fxa_program *whole;
    int rc = job_make(c, false, &job);
    if (rc == CLI_OK) rc = job_require_small(c, job);
    if (rc == CLI_OK) rc = bench_read_words(c, &r.pass);
    if (rc == CLI_OK) rc = opt_int(c, OPT_REPS, 1, 1000000, &r.reps);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &random.state);
    if (rc == CLI_OK) rc = job_whole_program(c, job, &whole);
    if (rc != CLI_OK) return rc;
    values_warn(c, job->program, &job->bind, job->problem.q.dtype == FXA_F64);
    values_warn_scale(c, job->problem.q.dtype == FXA_F64);
    invent_fill(c, job, &random, false);
    trial_data_make(c, &job->problem, &random, &data);
    rc = trial_make(c, job, &data, (fxa_dtype)job->problem.q.dtype, job->problem.engine, r.pass == FXA_BACKWARD, true,
                    &t);
    if (rc == CLI_OK) rc = pairs_count(c, job, whole, &r.pairs, &r.exact);
    if (rc != CLI_OK) return rc;
    r.engine = fxa_plan_engine(t->plan[r.pass]);
    r.detail = fxa_plan_detail(t->plan[r.pass]);
    r.workspace = fxa_plan_workspace(t->plan[r.pass]);
    r.threads = fxa_context_threads(c->ctx);
    rc = bench_rate(c, &job->problem, t, &r);
    if (rc != CLI_OK) return rc;
    if (c->json)
        bench_report_json(c, job, &r);
    else
        bench_report(c, job, &r);
    return CLI_OK;
}
