/* SPDX-License-Identifier: Apache-2.0
 *
 * Support queries and their cache. A result is cached under the plan key, a hash of problem and engine. The plan of a
 * problem has the same key, so a cached result always refers to the problem that runs. Refusals are cached with their
 * reason like other results. A refusal by a compiler is also cached under the code key, because it applies to every
 * problem with that code. If two threads query an engine about the same problem at once, the first result is cached.
 */
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"
#include "../problem/index_check.h"
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct support_entry {
    fxa__lru_node node; /* must be the first member: the address of a node is cast to its entry */
    fxa_support answer;
} support_entry;

fxa_status fxa__support_cache_init(fxa__support_cache *cache, fxa__host *host, fxa_error *err) {
    memset(cache, 0, sizeof *cache);
    cache->host = host;
    return fxa__lock_init(&cache->lock, err);
}

void fxa__support_cache_drop(fxa__support_cache *cache) {
    fxa__lock_take(&cache->lock);
    fxa__lru_node *garbage = fxa__lru_empty(&cache->lru);
    fxa__lock_give(&cache->lock);
    while (garbage) {
        fxa__lru_node *next = garbage->chain;
        fxa__free(cache->host, garbage, sizeof(support_entry));
        garbage = next;
    }
}

void fxa__support_cache_end(fxa__support_cache *cache) {
    fxa__support_cache_drop(cache);
    FXA__ASSERT(cache->hits <= cache->queries);
    fxa__lock_destroy(&cache->lock);
}

/* Copies the support result that is cached under the plan key `key` to *out; returns false if there is none. Counts a
 * query, and a hit if the result was found. */
static bool support_find(fxa__support_cache *cache, const uint8_t key[16], fxa_support *out) {
    fxa__lock_take(&cache->lock);
    support_entry *entry = (support_entry *)fxa__lru_find(&cache->lru, key);
    cache->queries++;
    if (entry) {
        cache->hits++;
        fxa__lru_touch(&cache->lru, &entry->node);
        *out = entry->answer;
    }
    fxa__lock_give(&cache->lock);
    return entry != NULL;
}

/* If a compiler has refused a problem with this code key, copies the refusal to *out and returns true. Does not count
 * as a query. */
static bool support_is_refused(fxa__support_cache *cache, const uint8_t code_key[16], fxa_support *out) {
    fxa__lock_take(&cache->lock);
    support_entry *entry = (support_entry *)fxa__lru_find(&cache->lru, code_key);
    if (entry) {
        fxa__lru_touch(&cache->lru, &entry->node);
        *out = entry->answer;
    }
    fxa__lock_give(&cache->lock);
    return entry != NULL;
}

/* Caches a support result under `key`. Only a refusal replaces a result that is cached already. */
static void support_store(fxa__support_cache *cache, const uint8_t key[16], const fxa_support *answer) {
    support_entry *entry = fxa__alloc(cache->host, sizeof *entry);
    fxa__lru_node *garbage = entry ? &entry->node : NULL;
    fxa__lock_take(&cache->lock);
    support_entry *old = (support_entry *)fxa__lru_find(&cache->lru, key);
    if (old && !answer->supported) old->answer = *answer;
    if (!old && entry) { /* if memory runs out, nothing is cached and a later call queries the engine again */
        memcpy(entry->node.key, key, 16);
        entry->answer = *answer;
        fxa__lru_insert(&cache->lru, &entry->node);
        fxa__lru_touch(&cache->lru, &entry->node);
        garbage = cache->lru.count > FXA__MAX_SUPPORT_RESULTS ? cache->lru.oldest : NULL;
        if (garbage) fxa__lru_remove(&cache->lru, garbage);
    }
    fxa__lock_give(&cache->lock);
    fxa__free(cache->host, garbage, sizeof *entry);
}

/* Makes *out a refusal with this reason. Returns FXA_OK, because a refusal is a result and not an error. */
static fxa_status support_refusal(fxa_support *out, const char *reason) {
    fxa__support_refuse(out, reason);
    return FXA_OK;
}

/* Checks the requirements that hold for all engines, after the engine has reported that it supports p: a result that is
 * not deterministic, or that needs too much workspace, becomes a refusal. Otherwise adds the bytes of the check for
 * out-of-bounds load indices (problem/index_check.h) to out->workspace. */
