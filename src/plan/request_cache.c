/* SPDX-License-Identifier: Apache-2.0
 *
 * The request cache of a context (request_cache.h). Entries are found by a fast, non-cryptographic digest of the key. A
 * request whose key differs from the cached key with the same digest is a miss. As in cache.c, the lock is never held
 * while memory is allocated or freed.
 */
#include "request_cache.h"

#include "../base/invariant.h"
#include "plan.h"

#include <string.h>
#include <unistd.h>

typedef struct request_entry {
    fxa__lru_node node; /* must be the first member: the address of a node is cast to its entry */
    size_t size;        /* bytes of the entry, its key included */
    fxa_plan *plan;     /* a reference to the plan that was requested; NULL for a support query */
    size_t count;       /* number of reports of a support query; 0 for a plan */
    fxa_support reports[FXA__REQUEST_CACHE_REPORTS];
    size_t key_size;
    uint8_t key[];
} request_entry;

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Appends data to the key, padded with zeros to a multiple of 8 bytes. Sets *fits to false if the key has no space for
 * the data. */
static void request_add(fxa__request_key *key, bool *fits, const void *data, size_t size) {
    size_t padded = (size + 7) / 8 * 8;
    if (!*fits || size > sizeof key->data || key->size + padded > sizeof key->data) {
        *fits = false;
        return;
    }
    FXA__ASSERT(key->size % 8 == 0);
    /* Sets the last 8 bytes of the padded data to 0; the padding is in these bytes. */
    memset(key->data + key->size + padded - 8 * (padded > 0), 0, 8 * (padded > 0));
    if (size) memcpy(key->data + key->size, data, size);
    key->size += padded;
}

static void request_add_number(fxa__request_key *key, bool *fits, uint64_t x) { request_add(key, fits, &x, sizeof x); }

static void request_add_text(fxa__request_key *key, bool *fits, const char *text) {
    size_t n = text ? strnlen(text, FXA__REQUEST_KEY_BYTES) : 0;
    request_add_number(key, fits, text ? n + 1 : 0);
    request_add(key, fits, text, n);
}

/* Appends a program to the key: first the program's hash, which covers names and types, then the default values of its
 * params, which the hash does not cover. */
static void request_add_program(fxa__request_key *key, bool *fits, const fxa_program *program) {
    request_add_number(key, fits, program != NULL);
    if (!program) return;
    request_add(key, fits, program->hash, sizeof program->hash);
    for (int32_t i = 0; i < program->n_params; i++) {
        const fxa__decl *d = &program->params[i];
        if (!d->has_value) continue;
        request_add_number(key, fits, (uint64_t)i + 1);
        request_add(key, fits, &d->value, sizeof d->value);
    }
    request_add_number(key, fits, 0);
}

/* Appends the captured tensors of a program to the key. If the number of tensors does not match the program, the
 * request is invalid; *fits is then set to false, so that the request is not cached. */
static void request_add_captures(fxa__request_key *key, bool *fits, const fxa_program *program,
                                 const fxa_capture *captures, size_t n) {
    size_t want = program ? fxa_program_tensor_count(program) : 0;
    if (n != want || (n && !captures)) *fits = false;
    if (*fits) request_add(key, fits, captures, n * sizeof *captures);
}

/* Computes the digest of a key. There are four independent sums, so that their multiplications overlap. */
static void request_digest(fxa__request_key *key) {
    uint64_t sum[4] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u};
    for (size_t at = 0; at < key->size; at += 8) {
        uint64_t word, *s = &sum[at / 8 % 4];
        memcpy(&word, key->data + at, 8);
        *s = (*s ^ word) * 0xff51afd7ed558ccdu;
        *s ^= *s >> 32;
    }
    uint64_t out[2] = {(sum[0] ^ key->size) * 0xc4ceb9fe1a85ec53u + sum[1],
                       (sum[2] ^ sum[0] >> 7) * 0xff51afd7ed558ccdu + sum[3]};
    for (int i = 0; i < 2; i++) out[i] ^= out[i] >> 29;
    memcpy(key->digest, out, sizeof out);
}

/* Finishes a key: computes its digest. If the request did not fit into the key, sets the size of the key to 0, so that
 * the request is not cached. */
