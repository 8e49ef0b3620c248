/* SPDX-License-Identifier: Apache-2.0
 *
 * Thread pool: every worker of every job runs exactly once, whichever thread calls and however many threads exist.
 * Worker slots are plain ints, so ThreadSanitizer detects two threads with the same worker, or a job that returns too
 * early.
 */
#include "base/host.h"
#include "support/fixtures/thread_count.h"
#include "t.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { POOL_MOST = 64 };

static fxa__host *pool_host_of(int32_t width, fxa_parallel_fn parallel, void *user) {
    fxa__host *host = NULL;
    if (fxa__host_create(NULL, NULL, &host, NULL) != FXA_OK) abort();
    host->width = width;
    host->parallel = parallel;
    host->parallel_user = user;
    return host;
}

static fxa__pool *pool_of(fxa__host *host) {
    fxa__pool *pool = NULL;
    if (fxa__host_pool(host, &pool, NULL) != FXA_OK) abort();
    return pool;
}

typedef struct pool_marks {
    int runs[POOL_MOST];
    fxa__pool *pool; /* for nested jobs */
    int64_t work;    /* busy work per call */
    atomic_int_least64_t items;
    int64_t sum[POOL_MOST];
} pool_marks;

static void pool_mark(void *arg, int32_t worker) {
    pool_marks *m = arg;
    m->runs[worker]++;
    for (volatile int64_t i = 0; i < m->work; i++) {}
}

static void check_once(const pool_marks *m, int32_t width, int times) {
    for (int32_t w = 0; w < POOL_MOST; w++) T_INT(m->runs[w], w < width ? times : 0);
}

/* ---- Jobs ------------------------------------------------------------------------------------------------------ */

TEST(every_worker_runs_once) {
    for (int32_t width = 1; width <= 9; width++) {
        fxa__host *host = pool_host_of(width, NULL, NULL);
        fxa__pool *pool = pool_of(host);
        T_INT(fxa__pool_width(pool), width);
        for (int32_t w = 0; w <= width; w++) {
            pool_marks m = {.work = 0};
            int times = t_scaled(50);
            for (int i = 0; i < times; i++) fxa__pool_run(pool, NULL, w, pool_mark, &m);
            check_once(&m, w, times);
        }
        fxa__host_release(host);
    }
}

static void pool_take_items(void *arg, int32_t worker) {
    pool_marks *m = arg;
    m->runs[worker]++;
    for (int64_t i; (i = atomic_fetch_add(&m->items, 1)) < 1000;) m->sum[worker] += i;
}

TEST(items_are_shared_out) {
    fxa__host *host = pool_host_of(4, NULL, NULL);
    for (int i = 0; i < t_scaled(200); i++) {
        pool_marks m = {.work = 0};
        fxa__pool_run(pool_of(host), NULL, 4, pool_take_items, &m);
        check_once(&m, 4, 1);
        T_INT(m.sum[0] + m.sum[1] + m.sum[2] + m.sum[3], 999 * 1000 / 2);
    }
    fxa__host_release(host);
}

/* Jobs after pauses around the time that threads spin before they sleep: no job is lost or blocks forever. */
TEST(threads_that_fell_asleep_come_back) {
    fxa__host *host = pool_host_of(2, NULL, NULL);
    pool_marks m = {.work = 2000};
    int times = t_scaled(200);
    for (int i = 0; i < times; i++) {
        fxa__pool_run(pool_of(host), NULL, 2, pool_mark, &m);
        struct timespec t = {0, i * 1009 % 200 * 1000};
        nanosleep(&t, NULL);
    }
    check_once(&m, 2, times);
    fxa__host_release(host);
}

typedef struct pool_meeting {
    atomic_int here;
    bool met;
} pool_meeting;

static void pool_meet(void *arg, int32_t worker) {
    pool_meeting *m = arg;
    (void)worker;
    atomic_fetch_add(&m->here, 1);
    struct timespec t = {0, 1000000};
    for (int i = 0; i < 5000 && atomic_load(&m->here) < 2; i++) nanosleep(&t, NULL);
    if (worker == 0) m->met = atomic_load(&m->here) == 2;
}

/* Threads look for work for a while after a job, then sleep: a pool without jobs takes no processor time. */
TEST(threads_without_work_sleep) {
    fxa__host *host = pool_host_of(4, NULL, NULL);
    pool_marks m = {.work = 0};
    struct timespec while_idle = {.tv_nsec = 100 * 1000 * 1000}, before, after;
    fxa__pool_run(pool_of(host), NULL, 4, pool_mark, &m);
    nanosleep(&while_idle, NULL);
    T_INT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
    nanosleep(&while_idle, NULL);
    T_INT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
    double took = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    if (took > 0.01) T_FAIL("%.3f s in 0.1 s without work\n", took);
    fxa__host_release(host);
}

