/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of a context, and the jobs that the threads share.
 *
 * A job is published as one atomic word, `tickets`: the number of workers, and the number of the next worker that has
 * not started. A thread reads the job's function only after it has taken a ticket, which is a worker number. The job
 * ends when the workers of all tickets are done. A late thread therefore finds no ticket, or a ticket of the current
 * job. A thread without a ticket, and a caller whose job is not done, spins for a while, then sleeps.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for sched_getaffinity */
#endif
#include "pool.h"

#include "error.h"
#include "float_state.h"
#include "host.h"
#include "invariant.h"
#include "sync.h"

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <string.h>
#include <unistd.h>

/* time in ns that a thread spins before it sleeps: longer than the gap between two successive jobs of a run */
#define POOL_SPIN_NS 80000
/* stack of a thread in bytes: eight times what a run needs (test_stack.c), because sanitizers need more */
#define POOL_STACK ((size_t)1 << 20)
/* The upper 16 bits of `tickets` are the number of the next worker, the lower 16 bits the number of workers. POOL_NEXT
 * adds 1 to the former. */
#define POOL_NEXT 0x10000u

struct fxa__pool {
    fxa__host *host; /* owner of the pool; the pool holds no reference to it */
    fxa_parallel_fn parallel;
    void *parallel_user;
    pid_t pid; /* process that created the threads; a child after fork has no threads */
    int32_t width, n_threads;
    bool spins; /* true = idle threads spin for a while before they sleep; set if no worker shares a CPU */

    atomic_flag busy; /* set while a job runs; the thread that sets it alone may write fn, arg and tickets */
    fxa__task_fn fn;
    void *arg;
    _Alignas(64) atomic_uint tickets;
    _Alignas(64) atomic_int done; /* number of workers of the job that are done */

    fxa__lock threads_lock; /* idle threads sleep on this lock */
    atomic_int sleepers;
    atomic_bool stop;
    fxa__lock caller_lock; /* the caller of a job sleeps on this lock */
    atomic_bool caller_sleeps;

    pthread_t threads[];
};

int32_t fxa__cpu_count(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > FXA_MAX_THREADS ? FXA_MAX_THREADS : (int32_t)n;
}

/* ---- Waiting: polling, then sleeping ----------------------------------------------------------------------------- */

typedef bool (*pool_ready_fn)(fxa__pool *pool);

static bool pool_has_work(fxa__pool *pool) {
    unsigned tickets = atomic_load(&pool->tickets);
    return tickets / POOL_NEXT < tickets % POOL_NEXT || atomic_load(&pool->stop);
}

static bool pool_is_done(fxa__pool *pool) {
    return (unsigned)atomic_load(&pool->done) == atomic_load(&pool->tickets) % POOL_NEXT;
}

static void pool_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t pool_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool pool_spin(fxa__pool *pool, pool_ready_fn ready) {
    if (!pool->spins) return ready(pool);
    int64_t end = pool_clock() + POOL_SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (ready(pool)) return true;
            pool_pause();
        }
    } while (pool_clock() < end);
    return false;
}

/* A sleeper announces itself before it checks for work the last time; a waker publishes work before it checks for
 * sleepers. So either the sleeper sees the work or the waker sees the sleeper. The lock prevents a wake between the
 * sleeper's check and its sleep. */