static void request_close(fxa__request_key *key, bool fits) {
    if (fits)
        request_digest(key);
    else
        key->size = 0;
}

void fxa__request_key_problem(fxa__request_key *key, fxa__request_kind question, const fxa_problem *problem) {
    fxa_problem p = FXA_PROBLEM_INIT;
    uint32_t size = problem->struct_size;
    /* a struct that is larger than this library's fxa_problem, or that ends inside a field, has no key: the layout of
     * the struct is unknown, so its pointers must not be followed */
    bool fits = size >= offsetof(fxa_problem, total_q) && size <= sizeof p && size % sizeof(void *) == 0;
    key->size = 0;
    if (fits) memcpy(&p, problem, size);
    const fxa_problem given = p;
    /* Device plans do not survive a fork, so the key of a device request contains the process. */
    uint64_t process = p.device == FXA_HOST ? 0 : (uint64_t)getpid();
    p.program = p.bprop = NULL;
    p.captures = p.bprop_captures = NULL;
    p.engine = p.target = NULL;
    request_add_number(key, &fits, question);
    request_add_number(key, &fits, process);
    request_add(key, &fits, &p, sizeof p);
    if (!fits) {
        key->size = 0;
        return;
    }
    request_add_program(key, &fits, given.program);
    request_add_program(key, &fits, given.bprop);
    request_add_captures(key, &fits, given.program, given.captures, given.n_captures);
    request_add_captures(key, &fits, given.bprop, given.bprop_captures, given.n_bprop_captures);
    request_add_text(key, &fits, given.engine);
    request_add_text(key, &fits, given.target);
    request_close(key, fits);
}

void fxa__request_key_bytes(fxa__request_key *key, fxa__request_kind question, int64_t more, const void *bytes,
                            size_t size) {
    bool fits = true;
    key->size = 0;
    request_add_number(key, &fits, question);
    request_add_number(key, &fits, (uint64_t)getpid());
    request_add_number(key, &fits, (uint64_t)more);
    request_add_number(key, &fits, size);
    request_add(key, &fits, bytes, size);
    request_close(key, fits);
}

/* ---- Entries of the cache ---------------------------------------------------------------------------------------- */

static void request_free_chain(fxa__request_cache *requests, fxa__lru_node *node) {
    while (node) {
        request_entry *entry = (request_entry *)node;
        node = node->chain;
        fxa_plan_destroy(entry->plan);
        fxa__free(requests->host, entry, entry->size);
    }
}

/* Moves an entry from the table to *garbage, a chain of entries that are freed without the lock. The caller holds the
 * lock. */
static void request_remove(fxa__request_cache *requests, fxa__lru_node *node, fxa__lru_node **garbage) {
    fxa__lru_remove(&requests->lru, node);
    node->chain = *garbage;
    *garbage = node;
}

fxa_status fxa__request_cache_init(fxa__request_cache *requests, fxa__host *host, fxa_error *err) {
    memset(requests, 0, sizeof *requests);
    requests->host = host;
    return fxa__lock_init(&requests->lock, err);
}

void fxa__request_cache_drop(fxa__request_cache *requests) {
    fxa__lock_take(&requests->lock);
    fxa__lru_node *garbage = fxa__lru_empty(&requests->lru);
    fxa__lock_give(&requests->lock);
    request_free_chain(requests, garbage);
}

void fxa__request_cache_end(fxa__request_cache *requests) {
    fxa__request_cache_drop(requests);
    FXA__ASSERT(requests->lru.count == 0);
    fxa__lock_destroy(&requests->lock);
}

/* Returns the entry of a key and marks it as the most recently used; NULL if there is none. The caller holds the
 * lock. */
static request_entry *request_find(fxa__request_cache *requests, const fxa__request_key *key) {
    request_entry *entry = (request_entry *)fxa__lru_find(&requests->lru, key->digest);
    bool same = entry && entry->key_size == key->size && memcmp(entry->key, key->data, key->size) == 0;
    if (!same) return NULL;
    fxa__lru_touch(&requests->lru, &entry->node);
    return entry;
}

