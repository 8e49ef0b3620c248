/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: from a checked problem through support queries and the plan cache to an object that runs.
 *
 * Three keys, all BLAKE2s-128 hashes of content, never of addresses or user-chosen names:
 *
 *       key          content                                                   used for
 *       problem key  everything in the problem (problem.h)                     part of the plan key
 *       plan key     problem key; name, version and identity of the engine     fxa_plan_key, cached support results
 *       code key     engine, device, target; the parts of the problem that     the plan cache
 *                    engine->key writes
 *
 * Cached support results use the plan key, so a result always refers to the problem that runs.
 *
 * Ownership: a context owns its caches. Plans and programs reference the host, not the context, so they outlive it.
 * Code is shared by the cache and by the plans that run it (engine/instance.h); eviction drops only the cache's
 * reference.
 *
 * Locks: each cache has its own, and none is held while compiling, allocating or freeing. The lock of the
 * request cache may be held while the plan cache's is taken; no other two locks are held at once.
 */
#ifndef FXA_PLAN_PLAN_H
#define FXA_PLAN_PLAN_H

#include "../engine/instance.h"
#include "disk_cache.h"
#include "lru.h"
#include "request_cache.h"

#include <stddef.h>

#define FXA__ENGINE_NAME 65 /* capacity for an engine name from the environment; a longer name matches no engine */

/* ---- Cache of code (cache.c) ------------------------------------------------------------------------------------- */

typedef struct fxa__cache {
    fxa__host *host; /* not retained: the cache's owner keeps the host alive */
    /* Guards the members below. The lock's condition is signalled when a build ends. */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t hits, misses, builds, evictions;
    uint64_t bytes; /* total size of the finished code in the table */
    uint64_t max_plans, max_bytes;
} fxa__cache;

fxa_status fxa__cache_init(fxa__cache *cache, fxa__host *host, uint64_t max_plans, uint64_t max_bytes, fxa_error *err);
void fxa__cache_end(fxa__cache *cache); /* frees the entries; no other thread may use the cache */

/* Builds the code of one key. Called without a lock, in the thread that missed. */
typedef fxa_status (*fxa__build_fn)(void *user, fxa__code **out, fxa_error *err);

/* Returns a reference to the code of `key`. The first thread that misses builds; others that request the same key wait
 * for it and get the same code, or the same failure with the same text. After E_MEMORY the waiters try once more
 * themselves, since memory may be short for one caller only. Failures are not cached. */
fxa_status fxa__cache_get(fxa__cache *cache, const uint8_t key[16], fxa__build_fn build, void *user, fxa__code **out,
                          fxa_error *err);
/* Adds code that was built elsewhere; the cache takes a reference of its own. Has no effect if the key has code already
 * or memory runs out. */
void fxa__cache_put(fxa__cache *cache, const uint8_t key[16], fxa__code *code);
/* Return true if this code is cached under the key. fxa__cache_use also counts a hit and a use of the code. */
bool fxa__cache_holds(fxa__cache *cache, const uint8_t key[16], const fxa__code *code);
bool fxa__cache_use(fxa__cache *cache, const uint8_t key[16], const fxa__code *code);
/* Returns the number of evictions so far. */
uint64_t fxa__cache_evictions(fxa__cache *cache);
/* Returns a reference to cached code, NULL if there is none. Counts as neither hit nor miss. */
fxa__code *fxa__cache_peek(fxa__cache *cache, const uint8_t key[16]);
/* Sets the limits and evicts code until they hold. */
void fxa__cache_set_limits(fxa__cache *cache, uint64_t max_plans, uint64_t max_bytes);
/* Removes all finished code. The removals do not count as evictions. */
void fxa__cache_drop(fxa__cache *cache);
/* Fills the fields of *out that the plan cache counts: hits, misses, builds, evictions, plans, bytes, and both
 * limits. */
void fxa__cache_count(fxa__cache *cache, fxa_cache_stats *out);

/* ---- Cache of support results (support.c) ------------------------------------------------------------------------ */

#define FXA__MAX_SUPPORT_RESULTS 1024

typedef struct fxa__support_cache {
    fxa__host *host; /* not retained: the cache's owner keeps the host alive */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t queries, hits;
    atomic_uint_least64_t refusals; /* number of problems that `query` accepted and a compiler refused later */
} fxa__support_cache;

