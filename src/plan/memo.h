/* SPDX-License-Identifier: Apache-2.0
 *
 * What was asked before, by the very bytes of the question. Checking and hashing a problem takes some twenty
 * microseconds; a caller that asks for the same plan at every step gets it back for the price of a comparison.
 *
 * The key of a question is the caller's struct, with what its pointers lead to (the hash of a program, captures, names)
 * in place of the pointers; or bytes as they are. A hit has all of the key equal, byte by byte. Only what came out well
 * is kept. Plans are kept as long as their code is in the cache, so that the cache's limits bound both.
 */
#ifndef FXA_PLAN_MEMO_H
#define FXA_PLAN_MEMO_H

#include "../engine/instance.h"
#include "lru.h"

enum {
    FXA__MEMO_ENTRIES = 256,
    FXA__MEMO_KEY = 8192, /* a longer question is not kept: 30 captured tensors, say */
    FXA__MEMO_REPORTS = 8 /* engines that a kept answer may be of */
};

/* What is asked: the same bytes may be several questions. */
typedef enum fxa__question { FXA__ASK_PLAN, FXA__ASK_SUPPORT, FXA__ASK_LOAD, FXA__ASK_CARRIED } fxa__question;

typedef struct fxa__memo_key {
    size_t size; /* 0: this question has no key */
    uint8_t digest[16];
    _Alignas(8) uint8_t data[FXA__MEMO_KEY];
} fxa__memo_key;

typedef struct fxa__memo {
    fxa__host *host; /* borrowed from the owner */
    fxa__lock lock;
    fxa__lru lru;
    uint64_t evictions; /* of the cache, when plans without code there were last looked for */
} fxa__memo;

fxa_status fxa__memo_init(fxa__memo *memo, fxa__host *host, fxa_error *err);
void fxa__memo_end(fxa__memo *memo);
void fxa__memo_drop(fxa__memo *memo);

void fxa__memo_key_problem(fxa__memo_key *key, fxa__question question, const fxa_problem *problem);
/* more: what else the answer depends on. */
void fxa__memo_key_bytes(fxa__memo_key *key, fxa__question question, int64_t more, const void *bytes, size_t size);

/* A reference to the plan of that question, or NULL. Counts as a hit of the cache, and as a use of the code there. */
fxa_plan *fxa__memo_plan(fxa_context *ctx, const fxa__memo_key *key);
/* Plans whose code the cache no longer has are not kept alive: its limits are limits. */
void fxa__memo_sweep(fxa_context *ctx);
void fxa__memo_keep_plan(fxa_context *ctx, const fxa__memo_key *key, fxa_plan *plan);
/* The reports of that question, at most n of them; *count is how many engines there are. False: not known. */
bool fxa__memo_support(fxa_context *ctx, const fxa__memo_key *key, fxa_support *reports, size_t n, size_t *count);
/* All of them. */
void fxa__memo_keep_support(fxa_context *ctx, const fxa__memo_key *key, const fxa_support *reports, size_t count);

#endif
