/* SPDX-License-Identifier: Apache-2.0
 *
 * bench: times one pass of an engine on random data, and compares the time with the measured peak of the machine. Work
 * is counted for attended pairs: forward takes d + dv multiply-adds per pair (4 d operations if d = dv), backward 3 d +
 * 2 dv (10 d). The same shape is also timed without the program; the difference is the cost of the program. On a device
 * each run includes the copies to the device and back, and the peak of the host is not shown.
 */
#include "explain/explain.h"
#include "input/invented_values.h"
#include "commands/peak_rates.h"
#include "explain/mask_pairs.h"
#include "input/sample_problem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_MIN_RUNS 5
#define BENCH_MAX_RUNS 1000
#define BENCH_SECONDS 0.5
#define BENCH_DENSE 1.0       /* maximum expected seconds of a pass without the program that is still measured */
#define BENCH_LONG 10.0       /* minimum expected seconds of a pass that the command announces */
#define BENCH_HOPELESS 3600.0 /* minimum expected seconds of a pass that the command refuses to run */
/* Maximum number of rows of a forward pass that is bound by memory: its rate is also reported in bytes. */
#define BENCH_DECODE 16

typedef struct bench_result {
    fxa_pass pass;
    const char *engine, *detail;
    int32_t threads;
    size_t workspace;
    double best, median, gflops, peak_gflops;
    double flops_before;        /* peak rate of the machine, measured before the runs */
    double gbytes, copy_gbytes; /* gigabytes per second of the pass and of copies; 0 unless decoding */
    int64_t reps;               /* --reps; 0 = not given */
    uint64_t pairs, all;
    bool exact;
    int32_t tile_q, tile_k; /* size of the tiles that the engine skips; 0 = none */
    fxa_tile_counts tiles;  /* counts of the engine's tiles for batch entry 0, head 0 */
    double dense_gflops;    /* rate of the pass without the program; 0 = not measured */
    double dense_estimate;  /* expected seconds of the pass without the program; 0 = not estimated */
} bench_result;

static int bench_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int bench_read_words(cli *c, fxa_pass *pass) {
    const char *text = opt_get(c, OPT_PASS);
    *pass = text && strcmp(text, "bwd") == 0 ? FXA_BACKWARD : FXA_FORWARD;
    if (text && *pass == FXA_FORWARD && strcmp(text, "fwd") != 0)
        return cli_fail(c, CLI_BAD_INPUT, "--pass %.20s: accepted are fwd, bwd", text);
    return CLI_OK;
}

/* Times --reps runs, else at least BENCH_MIN_RUNS and as many as fit into BENCH_SECONDS. Returns an exit code. */
static int bench_time(cli *c, trial *t, bench_result *out) {
    int64_t most = out->reps ? out->reps : BENCH_MAX_RUNS, n = 0;
    double *seconds = cli_alloc_array(c, most, sizeof *seconds);
    progress_begin(c, "bench, first runs", 2);
    int rc = trial_run(c, t, FXA_FORWARD); /* backward reads O and LSE */
    progress_step(1);
    if (rc == CLI_OK) rc = trial_run(c, t, out->pass);
    progress_end();
    double begin = cli_seconds();
    progress_begin(c, "bench", (uint64_t)(out->reps ? out->reps : BENCH_MIN_RUNS));
    while (rc == CLI_OK && n < most) {
        if (!out->reps && n >= BENCH_MIN_RUNS && cli_seconds() - begin > BENCH_SECONDS) break;
        double start = cli_seconds();
        rc = trial_run(c, t, out->pass);
        seconds[n++] = cli_seconds() - start;
        if (out->reps || n <= BENCH_MIN_RUNS) progress_step((uint64_t)n);
    }
    progress_end();
    if (rc != CLI_OK) return rc;
    qsort(seconds, (size_t)n, sizeof *seconds, bench_order);
    out->best = seconds[0];
    out->median = 0.5 * (seconds[(n - 1) / 2] + seconds[n / 2]);
    out->reps = n;
    return CLI_OK;
}