fxa_status fxa__support_cache_init(fxa__support_cache *support, fxa__host *host, fxa_error *err);
void fxa__support_cache_end(fxa__support_cache *support);
/* Removes all results. */
void fxa__support_cache_drop(fxa__support_cache *support);
/* Returns the engine's support result for p, refusals included, from the cache or from a query, which is then cached if
 * memory allows. Code that the engine compiled for the query goes to the plan cache. Fails only if the query itself
 * fails or memory runs out. */
fxa_status fxa__support_get(fxa_context *ctx, fxa__instance *instance, const fxa__problem *p, fxa_support *out,
                            fxa_error *err);
/* Counts n results that the request cache returned as n queries and n hits. */
void fxa__support_cache_count(fxa__support_cache *support, size_t n);
/* Replaces the cached results of p and of all problems with this code key by a refusal. */
void fxa__support_cache_refuse(fxa_context *ctx, const fxa__instance *instance, const fxa__problem *p,
                               const uint8_t code_key[16], const char *reason);

/* ---- Context and plan -------------------------------------------------------------------------------------------- */

struct fxa_context {
    fxa__context_head head; /* must be the first member: src/base casts an fxa_context to it */
    fxa__cache cache;
    fxa__support_cache support;
    fxa__request_cache requests;
    fxa__disk disk;
    atomic_uint_least64_t refusals;     /* number of plans that no queried engine could make */
    char engine_name[FXA__ENGINE_NAME]; /* FXA_ENGINE of the environment when the context was created, or "" */
    uint64_t engine_variables;          /* bit i: engine i's variable was set when the context was created */
};
_Static_assert(offsetof(fxa_context, head) == 0, "fxa__context_host reads the head at the address of the context");

struct fxa_plan {
    atomic_size_t refs;
    fxa__host *host;
    fxa__problem *problem;
    fxa__code *code;
    fxa__pool *pool;         /* the host's thread pool if the engine uses threads; else NULL */
    size_t engine_workspace; /* workspace of the engine alone, without that of the index check */
    size_t workspace;        /* result of fxa_plan_workspace */
    bool deterministic;
    double constants[FXA__MAX_CONSTANTS]; /* scalar constants that the code does not contain (engine.h) */
    uint8_t key[16], code_key[16];
};

/* Computes the plan key. version and identity are those of the engine, or those stored in plan bytes. */
void fxa__plan_key_make(const fxa__problem *p, const char *engine, uint32_t version, const char *identity,
                        uint8_t key[16]);
/* Computes the key of compiled code. With `section` (code from plan bytes) its bytes are hashed in too, so loaded code
 * is never shared with code compiled here. */
fxa_status fxa__code_key_make(const fxa__instance *instance, const fxa__problem *p, const fxa__reader *section,
                              uint8_t key[16], fxa_error *err);

/* Checks the red zones of a workspace after a run, in builds with asserts (base/carve.h). `workspace` is the workspace,
 * or a copy in host memory at a multiple of 256; the workspace was filled with poison before the run. */
void fxa__plan_zones(const fxa_plan *plan, const void *workspace);

/* Makes the plan of p on an engine, through the plan cache. Returns E_UNSUPPORTED with the reason if the engine refuses
 * p; a refusal by its compiler is cached. section = the engine's part of plan bytes, or NULL to compile. */
fxa_status fxa__plan_make(fxa_context *ctx, fxa__problem *p, fxa__instance *instance, const fxa__reader *section,
                          fxa_plan **out, fxa_error *err);
/* Makes the plan on the engine called `name`; if NULL, on the engine that the environment names, else on the best
 * engine that supports p. Counts refusals. */
fxa_status fxa__plan_select(fxa_context *ctx, fxa__problem *p, const char *name, fxa_plan **out, fxa_error *err);

/* Returns the engine name in a checked problem, or NULL. The struct of an older caller may end before the field
 * `engine`. */
const char *fxa__problem_engine(const fxa_problem *problem);

/* Returns E_ARGUMENT if `name` is not NULL and no engine of the problem's device has this name. */
fxa_status fxa__plan_engine_check(const fxa__problem *p, const char *name, fxa_error *err);
/* Returns the error that fxa__plan_select would return because of the engine's name: `name`, or the one in the
 * environment if `name` is NULL. */
fxa_status fxa__plan_named_check(const fxa_context *ctx, const fxa__problem *p, const char *name, fxa_error *err);

/* Writes the names of the engines of a device as "a, b, c", for messages; UINT32_MAX = all devices. */
#define FXA__ENGINE_LIST 128
void fxa__engine_list(uint32_t device, char out[FXA__ENGINE_LIST]);

#endif
