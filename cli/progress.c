/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the progress line in its own thread while a command computes, and removes it at the end.
 */
#include "cli.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    const char *what;
    uint64_t done, total;
    double part; /* share of the current step that is done, 0 to 1 */
    double start;
    bool running, stop;
} progress_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static volatile sig_atomic_t progress_drawn; /* 1 = a line is on the terminal */

void progress_wipe(void) {
    static const char wipe[] = "\r\033[K";
    if (progress_drawn && write(STDERR_FILENO, wipe, sizeof wipe - 1) > 0) progress_drawn = 0;
}

double cli_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Waits for the end or for `ms` milliseconds. The caller holds the lock. */
static void progress_wait(long ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&progress_state.wake, &progress_state.lock, &until);
}

/* Draws the line in one write, so that a signal finds all of it or nothing. */
static void progress_draw(double seconds) {
    char line[128], share[16] = "";
    if (progress_state.total)
        snprintf(share, sizeof share, "%.0f%% ",
                 floor(100 * ((double)progress_state.done + progress_state.part) / (double)progress_state.total));
    int n = snprintf(line, sizeof line, "\r\033[K%.80s %s%.0f s", progress_state.what, share, seconds);
    progress_drawn = 1;
    if (write(STDERR_FILENO, line, (size_t)n) < 0) progress_drawn = 0;
}

static void *progress_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&progress_state.lock);
    while (!progress_state.stop) {
        double seconds = cli_seconds() - progress_state.start;
        if (seconds >= 1) progress_draw(seconds);
        progress_wait(200);
    }
    progress_wipe();
    pthread_mutex_unlock(&progress_state.lock);
    return NULL;
}

void progress_begin(const cli *c, const char *what, uint64_t total) {
    if (c->json || !isatty(STDERR_FILENO)) return;
    progress_state.what = what;
    progress_state.done = 0;
    progress_state.part = 0;
    progress_state.total = total;
    progress_state.stop = false;
    progress_state.start = cli_seconds();
    progress_state.running = pthread_create(&progress_state.thread, NULL, progress_main, NULL) == 0;
}

void progress_step(uint64_t done) {
    if (!progress_state.running) return;
    pthread_mutex_lock(&progress_state.lock);
    progress_state.done = done;
    progress_state.part = 0;
    pthread_mutex_unlock(&progress_state.lock);
}

/* Sets the share of the current step that is done. Calls may be out of order. */
static void progress_part(void *unused, uint64_t done, uint64_t total) {
    (void)unused;
    double part = (double)done / (double)total;
    pthread_mutex_lock(&progress_state.lock);
    if (part > progress_state.part) progress_state.part = part;
    pthread_mutex_unlock(&progress_state.lock);
}

fxa_progress_fn progress_hook(void) { return progress_state.running ? progress_part : NULL; }

void progress_end(void) {
    if (!progress_state.running) return;
    pthread_mutex_lock(&progress_state.lock);
    progress_state.stop = true;
    pthread_cond_signal(&progress_state.wake);
    pthread_mutex_unlock(&progress_state.lock);
    pthread_join(progress_state.thread, NULL);
    progress_state.running = false;
}
