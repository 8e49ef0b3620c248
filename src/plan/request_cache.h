/* SPDX-License-Identifier: Apache-2.0
 *
 * The request cache maps the exact bytes of a request to the plan or the support reports that an earlier equal request
 * returned. Checking and hashing a problem takes about 20 microseconds; a repeated request costs one comparison.
 *
 * The key of a request is one of these:
 *   - the caller's fxa_problem, with the contents of its pointers (hash of a program, captured tensors, names) in place
 *     of the pointers
 *   - the plan bytes or problem bytes that the request passes
 * A hit requires that all bytes of the two keys are equal. Only successful results are stored. A plan stays in the
 * request cache only while its code is in the plan cache, so the limits of the plan cache bound the request cache too.
 */
#ifndef FXA_PLAN_REQUEST_CACHE_H
#define FXA_PLAN_REQUEST_CACHE_H

#include "../engine/instance.h"
#include "lru.h"

enum {
    FXA__REQUEST_CACHE_ENTRIES = 256,
    /* maximum size of a key; requests with longer keys (30 captured tensors, for example) are not cached */
    FXA__REQUEST_KEY_BYTES = 8192,
    FXA__REQUEST_CACHE_REPORTS = 8 /* maximum number of reports, one for each engine, of a stored support query */
};

/* Kind of a request. The kind is part of the key, because requests of different kinds may pass the same struct. */
typedef enum fxa__request_kind {
    FXA__REQUEST_PLAN,
    FXA__REQUEST_SUPPORT,
    FXA__REQUEST_LOAD,
    FXA__REQUEST_SAVED_PROBLEM
} fxa__request_kind;

typedef struct fxa__request_key {
    size_t size; /* bytes of `data` that are used; 0 = the request has no key and is not cached */
    uint8_t digest[16];
    _Alignas(8) uint8_t data[FXA__REQUEST_KEY_BYTES];
} fxa__request_key;

typedef struct fxa__request_cache {
    fxa__host *host; /* no reference is held: the owner of the cache keeps the host alive */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t evictions; /* how many entries the plan cache had evicted at the last fxa__request_cache_sweep */
} fxa__request_cache;

fxa_status fxa__request_cache_init(fxa__request_cache *requests, fxa__host *host, fxa_error *err);
void fxa__request_cache_end(fxa__request_cache *requests);
/* Removes all entries. */
void fxa__request_cache_drop(fxa__request_cache *requests);

/* Makes the key of a request for a problem. Does not validate the problem. */
void fxa__request_key_problem(fxa__request_key *key, fxa__request_kind question, const fxa_problem *problem);
/* Makes the key of a request that passes plan bytes or problem bytes. `more`: a number that the result also depends on
 * (the load flags or the device's ordinal). */
void fxa__request_key_bytes(fxa__request_key *key, fxa__request_kind question, int64_t more, const void *bytes,
                            size_t size);

/* Returns a new reference to the plan that is stored for the request; NULL if there is none. Returning a plan counts as
 * a hit of the plan cache and marks the plan's code there as the most recently used. */
fxa_plan *fxa__request_cache_plan(fxa_context *ctx, const fxa__request_key *key);
/* Removes plans whose code was evicted from the plan cache, so that the limits of the plan cache bound the plans of the
 * request cache too. */
void fxa__request_cache_sweep(fxa_context *ctx);
/* Stores a plan for the request if the plan's code is in the plan cache and memory suffices. The request cache takes
 * its own reference to the plan. */
void fxa__request_cache_store_plan(fxa_context *ctx, const fxa__request_key *key, fxa_plan *plan);
/* Copies the reports that are stored for a support query, at most n, to `reports`, and sets *count to the number of
 * engines. Returns false if the query is not stored. */
bool fxa__request_cache_support(fxa_context *ctx, const fxa__request_key *key, fxa_support *reports, size_t n,
                                size_t *count);
/* Stores the reports of a support query, one for each of the `count` engines. */
void fxa__request_cache_store_support(fxa_context *ctx, const fxa__request_key *key, const fxa_support *reports,
                                      size_t count);

#endif