static double bench_gflops(const fxa_problem *p, fxa_pass pass, uint64_t pairs, double seconds) {
    double d = (double)p->d_qk, dv = (double)problem_dv(p);
    return seconds > 0 ? 1e-9 * (double)pairs * 2 * (pass ? 3 * d + 2 * dv : d + dv) / seconds : 0;
}

/* Estimates the time of a pass from the peak rate, before any data is made. Warns about a long run and fails for a run
 * of more than BENCH_HOPELESS seconds. If the pairs of the mask were not counted, the estimate covers all pairs, and
 * the function only warns. */
static int bench_expect(cli *c, const fxa_problem *p, bench_result *r) {
    if (p->device != FXA_HOST) return CLI_OK;
    r->flops_before = peak_flops(r->threads);
    double seconds = bench_gflops(p, r->pass, r->pairs, 1) * 1e9 / r->flops_before;
    if (r->exact && seconds > BENCH_HOPELESS)
        return cli_fail(c, CLI_BAD_INPUT,
                        "--shape %s: one pass over %" PRIu64
                        " pairs would take %.3g hours at the %.4g GFLOP/s that f32 "
                        "multiply-adds reach here on %d thread%s; up to an hour is accepted",
                        problem_shape_text(c, p), r->pairs, seconds / 3600, 1e-9 * r->flops_before, (int)r->threads,
                        plural(r->threads));
    if (seconds > BENCH_LONG)
        cli_warn(
            c, "one pass over %" PRIu64 " pairs%s takes some %.3g s at the f32 rate of this machine, and there are %d",
            r->pairs, r->exact ? "" : " (all of them: what the mask leaves was not counted)", seconds,
            (int)(r->reps ? r->reps : BENCH_MIN_RUNS) + 2);
    return CLI_OK;
}

/* Computes the rates of the result and of the machine, whose rate is the better of two measurements. */
static int bench_rate(cli *c, const fxa_problem *p, trial *t, bench_result *r) {
    double d = (double)p->d_qk, dv = (double)problem_dv(p), before = r->flops_before;
    int rc = bench_time(c, t, r);
    if (rc != CLI_OK) return rc;
    r->gflops = bench_gflops(p, r->pass, r->pairs, r->best);
    if (p->device != FXA_HOST) return CLI_OK;
    double after = peak_flops(r->threads);
    r->peak_gflops = 1e-9 * (before > after ? before : after);
    if (r->pass == FXA_BACKWARD || p->sq > BENCH_DECODE) return CLI_OK;
    double rows = (double)p->b * (double)(p->hq * p->sq), keys = (double)p->b * (double)(p->hkv * p->sk);
    r->gbytes = 1e-9 * (rows + keys) * (d + dv) * (double)fxa_dtype_size((fxa_dtype)p->q.dtype) / r->best;
    r->copy_gbytes = 1e-9 * peak_copy(c, r->threads);
    return CLI_OK;
}

