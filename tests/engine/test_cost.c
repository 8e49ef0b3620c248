/* SPDX-License-Identifier: Apache-2.0
 *
 * What a problem costs before and beside its run, for every engine: the time of a first plan, from a program and from
 * bytes, and the workspace of long sequences.
 */
#include "support/conf_case.h"
#include "t.h"

#include <time.h>

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static double cost_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The i-th modifier, which no plan has seen; backward, with every gradient there is. */
static fxa_program *cost_modifier(fxa_context *ctx, int i, fxa_capture *capture, fxa_problem *p) {
    fxa_error err;
    fxa_program *program = NULL;
    char text[200];
    snprintf(text, sizeof text,
             "param cap : float\ntensor bias : f32[2]\n"
             "score = cap * tanh((score + %d * bias[h, q - k]) / cap)\nmask = q >= k && q - k < 300",
             i + 2);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    *capture = (fxa_capture){.size = {8, 4096}, .grad = 1};
    *p = (fxa_problem)FXA_PROBLEM_INIT;
    p->pass = FXA_BACKWARD, p->flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V, p->param_grads = 1;
    p->program = program, p->captures = capture, p->n_captures = 1;
    p->b = 2, p->hq = 8, p->hkv = 2, p->sq = p->sk = 4096, p->d = 64;
    return program;
}

/* Seconds of the i-th plan: [0] made of a text, [1] loaded from bytes into a context that knows nothing. */
static void cost_plan(fxa_context *ctx, const char *engine, int i, double seconds[2]) {
    static unsigned char bytes[1 << 16];
    fxa_error err;
    fxa_capture capture;
    fxa_problem p;
    fxa_context *other = NULL;
    fxa_plan *plan = NULL, *loaded = NULL;
    size_t size = 0;
    double start = cost_now();
    fxa_program *program = cost_modifier(ctx, i, &capture, &p);
    p.engine = engine;
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    seconds[0] = cost_now() - start;
    T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err));
    T_OK(fxa_context_create(NULL, &other, &err));
    start = cost_now();
    T_OK(fxa_plan_load(other, bytes, size, &loaded, &err));
    seconds[1] = cost_now() - start;
    fxa_plan_destroy(loaded);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    fxa_context_destroy(other);
}

/* milliseconds. Of several first plans the fastest counts, since others may be using the machine. */
TEST(a_first_plan_takes_milliseconds) {
    enum { PLANS = 20 };
    for (size_t e = 0; fxa_engine_name(e); e++) {
        fxa_error err;
        fxa_context *ctx = NULL;
        fxa_cache_stats stats;
        double best[2] = {INFINITY, INFINITY}, seconds[2];
        T_OK(fxa_context_create(NULL, &ctx, &err));
        for (int i = 0; i < PLANS; i++) {
            cost_plan(ctx, fxa_engine_name(e), i, seconds);
            for (int k = 0; k < 2; k++) best[k] = fmin(best[k], seconds[k]);
        }
        fxa_cache_get_stats(ctx, &stats);
        T_INT(stats.builds, PLANS); /* each was a first one */
        printf("  %s: %.3g ms for a new program, %.3g from bytes\n", fxa_engine_name(e), 1e3 * best[0], 1e3 * best[1]);
        T_CHECK(best[0] < 0.01);
        T_CHECK(best[1] < 0.01);
        fxa_context_destroy(ctx);
    }
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Asks every engine for the workspace of s rows and keys. */
static size_t cost_reports(fxa_context *ctx, const fxa_program *program, fxa_pass pass, int64_t s,
                           fxa_support reports[8]) {
    fxa_error err;
    fxa_capture captures[CONF_TENSORS] = {0};
    fxa_problem p = FXA_PROBLEM_INIT;
    size_t count = 8;
    p.pass = (uint32_t)pass, p.flags = pass == FXA_FORWARD ? FXA_WANT_LSE : FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V;
    p.program = program, p.captures = captures, p.n_captures = fxa_program_tensor_count(program);
    p.b = 1, p.hq = 2, p.sq = p.sk = s, p.d = 16;
    if (p.n_captures > CONF_TENSORS) T_FAIL("%zu tensors\n", p.n_captures);
    for (size_t i = 0; i < p.n_captures && i < CONF_TENSORS; i++) {
        fxa_tensor_info info = fxa_program_tensor(program, i);
        for (int32_t j = 0; j < info.rank; j++) captures[i].size[j] = 20;
        captures[i].grad = pass == FXA_BACKWARD && info.dtype <= FXA_BF16;
    }
    T_OK(fxa_support_query(ctx, &p, reports, &count, &err));
    return count;
}

/* whatever the program, no engine falls back to something with a place for each pair: twice the sequence is at
 * most twice the workspace. Runs allocate nothing else (test_conformance_memory.c). */
TEST(workspace_grows_with_the_sequence_not_with_its_pairs) {
    enum { S = 1 << 15 };
    fxa_error err;
    fxa_context *ctx = NULL;
    uint64_t rng = t_seed();
    T_OK(fxa_context_create(NULL, &ctx, &err));
    for (int i = 0; i < t_scaled(200); i++) {
        fxa_support at_s[8], at_2s[8];
        const char *name;
        conf_source source = i % 2 ? CONF_GALLERY : (conf_source)attn_int(&rng, CONF_IDENTITY, CONF_GALLERY);
        fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", &rng, &name);
        T_REQUIRE(program);
        for (int pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
            size_t n = cost_reports(ctx, program, (fxa_pass)pass, S, at_s);
            T_INT(cost_reports(ctx, program, (fxa_pass)pass, 2 * S, at_2s), n);
            for (size_t e = 0; e < n; e++) {
                if (!at_s[e].supported || !at_2s[e].supported) T_FAIL("%s: %s\n", at_s[e].engine, at_s[e].reason);
                if (at_2s[e].workspace > 2 * at_s[e].workspace)
                    T_FAIL("%s, %s, pass %d: %" PRIu64 " bytes, of twice the sequence %" PRIu64 "\n", at_s[e].engine,
                           name, pass, at_s[e].workspace, at_2s[e].workspace);
            }
        }
        fxa_program_destroy(program);
    }
    fxa_context_destroy(ctx);
}

T_MAIN
