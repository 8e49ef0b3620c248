/* SPDX-License-Identifier: Apache-2.0
 *
 * The request cache of a context: see memo.h. Entries are found by a fast, non-cryptographic digest; equal digests of
 * different keys are a miss. The lock is held for lookups only; allocations and frees happen outside it, as in cache.c.
 */
#include "memo.h"

#include "plan.h"

#include <string.h>
#include <unistd.h>

typedef struct memo_entry {
    fxa__lru_node node; /* must be first: nodes are cast to entries */
    size_t size;        /* bytes of the entire entry */
    fxa_plan *plan;     /* for requests of plans */
    size_t count;       /* number of reports, for support queries */
    fxa_support reports[FXA__MEMO_REPORTS];
    size_t key_size;
    uint8_t key[];
} memo_entry;

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Appends data to the key, padded with zeros to 8 bytes. Clears *fits if the key is full. */
static void memo_add(fxa__memo_key *key, bool *fits, const void *data, size_t size) {
    size_t padded = (size + 7) / 8 * 8;
    if (!*fits || size > sizeof key->data || key->size + padded > sizeof key->data) {
        *fits = false;
        return;
    }
    memset(key->data + key->size + padded - 8 * (padded > 0), 0, 8 * (padded > 0));
    if (size) memcpy(key->data + key->size, data, size);
    key->size += padded;
}

static void memo_add_number(fxa__memo_key *key, bool *fits, uint64_t x) { memo_add(key, fits, &x, sizeof x); }

static void memo_add_text(fxa__memo_key *key, bool *fits, const char *text) {
    size_t n = text ? strnlen(text, FXA__MEMO_KEY) : 0;
    memo_add_number(key, fits, text ? n + 1 : 0);
    memo_add(key, fits, text, n);
}

/* Adds the hash of a program, which covers names and types, and the default values of its params, which it does not. */
static void memo_add_program(fxa__memo_key *key, bool *fits, const fxa_program *program) {
    memo_add_number(key, fits, program != NULL);
    if (!program) return;
    memo_add(key, fits, program->hash, sizeof program->hash);
    for (int32_t i = 0; i < program->n_params; i++) {
        const fxa__decl *d = &program->params[i];
        if (!d->has_value) continue;
        memo_add_number(key, fits, (uint64_t)i + 1);
        memo_add(key, fits, &d->value, sizeof d->value);
    }
    memo_add_number(key, fits, 0);
}

/* Adds captures. If their number does not match the program, the request is invalid and gets no key. */
static void memo_add_captures(fxa__memo_key *key, bool *fits, const fxa_program *program, const fxa_capture *captures,
                              size_t n) {
    size_t want = program ? fxa_program_tensor_count(program) : 0;
    if (n != want || (n && !captures)) *fits = false;
    if (*fits) memo_add(key, fits, captures, n * sizeof *captures);
}

