/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the library, creates the context and caches the plans of XLA's handlers (jax_state.h).
 */
#include "jax_state.h"

#include "jax_pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETS 128
#define WAYS 4 /* set-associative cache of the host's plans; the oldest entry of a set is replaced */

fxa__jax_functions fxa__jax;

typedef struct plan_entry {
    uint64_t hash;
    int32_t ordinal;
    void *bytes;
    size_t size;
    fxa_plan *plan; /* NULL: free */
    struct plan_entry *next;
} plan_entry;

static struct {
    pthread_mutex_t lock;
    fxa_context *context;
    plan_entry entry[SETS][WAYS];
    uint8_t next[SETS];
    plan_entry *of_device[SETS]; /* never evicted: XLA replays captured runs without a call here */
} jax_state = {.lock = PTHREAD_MUTEX_INITIALIZER};

int fxa_jax_open(const char *library, char *text, size_t capacity) {
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL), *found;
    if (!opened) {
        const char *why = dlerror();
        snprintf(text, capacity, "%s cannot be opened: %s", library, why ? why : "no reason given");
        return -1;
    }
    /* ISO C has no conversion from an object pointer to a function pointer; POSIX guarantees equal bits. */
#define FXA__JAX_FIND(name)                                                                                            \
    found = dlsym(opened, #name);                                                                                      \
    if (!found) {                                                                                                      \
        snprintf(text, capacity, "%s has no %s", library, #name);                                                      \
        return -1;                                                                                                     \
    }                                                                                                                  \
    memcpy(&fxa__jax.name, &found, sizeof found);
    FXA__JAX_LIBRARY_MAP(FXA__JAX_FIND)
#undef FXA__JAX_FIND
    return 0;
}

/* Creates the context. Each run passes XLA's thread pool as fxa_args.parallel_user. The pool's size is not known here,
 * so runs are split into as many parts as there are CPUs. */
static fxa_status context_new(fxa_context **out, fxa_error *err) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    config.parallel = fxa__jax_pool_loop;
    config.threads = cpus < 1 ? 1 : cpus < FXA_MAX_THREADS ? (uint32_t)cpus : FXA_MAX_THREADS;
    return fxa__jax.fxa_context_create(&config, out, err);
}

static fxa_status context_get(fxa_context **out, fxa_error *err) {
    fxa_status status = FXA_OK;
    pthread_mutex_lock(&jax_state.lock);
    if (!jax_state.context) {
        status = context_new(&jax_state.context, err);
    }
    *out = jax_state.context;
    pthread_mutex_unlock(&jax_state.lock);
    return status;
}

static uint64_t bytes_hash(const void *bytes, size_t size, int32_t ordinal) {
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)(uint32_t)ordinal << 32 ^ (uint64_t)size;
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + at, size - at < sizeof word ? size - at : sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash ^ hash >> 32;
}

static bool entry_is(const plan_entry *e, uint64_t hash, const void *bytes, size_t size, int32_t ordinal) {
    return e->plan && e->hash == hash && e->ordinal == ordinal && e->size == size && !memcmp(e->bytes, bytes, size);
}

/* Returns the cached plan of these bytes with a reference for the caller, or NULL. The lock is held. */
static fxa_plan *plan_find(uint64_t hash, const void *bytes, size_t size, int32_t ordinal) {
    const plan_entry *found = ordinal >= 0 ? jax_state.of_device[hash % SETS] : NULL;
    while (found && !entry_is(found, hash, bytes, size, ordinal)) {
        found = found->next;
    }
    for (int way = 0; way < WAYS && ordinal < 0 && !found; way++) {
        const plan_entry *e = &jax_state.entry[hash % SETS][way];
        found = entry_is(e, hash, bytes, size, ordinal) ? e : NULL;
    }
    if (found) {
        fxa__jax.fxa_plan_retain(found->plan);
    }
    return found ? found->plan : NULL;
}

static void entry_drop(plan_entry *e) {
    fxa__jax.fxa_plan_destroy(e->plan);
    free(e->bytes);
    *e = (plan_entry){0};
}

