/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads from the caller's view: how many a context has, when they start, which threads run the parts of a plan, and
 * refusals. The engine "gang" writes the number of workers that took part; this program defines the registry, which
 * replaces the library's.
 */
#include "plan/plan.h"
#include "support/memory/fail_alloc.h"
#include "support/fixtures/own_engines.h"
#include "support/fixtures/thread_count.h"
#include "support/fixtures/tiny.h"
#include "t.h"

#include <time.h>

/* ---- Two engines: one with threads, one without ------------------------------------------------------------------ */

/* Each worker increments an int of its own. */
static fxa_status gang_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    (void)code, (void)err;
    report->supported = report->deterministic = 1;
    report->workspace = (size_t)a->problem->host->width * FXA_WORKSPACE_ALIGN;
    return FXA_OK;
}
static fxa_status gang_compile(fxa__analysis *a, void **code, size_t *size, fxa_error *err) {
    (void)a, (void)err;
    *code = NULL;
    *size = 0;
    return FXA_OK;
}
static void gang_release(void *self, void *code) { (void)self, (void)code; }

static void gang_work(void *arg, int32_t worker) { *(int *)((char *)arg + worker * FXA_WORKSPACE_ALIGN) += 1; }

static fxa_status gang_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                           fxa_error *err) {
    (void)self, (void)code, (void)p;
    if (!bound->pool) return fxa__fail(err, FXA_E_INTERNAL, "no pool");
    int32_t width = fxa__pool_width(bound->pool), sum = 0;
    if (bound->workspace_size != (size_t)width * FXA_WORKSPACE_ALIGN) return fxa__fail(err, FXA_E_INTERNAL, "no room");
    memset(bound->workspace, 0, bound->workspace_size);
    fxa__pool_run(bound->pool, bound->parallel_user, width, gang_work, bound->workspace);
    for (int32_t w = 0; w < width; w++) sum += *(int *)((char *)bound->workspace + w * FXA_WORKSPACE_ALIGN);
    *(double *)bound->slot[FXA_SLOT_O] = sum;
    return FXA_OK;
}
static const char *gang_description(const void *code, const fxa__problem *p) {
    (void)code;
    return p->in.d_qk == 3 ? "by many hands" : NULL;
}

static fxa_status solo_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                           fxa_error *err) {
    (void)self, (void)code, (void)p;
    if (bound->pool) return fxa__fail(err, FXA_E_INTERNAL, "a pool");
    *(double *)bound->slot[FXA_SLOT_O] = -1;
    return FXA_OK;
}

#define GANG_CODE .version = 1, .query = gang_query, .compile = gang_compile, .release = gang_release
static const fxa__engine gang = {
    .name = "gang", GANG_CODE, .threads = true, .run = gang_run, .description = gang_description};
static const fxa__engine solo = {.name = "solo", GANG_CODE, .run = solo_run};
static const fxa__engine *own_engines[OWN_ENGINES] = {&gang, &solo};

/* ---- Fixture ----------------------------------------------------------------------------------------------------- */

/* Runs the tiny problem on gang in a context with this config; returns the number of workers. */
static int gang_workers(const fxa_context_config *config) {
    fxa_error err;
    t_ctx *ctx = NULL;
    fxa_plan *plan = NULL;
    tiny t;
    T_OK(fxa_context_create(config, &ctx, &err));
    if (!ctx) return -1;
    T_OK(tiny_forward(ctx, &t, &err));
    T_OK(fxa_plan_create(ctx, &t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "gang");
    T_OK(tiny_run(plan, &t.args, &err));
    double workers = t.o[0];
    T_INT(fxa_context_threads(ctx), workers);
    fxa_plan_destroy(plan);
    tiny_end(&t);
    return (int)workers;
}

/* ---- How many ---------------------------------------------------------------------------------------------------- */

TEST(a_context_has_the_threads_it_was_asked_for) {
    static const uint32_t asked[] = {1, 2, 3, 7, 33};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
        config.threads = asked[i];
        setenv("FXA_THREADS", "5", 1); /* used only if the config leaves the number open */
        T_INT(gang_workers(&config), asked[i]);
    }
    unsetenv("FXA_THREADS");
}

TEST(automatic_is_the_environment_or_the_machine) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    T_INT(gang_workers(NULL), fxa__cpu_count());
    T_INT(gang_workers(&config), fxa__cpu_count());
    T_CHECK(fxa__cpu_count() >= 1);
    setenv("FXA_THREADS", "5", 1);
    T_INT(gang_workers(NULL), 5);
    T_INT(gang_workers(&config), 5);
    config.struct_size = offsetof(fxa_context_config, threads); /* a caller older than the field */
    config.threads = 99;
    T_INT(gang_workers(&config), 5);
    setenv("FXA_THREADS", "", 1);
    T_INT(gang_workers(NULL), fxa__cpu_count());
    unsetenv("FXA_THREADS");
}

