/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates memory through the context's hook; the default hook uses the C library. Memory of fxa__alloc is zeroed,
 * whatever the hook returns.
 */
#include "host.h"

#include "error.h"
#include "invariant.h"
#include "num.h"
#include "poison.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define HOST_SANITIZED 1 /* AddressSanitizer puts red zones around a block: a host_head in front would hide them */
#elif defined(__has_feature)
#define HOST_SANITIZED __has_feature(address_sanitizer)
#else
#define HOST_SANITIZED 0
#endif

#define HOST_ALIGN 16

/* Returns new memory of the C library; NULL if memory runs out. */
static void *host_allocate(size_t size, size_t align) {
    if (align <= HOST_ALIGN) return realloc(NULL, size);
    void *fresh = NULL;
    return posix_memalign(&fresh, align, size) == 0 ? fresh : NULL;
}

#if FXA_ASSERT && !HOST_SANITIZED
enum { HOST_ZONE = 64, HOST_JUNK = 0xa5 };

typedef struct host_head {
    _Alignas(HOST_ALIGN) size_t size;
    size_t align;
} host_head;

/* In builds with asserts, blocks of the default hook have their size in front and a red zone behind. New blocks are
 * filled with junk, freed blocks are overwritten, and a resize always moves the block.
 *
 *   | padding | host_head | size bytes | HOST_ZONE bytes of poison |
 *   ^ aligned               ^ aligned
 */

/* Returns the bytes before a block: its host_head, and padding for the alignment. */
static size_t host_front(size_t align) { return align > sizeof(host_head) ? align : sizeof(host_head); }

/* Returns a new block filled with junk; NULL if memory runs out. */
static void *host_block(size_t size, size_t align) {
    size_t front = host_front(align);
    char *block = size < SIZE_MAX - front - HOST_ZONE ? host_allocate(front + size + HOST_ZONE, align) : NULL;
    if (!block) return NULL;
    memset(block, HOST_JUNK, front + size);
    fxa__poison_fill(block + front + size, HOST_ZONE);
    const host_head head = {size, align};
    memcpy(block + front - sizeof head, &head, sizeof head);
    return block + front;
}

/* Frees a block. Its size and alignment must be those of its allocation, and its red zone must be intact. */
static void host_unblock(void *ptr, size_t size, size_t align) {
    host_head head;
    memcpy(&head, (char *)ptr - sizeof head, sizeof head);
    FXA__ASSERT(head.size == size && head.align == align);
    FXA__ASSERT(fxa__poison_holds((char *)ptr + size, 0, HOST_ZONE));
    memset((char *)ptr - sizeof head, HOST_JUNK, sizeof head + size);
    free((char *)ptr - host_front(align));
}

static void *host_default_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    (void)user;
    void *fresh = new_size ? host_block(new_size, align) : NULL;
    if (new_size && !fresh) return NULL;
    if (ptr && fresh) memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    if (ptr) host_unblock(ptr, old_size, align);
    return fresh;
}
#else
static void *host_default_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    (void)user;
    if (new_size && align <= HOST_ALIGN) return realloc(ptr, new_size);
    void *fresh = new_size ? host_allocate(new_size, align) : NULL;
    if (new_size && !fresh) return NULL;
    if (ptr && fresh) memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
    return fresh;
}
#endif

fxa_status fxa__host_create(fxa_alloc_fn alloc, void *user, fxa__host **out, fxa_error *err) {
    *out = NULL;
    if (!alloc) alloc = host_default_alloc;
    fxa__host *host = alloc(user, NULL, 0, sizeof *host, HOST_ALIGN);
    if (!host) return fxa__fail_memory(err, "a context");
    atomic_init(&host->refs, 1);
    atomic_init(&host->runs, 0);
    host->alloc = alloc;
    host->user = user;
    host->width = 1;
    host->parallel = NULL;
    host->parallel_user = NULL;
    atomic_init(&host->pool, NULL);
    atomic_init(&host->closed, false);
    atomic_init(&host->tenants, NULL);
    fxa_status status = fxa__lock_init(&host->lock, err);
    if (status == FXA_OK)
        *out = host;
    else
        alloc(user, host, sizeof *host, 0, HOST_ALIGN);
    return status;
}

fxa__host *fxa__host_retain(fxa__host *host) {
    size_t before = atomic_fetch_add_explicit(&host->refs, 1, memory_order_relaxed);
    FXA__ASSERT(before > 0);
    return host;
}

void fxa__host_release(fxa__host *host) {
    if (!host) return;
    size_t before = atomic_fetch_sub_explicit(&host->refs, 1, memory_order_acq_rel);
    FXA__ASSERT(before > 0);
    if (before != 1) return;
    for (fxa__tenant *t = atomic_load(&host->tenants), *next; t; t = next) {
        next = t->next;
        t->end(host, t);
    }
    fxa__pool_destroy(atomic_load(&host->pool));
    fxa__lock_destroy(&host->lock);
    host->alloc(host->user, host, sizeof *host, 0, HOST_ALIGN);
}

_Bool fxa__host_release_not_last(fxa__host *host) {
    size_t refs = atomic_load(&host->refs);
    while (refs > 1)
        if (atomic_compare_exchange_weak(&host->refs, &refs, refs - 1)) return true;
    return false;
}

/* If two threads create a pool at the same time, the second pool is destroyed before it is used. */
fxa_status fxa__host_pool(fxa__host *host, fxa__pool **out, fxa_error *err) {
    *out = atomic_load(&host->pool);
    if (*out) return FXA_OK;
    fxa__pool *fresh = NULL;
    FXA_TRY(fxa__pool_create(host, host->width, host->parallel, host->parallel_user, &fresh, err));
    if (atomic_compare_exchange_strong(&host->pool, out, fresh))
        *out = fresh;
    else
        fxa__pool_destroy(fresh);
    return FXA_OK;
}

void *fxa__alloc_aligned(fxa__host *host, size_t size, size_t align) {
    return size ? host->alloc(host->user, NULL, 0, size, align) : NULL;
}

void fxa__free_aligned(fxa__host *host, void *ptr, size_t size, size_t align) {
    if (ptr) host->alloc(host->user, ptr, size, 0, align);
}

void *fxa__alloc(fxa__host *host, size_t size) {
    void *p = fxa__alloc_aligned(host, size, HOST_ALIGN);
    return p ? memset(p, 0, size) : NULL;
}

void fxa__free(fxa__host *host, void *ptr, size_t size) { fxa__free_aligned(host, ptr, size, HOST_ALIGN); }

void *fxa__alloc_array(fxa__host *host, size_t n, size_t element) {
    size_t size;
    return fxa__mul_size(n, element, &size) ? fxa__alloc(host, size) : NULL;
}

_Bool fxa__grow(fxa__host *host, void *ptr_to_pointer, size_t *capacity, size_t need, size_t element) {
    if (need <= *capacity) return 1;
    size_t grown = *capacity < 8 ? 8 : *capacity + *capacity / 2, old_size = *capacity * element, new_size;
    if (grown < need) grown = need;
    if (!fxa__mul_size(grown, element, &new_size)) return 0;
    void *old;
    memcpy(&old, ptr_to_pointer, sizeof old);
    void *fresh = host->alloc(host->user, old, old_size, new_size, HOST_ALIGN);
    if (!fresh) return 0;
    memset((char *)fresh + old_size, 0, new_size - old_size);
    memcpy(ptr_to_pointer, &fresh, sizeof fresh);
    *capacity = grown;
    return 1;
}
