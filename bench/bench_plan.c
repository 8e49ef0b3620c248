/* SPDX-License-Identifier: Apache-2.0
 *
 * What a first plan takes, for every engine: of a program that no plan has seen, backward with every gradient
 * there is, made from its text; and the same from saved bytes in a context that knows nothing. Best of several, one
 * line per engine.
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

static void bench_plan_must(fxa_status status, const fxa_error *err) {
    if (status == FXA_OK) return;
    fprintf(stderr, "bench_plan: %s\n", err->text);
    exit(1);
}

/* The i-th program, at S 4096. */
static fxa_program *bench_plan_problem(fxa_context *ctx, int i, fxa_capture *capture, fxa_problem *p) {
    fxa_error err;
    fxa_program *program = NULL;
    char text[200];
    snprintf(text, sizeof text,
             "param cap : float\ntensor bias : f32[2]\n"
             "score = cap * tanh((score + %d * bias[h, q - k]) / cap)\nmask = q >= k && q - k < 300",
             i + 2);
    bench_plan_must(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err), &err);
    *capture = (fxa_capture){.size = {8, 4096}, .grad = 1};
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->pass = FXA_BACKWARD, p->flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V, p->param_grads = 1;
    p->program = program, p->captures = capture, p->n_captures = 1;
    p->b = 2, p->hq = 8, p->hkv = 2, p->sq = p->sk = 4096, p->d = 64;
    return program;
}

/* Seconds of the i-th plan: [0] made of a text, [1] loaded. */
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
    bench_plan_must(fxa_plan_create(ctx, &p, &plan, &err), &err);
    seconds[0] = bench_plan_now() - start;
    bench_plan_must(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err), &err);
    bench_plan_must(fxa_context_create(NULL, &other, &err), &err);
    start = bench_plan_now();
    bench_plan_must(fxa_plan_load(other, bytes, size, &loaded, &err), &err);
    seconds[1] = bench_plan_now() - start;
    fxa_plan_destroy(loaded);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    fxa_context_destroy(other);
}

int main(void) {
    for (size_t e = 0; fxa_engine_name(e); e++) {
        fxa_error err;
        fxa_context *ctx = NULL;
        double best[2] = {INFINITY, INFINITY}, seconds[2];
        bench_plan_must(fxa_context_create(NULL, &ctx, &err), &err);
        for (int i = 0; i < BENCH_PLANS; i++) {
            bench_plan_time(ctx, fxa_engine_name(e), i, seconds);
            for (int k = 0; k < 2; k++) best[k] = fmin(best[k], seconds[k]);
        }
        printf("first plan, %s: %.3g ms for a new program, %.3g ms from bytes\n", fxa_engine_name(e), 1e3 * best[0],
               1e3 * best[1]);
        fxa_context_destroy(ctx);
    }
    return 0;
}