/* Counts the tiles of the size that the engine uses. */
static int bench_tiles(cli *c, const cli_job *job, const trial *t, bench_result *r) {
    const fxa_problem *p = &t->problem[r->pass];
    fxa_support *list;
    fxa_error err;
    size_t count = 0;
    if (fxa_support_query(c->ctx, p, NULL, &count, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    list = cli_alloc_array(c, (int64_t)count, sizeof *list);
    if (fxa_support_query(c->ctx, p, list, &count, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].engine, r->engine) != 0) continue;
        r->tile_q = list[i].tile_q;
        r->tile_k = list[i].tile_k;
    }
    if (r->tile_q < 1 || r->tile_k < 1 || r->all == 0) return CLI_OK;
    if (fxa_tiles_count(c->ctx, &job->problem, 0, 0, r->tile_q, r->tile_k, binding_params(&job->bind),
                        binding_ranges(c, &job->bind), &r->tiles, &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    return CLI_OK;
}

/* Times the same shape without program and built-in masks. Skips the measurement if it would take long, and on a
 * device, where copies take most of the time. */
static int bench_dense(cli *c, const cli_job *job, const trial_data *data, bench_result *r) {
    cli_job *dense = cli_alloc(c, sizeof *dense);
    bench_result other = {.pass = r->pass, .reps = opt_has(c, OPT_REPS) && r->reps < BENCH_MIN_RUNS ? r->reps : 0};
    trial *t;
    if (job->problem.device != FXA_HOST) return CLI_OK;
    r->dense_estimate = r->pairs ? r->best * (double)r->all / (double)r->pairs : 0;
    if (r->dense_estimate > BENCH_DENSE || r->pairs == 0) return CLI_OK;
    dense->problem = job->problem;
    dense->problem.program = NULL;
    dense->problem.captures = NULL;
    dense->problem.n_captures = 0;
    dense->problem.flags &= ~(uint32_t)(FXA_CAUSAL | FXA_WINDOW | FXA_BOTTOM_RIGHT | FXA_BOUNDS_CHECK);
    dense->problem.window_left = dense->problem.window_right = 0;
    int rc = trial_make(c, dense, data, (fxa_dtype)job->problem.q.dtype, r->engine, r->pass == FXA_BACKWARD, true, &t);
    if (rc == CLI_OK) rc = bench_time(c, t, &other);
    if (rc == CLI_OK) r->dense_gflops = bench_gflops(&job->problem, r->pass, r->all, other.best);
    return rc;
}

/* Returns the share of the time that the program takes, from the rates per pair with and without the program. */
static double bench_program_share(const bench_result *r) {
    double share = 1 - r->gflops / r->dense_gflops;
    return share > 0 ? share : 0;
}

static void bench_cost_json(json *j, const bench_result *r) {
    if (r->tile_q > 0) {
        json_open(j, "tiles", '{');
        tile_counts_json(j, r->tile_q, r->tile_k, &r->tiles);
        json_close(j, '}');
    } else
        json_null(j, "tiles");
    if (r->dense_gflops > 0) {
        json_number(j, "dense_gflops", r->dense_gflops);
        if (r->exact)
            json_number(j, "program_share", bench_program_share(r));
        else
            json_null(j, "program_share");
    } else {
        json_null(j, "dense_gflops");
        json_null(j, "program_share");
    }
}

static void bench_report_json(cli *c, const cli_job *job, const bench_result *r) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_string(&j, "engine", r->engine);
    json_string(&j, "isa", cli_format(c, "%.*s", (int)strcspn(r->detail, ","), r->detail));
    json_string(&j, "detail", r->detail);
    json_int(&j, "threads", r->threads);
    json_string(&j, "device", problem_device_text(c, &job->problem));
    json_string(&j, "pass", r->pass ? "backward" : "forward");
    problem_shape_json(&j, "shape", &job->problem);
    json_string(&j, "dtype", fxa_dtype_name((fxa_dtype)job->problem.q.dtype));
    json_int(&j, "reps", r->reps);
    json_number(&j, "seconds", r->best);
    json_number(&j, "median_seconds", r->median);
    json_number(&j, "gflops", r->gflops);
    if (r->peak_gflops > 0)
        json_number(&j, "peak_gflops", r->peak_gflops);
    else
        json_null(&j, "peak_gflops");
    json_uint(&j, "pairs", r->pairs);
    json_bool(&j, "pairs_exact", r->exact);
    if (r->exact && r->all)
        json_number(&j, "density", (double)r->pairs / (double)r->all);
    else
        json_null(&j, "density");
    bench_cost_json(&j, r);
    if (r->gbytes > 0) {
        json_number(&j, "gbytes_per_second", r->gbytes);
        json_number(&j, "copy_gbytes_per_second", r->copy_gbytes);
    }
    json_uint(&j, "workspace", r->workspace);
    invented_json(&j, job);
    json_warnings(&j, c);
    json_close(&j, '}');
}

static void bench_cost(cli *c, const bench_result *r) {
    const fxa_tile_counts *t = &r->tiles;
    uint64_t tiles = t->empty + t->mixed + t->full + t->unknown;
    if (r->exact && r->all)
        buf_printf(&c->out, "density %.3g %% of %" PRIu64 " pairs", 100 * (double)r->pairs / (double)r->all, r->all);
    if (tiles)
        buf_printf(&c->out, "%s%s%.3g %% of the tiles of %d row%s x %d key%s skipped (b 0, h 0)", r->exact ? "; " : "",
                   t->unknown ? "at least " : "", 100 * (double)t->empty / (double)tiles, (int)r->tile_q,
                   plural(r->tile_q), (int)r->tile_k, plural(r->tile_k));
    if (tiles || (r->exact && r->all)) buf_text(&c->out, "\n");
    if (r->dense_gflops > 0 && r->exact)
        buf_printf(&c->out, "dense, without a program: %.4g GFLOP/s; %.3g %% of the time is the program's\n",
                   r->dense_gflops, 100 * bench_program_share(r));
    else if (r->dense_gflops > 0)
        buf_printf(&c->out, "dense, without a program: %.4g GFLOP/s\n", r->dense_gflops);
    else if (r->dense_estimate > 0)
        buf_printf(&c->out, "dense, without a program: not measured, a pass would take about %.2g s\n",
                   r->dense_estimate);
}

static void bench_report(cli *c, const cli_job *job, const bench_result *r) {
    buf_printf(&c->out, "%s %s, %s, %s%s%s\n", r->engine, r->pass ? "backward" : "forward",
               problem_shape_text(c, &job->problem), fxa_dtype_name((fxa_dtype)job->problem.q.dtype),
               *r->detail ? ", " : "", r->detail);
    const char *unsaid = invented_text(c, job);
    if (*unsaid) buf_printf(&c->out, "%s\n", unsaid);
    buf_printf(&c->out, "best %.4g s, median %.4g s of %" PRId64 ", %.4g GFLOP/s over %" PRIu64 " pairs%s\n", r->best,
               r->median, r->reps, r->gflops, r->pairs,
               r->exact ? "" : " (all of them: what the mask leaves was not counted)");
    if (r->peak_gflops > 0)
        buf_printf(&c->out, "%.3g %% of the %.4g GFLOP/s that f32 multiply-adds reach in registers on %d thread%s\n",
                   100 * r->gflops / r->peak_gflops, r->peak_gflops, (int)r->threads, plural(r->threads));
    else
        buf_printf(&c->out, "on %s, the way of all data there and back included\n",
                   problem_device_text(c, &job->problem));
    bench_cost(c, r);
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
    if (rc == CLI_OK) rc = job_require_memory(c, job);
    if (rc == CLI_OK) rc = bench_read_words(c, &r.pass);
    if (rc == CLI_OK) rc = opt_int(c, OPT_REPS, 1, 1000000, &r.reps);
    if (rc == CLI_OK) rc = opt_uint(c, OPT_SEED, &random.state);
    if (rc == CLI_OK) rc = job_run_program(c, job, &whole);
    if (rc != CLI_OK) return rc;
    values_warn(c, job->program, &job->bind, job->problem.q.dtype == FXA_F64);
    values_warn_scale(c, job->problem.q.dtype == FXA_F64);
    invented_fill(c, job, &random, false);
    rc = pair_count_all(c, job, whole, &r.pairs, &r.exact);
    r.threads = fxa_context_threads(c->ctx);
    if (rc == CLI_OK) rc = bench_expect(c, &job->problem, &r);
    if (rc != CLI_OK) return rc;
    trial_data_make(c, &job->problem, &random, &data);
    rc = trial_make(c, job, &data, (fxa_dtype)job->problem.q.dtype, job->problem.engine, r.pass == FXA_BACKWARD, true,
                    &t);
    r.all =
        (uint64_t)job->problem.sq * (uint64_t)job->problem.sk * (uint64_t)job->problem.b * (uint64_t)job->problem.hq;
    if (rc != CLI_OK) return rc;
    r.engine = fxa_plan_engine(t->plan[r.pass]);
    r.detail = fxa_plan_description(t->plan[r.pass]);
    r.workspace = fxa_plan_workspace(t->plan[r.pass]);
    rc = bench_rate(c, &job->problem, t, &r);
    fxa_properties properties;
    fxa_program_properties(whole, &properties);
    bool plain = properties.flags & FXA_PROPERTY_IDENTITY;
    if (rc == CLI_OK && !plain) rc = bench_tiles(c, job, t, &r);
    if (rc == CLI_OK && !plain) rc = bench_dense(c, job, &data, &r);
    if (rc != CLI_OK) return rc;
    if (c->json)
        bench_report_json(c, job, &r);
    else
        bench_report(c, job, &r);
    return CLI_OK;
}
