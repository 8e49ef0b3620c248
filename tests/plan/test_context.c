/* SPDX-License-Identifier: Apache-2.0
 *
 * The context: creation, limits, counters, lifetimes.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/tiny.h"
#include "t.h"

TEST(version_is_that_of_the_header) { T_STR(fxa_version(), FXA_VERSION_STRING); }

TEST(created_with_defaults) {
    fxa_context *ctx = t_context();
    fxa_cache_stats s;
    fxa_cache_get_stats(ctx, &s);
    T_INT(s.max_plans, 256);
    T_INT(s.max_bytes, 256 << 20);
    T_INT(s.hits + s.misses + s.builds + s.refusals + s.evictions + s.runs + s.queries + s.query_hits, 0);
    T_INT(s.plans + s.bytes, 0);
    fxa_context_destroy(ctx);
    fxa_context_destroy(NULL);
}

TEST(config_sets_limits) {
    fxa_context *ctx = NULL;
    fxa_cache_stats s;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.cache_max_plans = 7;
    config.cache_max_bytes = 12345;
    T_OK(fxa_context_create(&config, &ctx, &err));
    fxa_cache_get_stats(ctx, &s);
    T_INT(s.max_plans, 7);
    T_INT(s.max_bytes, 12345);
    fxa_cache_limit(ctx, 3, 99);
    fxa_cache_get_stats(ctx, &s);
    T_INT(s.max_plans, 3);
    T_INT(s.max_bytes, 99);
    fxa_context_destroy(ctx);
    config.reserved = 1;
    T_STATUS(fxa_context_create(&config, &ctx, &err), FXA_E_ARGUMENT);
    T_CHECK(!ctx);
}

/* All memory comes from the hook and is returned. */
TEST(memory_goes_through_the_hook) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    T_CHECK(memory.live_bytes > 0);
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
    T_INT(memory.mistakes, 0);
}

/* the context frees what the cache holds. R-02: the caller's objects stay valid and are released once. */
TEST(programs_and_plans_outlive_their_context) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    tiny t;
    fxa_plan *plan = NULL;
    fxa_program *derivative = NULL;
    T_OK(tiny_forward(ctx, &t, &err));
    T_OK(fxa_plan_create(ctx, &t.problem, &plan, &err));
    fxa_context_destroy(ctx);
    T_REQUIRE(plan);
    T_OK(fxa_program_derivative(t.program, &derivative, &err));
    fxa_program_destroy(derivative);
    tiny_end_program(&t); /* the plan owns what it needs of the program */
    T_OK(tiny_run(plan, &t.args, &err));
    T_NEAR(tiny_error(&t), 0, TINY_TOLERANCE);
    size_t needed = 0;
    T_OK(fxa_plan_save(plan, NULL, 0, &needed, &err));
    T_CHECK(needed > 0);
    T_CHECK(memory.live_bytes > 0);
    fxa_plan_destroy(plan);
    T_INT(memory.live_bytes, 0);
    T_INT(memory.mistakes, 0);
    tiny_end(&t);
}

/* after many distinct shapes and programs, memory use is back at the start. */
TEST(many_shapes_leave_nothing_behind) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    size_t start = 0;
    fxa_cache_limit(ctx, 8, 1 << 20);
    for (int i = 0; i < 60; i++) {
        char text[64];
        snprintf(text, sizeof text, "score = score * %d.5", i % 20);
        fxa_program *program = NULL;
        fxa_plan *plan = NULL;
        T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
        fxa_problem p = FXA_PROBLEM_INIT;
        p.program = program;
        p.b = 1 + i, p.hq = 2, p.sq = 3 + i, p.sk = 4, p.d_qk = 5;
        T_OK(fxa_plan_create(ctx, &p, &plan, &err));
        fxa_plan_destroy(plan);
        fxa_program_destroy(program);
        if (i > 0) continue;
        fxa_cache_clear(ctx);
        start = memory.live_bytes; /* includes the threads, which the first plan starts and the context keeps */
    }
    fxa_cache_stats s;
    fxa_cache_get_stats(ctx, &s);
    T_CHECK(s.plans <= 8);
    T_CHECK(s.evictions > 0);
    fxa_cache_clear(ctx);
    fxa_cache_get_stats(ctx, &s);
    T_INT(s.plans, 0);
    T_INT(memory.live_bytes, start);
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
    T_INT(memory.mistakes, 0);
}

