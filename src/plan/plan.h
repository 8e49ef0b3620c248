/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans inside the library: from a checked problem over the engines' answers and the cache to something that runs.
 *
 * Three keys, all BLAKE2s-128 of content, never of an address or a name that a user chose:
 *   problem key   everything the problem says (problem.h)
 *   plan key      problem key, engine name, version and identity; also the key of the engine's cached answer, so that
 *                 the problem that was asked about is the problem that runs
 *   code key      the same of an engine, its device and target, and of the problem what engine->key says that code
 *                 depends on; what the cache holds
 *
 * Ownership: a context owns its two caches; plans and programs hold the host, not the context, and so outlive it. Code
 * is shared by the cache and by the plans that run it (engine/instance.h); evicting only drops the cache's reference.
 * Locks: each cache has its own, and none is held while compiling, allocating or freeing; with the memo's that of the
 * cache may be taken, no other two at a time.
 */
#ifndef FXA_PLAN_PLAN_H
#define FXA_PLAN_PLAN_H

#include "../engine/instance.h"
#include "disk_cache.h"
#include "lru.h"
#include "memo.h"

#include <stddef.h>

#define FXA__ENGINE_NAME 65 /* room for what the environment calls one; longer names are none */

/* ---- Cache of code (cache.c) ------------------------------------------------------------------------------------- */

typedef struct fxa__cache {
    fxa__host *host; /* borrowed from the owner */
    fxa__lock lock;  /* guards everything below; its condition: a build has ended */
    fxa__lru lru;
    uint64_t hits, misses, builds, evictions;
    uint64_t bytes; /* of finished code in the table */
    uint64_t max_plans, max_bytes;
} fxa__cache;

fxa_status fxa__cache_init(fxa__cache *cache, fxa__host *host, uint64_t max_plans, uint64_t max_bytes, fxa_error *err);
void fxa__cache_end(fxa__cache *cache); /* nobody may be inside */

/* Makes the code of one key; called without any lock, from the thread that missed. */
typedef fxa_status (*fxa__build_fn)(void *user, fxa__code **out, fxa_error *err);

/* A reference to the code of `key`. The first to miss builds; others that ask for the same key meanwhile wait and get
 * the same code, or the same failure with the same text (out of memory may be one caller's own trouble: they then try
 * once more by themselves). Failures are not kept. */
fxa_status fxa__cache_get(fxa__cache *cache, const uint8_t key[16], fxa__build_fn build, void *user, fxa__code **out,
                          fxa_error *err);
/* Adds a reference to code that was built outside, unless the key has some, or memory runs out. */
void fxa__cache_put(fxa__cache *cache, const uint8_t key[16], fxa__code *code);
/* Whether the key has this code; `use` counts that as a hit, and the code as used. */
bool fxa__cache_holds(fxa__cache *cache, const uint8_t key[16], const fxa__code *code);
bool fxa__cache_use(fxa__cache *cache, const uint8_t key[16], const fxa__code *code);
uint64_t fxa__cache_evictions(fxa__cache *cache);
/* A reference to code that is there already; NULL else. Counts as neither hit nor miss. */
fxa__code *fxa__cache_peek(fxa__cache *cache, const uint8_t key[16]);
void fxa__cache_set_limits(fxa__cache *cache, uint64_t max_plans, uint64_t max_bytes);
void fxa__cache_drop(fxa__cache *cache); /* all finished code; not counted as evictions */
/* Fills all counters that are the cache's: all but refusals, runs, queries, query_hits. */
void fxa__cache_count(fxa__cache *cache, fxa_cache_stats *out);

/* ---- Cache of the engines' answers (support.c) ------------------------------------------------------------------- */

#define FXA__MAX_ANSWERS 1024

typedef struct fxa__answers {
    fxa__host *host; /* borrowed from the owner */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t queries, hits;
    atomic_uint_least64_t noes; /* how often a yes has become a no */
} fxa__answers;

