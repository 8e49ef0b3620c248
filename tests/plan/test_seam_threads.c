/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines and threads: an engine is opened once however many threads request it first. A finalizer drops a plan in any
 * thread at any time and never waits for a thread that opens, compiles or runs; other threads release device code
 * later, and in the end all of it. For ThreadSanitizer and AddressSanitizer too.
 */
#include "seam_fixture.h"

#include <pthread.h>
#include <sched.h>

enum { CROWD = 8 };

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static atomic_int crowd_here; /* all start at once */

static void *crowd_ask(void *user) {
    plan_rig *r = user;
    t_plan *plan = NULL;
    fxa_error err;
    fxa_problem p = r->t.problem;
    atomic_fetch_add(&crowd_here, 1);
    while (atomic_load(&crowd_here) < CROWD) sched_yield();
    if (fxa_plan_create(r->ctx, &p, &plan, &err) != FXA_OK) return NULL;
    return user;
}

static void crowd_linger(void) {
    for (int i = 0; i < 100; i++) sched_yield();
}

TEST(opened_once_by_many) {
    for (int round = 0; round < t_scaled(20); round++) {
        plan_rig r;
        pthread_t thread[CROWD];
        T_REQUIRE(seam_start(&r));
        mock.opening = mock.compiling = crowd_linger;
        crowd_here = 0;
        for (int i = 0; i < CROWD; i++) T_REQUIRE(pthread_create(&thread[i], NULL, crowd_ask, &r) == 0);
        for (int i = 0; i < CROWD; i++) {
            void *ok = NULL;
            pthread_join(thread[i], &ok);
            T_CHECK(ok);
        }
        T_INT(mock.count[MOCK_OPEN], 1);
        T_INT(mock.count[MOCK_COMPILE], 1);
        seam_end(&r);
    }
}

/* ---- An engine that is busy -------------------------------------------------------------------------------------- */

/* A call that reports its start and waits for permission to end. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool begun, may_end;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};

static void gate_wait(void) {
    pthread_mutex_lock(&gate.mutex);
    gate.begun = true;
    pthread_cond_broadcast(&gate.cond);
    while (!gate.may_end) pthread_cond_wait(&gate.cond, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
}

static void gate_until_begun(void) {
    pthread_mutex_lock(&gate.mutex);
    while (!gate.begun) pthread_cond_wait(&gate.cond, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
}

static void gate_open(void) {
    pthread_mutex_lock(&gate.mutex);
    gate.may_end = true;
    pthread_cond_broadcast(&gate.cond);
    pthread_mutex_unlock(&gate.mutex);
}

static void *gate_make_plan(void *user) {
    plan_rig *r = user;
    fxa_problem p = r->t.problem;
    t_plan *plan = NULL;
    fxa_error err;
    p.flags |= FXA_RETURN_ROW_MAX; /* not the code of the existing plan */
    p.ordinal = mock.opening ? 1 : 0;
    if (fxa_plan_create(r->ctx, &p, &plan, &err) != FXA_OK) return NULL;
    return user;
}

static void finalize(fxa_plan *plan) {
    mock_in_finalizer = true;
    fxa_plan_destroy(plan);
    mock_in_finalizer = false;
}

/* Calls made while an engine opens or compiles must return, or the test never ends. */
static void gate_test(bool opening) {
    plan_rig r;
    fxa_error err;
    fxa_plan *plan = NULL, *second = NULL;
    pthread_t thread;
    void *ok = NULL;
    T_REQUIRE(seam_start(&r));
    gate.begun = gate.may_end = false;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &second, &err));
    *(opening ? &mock.opening : &mock.compiling) = gate_wait;
    T_REQUIRE(pthread_create(&thread, NULL, gate_make_plan, &r) == 0);
    gate_until_begun();
    fxa_cache_clear(r.ctx); /* leaves the plans with the only references */
    size_t released = mock.released;
    T_OK(fxa_plan_save(plan, NULL, 0, &(size_t){0}, &err));
    finalize(plan);
    finalize(second);
    T_INT(mock.released, released);
    T_INT(mock.codes, 1);
    fxa_cache_clear(r.ctx); /* drains dropped code */
    T_INT(mock.codes, 0);
    fxa_problem host = r.t.problem;
    host.device = FXA_HOST;
    if (!opening) T_OK(fxa_attention(r.ctx, &host, &r.t.args, &err)); /* opening another engine waits for the first */
    gate_open();
    pthread_join(thread, &ok);
    T_CHECK(ok);
    mock.opening = mock.compiling = NULL;
    seam_end(&r);
}

TEST(a_finalizer_does_not_wait_for_a_compiler) { gate_test(false); } /* */
TEST(a_finalizer_does_not_wait_for_a_device_to_open) { gate_test(true); }