/* Computes the digest in four independent sums, so that multiplications overlap. */
static void memo_digest(fxa__memo_key *key) {
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

/* Completes the key; if it does not fit, the request gets none. */
static void memo_close(fxa__memo_key *key, bool fits) {
    if (fits)
        memo_digest(key);
    else
        key->size = 0;
}

void fxa__memo_key_problem(fxa__memo_key *key, fxa__question question, const fxa_problem *problem) {
    fxa_problem p = FXA_PROBLEM_INIT;
    uint32_t size = problem->struct_size;
    /* Structs of newer callers, and sizes that end inside a field, get no key: their pointers are not followed. */
    bool fits = size >= offsetof(fxa_problem, total_q) && size <= sizeof p && size % sizeof(void *) == 0;
    key->size = 0;
    if (fits) memcpy(&p, problem, size);
    const fxa_problem given = p;
    uint64_t process = p.device == FXA_HOST ? 0 : (uint64_t)getpid(); /* devices do not survive a fork */
    p.program = p.bprop = NULL;
    p.captures = p.bprop_captures = NULL;
    p.engine = p.target = NULL;
    memo_add_number(key, &fits, question);
    memo_add_number(key, &fits, process);
    memo_add(key, &fits, &p, sizeof p);
    if (!fits) {
        key->size = 0;
        return;
    }
    memo_add_program(key, &fits, given.program);
    memo_add_program(key, &fits, given.bprop);
    memo_add_captures(key, &fits, given.program, given.captures, given.n_captures);
    memo_add_captures(key, &fits, given.bprop, given.bprop_captures, given.n_bprop_captures);
    memo_add_text(key, &fits, given.engine);
    memo_add_text(key, &fits, given.target);
    memo_close(key, fits);
}

void fxa__memo_key_bytes(fxa__memo_key *key, fxa__question question, int64_t more, const void *bytes, size_t size) {
    bool fits = true;
    key->size = 0;
    memo_add_number(key, &fits, question);
    memo_add_number(key, &fits, (uint64_t)getpid());
    memo_add_number(key, &fits, (uint64_t)more);
    memo_add_number(key, &fits, size);
    memo_add(key, &fits, bytes, size);
    memo_close(key, fits);
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

static void memo_free_chain(fxa__memo *memo, fxa__lru_node *node) {
    while (node) {
        memo_entry *entry = (memo_entry *)node;
        node = node->chain;
        fxa_plan_destroy(entry->plan);
        fxa__free(memo->host, entry, entry->size);
    }
}

/* Moves an entry from the table to the garbage chain. Called under the lock. */
static void memo_remove(fxa__memo *memo, fxa__lru_node *node, fxa__lru_node **garbage) {
    fxa__lru_remove(&memo->lru, node);
    node->chain = *garbage;
    *garbage = node;
}

fxa_status fxa__memo_init(fxa__memo *memo, fxa__host *host, fxa_error *err) {
    memset(memo, 0, sizeof *memo);
    memo->host = host;
    return fxa__lock_init(&memo->lock, err);
}

void fxa__memo_drop(fxa__memo *memo) {
    fxa__lock_take(&memo->lock);
    fxa__lru_node *garbage = fxa__lru_empty(&memo->lru);
    fxa__lock_give(&memo->lock);
    memo_free_chain(memo, garbage);
}

void fxa__memo_end(fxa__memo *memo) {
    fxa__memo_drop(memo);
    fxa__lock_destroy(&memo->lock);
}

/* Returns the entry of a key and marks it as used, NULL = none. Called under the lock. */
static memo_entry *memo_find(fxa__memo *memo, const fxa__memo_key *key) {
    memo_entry *entry = (memo_entry *)fxa__lru_find(&memo->lru, key->digest);
    bool same = entry && entry->key_size == key->size && memcmp(entry->key, key->data, key->size) == 0;
    if (!same) return NULL;
    fxa__lru_touch(&memo->lru, &entry->node);
    return entry;
}

/* Returns a new entry without a result; NULL without a key or memory. */
static memo_entry *memo_entry_make(fxa__memo *memo, const fxa__memo_key *key) {
    size_t size = sizeof(memo_entry) + key->size;
    memo_entry *entry = key->size ? fxa__alloc(memo->host, size) : NULL;
    if (!entry) return NULL;
    entry->size = size;
    memcpy(entry->node.key, key->digest, sizeof entry->node.key);
    memcpy(entry->key, key->data, key->size);
    entry->key_size = key->size;
    return entry;
}

/* Adds an entry, replacing one with the same digest. */
static void memo_keep(fxa__memo *memo, memo_entry *entry) {
    fxa__lru_node *garbage = NULL;
    fxa__lock_take(&memo->lock);
    fxa__lru_node *old = fxa__lru_find(&memo->lru, entry->node.key);
    if (old) memo_remove(memo, old, &garbage);
    fxa__lru_insert(&memo->lru, &entry->node);
    fxa__lru_touch(&memo->lru, &entry->node);
    if (memo->lru.count > FXA__MEMO_ENTRIES) memo_remove(memo, memo->lru.oldest, &garbage);
    fxa__lock_give(&memo->lock);
    memo_free_chain(memo, garbage);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* Does nothing if the cache has evicted no code since the last call. */
void fxa__memo_sweep(fxa_context *ctx) {
    fxa__memo *memo = &ctx->memo;
    fxa__lru_node *garbage = NULL;
    fxa__lock_take(&memo->lock);
    uint64_t evictions = fxa__cache_evictions(&ctx->cache);
    if (evictions != memo->evictions) {
        for (fxa__lru_node *node = memo->lru.newest, *older; node; node = older) {
            const fxa_plan *plan = ((memo_entry *)node)->plan;
            older = node->older;
            if (plan && !fxa__cache_holds(&ctx->cache, plan->code_key, plan->code)) memo_remove(memo, node, &garbage);
        }
        memo->evictions = evictions;
    }
    fxa__lock_give(&memo->lock);
    memo_free_chain(memo, garbage);
}

fxa_plan *fxa__memo_plan(fxa_context *ctx, const fxa__memo_key *key) {
    fxa__memo *memo = &ctx->memo;
    if (!key->size) return NULL;
    fxa__lock_take(&memo->lock);
    memo_entry *entry = memo_find(memo, key);
    fxa_plan *plan = entry ? entry->plan : NULL;
    if (plan) fxa_plan_retain(plan);
    fxa__lock_give(&memo->lock);
    if (!plan || fxa__cache_use(&ctx->cache, plan->code_key, plan->code)) return plan;
    fxa_plan_destroy(plan);
    return NULL;
}

void fxa__memo_keep_plan(fxa_context *ctx, const fxa__memo_key *key, fxa_plan *plan) {
    fxa__memo_sweep(ctx);
    if (!fxa__cache_holds(&ctx->cache, plan->code_key, plan->code)) return;
    memo_entry *entry = memo_entry_make(&ctx->memo, key);
    if (!entry) return;
    fxa_plan_retain(plan);
    entry->plan = plan;
    memo_keep(&ctx->memo, entry);
}

/* ---- Support ----------------------------------------------------------------------------------------------------- */

bool fxa__memo_support(fxa_context *ctx, const fxa__memo_key *key, fxa_support *reports, size_t n, size_t *count) {
    fxa__memo *memo = &ctx->memo;
    if (!key->size) return false;
    fxa__lock_take(&memo->lock);
    const memo_entry *entry = memo_find(memo, key);
    if (entry) {
        *count = entry->count;
        for (size_t i = 0; i < n && i < entry->count; i++) reports[i] = entry->reports[i];
    }
    fxa__lock_give(&memo->lock);
    return entry != NULL;
}

void fxa__memo_keep_support(fxa_context *ctx, const fxa__memo_key *key, const fxa_support *reports, size_t count) {
    memo_entry *entry = count <= FXA__MEMO_REPORTS ? memo_entry_make(&ctx->memo, key) : NULL;
    if (!entry) return;
    entry->count = count;
    memcpy(entry->reports, reports, count * sizeof *reports);
    memo_keep(&ctx->memo, entry);
}