static fxa_status support_apply_limits(const fxa__problem *p, fxa_support *out) {
    char reason[sizeof out->reason];
    uint64_t most = p->in.max_workspace;
    if ((p->in.flags & FXA_DETERMINISTIC) && !out->deterministic)
        return support_refusal(out, "flag FXA_DETERMINISTIC is set, and sums of this problem have no fixed order here");
    size_t total = 0;
    if (out->workspace >= SIZE_MAX || !fxa__add_size((size_t)out->workspace, fxa__index_workspace(p), &total)) {
        (void)snprintf(reason, sizeof reason, "the workspace of one run does not fit in %d bits of size",
                       (int)(8 * sizeof(size_t)));
        return support_refusal(out, reason);
    }
    if (most && total > most) {
        (void)snprintf(reason, sizeof reason, "a run needs a workspace of %zu bytes, and max_workspace is %llu", total,
                       (unsigned long long)most);
        return support_refusal(out, reason);
    }
    out->workspace = total;
    return FXA_OK;
}

/* Queries the engine whether it supports the problem, and sets *out to the result. `key`: the code key. */
static fxa_status support_query(fxa_context *ctx, fxa__analysis *a, const uint8_t key[16], fxa_support *out,
                                fxa_error *err) {
    *out = (fxa_support){.engine = a->engine->name};
    fxa__code *code = fxa__cache_peek(&ctx->cache, key);
    fxa_status status = a->engine->query(a, code ? code->code : NULL, out, err);
    fxa__code_release(code);
    if (status != FXA_OK) return status;
    FXA__ASSERT(!out->supported == (out->reason[0] != '\0')); /* a report has a reason exactly if it is a refusal */
    double seconds = out->supported && a->engine->cost ? a->engine->cost(a) : 0;
    out->seconds = seconds > 0 && seconds < INFINITY ? seconds : 0;
    if (out->supported) return support_apply_limits(a->problem, out);
    out->workspace = 0;
    return FXA_OK;
}

fxa_status fxa__support_get(fxa_context *ctx, fxa__instance *instance, fxa__analysis *a, fxa_support *out,
                            fxa_error *err) {
    const fxa__engine *engine = instance->engine;
    fxa__support_cache *cache = &ctx->support;
    fxa_error reason;
    uint8_t key[16], code_key[16];
    memset(out, 0, sizeof *out);
    out->engine = engine->name;
    if (fxa__instance_usable(instance, &reason) != FXA_OK) {
        return support_refusal(out, reason.text);
    }
    fxa__plan_key_make(a->problem, engine->name, engine->version, instance->identity, key);
    bool known = support_find(cache, key, out), may_be_refused = atomic_load(&cache->refusals) != 0;
    if (known && (!out->supported || !may_be_refused)) return FXA_OK;
    FXA_TRY(fxa__code_key_make(instance, a, NULL, code_key, err));
    if (!may_be_refused || !support_is_refused(cache, code_key, out)) {
        if (known) return FXA_OK;
        FXA_TRY(support_query(ctx, a, code_key, out, err));
    }
    support_store(cache, key, out);
    return FXA_OK;
}

void fxa__support_cache_refuse(fxa_context *ctx, const fxa__instance *instance, const fxa__problem *p,
                               const uint8_t code_key[16], const char *reason) {
    fxa_support no = {.engine = instance->engine->name};
    uint8_t key[16];
    fxa__plan_key_make(p, instance->engine->name, instance->engine->version, instance->identity, key);
    (void)support_refusal(&no, reason);
    support_store(&ctx->support, key, &no);
    support_store(&ctx->support, code_key, &no);
    atomic_fetch_add(&ctx->support.refusals, 1);
    fxa__request_cache_drop(&ctx->requests); /* a report in that cache may say that p is supported */
}

/* Counts n queries and n hits of the support cache. Called if the request cache has returned n support results, so that
 * the support cache was not searched. */
static void support_count(fxa__support_cache *cache, size_t n) {
    fxa__lock_take(&cache->lock);
    cache->queries += n;
    cache->hits += n;
    fxa__lock_give(&cache->lock);
}

/* Sets *out to true if plan creation would find compiled code for the problem of `a` in the plan cache or on disk. Code
 * on disk is loaded into the plan cache, so that the result stays true. */
static fxa_status support_has_code(fxa_context *ctx, fxa__instance *instance, fxa__analysis *a, bool *out,
                                   fxa_error *err) {
    uint8_t key[16];
    FXA_TRY(fxa__code_key_make(instance, a, NULL, key, err));
    fxa__code *code = fxa__cache_peek(&ctx->cache, key);
    if (!code && (code = fxa__disk_find(&ctx->disk, instance, a)) != NULL) fxa__cache_put(&ctx->cache, key, code);
    *out = code != NULL;
    fxa__code_release(code);
    return FXA_OK;
}

/* Makes *out a refusal if the engine's compiler is not present and no cache has compiled code for the problem of `a`.
 * If the compiler is not present, sets *lasts to false: the result then depends on the caches, which may change. */
