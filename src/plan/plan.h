/* SPDX-License-Identifier: Apache-2.0
 *
 * How a checked problem becomes a plan: support queries choose the engine, and the plan cache returns the code or has
 * it compiled.
 *
 * There are three keys. Each is a BLAKE2s-128 hash of content, never of addresses or user-chosen names:
 *
 *       key          content                                                   used for
 *       problem key  everything in the problem (problem.h)                     part of the plan key
 *       plan key     problem key; name, version and identity of the engine     fxa_plan_key, cached support results
 *       code key     engine, device, target; the parts of the problem that     the plan cache
 *                    engine->key writes
 *
 * Support results are cached under the plan key, so a cached result always refers to the problem that runs.
 *
 * Ownership: a context owns its caches. Plans and programs hold references to the host (base/host.h), not to the
 * context, so they may outlive the context. Code is shared by the plan cache and by the plans that run it
 * (engine/instance.h); eviction drops only the cache's reference to the code.
 *
 * Locks: each cache in memory has its own lock. No lock of a cache is held while code is compiled, or memory is
 * allocated or freed. A thread that holds the lock of the request cache may take the lock of the plan cache; no other
 * two locks of caches are held at once.
 */
#ifndef FXA_PLAN_PLAN_H
#define FXA_PLAN_PLAN_H

#include "../engine/instance.h"
#include "disk_cache.h"
#include "lru.h"
#include "request_cache.h"

#include <stddef.h>

#define FXA__ENGINE_NAME 65 /* capacity for an engine name with its terminator; a longer name matches no engine */

/* ---- Plan cache: compiled code (cache.c) ------------------------------------------------------------------------- */

typedef struct fxa__cache {
    fxa__host *host; /* no reference is held: the owner of the cache keeps the host alive */
    /* The lock guards the members below. The lock's condition variable is signalled when a build ends. */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t hits, misses, builds, evictions;
    uint64_t bytes; /* total size of the finished code in the cache */
    uint64_t max_plans, max_bytes;
} fxa__cache;

fxa_status fxa__cache_init(fxa__cache *cache, fxa__host *host, uint64_t max_plans, uint64_t max_bytes, fxa_error *err);
void fxa__cache_end(fxa__cache *cache); /* frees all entries; no other thread may use the cache */

/* Builds the code of one key. fxa__cache_get calls it in the thread that first requested the key, without holding a
 * lock. */
typedef fxa_status (*fxa__build_fn)(void *user, fxa__code **out, fxa_error *err);

/* Sets *out to a new reference to the code of `key`. If the code is not cached, the first thread that requests it calls
 * `build`. Other threads that request the same key wait for this build; they get the same code, or an error with the
 * same text. If the build failed with E_MEMORY, each waiting thread tries once more, because memory may have been short
 * for the first thread only. Failures are not cached. */
fxa_status fxa__cache_get(fxa__cache *cache, const uint8_t key[16], fxa__build_fn build, void *user, fxa__code **out,
                          fxa_error *err);
/* Adds code that was loaded outside fxa__cache_get; the cache takes a reference of its own. Has no effect if the cache
 * has an entry for the key already, or if memory runs out. */
void fxa__cache_put(fxa__cache *cache, const uint8_t key[16], fxa__code *code);
/* Both functions return true if this code is cached under `key`. fxa__cache_use also counts a hit and marks the code as
 * the most recently used. */
bool fxa__cache_holds(fxa__cache *cache, const uint8_t key[16], const fxa__code *code);
bool fxa__cache_use(fxa__cache *cache, const uint8_t key[16], const fxa__code *code);
/* Returns how many entries the cache has evicted so far. */
uint64_t fxa__cache_evictions(fxa__cache *cache);
/* Returns a new reference to the code that is cached under `key`; NULL if there is none. The call counts neither a hit
 * nor a miss. */
fxa__code *fxa__cache_peek(fxa__cache *cache, const uint8_t key[16]);
/* Sets the limits of the cache, and evicts code until the cache is within the limits. */
void fxa__cache_set_limits(fxa__cache *cache, uint64_t max_plans, uint64_t max_bytes);
/* Removes all finished code. The removals do not count as evictions. */
void fxa__cache_drop(fxa__cache *cache);
/* Sets the fields of *out that describe the plan cache: hits, misses, builds, evictions, plans, bytes, and both
 * limits. */
void fxa__cache_count(fxa__cache *cache, fxa_cache_stats *out);

/* ---- Cache of support results (support.c) ------------------------------------------------------------------------ */

#define FXA__MAX_SUPPORT_RESULTS 1024

typedef struct fxa__support_cache {
    fxa__host *host; /* not retained: the cache's owner keeps the host alive */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t queries, hits;
    atomic_uint_least64_t refusals; /* number of problems that an engine supported until its compiler refused them */
} fxa__support_cache;

