/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engines say of a problem, and the cache of it. An answer is kept under the plan key of (problem, engine),
 * the very key that a plan made from it gets: a probe cannot be about another problem than the run. Refusals are kept
 * with their reason like any other answer. An answer costs one call of a pure function, so two threads may both ask an
 * engine the same thing at the same time; the first to come back is remembered.
 */
#include "../base/float_state.h"
#include "../base/num.h"
#include "plan.h"

#include <stdio.h>
#include <string.h>

typedef struct support_entry {
    fxa__lru_node node; /* first: a node is its entry */
    fxa_support answer;
} support_entry;

fxa_status fxa__answers_init(fxa__answers *answers, fxa__host *host, fxa_error *err) {
    memset(answers, 0, sizeof *answers);
    answers->host = host;
    return fxa__lock_init(&answers->lock, err);
}

void fxa__answers_drop(fxa__answers *answers) {
    fxa__lru_node *garbage = NULL;
    fxa__lock_take(&answers->lock);
    while (answers->lru.oldest) {
        fxa__lru_node *node = answers->lru.oldest;
        fxa__lru_remove(&answers->lru, node);
        node->chain = garbage;
        garbage = node;
    }
    fxa__lock_give(&answers->lock);
    while (garbage) {
        fxa__lru_node *next = garbage->chain;
        fxa__free(answers->host, garbage, sizeof(support_entry));
        garbage = next;
    }
}

void fxa__answers_end(fxa__answers *answers) {
    fxa__answers_drop(answers);
    fxa__lock_destroy(&answers->lock);
}

static bool support_find(fxa__answers *answers, const uint8_t key[16], fxa_support *out) {
    fxa__lock_take(&answers->lock);
    support_entry *entry = (support_entry *)fxa__lru_find(&answers->lru, key);
    answers->queries++;
    if (entry) {
        answers->hits++;
        fxa__lru_touch(&answers->lru, &entry->node);
        *out = entry->answer;
    }
    fxa__lock_give(&answers->lock);
    return entry != NULL;
}

static void support_keep(fxa__answers *answers, const uint8_t key[16], const fxa_support *answer) {
    support_entry *entry = fxa__alloc(answers->host, sizeof *entry);
    if (!entry) return; /* it will be asked again */
    memcpy(entry->node.key, key, 16);
    entry->answer = *answer;
    fxa__lru_node *garbage = &entry->node;
    fxa__lock_take(&answers->lock);
    if (!fxa__lru_find(&answers->lru, key)) {
        fxa__lru_insert(&answers->lru, &entry->node);
        fxa__lru_touch(&answers->lru, &entry->node);
        garbage = answers->lru.count > FXA__MAX_ANSWERS ? answers->lru.oldest : NULL;
        if (garbage) fxa__lru_remove(&answers->lru, garbage);
    }
    fxa__lock_give(&answers->lock);
    fxa__free(answers->host, garbage, sizeof *entry);
}

/* Asks the engine. A workspace that does not fit in memory's address space is a reason to say no; memory that ran out
 * while asking is none. */
static fxa_status support_ask(const fxa__engine *engine, const fxa__problem *p, fxa_support *out, fxa_error *err) {
    memset(out, 0, sizeof *out);
    engine->query(p, out);
    out->engine = engine->name;
    if (out->supported && engine->device && (p->in.flags & FXA_STRICT_INDEX)) {
        out->supported = 0;
        snprintf(out->reason, sizeof out->reason,
                 "flag FXA_STRICT_INDEX looks at captured tensors on the host, and %s reads them on a device",
                 engine->name);
    }
    if (!out->supported) return FXA_OK;
    size_t bytes = SIZE_MAX, total = 0;
    if (engine->workspace(NULL, p, &bytes) && fxa__add_size(bytes, fxa__bind_size(p), &total)) {
        out->workspace = total;
        return FXA_OK;
    }
    if (bytes == 0) return fxa__fail_memory(err, "the workspace size of a problem");
    out->supported = 0;
    snprintf(out->reason, sizeof out->reason, "the workspace of one run does not fit in %d bits of size",
             (int)(8 * sizeof(size_t)));
    return FXA_OK;
}

fxa_status fxa__answers_get(fxa__answers *answers, const fxa__engine *engine, const fxa__problem *p, fxa_support *out,
                            fxa_error *err) {
    uint8_t key[16];
    fxa__plan_key_make(p, engine->name, engine->version, key);
    if (support_find(answers, key, out)) return FXA_OK;
    FXA_TRY(support_ask(engine, p, out, err));
    support_keep(answers, key, out);
    return FXA_OK;
}

fxa_status fxa_support_query(fxa_context *ctx, const fxa_problem *problem, fxa_support *reports, size_t *count,
                             fxa_error *err) {
    FXA__FLOAT_SCOPE;
    if (!ctx) return fxa__fail(err, FXA_E_ARGUMENT, "ctx is NULL");
    if (!problem) return fxa__fail(err, FXA_E_ARGUMENT, "problem is NULL");
    if (!count) return fxa__fail(err, FXA_E_ARGUMENT, "count is NULL; it says how many reports there is room for");
    if (!reports && *count > 0)
        return fxa__fail(err, FXA_E_ARGUMENT, "reports is NULL with room for %zu; NULL goes with a count of 0", *count);
    fxa__problem *p = NULL;
    FXA_TRY(fxa__problem_create(fxa__context_host(ctx), problem, &p, err));
    fxa_status status = FXA_OK;
    size_t n = 0;
    for (const fxa__engine *engine; (engine = fxa__engine_at(n)) != NULL; n++)
        if (n < *count && status == FXA_OK) status = fxa__answers_get(&ctx->answers, engine, p, &reports[n], err);
    fxa__problem_release(p);
    if (status != FXA_OK) return status;
    *count = n;
    return fxa__ok(err);
}