/* ---- Past the end of the context --------------------------------------------------------------------------------- */

TEST(plans_that_outlive_their_context) {
    plan_rig r;
    fxa_plan *plan = NULL;
    T_REQUIRE(seam_start(&r));
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    tiny_end(&r.t);
    fxa_context_destroy(r.ctx);
    T_INT(mock.codes, 1);
    T_INT(mock.closed, 0);
    fxa_plan_destroy(plan);
    T_INT(mock.codes, 0);
    T_INT(mock.closed, 1);
    T_INT(mock.mistakes, 0);
    T_INT(r.memory.live_bytes, 0);
}

/* ---- The storm --------------------------------------------------------------------------------------------------- */

enum { STORM_KEPT = 6 };

typedef struct storm {
    plan_rig r;
    tiny t[CROWD];
    int rounds;
    _Atomic(fxa_plan *) kept[STORM_KEPT]; /* made by one thread, destroyed by another */
    atomic_int failures;
} storm;

typedef struct storm_thread {
    storm *s;
    int number;
    pthread_t thread;
} storm_thread;

/* Varies a problem to one of eight kinds, some of which share code. */
static void storm_vary(fxa_problem *p, uint64_t draw) {
    if (draw & 1) p->flags |= FXA_RETURN_ROW_MAX;
    if (draw & 2) p->flags |= FXA_CAUSAL;
    p->ordinal = draw >> 2 & 1;
    p->engine = draw >> 3 & 1 ? "first" : "second";
    p->flags &= (draw >> 4 & 1) ? ~0u : ~(uint32_t)FXA_RETURN_LSE;
}

static void storm_step(storm_thread *me, t_rng *rng) {
    storm *s = me->s;
    tiny *t = &s->t[me->number];
    fxa_error err;
    fxa_plan *plan = NULL;
    fxa_problem p = t->problem;
    fxa_args args = t->args;
    static _Thread_local double max_row[TINY_ROWS];
    storm_vary(&p, t_next(rng));
    args.slot[FXA_SLOT_ROW_MAX] = p.flags & FXA_RETURN_ROW_MAX ? max_row : NULL;
    if (!(p.flags & FXA_RETURN_LSE)) args.slot[FXA_SLOT_LSE] = NULL;
    if (fxa_plan_create(s->r.ctx, &p, &plan, &err) != FXA_OK) atomic_fetch_add(&s->failures, 1);
    finalize(atomic_exchange(&s->kept[t_int(rng, 0, STORM_KEPT - 1)], plan));
    switch (t_int(rng, 0, 5)) {
    case 0: fxa_cache_clear(s->r.ctx); break;
    case 1: fxa_cache_limit(s->r.ctx, (uint64_t)t_int(rng, 0, 4), 1 << 20); break;
    case 2:
        if (fxa_attention(s->r.ctx, &p, &args, &err) != FXA_OK) atomic_fetch_add(&s->failures, 1);
        if (!(tiny_error(t) <= TINY_TOLERANCE)) atomic_fetch_add(&s->failures, 1);
        break;
    default: finalize(atomic_exchange(&s->kept[t_int(rng, 0, STORM_KEPT - 1)], NULL)); break;
    }
}

static void *storm_run(void *user) {
    storm_thread *me = user;
    t_rng rng = {t_seed() + (uint64_t)me->number};
    for (int i = 0; i < me->s->rounds; i++) storm_step(me, &rng);
    return NULL;
}

TEST(finalizer_storm) { /* */
    static storm s;
    storm_thread thread[CROWD];
    memset(&s, 0, sizeof s);
    T_REQUIRE(seam_start(&s.r));
    s.rounds = t_scaled(400);
    for (int i = 0; i < CROWD; i++) {
        T_OK(tiny_forward(s.r.ctx, &s.t[i], &err));
        s.t[i].problem.device = FXA_CUDA;
    }
    for (int i = 0; i < CROWD; i++) {
        thread[i] = (storm_thread){.s = &s, .number = i};
        T_REQUIRE(pthread_create(&thread[i].thread, NULL, storm_run, &thread[i]) == 0);
    }
    for (int i = 0; i < CROWD; i++) pthread_join(thread[i].thread, NULL);
    T_INT(s.failures, 0);
    T_CHECK(mock.count[MOCK_COMPILE] > 8 && mock.released > 8 && mock.count[MOCK_RUN] > 8);
    for (int i = 0; i < STORM_KEPT; i++) finalize(s.kept[i]);
    for (int i = 0; i < CROWD; i++) tiny_end(&s.t[i]);
    seam_end(&s.r);
}

T_MAIN
