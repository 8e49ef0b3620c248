/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan cache: a table from code keys (plan.h) to compiled code. The number of entries and their bytes are limited;
 * the least recently used code is evicted first.
 *
 * An entry is in one of three states:
 *
 *     BUILDING  in the table but not in the order of use, so it cannot be evicted; threads that request its key wait
 *     READY     in the table and in the order of use
 *     FAILED    outside the table, kept alive by its waiters
 *
 * An entry is freed when it is outside the table and neither its builder nor a waiter uses it. Builds, allocations and
 * frees happen outside the lock: entries to free are linked into a chain (garbage) under the lock, and the chain is
 * freed after the lock is released.
 */
#include "../base/invariant.h"
#include "plan.h"

#include <string.h>

typedef enum cache_state { CACHE_BUILDING, CACHE_READY, CACHE_FAILED } cache_state;

typedef struct cache_entry {
    fxa__lru_node node; /* must be the first member: the address of a node is cast to its entry */
    cache_state state;
    size_t users; /* number of threads that build the code or wait for it */
    bool in_table;
    fxa__code *code; /* state READY: a reference to the code; otherwise NULL */
    fxa_error error; /* state FAILED: the error that the build returned */
    struct cache_entry *next_free;
} cache_entry;

fxa_status fxa__cache_init(fxa__cache *cache, fxa__host *host, uint64_t max_plans, uint64_t max_bytes, fxa_error *err) {
    memset(cache, 0, sizeof *cache);
    cache->host = host;
    cache->max_plans = max_plans;
    cache->max_bytes = max_bytes;
    return fxa__lock_init(&cache->lock, err);
}

/* Frees a chain of entries that are linked by next_free, and drops their references to code. The caller must not hold
 * the lock. */
static void cache_free_chain(fxa__cache *cache, cache_entry *entry) {
    while (entry) {
        cache_entry *next = entry->next_free;
        fxa__code_release(entry->code);
        fxa__free(cache->host, entry, sizeof *entry);
        entry = next;
    }
}

/* Adds the entry to the garbage chain if it is outside the table and has no users. The caller holds the lock of the
 * cache. The functions from here to cache_build require that too. */
static void cache_entry_collect(cache_entry *entry, cache_entry **garbage) {
    if (entry->in_table || entry->users > 0) return;
    FXA__ASSERT(entry->state != CACHE_BUILDING); /* the thread that builds the entry counts as a user */
    entry->next_free = *garbage;
    *garbage = entry;
}

static void cache_remove(fxa__cache *cache, cache_entry *entry, cache_entry **garbage) {
    FXA__ASSERT(entry->in_table && (entry->state != CACHE_READY || cache->bytes >= entry->code->bytes));
    fxa__lru_remove(&cache->lru, &entry->node);
    entry->in_table = false;
    if (entry->state == CACHE_READY) cache->bytes -= entry->code->bytes;
    cache_entry_collect(entry, garbage);
}

/* Evicts the least recently used entries until the cache is within its limits. */
static void cache_shrink(fxa__cache *cache, cache_entry **garbage) {
    while (cache->lru.oldest && (cache->lru.count > cache->max_plans || cache->bytes > cache->max_bytes)) {
        cache_remove(cache, (cache_entry *)cache->lru.oldest, garbage);
        cache->evictions++;
    }
}

/* Finishes a successful build: makes the entry READY and the owner of the reference `code`. Code that alone exceeds a
 * limit of the cache is not cached, because caching it would evict all other code. */
static void cache_accept(fxa__cache *cache, cache_entry *entry, fxa__code *code, cache_entry **garbage) {
    FXA__ASSERT(entry->state == CACHE_BUILDING && !entry->code && code);
    entry->code = code;
    entry->state = CACHE_READY;
    cache->bytes += code->bytes;
    if (code->bytes > cache->max_bytes || cache->max_plans == 0) {
        cache_remove(cache, entry, garbage);
        return;
    }
    fxa__lru_touch(&cache->lru, &entry->node);
    cache_shrink(cache, garbage);
}