/* ---- Calls of the library from its hooks ------------------------------------------------------------------------- */

enum { INSIDE_PLANS = 400 };
typedef struct inside_state {
    fail_alloc memory;
    fxa_context *ctx;
    fxa_problem problem;           /* created by the progress function */
    fxa_plan *plans[INSIDE_PLANS]; /* released by a finalizer at every allocation */
    int n, dropped;
    bool busy; /* destroying a plan frees memory, which calls the hook again */
} inside_state;

static void *inside_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    inside_state *s = user;
    if (!s->busy && s->n > 0) {
        s->busy = true;
        fxa_plan_destroy(s->plans[--s->n]);
        s->dropped++;
        s->busy = false;
    }
    return fail_alloc_fn(&s->memory, ptr, old_size, new_size, align);
}

static void inside_progress(void *user, uint64_t done, uint64_t total) {
    inside_state *s = user;
    fxa_plan *plan = NULL;
    fxa_cache_clear(s->ctx);
    s->problem.b = (int64_t)(1 + done % 5);
    T_INT(fxa_plan_create(s->ctx, &s->problem, &plan, NULL), FXA_OK);
    fxa_plan_destroy(plan);
    T_CHECK(done <= total);
}

/* A finalizer may run at any allocation, and a progress function may create plans. */
TEST(hooks_call_the_library) {
    static inside_state s = {.memory = FAIL_ALLOC_INIT};
    tiny t;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = inside_alloc, config.alloc_user = &s, config.threads = 1;
    T_OK(fxa_context_create(&config, &s.ctx, &err));
    T_OK(tiny_forward(s.ctx, &t, &err));
    s.busy = true;
    for (s.problem = t.problem; s.n < INSIDE_PLANS; s.n++) {
        s.problem.sk = s.n % 50, s.problem.flags = s.n % 2 ? FXA_RETURN_LSE : 0;
        T_OK(fxa_plan_create(s.ctx, &s.problem, &s.plans[s.n], &err));
    }
    s.busy = false;
    for (int i = 0; s.n > 0 && i < INSIDE_PLANS; i++) {
        fxa_cache_limit(s.ctx, (uint64_t)i % 7, 1 << 20);
        T_OK(fxa_attention(s.ctx, &t.problem, &t.args, &err));
        T_NEAR(tiny_error(&t), 0, TINY_TOLERANCE);
    }
    T_INT(s.dropped, INSIDE_PLANS);
    t.args.progress = inside_progress, t.args.progress_user = &s;
    T_OK(fxa_attention(s.ctx, &t.problem, &t.args, &err));
    T_NEAR(tiny_error(&t), 0, TINY_TOLERANCE);
    tiny_end(&t);
    fxa_context_destroy(s.ctx);
    T_INT(s.memory.live_bytes, 0);
    T_INT(s.memory.mistakes, 0);
}

/* Two contexts share nothing. */
TEST(contexts_are_apart) {
    fxa_context *a = NULL, *b = NULL;
    T_OK(fxa_context_create(NULL, &a, &err));
    T_OK(fxa_context_create(NULL, &b, &err));
    tiny t;
    fxa_cache_stats s;
    T_OK(tiny_forward(a, &t, &err));
    T_OK(fxa_attention(a, &t.problem, &t.args, &err));
    fxa_cache_get_stats(a, &s);
    T_INT(s.runs, 1);
    T_INT(s.plans, 1);
    fxa_cache_get_stats(b, &s);
    T_INT(s.runs + s.plans + s.queries, 0);
    T_OK(fxa_attention(b, &t.problem, &t.args, &err)); /* a program of one context in a problem of the other */
    T_NEAR(tiny_error(&t), 0, TINY_TOLERANCE);
    fxa_context_destroy(a);
    tiny_end(&t);
    fxa_context_destroy(b);
}

T_MAIN