/* Returns an empty entry for a plan of this hash; NULL if out of memory. The lock is held. */
static plan_entry *entry_new(uint64_t hash, int32_t ordinal) {
    if (ordinal >= 0) {
        plan_entry *e = calloc(1, sizeof *e);
        if (e) {
            e->next = jax_state.of_device[hash % SETS];
            jax_state.of_device[hash % SETS] = e;
        }
        return e;
    }
    uint8_t *next = &jax_state.next[hash % SETS];
    plan_entry *e = &jax_state.entry[hash % SETS][*next];
    *next = (uint8_t)((*next + 1) % WAYS);
    entry_drop(e);
    return e;
}

/* Caches a plan, with a reference of its own. Does nothing if out of memory: the next call makes the plan again. The
 * lock is held. */
static void plan_keep(uint64_t hash, const void *bytes, size_t size, int32_t ordinal, fxa_plan *plan) {
    void *copy = malloc(size ? size : 1);
    plan_entry *e = copy ? entry_new(hash, ordinal) : NULL;
    if (!e) {
        free(copy);
        return;
    }
    memcpy(copy, bytes, size);
    fxa__jax.fxa_plan_retain(plan);
    *e = (plan_entry){hash, ordinal, copy, size, plan, e->next};
}

fxa_status fxa__jax_plan(const void *bytes, size_t size, int32_t ordinal, fxa_plan **out, fxa_error *err) {
    uint64_t hash = bytes_hash(bytes, size, ordinal);
    fxa_context *ctx = NULL;
    pthread_mutex_lock(&jax_state.lock);
    *out = plan_find(hash, bytes, size, ordinal);
    pthread_mutex_unlock(&jax_state.lock);
    if (*out) {
        return FXA_OK;
    }
    fxa_status status = context_get(&ctx, err);
    status = status ? status : fxa__jax.fxa_plan_create_from_problem(ctx, bytes, size, ordinal, out, err);
    if (!status) {
        pthread_mutex_lock(&jax_state.lock);
        fxa_plan *others = plan_find(hash, bytes, size, ordinal); /* another thread may have added the plan meanwhile */
        if (others) {
            fxa__jax.fxa_plan_destroy(others);
        } else {
            plan_keep(hash, bytes, size, ordinal, *out);
        }
        pthread_mutex_unlock(&jax_state.lock);
    }
    return status;
}

fxa_status fxa__jax_plan_of(const fxa_problem *problem, fxa_plan **out, fxa_error *err) {
    fxa_context *ctx = NULL;
    fxa_status status = context_get(&ctx, err);
    return status ? status : fxa__jax.fxa_plan_create(ctx, problem, out, err);
}

fxa_status fxa_jax_workspace(const void *bytes, size_t size, int32_t ordinal, uint64_t *out, fxa_error *err) {
    fxa_plan *plan = NULL;
    fxa_status status = fxa__jax_plan(bytes, size, ordinal, &plan, err);
    if (!status) {
        *out = fxa__jax.fxa_plan_workspace(plan);
        fxa__jax.fxa_plan_destroy(plan);
    }
    return status;
}

void fxa_jax_cache_stats(fxa_cache_stats *out) {
    uint64_t plans = 0;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&jax_state.lock);
    for (int i = 0; i < SETS; i++) {
        for (int way = 0; way < WAYS; way++) {
            plans += jax_state.entry[i][way].plan != NULL;
        }
        for (const plan_entry *e = jax_state.of_device[i]; e; e = e->next) {
            plans++;
        }
    }
    if (jax_state.context) {
        fxa__jax.fxa_cache_get_stats(jax_state.context, out);
    }
    pthread_mutex_unlock(&jax_state.lock);
    out->plans = plans;
}

void fxa_jax_cache_clear(void) {
    pthread_mutex_lock(&jax_state.lock);
    for (int i = 0; i < SETS; i++) {
        for (int way = 0; way < WAYS; way++) {
            entry_drop(&jax_state.entry[i][way]);
        }
        while (jax_state.of_device[i]) {
            plan_entry *e = jax_state.of_device[i];
            jax_state.of_device[i] = e->next;
            entry_drop(e);
            free(e);
        }
    }
    if (jax_state.context) {
        fxa__jax.fxa_cache_clear(jax_state.context);
    }
    pthread_mutex_unlock(&jax_state.lock);
}