TEST(what_is_no_number_of_threads_is_refused) {
    fxa_context *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = FXA_MAX_THREADS + 1;
    T_STATUS(fxa_context_create(&config, &ctx, &err), FXA_E_ARGUMENT);
    T_STR(err.text, "fxa_context_config.threads is 1025; accepted is 0 (automatic) to 1024");
    static const char *const texts[] = {"0", "-1", "x", "2x", "1025", "99999999999999999999", " "};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        setenv("FXA_THREADS", texts[i], 1);
        T_STATUS(fxa_context_create(NULL, &ctx, &err), FXA_E_ARGUMENT);
        T_HAS(err.text, "FXA_THREADS");
        T_HAS(err.text, texts[i]);
        T_CHECK(!ctx);
    }
    unsetenv("FXA_THREADS");
    config = (fxa_context_config)FXA_CONTEXT_CONFIG_INIT;
    config.reserved2 = 1;
    T_STATUS(fxa_context_create(&config, &ctx, &err), FXA_E_ARGUMENT);
    T_HAS(err.text, "reserved2");
}

/* ---- When -------------------------------------------------------------------------------------------------------- */

/* Threads start with the first plan of an engine that uses them, and live as long as anything of the context. */
TEST(threads_live_from_the_first_plan_to_the_last) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = NULL;
    fxa_plan *alone = NULL, *plan = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    tiny t;
    int before = thread_count_now();
    if (before == 0) T_SKIP("this system does not tell how many threads there are");
    config.threads = 3;
    config.alloc = fail_alloc_fn;
    config.alloc_user = &memory;
    T_OK(fxa_context_create(&config, &ctx, &err));
    T_OK(tiny_forward(ctx, &t, &err));
    t.problem.engine = "solo";
    T_OK(fxa_plan_create(ctx, &t.problem, &alone, &err));
    T_OK(tiny_run(alone, &t.args, &err));
    T_SAME(t.o[0], -1);
    T_STR(fxa_plan_description(alone), "");
    T_INT(thread_count_now(), before);
    t.problem.engine = "gang";
    T_OK(fxa_plan_create(ctx, &t.problem, &plan, &err));
    T_INT(thread_count_now(), before + 2);
    T_STR(fxa_plan_description(plan), "by many hands");
    T_STR(fxa_plan_description(NULL), "");
    fxa_plan_destroy(alone);
    tiny_end_program(&t);
    fxa_context_destroy(ctx);
    T_OK(tiny_run(plan, &t.args, &err));
    T_SAME(t.o[0], 3);
    T_INT(thread_count_now(), before + 2);
    fxa_plan_destroy(plan);
    struct timespec moment = {0, 1000000}; /* joined, though the system may take a moment to remove the thread */
    for (int i = 0; i < 1000 && thread_count_now() != before; i++) nanosleep(&moment, NULL);
    T_INT(thread_count_now(), before);
    T_INT(memory.live_bytes, 0);
    T_INT(memory.mistakes, 0);
    tiny_end(&t);
}

/* Without memory for the pool the plan fails, and nothing leaks. */
TEST(no_memory_for_the_pool) {
    tiny t;
    int failed = 0;
    for (size_t at = 1; at <= 100; at++) {
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_plan *plan = NULL;
        fxa_context *ctx = fail_alloc_context(&memory);
        T_REQUIRE(ctx);
        T_OK(tiny_forward(ctx, &t, &err));
        fail_alloc_arm(&memory, at, false);
        fxa_status status = fxa_plan_create(ctx, &t.problem, &plan, &err);
        T_CHECK((status == FXA_OK) == (plan != NULL));
        if (status != FXA_OK) {
            T_INT(status, FXA_E_MEMORY);
            failed += strcmp(err.text, "out of memory while making threads") == 0;
        }
        fxa_plan_destroy(plan);
        tiny_end(&t);
        fxa_context_destroy(ctx);
        T_INT(memory.live_bytes, 0);
    }
    T_INT(failed, 1);
}

/* ---- The caller's own loop --------------------------------------------------------------------------------------- */

typedef struct own_loop {
    int calls, tasks;
} own_loop;

static void own_parallel(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    own_loop *loop = user;
    loop->calls++;
    for (int32_t i = n; i-- > 0; loop->tasks++) task(arg, i);
}

TEST(the_callers_loop_runs_the_plan) {
    int before = thread_count_now();
    own_loop loop = {0};
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = 6;
    config.parallel = own_parallel;
    config.parallel_user = &loop;
    T_INT(gang_workers(&config), 6);
    T_INT(loop.calls, 1);
    T_INT(loop.tasks, 6);
    config.threads = 1;
    T_INT(gang_workers(&config), 1);
    T_INT(loop.calls, 1);
    T_INT(thread_count_now(), before);
}

T_MAIN
