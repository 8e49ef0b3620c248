/* SPDX-License-Identifier: Apache-2.0
 *
 * The outside world of one context: its allocator hook, its threads, its tenants (the engines) and its run counter.
 * Reference counted, because programs and plans outlive the context they were made with; whoever owns memory of a host
 * holds a reference to it. All memory of the library comes through here, so tests can count it and make any allocation
 * fail.
 */
#ifndef FXA_BASE_HOST_H
#define FXA_BASE_HOST_H

#include "pool.h"
#include "sync.h"

#include <stdatomic.h>

/* Something that others keep in a host until its end: the first member of what they allocate. */
typedef struct fxa__tenant {
    struct fxa__tenant *next;
    void (*end)(fxa__host *host, struct fxa__tenant *tenant); /* frees it; nobody else has the host any more */
} fxa__tenant;

struct fxa__host {
    atomic_size_t refs;
    atomic_uint_least64_t runs; /* fxa_plan_run calls that were started; read by fxa_cache_get_stats */
    fxa_alloc_fn alloc;
    void *user;
    int32_t width; /* workers that a run may use, see pool.h; constant once anything has been made with the host */
    fxa_parallel_fn parallel;
    void *parallel_user;
    _Atomic(fxa__pool *) pool;      /* NULL until fxa__host_pool */
    atomic_bool closed;             /* the context has ended: what is left are programs and plans */
    fxa__lock lock;                 /* of who adds a tenant */
    _Atomic(fxa__tenant *) tenants; /* only ever added to */
};

/* What an fxa_context begins with; the rest of it belongs to src/plan. Stages below want nothing of it but the host. */
typedef struct fxa__context_head {
    fxa__host *host;
} fxa__context_head;
static inline fxa__host *fxa__context_host(const fxa_context *ctx) {
    return ((const fxa__context_head *)(const void *)ctx)->host;
}

/* alloc NULL: the C library's. The host itself is the first allocation made through the hook. No threads. */
fxa_status fxa__host_create(fxa_alloc_fn alloc, void *user, fxa__host **out, fxa_error *err);
fxa__host *fxa__host_retain(fxa__host *host);
void fxa__host_release(fxa__host *host);           /* the last one joins the threads */
_Bool fxa__host_release_not_last(fxa__host *host); /* false: it would be the last one, and is not released */

/* The pool with host->width workers, made by the first call. It lives as long as the host. */
fxa_status fxa__host_pool(fxa__host *host, fxa__pool **out, fxa_error *err);

/* Zeroed memory aligned to 16, NULL when there is none; size 0 gives NULL. Free needs the size, takes NULL. */
void *fxa__alloc(fxa__host *host, size_t size);
void fxa__free(fxa__host *host, void *ptr, size_t size);
/* The same with another alignment, as the hook gives it: for workspaces. */
void *fxa__alloc_aligned(fxa__host *host, size_t size, size_t align);
void fxa__free_aligned(fxa__host *host, void *ptr, size_t size, size_t align);
/* The same for n elements, checked against overflow (NULL). */
void *fxa__alloc_array(fxa__host *host, size_t n, size_t element);

/* Grows *ptr (elements of `element` bytes, *capacity of them) so that it holds at least `need`; new part is zeroed.
 * False when memory runs out: nothing has changed then. */
_Bool fxa__grow(fxa__host *host, void *ptr_to_pointer, size_t *capacity, size_t need, size_t element);

#endif