fxa_status fxa__answers_init(fxa__answers *answers, fxa__host *host, fxa_error *err);
void fxa__answers_end(fxa__answers *answers);
void fxa__answers_drop(fxa__answers *answers);
/* What the engine says of p, refusals too: looked up, or asked and remembered (when there is memory for it). Code that
 * the engine made to answer goes to the cache. Fails only when the engine cannot tell, or there is no memory to ask. */
fxa_status fxa__answers_get(fxa_context *ctx, fxa__instance *instance, const fxa__problem *p, fxa_support *out,
                            fxa_error *err);
/* n answers came from the memo. */
void fxa__answers_count(fxa__answers *answers, size_t n);
/* From now on the answer is no: to p, and to every problem of that code key. */
void fxa__answers_refuse(fxa_context *ctx, const fxa__instance *instance, const fxa__problem *p,
                         const uint8_t code_key[16], const char *reason);

/* ---- Context and plan -------------------------------------------------------------------------------------------- */

struct fxa_context {
    fxa__context_head head; /* first: see base/host.h */
    fxa__cache cache;
    fxa__answers answers;
    fxa__memo memo;
    fxa__disk disk;
    atomic_uint_least64_t refusals; /* plans that no engine that was asked could make */
    char wanted[FXA__ENGINE_NAME];  /* the environment's FXA_ENGINE when the context was made, or "" */
    uint64_t variables;             /* bit i: the variable of engine i was set then */
};
_Static_assert(offsetof(fxa_context, head) == 0, "fxa__context_host reads the head at the address of the context");

struct fxa_plan {
    atomic_size_t refs;
    fxa__host *host;
    fxa__problem *problem;
    fxa__code *code;
    fxa__pool *pool;         /* the host's, for engines with threads; else NULL */
    size_t engine_workspace; /* without what a check of indices needs */
    size_t workspace;        /* what fxa_plan_workspace says */
    bool deterministic;
    double numbers[FXA__NUMBERS]; /* of the problem, that its code does not have (engine.h) */
    uint8_t key[16], code_key[16];
};

/* The plan key; version and identity are the engine's, or those that plan bytes name. */
void fxa__plan_key_make(const fxa__problem *p, const char *engine, uint32_t version, const char *identity,
                        uint8_t key[16]);
/* The code key. section: the code comes from these bytes, and serves no plan compiled here. */
fxa_status fxa__code_key_make(const fxa__instance *instance, const fxa__problem *p, const fxa__reader *section,
                              uint8_t key[16], fxa_error *err);

/* With asserts: looks at the red zones of a workspace after a run of the plan, or at the host's copy of one whose
 * address is a multiple of 256; it was filled with poison before (base/carve.h). */
void fxa__plan_zones(const fxa_plan *plan, const void *workspace);

/* Makes the plan of p on an engine through the cache. E_UNSUPPORTED with the reason when the engine says no; a no of
 * its compiler is remembered. section: the engine's part of plan bytes, or NULL to compile. */
fxa_status fxa__plan_make(fxa_context *ctx, fxa__problem *p, fxa__instance *instance, const fxa__reader *section,
                          fxa_plan **out, fxa_error *err);
/* The same on the engine of that name, or when it is NULL on the one that the environment names, or the best of those
 * that can. Counts refusals. */
fxa_status fxa__plan_choose(fxa_context *ctx, fxa__problem *p, const char *name, fxa_plan **out, fxa_error *err);

/* The engine that a checked problem names, or NULL: an older caller's struct may end before the field. */
const char *fxa__problem_engine(const fxa_problem *problem);

/* E_ARGUMENT for a name that no engine of the problem's device has; NULL is none, and right. */
fxa_status fxa__plan_engine_check(const fxa__problem *p, const char *name, fxa_error *err);
/* The same, and without a name for the one that the environment names: what fxa__plan_choose would refuse. */
fxa_status fxa__plan_named_check(const fxa_context *ctx, const fxa__problem *p, const char *name, fxa_error *err);

/* The names of the engines of a device as "a, b, c", for messages; device UINT32_MAX: all. */
#define FXA__ENGINE_LIST 128
void fxa__engine_list(uint32_t device, char out[FXA__ENGINE_LIST]);

#endif