static void pool_thread_sleep(fxa__pool *pool) {
    fxa__lock_take(&pool->threads_lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!pool_has_work(pool)) fxa__lock_wait(&pool->threads_lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    fxa__lock_give(&pool->threads_lock);
}

static void pool_threads_wake(fxa__pool *pool) {
    if (atomic_load(&pool->sleepers) == 0) return;
    fxa__lock_take(&pool->threads_lock);
    fxa__lock_wake(&pool->threads_lock);
    fxa__lock_give(&pool->threads_lock);
}

static void pool_caller_sleep(fxa__pool *pool) {
    fxa__lock_take(&pool->caller_lock);
    atomic_store(&pool->caller_sleeps, true);
    while (!pool_is_done(pool)) fxa__lock_wait(&pool->caller_lock);
    atomic_store(&pool->caller_sleeps, false);
    fxa__lock_give(&pool->caller_lock);
}

static void pool_caller_wake(fxa__pool *pool) {
    if (!atomic_load(&pool->caller_sleeps)) return;
    fxa__lock_take(&pool->caller_lock);
    fxa__lock_wake(&pool->caller_lock);
    fxa__lock_give(&pool->caller_lock);
}

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

static void pool_call(fxa__task_fn fn, void *arg, int32_t worker) {
    fxa__float_state before = fxa__float_enter(FXA__FLOAT_FLUSH);
    fn(arg, worker);
    fxa__float_leave(&before);
}

/* Takes tickets (worker numbers) of the current job, and runs the worker of each, until no ticket is left. */
static void pool_play(fxa__pool *pool) {
    unsigned tickets = atomic_load(&pool->tickets);
    while (tickets / POOL_NEXT < tickets % POOL_NEXT) {
        if (!atomic_compare_exchange_weak(&pool->tickets, &tickets, tickets + POOL_NEXT)) continue;
        pool_call(pool->fn, pool->arg, (int32_t)(tickets / POOL_NEXT));
        int32_t width = (int32_t)(tickets % POOL_NEXT);
        if (atomic_fetch_add(&pool->done, 1) + 1 == width) pool_caller_wake(pool);
        tickets = atomic_load(&pool->tickets);
    }
}

static void *pool_thread(void *user) {
    fxa__pool *pool = user;
    while (!atomic_load(&pool->stop)) {
        if (!pool_spin(pool, pool_has_work)) pool_thread_sleep(pool);
        pool_play(pool);
    }
    return NULL;
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

typedef struct pool_task {
    fxa__task_fn fn;
    void *arg;
} pool_task;

static void pool_task_run(void *arg, int32_t worker) {
    const pool_task *task = arg;
    pool_call(task->fn, task->arg, worker);
}

static void pool_run_alone(int32_t width, fxa__task_fn fn, void *arg) {
    for (int32_t w = 0; w < width; w++) pool_call(fn, arg, w);
}

void fxa__pool_run(fxa__pool *pool, void *user, int32_t width, fxa__task_fn fn, void *arg) {
    /* The worker number is an index into the scratch memory of a job, which is for pool->width workers. */
    FXA__ASSERT(0 <= width && width <= pool->width);
    if (width > 1 && pool->parallel) {
        pool_task task = {fn, arg};
        pool->parallel(user ? user : pool->parallel_user, width, pool_task_run, &task);
        return;
    }
    if (width <= 1 || pool->n_threads == 0 || pool->pid != getpid() || atomic_flag_test_and_set(&pool->busy)) {
        pool_run_alone(width, fn, arg);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    atomic_store(&pool->done, 1); /* worker 0, the caller, is counted in advance: `done` is read after its work */
    atomic_store(&pool->tickets, POOL_NEXT + (unsigned)width);
    pool_threads_wake(pool);
    pool_call(fn, arg, 0);
    pool_play(pool);
    if (!pool_spin(pool, pool_is_done)) pool_caller_sleep(pool);
    atomic_flag_clear(&pool->busy);
}

int32_t fxa__pool_width(const fxa__pool *pool) { return pool->width; }

/* ---- Creation, destruction and fork ------------------------------------------------------------------------------ */

static size_t pool_size(int32_t width) {
    /* cannot overflow: width is at most FXA_MAX_THREADS */
    return sizeof(fxa__pool) + (size_t)(width - 1) * sizeof(pthread_t);
}

/* Starts a thread with POOL_STACK bytes of stack: the system's default size may be a few dozen KB, or many MB that
 * count against a limit. If the system refuses POOL_STACK, as with large thread-local storage, the default size is
 * used. Returns false if no thread could be started. */
static bool pool_thread_start(fxa__pool *pool, pthread_t *out) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) == 0) {
        bool started =
            pthread_attr_setstacksize(&attr, POOL_STACK) == 0 && pthread_create(out, &attr, pool_thread, pool) == 0;
        pthread_attr_destroy(&attr);
        if (started) return true;
    }
    return pthread_create(out, NULL, pool_thread, pool) == 0;
}

/* Starts up to width - 1 threads, as many as the system permits; jobs have `width` workers in any case. The threads
 * block all signals, so that signals reach only the threads of the program that uses the library. */
static void pool_threads_start(fxa__pool *pool) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->n_threads < pool->width - 1 && pool_thread_start(pool, &pool->threads[pool->n_threads]))
        pool->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

fxa_status fxa__pool_create(fxa__host *host, int32_t width, fxa_parallel_fn parallel, void *parallel_user,
                            fxa__pool **out, fxa_error *err) {
    *out = NULL;
    FXA__ASSERT(1 <= width && width <= FXA_MAX_THREADS);
    fxa__pool *pool = fxa__alloc_aligned(host, pool_size(width), _Alignof(fxa__pool));
    if (!pool) return fxa__fail_memory(err, "threads");
    memset(pool, 0, pool_size(width));
    pool->host = host;
    pool->parallel = parallel;
    pool->parallel_user = parallel_user;
    pool->pid = getpid();
    pool->width = width;
    pool->spins = width <= fxa__cpu_count();
    atomic_flag_clear(&pool->busy);
    fxa_status status = fxa__lock_init(&pool->threads_lock, err);
    if (status != FXA_OK) goto fail_memory;
    status = fxa__lock_init(&pool->caller_lock, err);
    if (status != FXA_OK) goto fail_lock;
    if (!parallel) pool_threads_start(pool);
    *out = pool;
    return FXA_OK;

fail_lock:
    fxa__lock_destroy(&pool->threads_lock);
fail_memory:
    fxa__free_aligned(host, pool, pool_size(width), _Alignof(fxa__pool));
    return status;
}

void fxa__pool_destroy(fxa__pool *pool) {
    if (!pool) return;
    if (pool->pid == getpid()) {
        atomic_store(&pool->stop, true);
        pool_threads_wake(pool);
        for (int32_t i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
        fxa__lock_destroy(&pool->caller_lock);
        fxa__lock_destroy(&pool->threads_lock);
    }
    fxa__free_aligned(pool->host, pool, pool_size(pool->width), _Alignof(fxa__pool));
}