/* Finds the entry of `key`; if there is none, makes *spare the new entry of `key` and sets *spare to NULL. Sets *out to
 * the entry and counts the caller as one of its users. Returns true if the entry is new: the caller must then build its
 * code. */
static bool cache_acquire(fxa__cache *cache, const uint8_t key[16], cache_entry **spare, cache_entry **out) {
    cache_entry *entry = (cache_entry *)fxa__lru_find(&cache->lru, key);
    bool is_builder = !entry;
    if (is_builder) {
        entry = *spare;
        *spare = NULL;
        memcpy(entry->node.key, key, 16);
        entry->state = CACHE_BUILDING;
        entry->in_table = true;
        fxa__lru_insert(&cache->lru, &entry->node);
    } else if (entry->state == CACHE_READY) {
        fxa__lru_touch(&cache->lru, &entry->node);
    }
    entry->users++;
    *out = entry;
    return is_builder;
}

/* Calls `build` for a BUILDING entry, and makes the entry READY or FAILED. The caller holds the lock, which is
 * released during the call of `build` only. */
static void cache_build(fxa__cache *cache, cache_entry *entry, fxa__build_fn build, void *user, cache_entry **garbage) {
    cache->builds++;
    fxa__lock_give(&cache->lock);
    fxa__code *code = NULL;
    fxa_error error;
    fxa__ok(&error);
    fxa_status status = build(user, &code, &error);
    fxa__lock_take(&cache->lock);
    if (status == FXA_OK) {
        cache_accept(cache, entry, code, garbage);
    } else {
        entry->error = error;
        entry->state = CACHE_FAILED;
        cache_remove(cache, entry, garbage);
    }
    fxa__lock_wake(&cache->lock);
}

/* Makes one attempt of fxa__cache_get to find or build the code. Sets *is_builder to true if this thread called
 * `build`. */
static fxa_status cache_try(fxa__cache *cache, const uint8_t key[16], fxa__build_fn build, void *user, bool *is_builder,
                            fxa__code **out, fxa_error *err) {
    cache_entry *entry = NULL, *spare = NULL, *garbage = NULL;
    fxa__lock_take(&cache->lock);
    if (!fxa__lru_find(&cache->lru, key)) {
        fxa__lock_give(&cache->lock);
        spare = fxa__alloc(cache->host, sizeof *spare);
        if (!spare) return fxa__fail_memory(err, "an entry of the plan cache");
        fxa__lock_take(&cache->lock);
    }
    *is_builder = cache_acquire(cache, key, &spare, &entry);
    if (*is_builder) cache_build(cache, entry, build, user, &garbage);
    while (entry->state == CACHE_BUILDING) fxa__lock_wait(&cache->lock);

    fxa_error error = entry->error;
    if (entry->state == CACHE_READY) *out = fxa__code_retain(entry->code);
    *(*is_builder || !*out ? &cache->misses : &cache->hits) += 1;
    FXA__ASSERT(entry->users > 0 && (entry->state == CACHE_READY) == (*out != NULL));
    entry->users--;
    cache_entry_collect(entry, &garbage);
    fxa__lock_give(&cache->lock);

    cache_free_chain(cache, spare);
    cache_free_chain(cache, garbage);
    if (*out) return fxa__ok(err);
    if (err) *err = error;
    return error.status;
}

fxa_status fxa__cache_get(fxa__cache *cache, const uint8_t key[16], fxa__build_fn build, void *user, fxa__code **out,
                          fxa_error *err) {
    bool is_builder = false;
    *out = NULL;
    fxa_status status = cache_try(cache, key, build, user, &is_builder, out, err);
    if (status == FXA_E_MEMORY && !is_builder) status = cache_try(cache, key, build, user, &is_builder, out, err);
    return status;
}

