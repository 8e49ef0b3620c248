/* SPDX-License-Identifier: Apache-2.0
 *
 * Asserts of the library: test builds have them, and a failed assert ends the process with position and text.
 */
#include "t.h"

#include "base/host.h"
#include "base/invariant.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
static void break_none(void) {
    int evaluated = 0;
    FXA__ASSERT(++evaluated == 1);
    if (!FXA__HOLDS(++evaluated == 2) || evaluated != 2) _exit(1);
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
    char text[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run_apart(cases[i].fn, text, sizeof text);
        T_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        T_CHECK(strstr(text, cases[i].says) != NULL);
    }
}

TEST(one_that_holds_does_nothing) {
    if (!FXA_ASSERT) T_SKIP("this build has no asserts");
    char text[4096];
    int status = run_apart(break_none, text, sizeof text);
    T_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    T_INT(strlen(text), 0);
}

T_MAIN
