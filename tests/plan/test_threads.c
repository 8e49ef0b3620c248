/* SPDX-License-Identifier: Apache-2.0
 *
 * Thread safety: one context, its programs and plans, used by many threads at once. Results are bit-equal to
 * those of one thread, counters add up, nothing leaks. Also for ThreadSanitizer.
 */
#include "support/memory/fail_alloc.h"
#include "support/fixtures/plan_bytes.h"
#include "support/fixtures/tiny.h"
#include "t.h"

#include <pthread.h>
#include <stdatomic.h>

enum { N_THREADS = 12 };

/* Data shared by the threads. */
typedef struct shared {
    fail_alloc memory;
    fxa_context *ctx;
    tiny t; /* shares program and problem; data is only read */
    fxa_plan *plan;
    blob_bytes saved;
    double want[TINY_Q_COUNT];
    int rounds;
} shared;

typedef struct worker {
    pthread_t thread;
    shared *s;
    int index;
    int failures;
    fxa_error err; /* error of the first failure */
} worker;

static bool shared_start(shared *s, int rounds) {
    fxa_error err;
    *s = (shared){.memory = FAIL_ALLOC_INIT, .rounds = rounds};
    s->ctx = fail_alloc_context(&s->memory);
    if (!s->ctx || tiny_forward(s->ctx, &s->t, &err) != FXA_OK) return false;
    if (fxa_plan_create(s->ctx, &s->t.problem, &s->plan, &err) != FXA_OK) return false;
    if (tiny_run(s->plan, &s->t.args, &err) != FXA_OK || !(tiny_error(&s->t) <= TINY_TOLERANCE)) return false;
    memcpy(s->want, s->t.o, sizeof s->want);
    return fxa_plan_save(s->plan, s->saved.data, BLOB_CAPACITY, &s->saved.size, &err) == FXA_OK;
}

static void shared_end(shared *s) {
    fxa_plan_destroy(s->plan);
    tiny_end(&s->t);
    fxa_context_destroy(s->ctx);
    T_INT(s->memory.live_bytes, 0);
    T_INT(s->memory.mistakes, 0);
}

static void workers_run(shared *s, void *(*body)(void *)) {
    worker w[N_THREADS];
    memset(w, 0, sizeof w);
    for (int i = 0; i < N_THREADS; i++) {
        w[i].s = s;
        w[i].index = i;
        if (pthread_create(&w[i].thread, NULL, body, &w[i]) != 0) abort();
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        if (w[i].failures) T_FAIL("thread %d: %d failures, first: %s\n", i, w[i].failures, w[i].err.text);
    }
}

/* Records a failure; returns true if there is none. */
static bool worker_check(worker *w, bool good, const fxa_error *err) {
    if (!good && w->failures++ == 0) w->err = *err;
    return good;
}

/* Runs a plan of the shared problem with its own outputs and compares them with the one-thread result. */
static void worker_run_plan(worker *w, const fxa_plan *plan) {
    fxa_error err = {.text = "other result"};
    double o[TINY_Q_COUNT] = {0}, lse[TINY_ROWS];
    fxa_args args = w->s->t.args;
    args.slot[FXA_SLOT_O] = o;
    args.slot[FXA_SLOT_LSE] = lse;
    if (!worker_check(w, tiny_run(plan, &args, &err) == FXA_OK, &err)) return;
    strcpy(err.text, "other result");
    worker_check(w, memcmp(o, w->s->want, sizeof o) == 0, &err);
}

/* ---- One plan, many runs ----------------------------------------------------------------------------------------- */

static void *worker_runs(void *user) {
    worker *w = user;
    for (int i = 0; i < w->s->rounds; i++) {
        fxa_plan_retain(w->s->plan);
        worker_run_plan(w, w->s->plan);
        fxa_plan_destroy(w->s->plan);
    }
    return NULL;
}

/* no lock while running, each thread with its own workspace. */
TEST(many_threads_run_one_plan) {
    static shared s;
    T_REQUIRE(shared_start(&s, t_scaled(100)));
    workers_run(&s, worker_runs);
    fxa_cache_stats stats;
    fxa_cache_get_stats(s.ctx, &stats);
    T_INT(stats.runs, 1 + N_THREADS * s.rounds);
    shared_end(&s);
}

/* ---- First use from many threads --------------------------------------------------------------------------------- */

static void *worker_first_load(void *user) {
    worker *w = user;
    fxa_error err;
    t_plan *plan = NULL;
    fxa_status status = fxa_plan_load(w->s->ctx, w->s->saved.data, w->s->saved.size, &plan, &err);
    if (worker_check(w, status == FXA_OK, &err)) worker_run_plan(w, plan);
    return NULL;
}