/* Two workers can meet only if they run at the same time; the caller sleeps until the other one is done. */
TEST(workers_run_at_the_same_time) {
    fxa__host *host = pool_host_of(2, NULL, NULL);
    pool_meeting m = {0};
    fxa__pool_run(pool_of(host), NULL, 2, pool_meet, &m);
    T_CHECK(m.met);
    fxa__host_release(host);
}

static void pool_slow_thread(void *arg, int32_t worker) {
    pool_marks *m = arg;
    struct timespec t = {0, worker ? 3000000 : 0};
    nanosleep(&t, NULL);
    m->runs[worker]++;
}

TEST(a_caller_waits_for_slow_workers) {
    fxa__host *host = pool_host_of(3, NULL, NULL);
    pool_marks m = {.work = 0};
    for (int i = 0; i < 20; i++) fxa__pool_run(pool_of(host), NULL, 3, pool_slow_thread, &m);
    check_once(&m, 3, 20);
    fxa__host_release(host);
}

/* ---- Busy pools ------------------------------------------------------------------------------------------------ */

static void pool_nest(void *arg, int32_t worker) {
    pool_marks *m = arg;
    pool_marks inner = {.work = 10};
    m->runs[worker]++;
    fxa__pool_run(m->pool, NULL, 4, pool_mark, &inner);
    for (int w = 0; w < 4; w++) m->sum[worker] += inner.runs[w];
}

TEST(a_job_inside_a_job_runs_in_place) {
    fxa__host *host = pool_host_of(4, NULL, NULL);
    pool_marks m = {.pool = pool_of(host)};
    for (int i = 0; i < t_scaled(100); i++) fxa__pool_run(m.pool, NULL, 4, pool_nest, &m);
    check_once(&m, 4, t_scaled(100));
    for (int w = 0; w < 4; w++) T_INT(m.sum[w], 4 * t_scaled(100));
    fxa__host_release(host);
}

typedef struct pool_caller {
    pthread_t thread;
    fxa__host *host;
    pool_marks marks;
} pool_caller;

static void *pool_call_often(void *user) {
    pool_caller *c = user;
    fxa__pool *pool = NULL;
    if (fxa__host_pool(c->host, &pool, NULL) != FXA_OK) abort(); /* all callers at once must get the same pool */
    c->marks.pool = pool;
    for (int i = 0; i < t_scaled(300); i++) fxa__pool_run(pool, NULL, 3, pool_mark, &c->marks);
    return NULL;
}

