/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation of the library ends at an inaccessible page: an element that is read or written past the end of an
 * array ends the process. Programs go through all analyses, and plans of both passes through creation, bytes and runs.
 */
#include "support/fixtures/attn_data.h"
#include "support/memory/guard.h"
#include "t.h"

#include "lower/emit.h"
#include "lower/interval.h"
#include "lower/parameterize.h"
#include "program/program.h"

#include <pthread.h>

/* ---- Allocator --------------------------------------------------------------------------------------------------- */

enum { FENCE_BLOCKS = 1 << 14 };
static guard fence_block[FENCE_BLOCKS];
static size_t fence_used; /* number of blocks, live or freed; freed ones have no data */
static pthread_mutex_t fence_mutex = PTHREAD_MUTEX_INITIALIZER;

#if defined(__SANITIZE_ADDRESS__)
#define FENCE_ALIGN 8 /* UBSan reports a struct in front of an array of smaller elements, as in fxa_program */
#elif defined(__x86_64__) || defined(__i386__)
#define FENCE_ALIGN 1 /* misaligned elements can be read and written */
#else
#define FENCE_ALIGN 8
#endif

/* Returns the alignment of a block. It divides the size where the processor allows it, so that the block ends at the
 * inaccessible page. Alignments above 16 are kept. */
static size_t fence_align(size_t size, size_t align) {
    size_t of_size = size & (~size + 1);
    if (of_size < FENCE_ALIGN) of_size = FENCE_ALIGN;
    return align > 16 || of_size > align ? align : of_size;
}

static void *fence_new(size_t size, size_t align) {
    size_t at = 0;
    while (at < fence_used && fence_block[at].data) at++;
    if (at == FENCE_BLOCKS) abort();
    if (at == fence_used) fence_used++;
    fence_block[at] = guard_make(size, fence_align(size, align), true);
    return fence_block[at].data;
}

static void fence_free(void *ptr, size_t size) {
    size_t at = 0;
    while (at < fence_used && fence_block[at].data != (unsigned char *)ptr) at++;
    if (at == fence_used || fence_block[at].size != size) abort();
    guard_close(&fence_block[at]);
    fence_block[at] = (guard){0};
}

static void *fence_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    (void)user;
    pthread_mutex_lock(&fence_mutex);
    void *fresh = new_size ? fence_new(new_size, align) : NULL;
    if (fresh && ptr) memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    if (ptr) fence_free(ptr, old_size);
    pthread_mutex_unlock(&fence_mutex);
    return fresh;
}

static fxa_context *fence_context(void) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_error err;
    config.alloc = fence_alloc, config.threads = 2;
    T_OK(fxa_context_create(&config, &ctx, &err));
    return ctx;
}

static void fence_end(fxa_context *ctx) {
    fxa_context_destroy(ctx);
    for (size_t i = 0; i < fence_used; i++) T_CHECK(!fence_block[i].data);
}

/* ---- Programs and plans ------------------------------------------------------------------------------------------ */

static const char *const fence_texts[] = {
    "",
    "mask = k <= q && q - k < 5",
    "param cap : float = 20.0\nscore = cap * tanh(score / cap)",
    "param a : float = 1.5\nparam n : float = 3\nscore = score * a\nmask = abs(q - k) < int(n) || k % int(n) == 0",
    "tensor t : f32[1]\nscore = score + t[h] * (k - q)",
    "tensor t : f32[2]\ntensor u : i32[1]\nscore = score + t[h, q]\nmask = u[q] == u[k]",
    "tensor t : f32[2]\ntensor u : f32[1]\nscore = where(q >= k, score + t[q, k], score * u[k])",
    "fn f(x) = x * x + 1\nlet d = f(q - k)\nscore = score - sqrt(float(d)) + sum(i, 3, sin(score * i))",
    "tensor u : bool[2]\nmask = u[q // 2, k // 2] ^ (q & 1 == k & 1)",
};
static const int64_t fence_sizes[] = {1, 2, 7, 8};

