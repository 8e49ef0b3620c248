/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of plan creation, for every host engine: a new program, backward with all gradients, from its text, and from
 * saved bytes in a new context. Then times of repeated requests, forward and backward: create, query, load, create from
 * problem bytes; and the overhead of fxa_attention over fxa_plan_run for one row and key. Prints the best of several
 * runs.
 */
#include "fxattn/fxattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BENCH_PLANS = 20, BENCH_BYTES = 1 << 16 };

static double bench_plan_now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bench_plan_require(fxa_status status, const fxa_error *err) {
    if (status == FXA_OK) return;
    fprintf(stderr, "bench_plan: %s\n", err->text);
    exit(1);
}

/* Builds the i-th distinct program and its problem, with S 4096. */
static fxa_program *bench_plan_problem(fxa_context *ctx, int i, fxa_capture *capture, fxa_problem *p) {
    fxa_error err;
    fxa_program *program = NULL;
    char text[200];
    snprintf(text, sizeof text,
             "param cap : float\ntensor bias : f32[2]\n"
             "score = cap * tanh((score + %d * bias[h, q - k]) / cap)\nmask = q >= k && q - k < 300",
             i + 2);
    bench_plan_require(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err), &err);
    *capture = (fxa_capture){.size = {8, 4096}, .grad = 1};
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->pass = FXA_BACKWARD, p->flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V, p->param_grads = 1;
    p->program = program, p->captures = capture, p->n_captures = 1;
    p->b = 2, p->hq = 8, p->hkv = 2, p->sq = p->sk = 4096, p->d_qk = 64;
    return program;
}

/* Measures the seconds to make plan i: [0] from its text, [1] by loading its bytes. */
static void bench_plan_time(fxa_context *ctx, const char *engine, int i, double seconds[2]) {
    static unsigned char bytes[BENCH_BYTES];
    fxa_error err;
    fxa_capture capture;
    fxa_problem p;
    fxa_context *other = NULL;
    fxa_plan *plan = NULL, *loaded = NULL;
    size_t size = 0;
    double start = bench_plan_now();
    fxa_program *program = bench_plan_problem(ctx, i, &capture, &p);
    p.engine = engine;
    bench_plan_require(fxa_plan_create(ctx, &p, &plan, &err), &err);
    seconds[0] = bench_plan_now() - start;
    bench_plan_require(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err), &err);
    bench_plan_require(fxa_context_create(NULL, &other, &err), &err);
    start = bench_plan_now();
    bench_plan_require(fxa_plan_load(other, bytes, size, &loaded, &err), &err);
    seconds[1] = bench_plan_now() - start;
    fxa_plan_destroy(loaded);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    fxa_context_destroy(other);
}

/* ---- Repeated requests ------------------------------------------------------------------------------------------- */

enum { BENCH_HITS = 2000, BENCH_ROUNDS = 20 };

typedef struct bench_hit {
    fxa_context *ctx;
    fxa_problem p;
    fxa_plan *plan;
    fxa_args args;
    unsigned char saved[BENCH_BYTES], problem_bytes[BENCH_BYTES];
    size_t saved_size, problem_size;
} bench_hit;

static void bench_hit_create(bench_hit *b) {
    fxa_plan *plan = NULL;
    fxa_error err;
    bench_plan_require(fxa_plan_create(b->ctx, &b->p, &plan, &err), &err);
    fxa_plan_destroy(plan);
}
static void bench_hit_query(bench_hit *b) {
    fxa_support reports[8];
    size_t count = 8;
    fxa_error err;
    bench_plan_require(fxa_support_query(b->ctx, &b->p, reports, &count, &err), &err);
}
static void bench_hit_load(bench_hit *b) {
    fxa_plan *plan = NULL;
    fxa_error err;
    bench_plan_require(fxa_plan_load(b->ctx, b->saved, b->saved_size, &plan, &err), &err);
    fxa_plan_destroy(plan);
}
static void bench_hit_saved_problem(bench_hit *b) {
    fxa_plan *plan = NULL;
    fxa_error err;
    bench_plan_require(fxa_plan_create_from_problem(b->ctx, b->problem_bytes, b->problem_size, -1, &plan, &err), &err);
    fxa_plan_destroy(plan);
}
static void bench_hit_run(bench_hit *b) {
    fxa_error err;
    bench_plan_require(fxa_plan_run(b->plan, &b->args, &err), &err);
}
static void bench_hit_attention(bench_hit *b) {
    fxa_error err;
    bench_plan_require(fxa_attention(b->ctx, &b->p, &b->args, &err), &err);
}