TEST(many_callers_at_once) {
    enum { CALLERS = 8 };
    static pool_caller callers[CALLERS];
    memset(callers, 0, sizeof callers);
    fxa__host *host = pool_host_of(3, NULL, NULL);
    for (int i = 0; i < CALLERS; i++) {
        callers[i].host = host;
        callers[i].marks.work = 50 * i;
        T_INT(pthread_create(&callers[i].thread, NULL, pool_call_often, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(callers[i].thread, NULL);
    for (int i = 0; i < CALLERS; i++) {
        check_once(&callers[i].marks, 3, t_scaled(300));
        T_CHECK(callers[i].marks.pool == callers[0].marks.pool);
    }
    fxa__host_release(host);
}

/* ---- The caller's parallel loop -------------------------------------------------------------------------------- */

typedef struct pool_loop {
    int calls;
    int32_t n;
} pool_loop;

static void pool_backwards(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    pool_loop *loop = user;
    loop->calls++;
    loop->n = n;
    for (int32_t i = n - 1; i >= 0; i--) task(arg, i);
}

TEST(the_callers_own_loop_runs_jobs) {
    pool_loop loop = {0};
    int before = thread_count_now();
    fxa__host *host = pool_host_of(5, pool_backwards, &loop);
    pool_marks m = {.work = 0};
    fxa__pool_run(pool_of(host), NULL, 5, pool_mark, &m);
    check_once(&m, 5, 1);
    T_INT(loop.calls, 1);
    T_INT(loop.n, 5);
    fxa__pool_run(pool_of(host), NULL, 1, pool_mark, &m); /* a single worker */
    T_INT(m.runs[0], 2);
    T_INT(loop.calls, 1);
    T_INT(thread_count_now(), before);
    fxa__host_release(host);
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

TEST(threads_come_with_the_pool_and_go_with_the_host) {
    int before = thread_count_now();
    if (before == 0) T_SKIP("this system does not tell how many threads there are");
    fxa__host *host = pool_host_of(4, NULL, NULL);
    T_INT(thread_count_now(), before);
    fxa__pool *pool = pool_of(host);
    T_INT(thread_count_now(), before + 3);
    T_CHECK(pool_of(host) == pool);
    fxa__host_retain(host);
    fxa__host_release(host);
    T_INT(thread_count_now(), before + 3);
    fxa__host_release(host); /* joined, though the system may take a moment to remove the thread */
    struct timespec t = {0, 1000000};
    for (int i = 0; i < 1000 && thread_count_now() != before; i++) nanosleep(&t, NULL);
    T_INT(thread_count_now(), before);
    host = pool_host_of(1, NULL, NULL);
    (void)pool_of(host);
    T_INT(thread_count_now(), before);
    fxa__host_release(host);
}

TEST(destroying_is_safe_at_any_moment_of_idleness) {
    for (int i = 0; i < t_scaled(100); i++) {
        fxa__host *host = pool_host_of(3, NULL, NULL);
        pool_marks m = {.work = 0};
        if (i % 2)
            fxa__pool_run(pool_of(host), NULL, 3, pool_mark, &m);
        else
            (void)pool_of(host);
        struct timespec t = {0, i % 5 * 40000};
        nanosleep(&t, NULL);
        fxa__host_release(host);
    }
}

/* A forked child has no pool threads: it works alone and waits for none. */
TEST(a_child_works_alone) {
    fxa__host *host = pool_host_of(4, NULL, NULL);
    fxa__pool *pool = pool_of(host);
    pool_marks m = {.work = 0};
    fxa__pool_run(pool, NULL, 4, pool_mark, &m);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        fxa__pool_run(pool, NULL, 4, pool_mark, &m);
        bool all = m.runs[0] == 2 && m.runs[3] == 2;
        fxa__host_release(host);
        _exit(all ? 0 : 1);
    }
    int status = -1;
    T_CHECK(waitpid(child, &status, 0) == child);
    T_INT(status, 0);
    fxa__pool_run(pool, NULL, 4, pool_mark, &m);
    check_once(&m, 4, 2);
    fxa__host_release(host);
}

/* Workers block all signals; signals go to the program's own threads. */
static void pool_signals(void *arg, int32_t worker) {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    ((pool_marks *)arg)->runs[worker] = sigismember(&now, SIGTERM);
    struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
}

TEST(threads_take_no_signals) {
    fxa__host *host = pool_host_of(2, NULL, NULL);
    pool_marks m = {.work = 0};
    for (int i = 0; i < 100 && !m.runs[1]; i++) fxa__pool_run(pool_of(host), NULL, 2, pool_signals, &m);
    T_INT(m.runs[0], 0);
    T_INT(m.runs[1], 1);
    fxa__host_release(host);
}

/* ---- Floating point state -------------------------------------------------------------------------------------- */

static void pool_flushes(void *arg, int32_t worker) {
    volatile float tiny = 0x1p-126f, half = 0.5f;
    volatile double third = 1.0, three = 3.0;
    ((pool_marks *)arg)->runs[worker] = tiny * half == 0 && third / three == 0x1.5555555555555p-2;
}

/* Inside jobs denormals are flushed and rounding is to nearest even, whatever the caller's mode. Afterwards the
 * caller's mode and flags are unchanged. */
TEST(denormals_are_flushed_inside_only) {
#if !defined(__x86_64__) && !defined(__aarch64__)
    T_SKIP("this machine's floating point state is not known");
#endif
    volatile float tiny = 0x1p-126f, half = 0.5f;
    volatile double one = 1.0, three = 3.0;
    pool_loop loop = {0};
    for (int kind = 0; kind < 3; kind++) {
        fxa__host *host = pool_host_of(kind == 0 ? 1 : 4, kind == 2 ? pool_backwards : NULL, &loop);
        pool_marks m = {.work = 0};
        fesetround(FE_UPWARD);
        feclearexcept(FE_ALL_EXCEPT);
        fxa__pool_run(pool_of(host), NULL, host->width, pool_flushes, &m);
        T_INT(fetestexcept(FE_ALL_EXCEPT), 0);
        T_INT(fegetround(), FE_UPWARD);
        T_CHECK(one / three == 0x1.5555555555556p-2);
        fesetround(FE_TONEAREST);
        T_CHECK(tiny * half == 0x1p-127f);
        check_once(&m, host->width, 1);
        fxa__host_release(host);
    }
}

T_MAIN
