/* SPDX-License-Identifier: Apache-2.0
 *
 * Environment of one context: allocator hook, threads, tenants (the engines) and run counter. A host is reference
 * counted, because programs and plans outlive their context; every owner of host memory holds a reference. All memory
 * of the library is allocated here, so tests can count allocations and make any of them fail.
 */
#ifndef FXA_BASE_HOST_H
#define FXA_BASE_HOST_H

#include "pool.h"
#include "sync.h"

#include <stdatomic.h>

/* Object that lives as long as the host, such as an engine's instance. fxa__tenant is the first member of the object's
 * own struct. */
typedef struct fxa__tenant {
    struct fxa__tenant *next;
    /* frees the tenant's object; called when nothing else uses the host */
    void (*end)(fxa__host *host, struct fxa__tenant *tenant);
} fxa__tenant;

struct fxa__host {
    atomic_size_t refs;
    atomic_uint_least64_t runs; /* number of fxa_plan_run calls, for fxa_cache_get_stats */
    fxa_alloc_fn alloc;
    void *user;
    int32_t width; /* maximum workers of a run (pool.h); constant from the first program or plan on */
    fxa_parallel_fn parallel;
    void *parallel_user;
    _Atomic(fxa__pool *) pool;      /* NULL until fxa__host_pool makes it */
    atomic_bool closed;             /* true = the context was destroyed; only programs and plans remain */
    fxa__lock lock;                 /* held while a tenant is added */
    _Atomic(fxa__tenant *) tenants; /* list of the tenants, which only grows */
};

/* First member of fxa_context; the other members belong to src/plan. Layers below src/plan use only the host. */
typedef struct fxa__context_head {
    fxa__host *host;
} fxa__context_head;
static inline fxa__host *fxa__context_host(const fxa_context *ctx) {
    return ((const fxa__context_head *)(const void *)ctx)->host;
}

/* Creates a host. alloc: allocator hook; NULL = the C library's allocator. The host itself is the first allocation. No
 * threads are started. */
fxa_status fxa__host_create(fxa_alloc_fn alloc, void *user, fxa__host **out, fxa_error *err);
fxa__host *fxa__host_retain(fxa__host *host);
/* drops a reference; dropping the last reference joins the threads and frees the host */
void fxa__host_release(fxa__host *host);
/* Drops a reference to the host and returns true. If the reference is the last one, keeps it and returns false. */
_Bool fxa__host_release_not_last(fxa__host *host);

/* Writes the pool of host->width workers, which the first call creates, to *out. The pool lives as long as the host. */
fxa_status fxa__host_pool(fxa__host *host, fxa__pool **out, fxa_error *err);

/* Returns zeroed memory aligned to 16; NULL if memory runs out or size is 0. fxa__free needs the allocated size and
 * accepts NULL. */
void *fxa__alloc(fxa__host *host, size_t size);
void fxa__free(fxa__host *host, void *ptr, size_t size);
/* Allocates memory with a given alignment, for workspaces; the memory is not zeroed. */
void *fxa__alloc_aligned(fxa__host *host, size_t size, size_t align);
void fxa__free_aligned(fxa__host *host, void *ptr, size_t size, size_t align);
/* Returns zeroed memory for n elements; NULL if memory runs out or the size overflows. */
void *fxa__alloc_array(fxa__host *host, size_t n, size_t element);

/* Grows the array *ptr_to_pointer of *capacity elements to at least `need` elements and zeroes the new elements.
 * Returns false, with the array unchanged, if memory runs out. */
_Bool fxa__grow(fxa__host *host, void *ptr_to_pointer, size_t *capacity, size_t need, size_t element);

#endif
