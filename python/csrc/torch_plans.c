/* SPDX-License-Identifier: Apache-2.0
 *
 * Cache of the plans of recent calls (torch_call.h), in front of the context's request cache
 * (src/plan/request_cache.c). The request cache hashes a problem's content, including its programs. Here each text has
 * one program object (torch_state.c), so this cache compares problems bytewise with their program pointers, which takes
 * a tenth of the time.
 *
 * Invariants:
 * - An entry holds references to its plan and programs, so no pointer in the entry is reused for another object.
 * - Problems that compare equal are equal. Equal problems may compare unequal (different padding, more captured tensors
 *   than PLAN_CAPTURES): then the context is queried.
 * - Only plans that were made successfully are cached. The lock is held for look-ups only.
 */
#include "torch_call.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { MAX_PLANS = 32, PLAN_CAPTURES = 4 }; /* MAX_PLANS is a power of two */

typedef struct plan_entry {
    fxa_problem problem; /* its pointers to captures are NULL */
    fxa_capture captures[PLAN_CAPTURES];
    const fxa_context *ctx;
    fxa_plan *plan; /* NULL: free */
} plan_entry;

static struct {
    pthread_mutex_t lock;
    plan_entry entry[MAX_PLANS];
} plans = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Returns the entry of a problem, by a hash of the members that differ between the calls of a model. */
static plan_entry *plan_slot(const fxa_problem *p) {
    const uint64_t words[] = {p->pass,         p->flags,        (uintptr_t)p->program,    (uint64_t)p->b,
                              (uint64_t)p->hq, (uint64_t)p->sq, (uint64_t)p->sk,          (uint64_t)p->d_qk,
                              p->q.dtype,      p->alignment,    (uint64_t)p->q.stride[2], (uint64_t)p->ordinal};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return &plans.entry[hash >> 32 & (MAX_PLANS - 1)];
}

static bool plan_is_cacheable(const fxa_problem *p) {
    return p->n_captures <= PLAN_CAPTURES && p->n_bprop_captures == 0;
}

/* Returns true if two problems are equal, except for the pointers to their captures. */
static bool problem_is_equal(const fxa_problem *a, const fxa_problem *b) {
    size_t arrays = offsetof(fxa_problem, captures), rest = offsetof(fxa_problem, param_grads);
    return memcmp(a, b, arrays) == 0 && a->n_captures == b->n_captures && a->n_bprop_captures == b->n_bprop_captures &&
           memcmp((const char *)a + rest, (const char *)b + rest, sizeof *a - rest) == 0;
}

static void entry_release(plan_entry *e) {
    if (e->plan) {
        fxa__torch.fxa_plan_destroy(e->plan);
        fxa__torch.fxa_program_destroy((fxa_program *)(uintptr_t)e->problem.program);
        fxa__torch.fxa_program_destroy((fxa_program *)(uintptr_t)e->problem.bprop);
    }
}

/* Returns the cached plan of a problem with a reference for the caller, or NULL. */
static fxa_plan *plan_lookup(const fxa_context *ctx, const fxa_problem *p) {
    fxa_plan *found = NULL;
    pthread_mutex_lock(&plans.lock);
    const plan_entry *e = plan_slot(p);
    if (e->plan && e->ctx == ctx && problem_is_equal(&e->problem, p) &&
        memcmp(e->captures, p->captures, p->n_captures * sizeof e->captures[0]) == 0) {
        found = e->plan;
        fxa__torch.fxa_plan_retain(found);
    }
    pthread_mutex_unlock(&plans.lock);
    return found;
}

static void plan_put(const fxa_context *ctx, const fxa_problem *p, fxa_plan *plan) {
    fxa__torch.fxa_plan_retain(plan);
    fxa__torch.fxa_program_retain((fxa_program *)(uintptr_t)p->program);
    fxa__torch.fxa_program_retain((fxa_program *)(uintptr_t)p->bprop);
    pthread_mutex_lock(&plans.lock);
    plan_entry *e = plan_slot(p), old;
    old.problem = e->problem;
    old.plan = e->plan;
    e->problem = *p;
    e->problem.captures = e->problem.bprop_captures = NULL;
    memcpy(e->captures, p->captures, p->n_captures * sizeof e->captures[0]);
    e->ctx = ctx;
    e->plan = plan;
    pthread_mutex_unlock(&plans.lock);
    entry_release(&old);
}

fxa_status fxa__torch_plan_get(fxa_context *ctx, const fxa_problem *problem, fxa_plan **out, fxa_error *err) {
    bool is_cacheable = plan_is_cacheable(problem);
    *out = is_cacheable ? plan_lookup(ctx, problem) : NULL;
    if (*out) {
        return FXA_OK;
    }
    fxa_status status = fxa__torch.fxa_plan_create(ctx, problem, out, err);
    if (!status && is_cacheable) {
        plan_put(ctx, problem, *out);
    }
    return status;
}

void fxa__torch_plans_clear(void) {
    for (size_t i = 0; i < MAX_PLANS; i++) {
        plan_entry old;
        pthread_mutex_lock(&plans.lock);
        old = plans.entry[i];
        plans.entry[i].plan = NULL;
        pthread_mutex_unlock(&plans.lock);
        entry_release(&old);
    }
}

void fxa__torch_plans_forget(void) {
    pthread_mutex_init(&plans.lock, NULL);
    for (size_t i = 0; i < MAX_PLANS; i++) {
        plans.entry[i].plan = NULL;
    }
}