void fxa__cache_put(fxa__cache *cache, const uint8_t key[16], fxa__code *code) {
    cache_entry *entry = NULL, *garbage = NULL, *spare = fxa__alloc(cache->host, sizeof *spare);
    if (!spare) return;
    fxa__lock_take(&cache->lock);
    if (!fxa__lru_find(&cache->lru, key)) {
        (void)cache_acquire(cache, key, &spare, &entry);
        cache_accept(cache, entry, fxa__code_retain(code), &garbage);
        entry->users--;
        cache_entry_collect(entry, &garbage);
    }
    fxa__lock_give(&cache->lock);
    cache_free_chain(cache, spare);
    cache_free_chain(cache, garbage);
}

fxa__code *fxa__cache_peek(fxa__cache *cache, const uint8_t key[16]) {
    fxa__lock_take(&cache->lock);
    cache_entry *entry = (cache_entry *)fxa__lru_find(&cache->lru, key);
    fxa__code *code = entry && entry->state == CACHE_READY ? fxa__code_retain(entry->code) : NULL;
    fxa__lock_give(&cache->lock);
    return code;
}

/* Returns the entry of `key` if it is READY and holds exactly this code; else NULL. */
static cache_entry *cache_entry_ready(fxa__cache *cache, const uint8_t key[16], const fxa__code *code) {
    cache_entry *entry = (cache_entry *)fxa__lru_find(&cache->lru, key);
    return entry && entry->state == CACHE_READY && entry->code == code ? entry : NULL;
}

bool fxa__cache_holds(fxa__cache *cache, const uint8_t key[16], const fxa__code *code) {
    fxa__lock_take(&cache->lock);
    bool holds = cache_entry_ready(cache, key, code) != NULL;
    fxa__lock_give(&cache->lock);
    return holds;
}

bool fxa__cache_use(fxa__cache *cache, const uint8_t key[16], const fxa__code *code) {
    fxa__lock_take(&cache->lock);
    cache_entry *entry = cache_entry_ready(cache, key, code);
    if (entry) {
        fxa__lru_touch(&cache->lru, &entry->node);
        cache->hits++;
    }
    fxa__lock_give(&cache->lock);
    return entry != NULL;
}

uint64_t fxa__cache_evictions(fxa__cache *cache) {
    fxa__lock_take(&cache->lock);
    uint64_t evictions = cache->evictions;
    fxa__lock_give(&cache->lock);
    return evictions;
}

void fxa__cache_set_limits(fxa__cache *cache, uint64_t max_plans, uint64_t max_bytes) {
    cache_entry *garbage = NULL;
    fxa__lock_take(&cache->lock);
    cache->max_plans = max_plans;
    cache->max_bytes = max_bytes;
    cache_shrink(cache, &garbage);
    fxa__lock_give(&cache->lock);
    cache_free_chain(cache, garbage);
}

void fxa__cache_drop(fxa__cache *cache) {
    cache_entry *garbage = NULL;
    fxa__lock_take(&cache->lock);
    while (cache->lru.oldest) cache_remove(cache, (cache_entry *)cache->lru.oldest, &garbage);
    fxa__lock_give(&cache->lock);
    cache_free_chain(cache, garbage);
}

void fxa__cache_end(fxa__cache *cache) {
    fxa__cache_drop(cache);
    FXA__ASSERT(cache->lru.count == 0 && cache->bytes == 0);
    fxa__lock_destroy(&cache->lock);
}

void fxa__cache_count(fxa__cache *cache, fxa_cache_stats *out) {
    fxa__lock_take(&cache->lock);
    out->hits = cache->hits;
    out->misses = cache->misses;
    out->builds = cache->builds;
    out->evictions = cache->evictions;
    out->plans = cache->lru.count;
    out->bytes = cache->bytes;
    out->max_plans = cache->max_plans;
    out->max_bytes = cache->max_bytes;
    fxa__lock_give(&cache->lock);
}
