/* SPDX-License-Identifier: Apache-2.0
 *
 * The context, fxa_context: the memory allocator, the plan cache, the support cache, the request cache and the disk
 * cache. A context has one owner and no reference count. Plans and programs may outlive the context; they hold
 * references to its host (base/host.h), which owns the allocator.
 */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>

#define CONTEXT_MAX_PLANS 256
#define CONTEXT_MAX_BYTES ((uint64_t)256 << 20)
#define CONTEXT_MAX_DISK ((uint64_t)1 << 30)

const char *fxa_version(void) { return FXA_VERSION_STRING; }

/* Sets *out to the number of threads of a run: `threads` if it is not 0, else the environment's FXA_THREADS, else the
 * number of CPUs. Returns an error if the number is not in the accepted range. */
static fxa_status context_width(uint32_t threads, int32_t *out, fxa_error *err) {
    if (threads > FXA_MAX_THREADS)
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_context_config.threads is %u; accepted is 0 (automatic) to %d",
                         (unsigned)threads, FXA_MAX_THREADS);
    const char *text = threads ? NULL : getenv("FXA_THREADS");
    *out = threads ? (int32_t)threads : fxa__cpu_count();
    if (!text || !*text) return FXA_OK;
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1 || n > FXA_MAX_THREADS)
        return fxa__fail(err, FXA_E_ARGUMENT, "the environment's FXA_THREADS is \"%.64s\"; accepted is 1 to %d", text,
                         FXA_MAX_THREADS);
    *out = (int32_t)n;
    return FXA_OK;
}

/* Stores in the context which engines the environment variables select. The variables are read once, so later changes
 * of the environment do not affect the context. */
static void context_read_environment(fxa_context *ctx) {
    const char *name = getenv("FXA_ENGINE");
    if (name) (void)snprintf(ctx->engine_name, sizeof ctx->engine_name, "%s", name);
    for (size_t i = 0; i < 64 && fxa__engine_at(i); i++) {
        const char *variable = fxa__engine_at(i)->variable, *text = variable ? getenv(variable) : NULL;
        if (text && *text) ctx->engine_variables |= (uint64_t)1 << i;
    }
}

fxa_status fxa_context_create(const fxa_context_config *config, fxa_context **out, fxa_error *err) {
    if (!out) return fxa__fail(err, FXA_E_ARGUMENT, "out is NULL: nowhere to put the context");
    *out = NULL;
    fxa_context_config c = FXA_CONTEXT_CONFIG_INIT;
    if (config)
        FXA_TRY(fxa__struct_read(&c, sizeof c, offsetof(fxa_context_config, alloc), config, "fxa_context_config", err));
    if (c.reserved != 0)
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_context_config.reserved is %u; it must be 0", (unsigned)c.reserved);
    if (c.reserved2 != 0)
        return fxa__fail(err, FXA_E_ARGUMENT, "fxa_context_config.reserved2 is %u; it must be 0",
                         (unsigned)c.reserved2);
    int32_t width = 1;
    FXA_TRY(context_width(c.threads, &width, err));

    fxa__host *host = NULL;
    FXA_TRY(fxa__host_create(c.alloc, c.alloc_user, &host, err));
    host->width = width;
    host->parallel = c.parallel;
    host->parallel_user = c.parallel_user;
    fxa_status status;
    fxa_context *ctx = fxa__alloc(host, sizeof *ctx);
    if (!ctx) {
        status = fxa__fail_memory(err, "a context");
        goto fail_host;
    }
    ctx->head.host = host;
    status = fxa__cache_init(&ctx->cache, host, c.cache_max_plans ? c.cache_max_plans : CONTEXT_MAX_PLANS,
                             c.cache_max_bytes ? c.cache_max_bytes : CONTEXT_MAX_BYTES, err);
    if (status != FXA_OK) goto fail_context;
    status = fxa__support_cache_init(&ctx->support, host, err);
    if (status != FXA_OK) goto fail_cache;
    status = fxa__request_cache_init(&ctx->requests, host, err);
    if (status != FXA_OK) goto fail_support;
    status = fxa__disk_init(&ctx->disk, host, c.cache_dir ? c.cache_dir : getenv("FXA_CACHE_DIR"),
                            c.cache_dir_max_bytes ? c.cache_dir_max_bytes : CONTEXT_MAX_DISK, err);
    if (status != FXA_OK) goto fail_requests;
    context_read_environment(ctx);
    *out = ctx;
    return fxa__ok(err);

fail_requests:
    fxa__request_cache_end(&ctx->requests);
fail_support:
    fxa__support_cache_end(&ctx->support);
fail_cache:
    fxa__cache_end(&ctx->cache);
fail_context:
    fxa__free(host, ctx, sizeof *ctx);
fail_host:
    fxa__host_release(host);
    return status;
}

void fxa_context_destroy(fxa_context *ctx) {
    if (!ctx) return;
    fxa__host *host = fxa__context_host(ctx);
    fxa__disk_end(&ctx->disk);
    fxa__request_cache_end(&ctx->requests);
    fxa__support_cache_end(&ctx->support);
    fxa__cache_end(&ctx->cache);
    fxa__instances_close(host);
    fxa__free(host, ctx, sizeof *ctx);
    fxa__host_release(host);
}

int32_t fxa_context_threads(const fxa_context *ctx) { return ctx ? fxa__context_host(ctx)->width : 0; }

void fxa_cache_get_stats(fxa_context *ctx, fxa_cache_stats *out) {
    if (!out) return;
    *out = (fxa_cache_stats){0};
    if (!ctx) return;
    fxa__cache_count(&ctx->cache, out);
    fxa__lock_take(&ctx->support.lock);
    out->queries = ctx->support.queries;
    out->query_hits = ctx->support.hits;
    fxa__lock_give(&ctx->support.lock);
    out->disk_hits = atomic_load_explicit(&ctx->disk.hits, memory_order_relaxed);
    out->disk_misses = atomic_load_explicit(&ctx->disk.misses, memory_order_relaxed);
    out->disk_writes = atomic_load_explicit(&ctx->disk.writes, memory_order_relaxed);
    out->refusals = atomic_load_explicit(&ctx->refusals, memory_order_relaxed);
    out->runs = atomic_load_explicit(&fxa__context_host(ctx)->runs, memory_order_relaxed);
}

void fxa_cache_limit(fxa_context *ctx, uint64_t max_plans, uint64_t max_bytes) {
    if (!ctx) return;
    fxa__cache_set_limits(&ctx->cache, max_plans, max_bytes);
    fxa__request_cache_sweep(ctx);
}

void fxa_cache_clear(fxa_context *ctx) {
    if (!ctx) return;
    fxa__request_cache_drop(&ctx->requests);
    fxa__cache_drop(&ctx->cache);
    fxa__support_cache_drop(&ctx->support);
    fxa__instances_drain(fxa__context_host(ctx));
}
