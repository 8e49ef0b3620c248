/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator for tests: fails where it is told to, counts what is live, and checks the contract of fxa_alloc_fn (the
 * old size and the alignment that come back must be those that were asked for). Fresh memory is filled with junk, freed
 * memory is overwritten. Safe to use from many threads.
 */
#ifndef FXA_TESTS_FAIL_ALLOC_H
#define FXA_TESTS_FAIL_ALLOC_H

#include "fxattn/fxattn.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct fail_alloc {
    pthread_mutex_t mutex;
    size_t calls;              /* allocations and resizes asked for */
    size_t live_bytes, blocks; /* now */
    size_t peak_bytes;
    size_t fail_at;  /* the call that fails, counted as calls is; 0: none */
    bool persistent; /* every later one fails too */
    size_t failures; /* how many were refused */
    size_t mistakes; /* breaches of the contract */
} fail_alloc;

#define FAIL_ALLOC_INIT                                                                                                \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

/* The hook; user is a fail_alloc. */
void *fail_alloc_fn(void *user, void *ptr, size_t old_size, size_t new_size, size_t align);

/* From now on the k-th allocation fails (1: the next one); 0: none. */
void fail_alloc_arm(fail_alloc *f, size_t k, bool persistent);

/* A context on this allocator; NULL when that failed. */
fxa_context *fail_alloc_context(fail_alloc *f);
/* The same, with a program of that text and its derivative. The end of it returns what is live then: 0 is right. */
fxa_context *fail_alloc_programs(fail_alloc *f, const char *text, fxa_program **p, fxa_program **derivative);
size_t fail_alloc_programs_end(fail_alloc *f, fxa_context *ctx, fxa_program *p, fxa_program *derivative);

#endif
