/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing and counting allocator (fail_alloc.h). A block is [padding, header, user's bytes, red zone], with the user's
 * bytes aligned.
 */
#include "fail_alloc.h"

#include "base/poison.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAIL_ALLOC_MARK 0x5ca1ab1e0ddba11u

typedef struct fail_head {
    uint64_t mark;
    size_t size, align;
    void *block;
} fail_head;

enum { FAIL_ALLOC_ZONE = 64 }; /* size in bytes of the red zone behind a block */

static fail_head *fail_head_of(void *ptr) { return (fail_head *)(void *)((char *)ptr - sizeof(fail_head)); }

static void *fail_block_new(fail_alloc *f, size_t size, size_t align) {
    size_t front = align > sizeof(fail_head) ? align : (sizeof(fail_head) + align - 1) / align * align;
    void *block = NULL;
    if (posix_memalign(&block, align < sizeof(void *) ? sizeof(void *) : align, front + size + FAIL_ALLOC_ZONE) != 0)
        abort();
    char *user = (char *)block + front;
    *fail_head_of(user) = (fail_head){FAIL_ALLOC_MARK, size, align, block};
    memset(user, 0xa5, size);
    fxa__poison_fill(user + size, FAIL_ALLOC_ZONE);
    f->live_bytes += size;
    f->blocks++;
    if (f->live_bytes > f->peak_bytes) f->peak_bytes = f->live_bytes;
    return user;
}

static void fail_block_free(fail_alloc *f, void *ptr) {
    fail_head head = *fail_head_of(ptr);
    if (!fxa__poison_holds((char *)ptr + head.size, 0, FAIL_ALLOC_ZONE)) f->mistakes++;
    memset(fail_head_of(ptr), 0xdd, sizeof head + head.size);
    f->live_bytes -= head.size;
    f->blocks--;
    free(head.block);
}

static void *fail_alloc_do(fail_alloc *f, void *ptr, size_t old_size, size_t new_size, size_t align) {
    bool known = ptr && fail_head_of(ptr)->mark == FAIL_ALLOC_MARK;
    if (ptr ? !known || fail_head_of(ptr)->size != old_size || fail_head_of(ptr)->align != align : old_size != 0)
        f->mistakes++;
    if (align == 0 || (align & (align - 1)) != 0 || (!ptr && new_size == 0)) f->mistakes++;
    if (ptr && !known) return NULL;
    if (new_size == 0) {
        if (ptr) fail_block_free(f, ptr);
        return NULL;
    }
    f->calls++;
    if (f->fail_at && (f->calls == f->fail_at || (f->persistent && f->calls > f->fail_at))) {
        f->failures++;
        return NULL;
    }
    void *fresh = fail_block_new(f, new_size, align);
    if (ptr) {
        memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
        fail_block_free(f, ptr);
    }
    return fresh;
}

void *fail_alloc_fn(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    fail_alloc *f = user;
    pthread_mutex_lock(&f->mutex);
    void *result = fail_alloc_do(f, ptr, old_size, new_size, align);
    pthread_mutex_unlock(&f->mutex);
    return result;
}

void fail_alloc_arm(fail_alloc *f, size_t k, bool persistent) {
    f->fail_at = k ? f->calls + k : 0;
    f->persistent = persistent;
    f->failures = 0;
}

fxa_context *fail_alloc_context(fail_alloc *f) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = fail_alloc_fn;
    config.alloc_user = f;
    fxa_context *ctx = NULL;
    return fxa_context_create(&config, &ctx, NULL) == FXA_OK ? ctx : NULL;
}

fxa_context *fail_alloc_programs(fail_alloc *f, const char *text, fxa_program **p, fxa_program **derivative) {
    fxa_context *ctx = fail_alloc_context(f);
    *p = *derivative = NULL;
    if (ctx && fxa_program_parse(ctx, text, SIZE_MAX, p, NULL) == FXA_OK &&
        fxa_program_derivative(*p, derivative, NULL) == FXA_OK)
        return ctx;
    (void)fail_alloc_programs_end(f, ctx, *p, *derivative);
    return NULL;
}

size_t fail_alloc_programs_end(fail_alloc *f, fxa_context *ctx, fxa_program *p, fxa_program *derivative) {
    fxa_program_destroy(derivative);
    fxa_program_destroy(p);
    fxa_context_destroy(ctx);
    return f->live_bytes;
}
