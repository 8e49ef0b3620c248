/* SPDX-License-Identifier: Apache-2.0
 *
 * Asserts of the library: test builds have them, and a failed assert ends the process with position and text.
 */
#include "t.h"

#include "base/host.h"
#include "base/invariant.h"
#include "base/sync.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#define TEST_SANITIZED __has_feature(address_sanitizer)
#else
#define TEST_SANITIZED 0
#endif

/* Runs fn in a child process; returns its wait status and sets text to its stderr. */
static int run_apart(void (*fn)(void), char *text, size_t size) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(ends[1], 2);
        close(ends[0]);
        fn();
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < size && (got = read(ends[0], text + n, size - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    return waitpid(child, &status, 0) == child ? status : -1;
}

static void nothing(void *arg, int32_t worker) { (void)arg, (void)worker; }

static void break_own(void) { FXA__ASSERT(1 + 1 == 3); }
static void break_memory(void) { (void)FXA__HOLDS(2 < 1); }
static void break_pool(void) { /* fails an assert within the library: more workers than the pool has */
    fxa__host *host = NULL;
    fxa__pool *pool = NULL;
    fxa_error err;
    if (fxa__host_create(NULL, NULL, &host, &err) || fxa__host_pool(host, &pool, &err)) return;
    fxa__pool_run(pool, NULL, 2, nothing, NULL);
}
static void break_memory_of(size_t allocated, size_t freed, size_t align, size_t written) {
    fxa__host *host = NULL;
    fxa_error err;
    if (fxa__host_create(NULL, NULL, &host, &err)) return;
    char *memory = fxa__alloc_aligned(host, allocated, 64);
    memset(memory, 0, written);
    fxa__free_aligned(host, memory, freed, align);
}
static void break_size(void) { break_memory_of(100, 99, 64, 100); }
static void break_align(void) { break_memory_of(100, 100, 32, 100); }
static void break_end(void) { break_memory_of(100, 100, 64, 101); }
static void break_lock(int takes, int gives, bool destroy) {
    fxa__lock lock;
    fxa_error err;
    if (fxa__lock_init(&lock, &err)) return;
    while (takes-- > 0) fxa__lock_take(&lock);
    while (gives-- > 0) fxa__lock_give(&lock);
    if (destroy) fxa__lock_destroy(&lock);
}
static void break_take(void) { break_lock(2, 2, false); }
static void break_give(void) { break_lock(1, 2, false); }
static void break_destroy(void) { break_lock(1, 0, true); }
static void break_none(void) {
    int evaluated = 0;
    FXA__ASSERT(++evaluated == 1);
    if (!FXA__HOLDS(++evaluated == 2) || evaluated != 2) _exit(1);
    break_memory_of(100, 100, 64, 100);
    break_lock(1, 1, true);
}

static void check_broken(void (*fn)(void), const char *says) {
    char text[4096];
    int status = run_apart(fn, text, sizeof text);
    T_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    T_HAS(text, says);
}

TEST(a_broken_invariant_stops_the_process) {
    if (!FXA_ASSERT) T_SKIP("this build has no asserts");
    const struct {
        void (*fn)(void);
        const char *says;
    } cases[] = {
        {break_own, "test_invariant.c:"},
        {break_own, "broken invariant: 1 + 1 == 3"},
        {break_memory, "2 < 1"},
        {break_pool, "pool.c:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_broken(cases[i].fn, cases[i].says);
}

/* The default allocator verifies the size and the alignment that the library passes for a block, and the bytes behind
 * it. AddressSanitizer has red zones of its own. */
TEST(a_wrong_free_and_a_write_past_the_end_stop_the_process) {
    if (!FXA_ASSERT || TEST_SANITIZED) T_SKIP("blocks of this build have no size and no red zone");
    check_broken(break_size, "broken invariant: head.size == size && head.align == align");
    check_broken(break_align, "broken invariant: head.size == size && head.align == align");
    check_broken(break_end, "broken invariant: fxa__poison_holds(");
}

/* A lock that a thread takes twice, gives twice, or destroys while it has it. */
TEST(a_wrong_use_of_a_lock_stops_the_process) {
    if (!FXA_ASSERT) T_SKIP("this build has no asserts");
    check_broken(break_take, "sync.c:");
    check_broken(break_give, "sync.c:");
    check_broken(break_destroy, "sync.c:");
}

TEST(one_that_holds_does_nothing) {
    if (!FXA_ASSERT) T_SKIP("this build has no asserts");
    char text[4096];
    int status = run_apart(break_none, text, sizeof text);
    T_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    T_INT(strlen(text), 0);
}

T_MAIN