/* concurrent first loads of one saved plan: one cache entry, one build, correct results. */
TEST(concurrent_first_load) {
    static shared s;
    for (int round = 0; round < t_scaled(10); round++) {
        T_REQUIRE(shared_start(&s, 1));
        fxa_cache_stats before, after;
        fxa_cache_clear(s.ctx);
        fxa_cache_get_stats(s.ctx, &before);
        workers_run(&s, worker_first_load);
        fxa_cache_get_stats(s.ctx, &after);
        T_INT(after.builds, before.builds + 1);
        T_INT(after.plans, 1);
        T_INT(after.hits, before.hits + N_THREADS - 1);
        shared_end(&s);
    }
}

/* ---- Everything at once ------------------------------------------------------------------------------------------ */

/* Creates a program, differentiates, prints and destroys it. */
static void worker_program(worker *w, int i) {
    fxa_error err;
    t_program *program = NULL, *derivative = NULL;
    char text[64], printed[1024];
    snprintf(text, sizeof text, "score = tanh(score * %d.5)", i % 3);
    if (!worker_check(w, fxa_program_parse(w->s->ctx, text, SIZE_MAX, &program, &err) == FXA_OK, &err)) return;
    worker_check(w, fxa_program_derivative(program, &derivative, &err) == FXA_OK, &err);
    worker_check(w, fxa_program_print(program, printed, sizeof printed, NULL, &err) == FXA_OK, &err);
}

/* Creates or loads a plan of the shared program; runs and saves it. */
static void worker_plan(worker *w, int i) {
    fxa_error err = {.text = "other bytes"};
    shared *s = w->s;
    t_plan *plan = NULL;
    fxa_status status = i % 2 ? fxa_plan_create(s->ctx, &s->t.problem, &plan, &err)
                              : fxa_plan_load(s->ctx, s->saved.data, s->saved.size, &plan, &err);
    if (!worker_check(w, status == FXA_OK, &err)) return;
    worker_run_plan(w, plan);
    blob_bytes again;
    status = fxa_plan_save(plan, again.data, BLOB_CAPACITY, &again.size, &err);
    if (worker_check(w, status == FXA_OK, &err)) {
        strcpy(err.text, "other bytes");
        bool same = again.size == s->saved.size && memcmp(again.data, s->saved.data, again.size) == 0;
        worker_check(w, same, &err);
    }
}

/* Queries other problems of the shared program, so that the cache has to evict. */
static void worker_query(worker *w, int i) {
    fxa_error err;
    fxa_problem p = w->s->t.problem;
    p.b = 1 + (i + w->index) % 5;
    p.q.dtype = i % 2 ? FXA_F32 : FXA_F16;
    fxa_support report;
    size_t count = 1;
    t_plan *plan = NULL;
    worker_check(w, fxa_support_query(w->s->ctx, &p, &report, &count, &err) == FXA_OK, &err);
    worker_check(w, fxa_plan_create(w->s->ctx, &p, &plan, &err) == FXA_OK, &err);
}

static void *worker_mixed(void *user) {
    worker *w = user;
    fxa_context *ctx = w->s->ctx;
    for (int i = 0; i < w->s->rounds; i++) {
        worker_program(w, i);
        worker_plan(w, i + w->index);
        worker_query(w, i);
        fxa_cache_stats stats;
        fxa_cache_get_stats(ctx, &stats);
        worker_check(w, stats.hits + stats.misses >= stats.builds, &(fxa_error){.text = "counters"});
        if (i % 7 == 3) fxa_cache_clear(ctx);
        if (i % 5 == 4) fxa_cache_limit(ctx, (uint64_t)(w->index % 4), 1 << 20);
    }
    return NULL;
}

TEST(everything_at_once) {
    static shared s;
    T_REQUIRE(shared_start(&s, t_scaled(40)));
    workers_run(&s, worker_mixed);
    fxa_cache_stats stats;
    fxa_cache_get_stats(s.ctx, &stats);
    T_INT(stats.runs, 1 + N_THREADS * s.rounds);
    T_INT(stats.hits + stats.misses, 1 + 2 * N_THREADS * s.rounds);
    T_INT(stats.builds, stats.misses);
    shared_end(&s);
}

/* ---- The last reference, from any thread ------------------------------------------------------------------------- */

static void *worker_drop(void *user) {
    worker *w = user;
    worker_run_plan(w, w->s->plan);
    fxa_program_destroy(w->s->t.program);
    fxa_plan_destroy(w->s->plan);
    return NULL;
}

/* The context is destroyed first, then plan and program, from any thread. */
TEST(the_last_reference_frees_from_any_thread) {
    static shared s;
    T_REQUIRE(shared_start(&s, 1));
    for (int i = 1; i < N_THREADS; i++) {
        fxa_plan_retain(s.plan);
        fxa_program_retain(s.t.program);
    }
    fxa_context_destroy(s.ctx);
    workers_run(&s, worker_drop);
    s.t.data.program = NULL;
    tiny_end(&s.t);
    T_INT(s.memory.live_bytes, 0);
    T_INT(s.memory.mistakes, 0);
}

T_MAIN
