/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests systems on which locks, thread attributes, threads or the number of CPUs are not available. The linker
 * substitutes the __wrap_ functions below for the C library's (tests/CMakeLists.txt); each fails the calls that a test
 * selects. A context is created completely or not at all, with a message and no leak. A pool has all its workers, even
 * if it got fewer threads.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* cpu_set_t */
#endif
#include "base/host.h"
#include "base/pool.h"
#include "support/memory/fail_alloc.h"
#include "t.h"

#if FXA_TEST_WRAPS

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

/* Calls of one function: their number, and the range that fails (counted from 1; 0 = none). */
typedef struct refusal {
    int calls, from, to;
} refusal;

static refusal mutexes, conds, attrs, stacks, threads, affinities, aligned;
static long cpus_online; /* result of sysconf; 0 = that of the system */
static atomic_int live;  /* mutexes and condition variables that were initialized and not destroyed */

static bool refused(refusal *r) {
    r->calls++;
    return r->calls >= r->from && r->calls <= r->to;
}

static void refuse_nothing(void) {
    mutexes = conds = attrs = stacks = threads = affinities = aligned = (refusal){0};
    cpus_online = 0;
}

int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr) {
    if (refused(&mutexes)) return EAGAIN;
    atomic_fetch_add(&live, 1);
    return __real_pthread_mutex_init(mutex, attr);
}

int __real_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex) {
    atomic_fetch_sub(&live, 1);
    return __real_pthread_mutex_destroy(mutex);
}

int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr) {
    if (refused(&conds)) return ENOMEM;
    atomic_fetch_add(&live, 1);
    return __real_pthread_cond_init(cond, attr);
}

int __real_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond) {
    atomic_fetch_sub(&live, 1);
    return __real_pthread_cond_destroy(cond);
}

int __real_pthread_attr_init(pthread_attr_t *attr);
int __wrap_pthread_attr_init(pthread_attr_t *attr);
int __wrap_pthread_attr_init(pthread_attr_t *attr) { return refused(&attrs) ? ENOMEM : __real_pthread_attr_init(attr); }

int __real_pthread_attr_setstacksize(pthread_attr_t *attr, size_t size);
int __wrap_pthread_attr_setstacksize(pthread_attr_t *attr, size_t size);
int __wrap_pthread_attr_setstacksize(pthread_attr_t *attr, size_t size) {
    return refused(&stacks) ? EINVAL : __real_pthread_attr_setstacksize(attr, size);
}

int __real_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) {
    return refused(&threads) ? EAGAIN : __real_pthread_create(out, attr, fn, arg);
}

int __real_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
    if (!refused(&affinities)) return __real_sched_getaffinity(pid, size, set);
    memset(set, 0, size);
    return affinities.calls % 2 ? -1 : 0; /* every second result has no CPU */
}

int __real_posix_memalign(void **out, size_t align, size_t size);
int __wrap_posix_memalign(void **out, size_t align, size_t size);
int __wrap_posix_memalign(void **out, size_t align, size_t size) {
    return refused(&aligned) ? ENOMEM : __real_posix_memalign(out, align, size);
}

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name) {
    return name == _SC_NPROCESSORS_ONLN && cpus_online ? cpus_online : __real_sysconf(name);
}

/* ---- Locks ----------------------------------------------------------------------------------------------------- */

/* Fails the n-th lock of a kind, for each n until a context is created. Returns the number of locks needed. */
static int check_refused_locks(refusal *kind, const char *text) {
    for (int n = 1; n < 50; n++) {
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_context_config config = {.struct_size = sizeof config, .alloc = fail_alloc_fn, .alloc_user = &memory};
        config.threads = 3;
        fxa_context *ctx = NULL;
        fxa_error err = {0};
        refuse_nothing();
        kind->from = kind->to = n;
        fxa_status status = fxa_context_create(&config, &ctx, &err);
        bool came = status == FXA_OK;
        T_CHECK(came == (ctx != NULL));
        if (!came) {
            T_INT(status, FXA_E_SYSTEM);
            T_HAS(err.text, text);
        }
        fxa_context_destroy(ctx);
        T_INT(memory.blocks, 0);
        T_INT(memory.mistakes, 0);
        T_INT(live, 0);
        if (came) return n - 1;
    }
    T_FAIL("no context came");
    return 0;
}

TEST(a_context_without_its_locks) {
    T_CHECK(check_refused_locks(&mutexes, "the system refused a mutex (error") >= 2);
    T_CHECK(check_refused_locks(&conds, "the system refused a condition variable (error") >= 2);
}

TEST(a_pool_without_its_locks) {
    refusal *kinds[] = {&mutexes, &conds};
    for (int kind = 0; kind < 2; kind++)
        for (int n = 1; n <= 3; n++) {
            fail_alloc memory = FAIL_ALLOC_INIT;
            fxa__host *host = NULL;
            fxa__pool *pool = NULL;
            refuse_nothing();
            T_OK(fxa__host_create(fail_alloc_fn, &memory, &host, &err));
            host->width = 3;
            refuse_nothing();
            kinds[kind]->from = kinds[kind]->to = n;
            T_INT(fxa__host_pool(host, &pool, &err), n <= 2 ? FXA_E_SYSTEM : FXA_OK);
            T_CHECK((pool != NULL) == (n == 3));
            T_INT(memory.blocks, n <= 2 ? 1 : 2);
            if (n <= 2) { /* a second attempt succeeds */
                T_HAS(err.text, "the system refused");
                T_OK(fxa__host_pool(host, &pool, &err));
            }
            fxa__host_release(host);
            T_INT(memory.blocks, 0);
            T_INT(memory.mistakes, 0);
            T_INT(live, 0);
        }
    refuse_nothing();
}

