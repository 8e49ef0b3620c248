/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocator for tests: fails on request, counts live memory, and verifies the contract of fxa_alloc_fn, by which old
 * size and alignment must be those of the allocation, and by which nothing is written past the end of a block. New
 * memory is filled with junk, freed memory is overwritten. Thread-safe.
 */
#ifndef FXA_TESTS_FAIL_ALLOC_H
#define FXA_TESTS_FAIL_ALLOC_H

#include "fxattn/fxattn.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct fail_alloc {
    pthread_mutex_t mutex;
    size_t calls;              /* number of allocations and resizes so far */
    size_t live_bytes, blocks; /* at present */
    size_t peak_bytes;
    size_t fail_at;  /* number of the call that fails, counted as in `calls`; 0 = none */
    bool persistent; /* true: all calls after it fail too */
    size_t failures; /* number of calls that failed */
    size_t mistakes; /* number of violations of the contract */
} fail_alloc;

#define FAIL_ALLOC_INIT                                                                                                \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

/* The allocator function; `user` points to a fail_alloc. */
void *fail_alloc_fn(void *user, void *ptr, size_t old_size, size_t new_size, size_t align);

/* Makes the k-th allocation from now on fail (1 = the next allocation); k = 0: none fails. */
void fail_alloc_arm(fail_alloc *f, size_t k, bool persistent);

/* Returns a context with this allocator; NULL if that fails. */
fxa_context *fail_alloc_context(fail_alloc *f);
/* Makes a context, a program of the text, and the program's derivative. fail_alloc_programs_end destroys all three and
 * returns the number of bytes that are still live, which should be 0. */
fxa_context *fail_alloc_programs(fail_alloc *f, const char *text, fxa_program **p, fxa_program **derivative);
size_t fail_alloc_programs_end(fail_alloc *f, fxa_context *ctx, fxa_program *p, fxa_program *derivative);

#endif