static fxa_status support_check_ready(fxa_context *ctx, fxa__instance *instance, fxa__analysis *a, fxa_support *out,
                                      bool *lasts, fxa_error *err) {
    fxa_error why;
    bool has_code = false;
    fxa_status status = instance->engine->ready(instance->self, &why);
    if (status == FXA_E_MEMORY) return fxa__fail(err, status, "%s", why.text);
    if (status == FXA_OK) return FXA_OK;
    *lasts = false;
    FXA_TRY(support_has_code(ctx, instance, a, &has_code, err));
    return has_code ? FXA_OK : support_refusal(out, why.text);
}

/* Sets *out to the support result of an engine of the problem's device. */
static fxa_status support_report_here(fxa_context *ctx, const fxa__engine *engine, const fxa__problem *p,
                                      fxa_support *out, bool *lasts, fxa_error *err) {
    fxa__instance *instance;
    FXA_TRY(fxa__instance_get(fxa__context_host(ctx), engine, p->in.ordinal, p->in.target, &instance, err));
    fxa__analysis a = fxa__analysis_of(instance, p);
    fxa_status status = fxa__support_get(ctx, instance, &a, out, err);
    if (status == FXA_OK && out->supported && engine->ready)
        status = support_check_ready(ctx, instance, &a, out, lasts, err);
    fxa__analysis_end(&a);
    return status;
}

static fxa_status support_report(fxa_context *ctx, const fxa__engine *engine, const fxa__problem *p, fxa_support *out,
                                 bool *lasts, fxa_error *err) {
    char reason[sizeof out->reason];
    if (engine->device == p->in.device) return support_report_here(ctx, engine, p, out, lasts, err);
    (void)snprintf(reason, sizeof reason, "%s computes in the memory of device %s, and the problem is on device %s",
                   engine->name, fxa_device_name((fxa_device)engine->device),
                   fxa_device_name((fxa_device)p->in.device));
    *out = (fxa_support){.engine = engine->name};
    return support_refusal(out, reason);
}

/* Returns E_PROBLEM if no engine of the problem's device can parse problem.target, the description of a device. Plan
 * creation returns the same error. */
static fxa_status support_check_target(fxa_context *ctx, const fxa__problem *p, fxa_error *err) {
    const fxa_error *why = NULL;
    const fxa__engine *engine;
    for (size_t n = 0; p->in.target && (engine = fxa__engine_at(n)) != NULL; n++) {
        fxa__instance *instance;
        if (engine->device != p->in.device) continue;
        FXA_TRY(fxa__instance_get(fxa__context_host(ctx), engine, p->in.ordinal, p->in.target, &instance, err));
        if (instance->failure.status != FXA_E_PROBLEM) return FXA_OK;
        if (!why) why = &instance->failure;
    }
    return why ? fxa__fail(err, FXA_E_PROBLEM, "%s", why->text) : FXA_OK;
}

fxa_status fxa_support_query(fxa_context *ctx, const fxa_problem *problem, fxa_support *reports, size_t *count,
                             fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!problem) return fxa__fail(err, FXA_E_ARGUMENT, "problem is NULL");
    if (!count) return fxa__fail(err, FXA_E_ARGUMENT, "count is NULL; it says how many reports there is room for");
    if (!reports && *count > 0)
        return fxa__fail(err, FXA_E_ARGUMENT, "reports is NULL with room for %zu; NULL goes with a count of 0", *count);
    fxa__request_key key;
    size_t capacity = *count;
    fxa__request_key_problem(&key, FXA__REQUEST_SUPPORT, problem);
    if (fxa__request_cache_support(ctx, &key, reports, capacity, count)) {
        support_count(&ctx->support, capacity < *count ? capacity : *count);
        return fxa__ok(err);
    }
    uint64_t refusals = atomic_load(&ctx->support.refusals);
    fxa__problem *p = NULL;
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    fxa_status status = fxa__plan_named_check(ctx, p, fxa__problem_engine(problem), err);
    if (status == FXA_OK) status = support_check_target(ctx, p, err);
    size_t n = 0;
    bool lasts = true;
    for (const fxa__engine *engine; (engine = fxa__engine_at(n)) != NULL; n++)
        if (n < capacity && status == FXA_OK) status = support_report(ctx, engine, p, &reports[n], &lasts, err);
    fxa__problem_release(p);
    if (status != FXA_OK) return status;
    if (n <= capacity && lasts) fxa__request_cache_store_support(ctx, &key, reports, n);
    /* while this query ran, a compiler refused a problem: stored reports may be stale */
    if (atomic_load(&ctx->support.refusals) != refusals) fxa__request_cache_drop(&ctx->requests);
    *count = n;
    return fxa__ok(err);
}