/* Returns a new entry with this key and without a result; NULL if the key is empty or memory runs out. */
static request_entry *request_entry_make(fxa__request_cache *requests, const fxa__request_key *key) {
    size_t size = sizeof(request_entry) + key->size;
    request_entry *entry = key->size ? fxa__alloc(requests->host, size) : NULL;
    if (!entry) return NULL;
    entry->size = size;
    memcpy(entry->node.key, key->digest, sizeof entry->node.key);
    memcpy(entry->key, key->data, key->size);
    entry->key_size = key->size;
    return entry;
}

/* Adds an entry to the cache. Removes an entry with the same digest, and the least recently used entry if there are too
 * many. */
static void request_keep(fxa__request_cache *requests, request_entry *entry) {
    fxa__lru_node *garbage = NULL;
    fxa__lock_take(&requests->lock);
    fxa__lru_node *old = fxa__lru_find(&requests->lru, entry->node.key);
    if (old) request_remove(requests, old, &garbage);
    fxa__lru_insert(&requests->lru, &entry->node);
    fxa__lru_touch(&requests->lru, &entry->node);
    if (requests->lru.count > FXA__REQUEST_CACHE_ENTRIES) request_remove(requests, requests->lru.oldest, &garbage);
    fxa__lock_give(&requests->lock);
    request_free_chain(requests, garbage);
}

/* ---- Stored plans ------------------------------------------------------------------------------------------------ */

/* Does nothing if the plan cache has evicted no code since the last call of this function. */
void fxa__request_cache_sweep(fxa_context *ctx) {
    fxa__request_cache *requests = &ctx->requests;
    fxa__lru_node *garbage = NULL;
    fxa__lock_take(&requests->lock);
    uint64_t evictions = fxa__cache_evictions(&ctx->cache);
    if (evictions != requests->evictions) {
        for (fxa__lru_node *node = requests->lru.newest, *older; node; node = older) {
            const fxa_plan *plan = ((request_entry *)node)->plan;
            older = node->older;
            if (plan && !fxa__cache_holds(&ctx->cache, plan->code_key, plan->code))
                request_remove(requests, node, &garbage);
        }
        requests->evictions = evictions;
    }
    fxa__lock_give(&requests->lock);
    request_free_chain(requests, garbage);
}

fxa_plan *fxa__request_cache_plan(fxa_context *ctx, const fxa__request_key *key) {
    fxa__request_cache *requests = &ctx->requests;
    if (!key->size) return NULL;
    fxa__lock_take(&requests->lock);
    request_entry *entry = request_find(requests, key);
    fxa_plan *plan = entry ? entry->plan : NULL;
    if (plan) fxa_plan_retain(plan);
    fxa__lock_give(&requests->lock);
    if (!plan || fxa__cache_use(&ctx->cache, plan->code_key, plan->code)) return plan;
    fxa_plan_destroy(plan);
    return NULL;
}

void fxa__request_cache_store_plan(fxa_context *ctx, const fxa__request_key *key, fxa_plan *plan) {
    fxa__request_cache_sweep(ctx);
    if (!fxa__cache_holds(&ctx->cache, plan->code_key, plan->code)) return;
    request_entry *entry = request_entry_make(&ctx->requests, key);
    if (!entry) return;
    fxa_plan_retain(plan);
    entry->plan = plan;
    request_keep(&ctx->requests, entry);
}

/* ---- Stored support reports -------------------------------------------------------------------------------------- */

bool fxa__request_cache_support(fxa_context *ctx, const fxa__request_key *key, fxa_support *reports, size_t n,
                                size_t *count) {
    fxa__request_cache *requests = &ctx->requests;
    if (!key->size) return false;
    fxa__lock_take(&requests->lock);
    const request_entry *entry = request_find(requests, key);
    if (entry) {
        *count = entry->count;
        for (size_t i = 0; i < n && i < entry->count; i++) reports[i] = entry->reports[i];
    }
    fxa__lock_give(&requests->lock);
    return entry != NULL;
}

void fxa__request_cache_store_support(fxa_context *ctx, const fxa__request_key *key, const fxa_support *reports,
                                      size_t count) {
    request_entry *entry = count <= FXA__REQUEST_CACHE_REPORTS ? request_entry_make(&ctx->requests, key) : NULL;
    if (!entry) return;
    entry->count = count;
    memcpy(entry->reports, reports, count * sizeof *reports);
    request_keep(&ctx->requests, entry);
}