/* Returns the microseconds of one call, best of BENCH_ROUNDS. */
static double bench_hit_time(bench_hit *b, void (*call)(bench_hit *)) {
    double best = INFINITY;
    for (int round = 0; round < BENCH_ROUNDS; round++) {
        double start = bench_plan_now();
        for (int i = 0; i < BENCH_HITS; i++) call(b);
        best = fmin(best, bench_plan_now() - start);
    }
    return 1e6 * best / (double)BENCH_HITS;
}

static void bench_hits(fxa_pass pass) {
    static bench_hit b;
    fxa_error err;
    fxa_capture capture;
    bench_plan_require(fxa_context_create(NULL, &b.ctx, &err), &err);
    fxa_program *program = bench_plan_problem(b.ctx, 0, &capture, &b.p);
    b.p.pass = pass;
    if (pass == FXA_FORWARD) b.p.flags = 0, b.p.param_grads = 0, capture.grad = 0;
    bench_plan_require(fxa_plan_create(b.ctx, &b.p, &b.plan, &err), &err);
    bench_plan_require(fxa_plan_save(b.plan, b.saved, BENCH_BYTES, &b.saved_size, &err), &err);
    bench_plan_require(fxa_problem_save(b.ctx, &b.p, b.problem_bytes, BENCH_BYTES, &b.problem_size, &err), &err);
    printf("repeated request, %s: create %.2f us, query %.2f us, load %.2f us, create from bytes %.2f us\n",
           pass == FXA_FORWARD ? "forward" : "backward", bench_hit_time(&b, bench_hit_create),
           bench_hit_time(&b, bench_hit_query), bench_hit_time(&b, bench_hit_load),
           bench_hit_time(&b, bench_hit_saved_problem));
    fxa_plan_destroy(b.plan);
    fxa_program_destroy(program);
    fxa_context_destroy(b.ctx);
}

static void bench_attention_above_run(void) {
    static bench_hit b;
    static _Alignas(64) float memory[4][64];
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_error err;
    config.threads = 1;
    bench_plan_require(fxa_context_create(&config, &b.ctx, &err), &err);
    b.p = (fxa_problem)FXA_PROBLEM_INIT;
    b.p.b = b.p.hq = b.p.sq = b.p.sk = 1, b.p.d_qk = 64;
    bench_plan_require(fxa_plan_create(b.ctx, &b.p, &b.plan, &err), &err);
    b.args = (fxa_args)FXA_ARGS_INIT;
    for (int i = 0; i < 4; i++) b.args.slot[i] = memory[i];
    b.args.workspace_size = fxa_plan_workspace(b.plan);
    b.args.workspace = aligned_alloc(FXA_WORKSPACE_ALIGN, (b.args.workspace_size / 64 + 1) * 64);
    if (!b.args.workspace) exit(1);
    double run = bench_hit_time(&b, bench_hit_run), attention = bench_hit_time(&b, bench_hit_attention);
    printf("one row and key: run %.2f us, fxa_attention %.2f us, %.2f above it\n", run, attention, attention - run);
    free(b.args.workspace);
    fxa_plan_destroy(b.plan);
    fxa_context_destroy(b.ctx);
}

int main(void) {
    static const char *const engines[] = {"cpu", "ref"}; /* engines that run in host memory */
    bench_hits(FXA_FORWARD);
    bench_hits(FXA_BACKWARD);
    bench_attention_above_run();
    for (size_t e = 0; e < sizeof engines / sizeof *engines; e++) {
        fxa_error err;
        fxa_context *ctx = NULL;
        double best[2] = {INFINITY, INFINITY}, seconds[2];
        bench_plan_require(fxa_context_create(NULL, &ctx, &err), &err);
        for (int i = 0; i < BENCH_PLANS; i++) {
            bench_plan_time(ctx, engines[e], i, seconds);
            for (int k = 0; k < 2; k++) best[k] = fmin(best[k], seconds[k]);
        }
        printf("first plan, %s: %.3g ms for a new program, %.3g ms from bytes\n", engines[e], 1e3 * best[0],
               1e3 * best[1]);
        fxa_context_destroy(ctx);
    }
    return 0;
}