fxa_status fxa__support_cache_init(fxa__support_cache *support, fxa__host *host, fxa_error *err);
void fxa__support_cache_end(fxa__support_cache *support);
/* Removes all support results from the cache. */
void fxa__support_cache_drop(fxa__support_cache *support);
/* Sets *out to the engine's support result for the problem that `a` analyzes. The result may be a refusal. The result
 * comes from the support cache or from a query of the engine. The result of a query is cached if memory allows.
 * Fails only if the query itself fails or memory runs out. */
fxa_status fxa__support_get(fxa_context *ctx, fxa__instance *instance, fxa__analysis *a, fxa_support *out,
                            fxa_error *err);
/* Caches a compiler's refusal for p and for all problems with this code key. For these problems fxa__support_get then
 * returns the refusal, even if another result is cached. */
void fxa__support_cache_refuse(fxa_context *ctx, const fxa__instance *instance, const fxa__problem *p,
                               const uint8_t code_key[16], const char *reason);

/* ---- Context and plan -------------------------------------------------------------------------------------------- */

struct fxa_context {
    fxa__context_head head; /* must be the first member: src/base casts a context's address to fxa__context_head */
    fxa__cache cache;
    fxa__support_cache support;
    fxa__request_cache requests;
    fxa__disk disk;
    atomic_uint_least64_t refusals;     /* number of requested plans that no queried engine could make */
    char engine_name[FXA__ENGINE_NAME]; /* value of FXA_ENGINE when the context was created, or "" */
    uint64_t engine_variables;          /* bit i = engine i's environment variable was set at creation of the context */
};
_Static_assert(offsetof(fxa_context, head) == 0, "fxa__context_host reads the head at the address of the context");

struct fxa_plan {
    atomic_size_t refs;
    fxa__host *host;
    fxa__problem *problem;
    fxa__code *code;
    fxa__pool *pool; /* the host's thread pool if the engine uses threads; else NULL */
    /* bytes of workspace that the engine needs, without those of the check for out-of-bounds load indices
     * (problem/index_check.h) */
    size_t engine_workspace;
    size_t
        workspace; /* bytes of workspace that a run needs: engine_workspace plus those of the check of load indices */
    bool deterministic;
    double constants[FXA__MAX_CONSTANTS]; /* scalar constants that runs pass to the code, which does not contain them */
    uint8_t key[16], code_key[16];
};

/* Computes the plan key of p. `version` and `identity` are those of the engine, or those that plan bytes contain. */
void fxa__plan_key_make(const fxa__problem *p, const char *engine, uint32_t version, const char *identity,
                        uint8_t key[16]);
/* Computes the code key, under which the plan cache stores the code of the problem that `a` analyzes. `section`: code
 * from plan bytes, or NULL. The bytes of `section` are hashed into the key, so code from plan bytes is never shared
 * with code that this process compiles. If `section` is NULL, the key is stored in `a` and computed once only. */
fxa_status fxa__code_key_make(const fxa__instance *instance, fxa__analysis *a, const fxa__reader *section,
                              uint8_t key[16], fxa_error *err);

/* In builds with asserts, checks after a run that the red zones between the buffers of the workspace were not written
 * (base/carve.h). `workspace`: the workspace, which was filled with poison before the run, or a copy of it in host
 * memory at a multiple of 256. */
void fxa__plan_zones(const fxa_plan *plan, const void *workspace);

/* Makes the plan of p, which `a` analyzes on the engine `instance`, with code from the plan cache. `support`: result of
 * fxa__support_get for `a`. Returns E_UNSUPPORTED with the reason if the engine refuses p. `section`: the engine's part
 * of plan bytes, from which code is loaded; NULL = the code is compiled or comes from the disk cache. If `section` is
 * NULL, a refusal by the engine's compiler is cached. */
fxa_status fxa__plan_make(fxa_context *ctx, fxa__problem *p, fxa__instance *instance, fxa__analysis *a,
                          const fxa_support *support, const fxa__reader *section, fxa_plan **out, fxa_error *err);
/* Makes the plan of p on the engine called `name`. If `name` is NULL, uses the engine that the environment names, else
 * the best engine that supports p. If all these engines refuse p, counts the refusal in the context. */
fxa_status fxa__plan_select(fxa_context *ctx, fxa__problem *p, const char *name, fxa_plan **out, fxa_error *err);

/* Returns the engine name in a problem struct, whose struct_size the caller has checked; NULL if it has none. The
 * struct of an older caller may end before the field `engine`. */
const char *fxa__problem_engine(const fxa_problem *problem);

/* Returns E_ARGUMENT if `name` is not NULL and no engine of the problem's device has this name. */
fxa_status fxa__plan_engine_check(const fxa__problem *p, const char *name, fxa_error *err);
/* Checks the name of the engine as fxa__plan_select does, and returns the same error. The name is `name`, or the name
 * in the environment if `name` is NULL. */
fxa_status fxa__plan_named_check(const fxa_context *ctx, const fxa__problem *p, const char *name, fxa_error *err);

/* Writes the names of the engines of `device` as "a, b, c", for error messages. UINT32_MAX stands for all devices. */
#define FXA__ENGINE_LIST 128
void fxa__engine_list(uint32_t device, char out[FXA__ENGINE_LIST]);

#endif
