/* SPDX-License-Identifier: Apache-2.0
 *
 * Request cache: maps the exact bytes of a request to the plan or support reports that an earlier equal request
 * returned. Checking and hashing a problem takes about 20 microseconds; a repeated request costs one comparison.
 *
 * The key of a request is the caller's struct, in which pointers are replaced by their contents (hash of a program,
 * captures, names), or plan bytes as they are. A hit requires byte-wise equality. Only successful results are
 * stored. Plans stay only while their code is in the plan cache, so the limits of the plan cache bound the request
 * cache too.
 */
#ifndef FXA_PLAN_REQUEST_CACHE_H
#define FXA_PLAN_REQUEST_CACHE_H

#include "../engine/instance.h"
#include "lru.h"

enum {
    FXA__REQUEST_CACHE_ENTRIES = 256,
    FXA__REQUEST_KEY_BYTES = 8192, /* bytes; longer keys (30 captured tensors, for example) are not stored */
    FXA__REQUEST_CACHE_REPORTS = 8 /* engines per stored support result */
};

/* Kind of request; part of the key, because one struct may be used for several kinds. */
typedef enum fxa__request_kind {
    FXA__REQUEST_PLAN,
    FXA__REQUEST_SUPPORT,
    FXA__REQUEST_LOAD,
    FXA__REQUEST_SAVED_PROBLEM
} fxa__request_kind;

typedef struct fxa__request_key {
    size_t size; /* bytes used; 0 = the request has no key and is not cached */
    uint8_t digest[16];
    _Alignas(8) uint8_t data[FXA__REQUEST_KEY_BYTES];
} fxa__request_key;

typedef struct fxa__request_cache {
    fxa__host *host; /* not retained: the cache's owner keeps the host alive */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t evictions; /* number of evictions of the plan cache at the last fxa__request_cache_sweep */
} fxa__request_cache;

fxa_status fxa__request_cache_init(fxa__request_cache *requests, fxa__host *host, fxa_error *err);
void fxa__request_cache_end(fxa__request_cache *requests);
/* Removes all entries. */
void fxa__request_cache_drop(fxa__request_cache *requests);

/* Makes the key of a request about a problem, without validating the problem. */
void fxa__request_key_problem(fxa__request_key *key, fxa__request_kind question, const fxa_problem *problem);
/* Makes the key of a request that consists of bytes. `more`: another number that the result depends on (load flags or
 * device ordinal). */
void fxa__request_key_bytes(fxa__request_key *key, fxa__request_kind question, int64_t more, const void *bytes,
                            size_t size);

/* Returns a reference to the plan stored for the request, or NULL. Counts as a hit of the plan cache and as a use of
 * the code. */
fxa_plan *fxa__request_cache_plan(fxa_context *ctx, const fxa__request_key *key);
/* Drops plans whose code was evicted from the plan cache, so that the limits of the plan cache bound the plans of the
 * request cache. */
void fxa__request_cache_sweep(fxa_context *ctx);
/* Stores a plan if its code is in the plan cache and memory suffices. The cache takes a reference of its own. */
void fxa__request_cache_store_plan(fxa_context *ctx, const fxa__request_key *key, fxa_plan *plan);
/* Copies the stored reports, at most n, and sets *count to the number of engines. Returns false if none are stored. */
bool fxa__request_cache_support(fxa_context *ctx, const fxa__request_key *key, fxa_support *reports, size_t n,
                                size_t *count);
/* Stores all `count` reports of a request. */
void fxa__request_cache_store_support(fxa_context *ctx, const fxa__request_key *key, const fxa_support *reports,
                                      size_t count);

#endif