/* Reads the description of a device. Returns false, with a failed check, if it cannot be read. */
static bool read_target(char *text, size_t size) {
    FILE *file = fopen(FXA_SOURCE_DIR "/examples/targets/h200.json", "r");
    size_t n = file ? fread(text, 1, size - 1, file) : 0;
    if (file) (void)fclose(file);
    text[n] = '\0';
    T_CHECK(n > 0);
    return n > 0;
}

/* A context, its pool and an engine that was opened destroy their locks, whichever allocation fails or lock is refused.
 * The problem's device is one that is not here, so the engine opens without a driver. */
TEST(every_lock_is_destroyed) {
    static char target[4096];
    T_REQUIRE(read_target(target, sizeof target));
    setenv("FXA_NVRTC_PATH", "/nowhere", 1);
    for (int kind = 0; kind < 2; kind++)
        for (size_t n = 1, more = 1; more; n++) {
            fail_alloc memory = FAIL_ALLOC_INIT;
            fxa_context_config config = {.struct_size = sizeof config, .alloc = fail_alloc_fn, .alloc_user = &memory};
            fxa_context *ctx = NULL;
            fxa_problem p = FXA_PROBLEM_INIT;
            fxa_support report;
            size_t count = 1;
            p.sq = p.sk = 64, p.d_qk = 64, p.q.dtype = FXA_BF16, p.device = FXA_CUDA, p.engine = "cuda";
            p.target = target;
            refuse_nothing();
            if (kind) mutexes.from = mutexes.to = (int)n;
            if (!kind) fail_alloc_arm(&memory, n, false);
            fxa_status status = fxa_context_create(&config, &ctx, &err);
            if (status == FXA_OK) status = fxa_support_query(ctx, &p, &report, &count, &err);
            more = kind ? (size_t)mutexes.calls >= n : memory.failures;
            if (more && status != FXA_OK && status != (kind ? FXA_E_SYSTEM : FXA_E_MEMORY))
                T_FAIL("%zu: %s\n", n, err.text);
            fxa_context_destroy(ctx);
            T_INT(live, 0);
            T_INT(memory.blocks, 0);
            T_INT(memory.mistakes, 0);
            if (!more) T_CHECK(n > 3);
        }
    unsetenv("FXA_NVRTC_PATH");
    refuse_nothing();
}

/* ---- Threads --------------------------------------------------------------------------------------------------- */

enum { REFUSE_WIDTH = 4 };

static void refuse_mark(void *arg, int32_t worker) { ((int *)arg)[worker]++; }

/* Checks that all workers of a job run once, with any number of threads; n_created: calls of pthread_create. */
static void check_pool(int n_created) {
    fxa__host *host = NULL;
    fxa__pool *pool = NULL;
    fxa_error err = {0};
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    host->width = REFUSE_WIDTH;
    T_OK(fxa__host_pool(host, &pool, &err));
    T_INT(threads.calls, n_created);
    int runs[REFUSE_WIDTH] = {0};
    for (int i = 0; i < 20; i++) fxa__pool_run(pool, NULL, REFUSE_WIDTH, refuse_mark, runs);
    for (int w = 0; w < REFUSE_WIDTH; w++) T_INT(runs[w], 20);
    fxa__host_release(host);
    refuse_nothing();
}

TEST(threads_without_a_stack_of_their_size_get_the_systems) {
    attrs = (refusal){.from = 1, .to = 2};
    check_pool(3);
    stacks = (refusal){.from = 2, .to = 3};
    check_pool(3);
    threads = (refusal){.from = 1, .to = 1}; /* retried without the stack size */
    check_pool(4);
}

TEST(fewer_threads_than_workers) {
    threads = (refusal){.from = 1, .to = 100};
    check_pool(2); /* no thread */
    threads = (refusal){.from = 2, .to = 3};
    check_pool(3); /* one thread */
    attrs = (refusal){.from = 1, .to = 100};
    threads = (refusal){.from = 3, .to = 100};
    check_pool(3); /* two threads */
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

TEST(memory_that_the_c_library_does_not_align) {
    fxa__host *host = NULL;
    refuse_nothing();
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    aligned.from = aligned.to = 1;
    T_CHECK(fxa__alloc_aligned(host, 100, 64) == NULL);
    void *memory = fxa__alloc_aligned(host, 100, 64);
    T_CHECK(memory != NULL && (uintptr_t)memory % 64 == 0);
    T_INT(aligned.calls, 2);
    fxa__free_aligned(host, memory, 100, 64);
    fxa__host_release(host);
    refuse_nothing();
}

/* ---- CPUs ------------------------------------------------------------------------------------------------------ */

TEST(the_number_of_cpus_without_an_affinity) {
    static const struct {
        long online;
        int32_t count;
    } cases[] = {{-1, 1}, {1, 1}, {7, 7}, {1024, 1024}, {9999, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse_nothing();
        affinities.from = 1;
        affinities.to = 100;
        cpus_online = cases[i].online;
        T_INT(fxa__cpu_count(), cases[i].count); /* call fails */
        T_INT(fxa__cpu_count(), cases[i].count); /* empty set */
        T_INT(affinities.calls, 2);
    }
    refuse_nothing();
    T_CHECK(fxa__cpu_count() >= 1);
}

#else

TEST(a_system_that_refuses) { T_SKIP("this linker puts nothing in front of the C library's functions"); }

#endif

T_MAIN