static void fence_lower(fxa_context *ctx, const fxa_program *p) {
    fxa__host *host = fxa__context_host(ctx);
    T_ENDED(fxa__writer_free) fxa__writer w = {.host = host};
    fxa__emit e;
    fxa__interval_text v;
    fxa__parameterized out;
    fxa_error err;
    T_CHECK(fxa__lower_emit_open(host, p, FXA__CUDA_F32, 3, &e));
    for (int level = 0; level < FXA__EMIT_LEVELS; level++) {
        fxa__lower_emit_hoisted(&e, (fxa__emit_level)level, &w);
        fxa__lower_emit_nodes(&e, (fxa__emit_level)level, 3, &w);
    }
    fxa__lower_emit_bases(&e, &w);
    fxa__lower_emit_close(&e);
    T_CHECK(fxa__lower_interval_open(host, p, FXA__CUDA_F32, &v));
    fxa__lower_interval_text(&v, &w);
    fxa__lower_interval_close(&v);
    T_OK(fxa__lower_parameterize(host, p, &out, &err));
    fxa_program_destroy(out.program);
    T_CHECK(!w.failed);
}

static void fence_program(fxa_context *ctx, const char *text) {
    static const fxa_dump_kind kinds[] = {FXA_DUMP_CLASSES, FXA_DUMP_CONJUNCTS, FXA_DUMP_FUSED};
    t_program *p = NULL, *again = NULL, *d = NULL;
    fxa_properties properties;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    T_OK(fxa_program_derivative(p, &d, &err));
    fxa_program_properties(p, &properties);
    fence_lower(ctx, p);
    for (int i = -1; i < 3; i++) {
        size_t n = 0;
        T_OK(i < 0 ? fxa_program_print(p, NULL, 0, &n, &err) : fxa_program_dump(p, kinds[i], NULL, 0, &n, &err));
        guard out = guard_open(n + 1);
        char *to = (char *)out.data;
        T_OK(i < 0 ? fxa_program_print(p, to, n + 1, &n, &err) : fxa_program_dump(p, kinds[i], to, n + 1, &n, &err));
        guard_close(&out);
    }
    size_t size = 0;
    T_OK(fxa_program_save(p, NULL, 0, &size, &err));
    guard bytes = guard_open(size);
    T_OK(fxa_program_save(p, bytes.data, size, &size, &err));
    T_OK(fxa_program_load(ctx, bytes.data, size, &again, &err));
    guard_close(&bytes);
}

static void fence_plan(fxa_context *ctx, const fxa_problem *p) {
    t_plan *plan = NULL, *again = NULL, *loaded = NULL;
    fxa_error err;
    size_t size = 0, n = 0;
    T_OK(fxa_plan_create(ctx, p, &plan, &err));
    T_OK(fxa_plan_create(ctx, p, &again, &err));
    T_OK(fxa_plan_save(plan, NULL, 0, &size, &err));
    guard bytes = guard_open(size);
    T_OK(fxa_plan_save(plan, bytes.data, size, &size, &err));
    T_OK(fxa_plan_load(ctx, bytes.data, size, &loaded, &err));
    guard_close(&bytes);
    T_OK(fxa_plan_dump(plan, NULL, 0, &n, &err));
}

static void fence_run(fxa_context *ctx, const char *text, int64_t size, uint32_t flags) {
    attn_spec s = {.b = 2, .hq = 2, .hkv = 1, .sq = size, .sk = size + 1, .d = 3, .text = text, .flags = flags};
    attn_owned x = {0};
    fxa_error err;
    for (int t = 0; t < ATTN_TENSORS; t++)
        for (int axis = 0; axis < 2; axis++) s.tensor[t][axis] = 9;
    T_OK(attn_data_make(&x, ctx, &s, t_seed(), &err));
    for (int pass = 0; pass < 2; pass++)
        for (int e = 0; engine_here((size_t)e); e++) {
            attn_call call;
            attn_call_make(&x, pass ? FXA_BACKWARD : FXA_FORWARD, &call);
            call.p.engine = engine_here((size_t)e);
            if (attn_device(call.p.engine) != FXA_HOST) continue;
            fence_plan(ctx, &call.p);
            T_OK(attn_call_run(ctx, &call, true, &err));
        }
}

TEST(nothing_past_the_end_is_read) {
    fxa_context *ctx = fence_context();
    T_REQUIRE(ctx != NULL);
    for (size_t i = 0; i < sizeof fence_texts / sizeof *fence_texts; i++) {
        fence_program(ctx, fence_texts[i]);
        for (size_t j = 0; j < sizeof fence_sizes / sizeof *fence_sizes; j++)
            fence_run(ctx, fence_texts[i], fence_sizes[j], j % 2 ? FXA_CAUSAL | FXA_BOUNDS_CHECK : 0);
        if (i % 3 == 2) fxa_cache_clear(ctx);
    }
    fence_end(ctx);
}

T_MAIN
