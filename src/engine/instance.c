/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances of engines and reference-counted code (instance.h). The list of a host's instances only grows and is read
 * without a lock. An instance is added under the host's lock, which is held while the engine opens the instance, so
 * that each instance is opened once.
 */
#include "instance.h"

#include "../base/invariant.h"
#include "../base/num.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void fxa__support_refuse(fxa_support *report, const char *reason) {
    size_t room = sizeof report->reason;
    report->supported = 0;
    report->workspace = 0;
    report->seconds = 0;
    if (snprintf(report->reason, room, "%s", reason) >= (int)room) fxa__text_cut(report->reason, room);
}

fxa_status fxa__query_end(fxa_status status, const fxa_error *why, fxa_support *report, fxa_error *err) {
    if (status == FXA_OK) return FXA_OK;
    if (status == FXA_E_UNSUPPORTED) {
        fxa__support_refuse(report, why->text);
        return FXA_OK;
    }
    if (err) *err = *why;
    return status;
}

/* ---- Dropped code ---------------------------------------------------------------------------------------------- */

/* Returns true if the calling process is a fork of the process that opened the instance's device. */
static bool instance_is_foreign(const fxa__instance *i) {
    return i->engine->device != FXA_HOST && i->process != (int64_t)getpid();
}

static void code_end(fxa__code *code) {
    fxa__instance *i = code->instance;
    i->engine->release(i->self, code->code);
    fxa__free(i->host, code, sizeof *code);
}

/* Releases the dropped code of an instance. In a forked process only host memory is freed, because the code on the
 * device belongs to the parent process. */
static void instance_drain(fxa__instance *i) {
    fxa__code *code = atomic_exchange(&i->dropped, NULL);
    while (code) {
        fxa__code *next = code->next;
        if (instance_is_foreign(i))
            fxa__free(i->host, code, sizeof *code);
        else
            code_end(code);
        code = next;
    }
}

void fxa__instances_drain(fxa__host *host) {
    for (fxa__tenant *t = atomic_load_explicit(&host->tenants, memory_order_acquire); t; t = t->next)
        instance_drain((fxa__instance *)(void *)t);
}

/* fxa__code_release pushes code first and reads `closed` afterwards; fxa__instances_close sets `closed` first and
 * releases pushed code afterwards. In every interleaving, one of the two functions releases the code. */
void fxa__instances_close(fxa__host *host) {
    atomic_store(&host->closed, true);
    fxa__instances_drain(host);
}

/* ---- Instances --------------------------------------------------------------------------------------------------- */

static void instance_end(fxa__host *host, fxa__tenant *tenant) {
    fxa__instance *i = (fxa__instance *)(void *)tenant;
    instance_drain(i);
    bool opened = i->engine->open && i->failure.status == FXA_OK;
    if (opened && !instance_is_foreign(i)) i->engine->close(host, i->self);
    if (i->target) fxa__free(host, i->target, strlen(i->target) + 1);
    fxa__free(host, i, sizeof *i);
}

static bool instance_is_of(const fxa__instance *i, const fxa__engine *engine, int32_t ordinal, const char *target) {
    if (i->engine != engine || i->ordinal != ordinal || !i->target != !target) return false;
    return !target || strcmp(i->target, target) == 0;
}

/* Returns the host's instance for engine, ordinal and target; NULL if there is none, and then *count is the number of
 * all instances. */
static fxa__instance *instance_find(fxa__host *host, const fxa__engine *engine, int32_t ordinal, const char *target,
                                    size_t *count) {
    *count = 0;
    for (fxa__tenant *t = atomic_load_explicit(&host->tenants, memory_order_acquire); t; t = t->next, ++*count) {
        fxa__instance *i = (fxa__instance *)(void *)t;
        if (instance_is_of(i, engine, ordinal, target)) return i;
    }
    return NULL;
}

static fxa_status instance_open(fxa__instance *i, const char *target, fxa_error *err) {
    if (target) {
        i->target = fxa__alloc(i->host, strlen(target) + 1);
        if (!i->target) return fxa__fail_memory(err, "the target of an engine");
        memcpy(i->target, target, strlen(target) + 1);
    }
    fxa__ok(&i->failure);
    i->process = getpid();
    if (!i->engine->open) return FXA_OK;
    fxa_status status = i->engine->open(i->host, i->ordinal, target, &i->self, i->identity, &i->failure);
    i->failure.status = status;
    if (status == FXA_E_MEMORY && err) *err = i->failure;
    return status == FXA_E_MEMORY ? status : FXA_OK;
}

/* Opens an instance and adds it to the list. The caller holds the host's lock. */
static fxa_status instance_add(fxa__host *host, const fxa__engine *engine, int32_t ordinal, const char *target,
                               fxa__instance **out, fxa_error *err) {
    fxa__instance *i = fxa__alloc(host, sizeof *i);
    if (!i) return fxa__fail_memory(err, "an engine's instance");
    i->host = host;
    i->engine = engine;
    i->ordinal = ordinal;
    atomic_init(&i->dropped, NULL);
    fxa_status status = instance_open(i, target, err);
    if (status != FXA_OK) {
        if (i->target) fxa__free(host, i->target, strlen(i->target) + 1);
        fxa__free(host, i, sizeof *i);
        return status;
    }
    i->tenant.end = instance_end;
    i->tenant.next = atomic_load_explicit(&host->tenants, memory_order_relaxed);
    atomic_store_explicit(&host->tenants, &i->tenant, memory_order_release);
    *out = i;
    return FXA_OK;
}

/* Returns the E_LIMIT error for a full list of instances. No instance is closed to make room: its code may be in use,
 * and if `open` failed for it, the stored failure must not be retried. */
static fxa_status instance_fail_full(const fxa__engine *engine, int32_t ordinal, const char *target, fxa_error *err) {
    return fxa__fail(
        err, FXA_E_LIMIT,
        "engine %s for %s %d is one too many: a context opens %d engines, devices and targets at most, those "
        "counted that could not be opened; another context opens others",
        engine->name, target ? "another target on device" : "device", (int)ordinal, FXA__MAX_INSTANCES);
}

fxa_status fxa__instance_get(fxa__host *host, const fxa__engine *engine, int32_t ordinal, const char *target,
                             fxa__instance **out, fxa_error *err) {
    size_t count;
    *out = instance_find(host, engine, ordinal, target, &count);
    if (*out) return FXA_OK;
    fxa__instances_drain(host);
    fxa__lock_take(&host->lock);
    *out = instance_find(host, engine, ordinal, target, &count);
    fxa_status status = FXA_OK;
    if (!*out && count >= FXA__MAX_INSTANCES)
        status = instance_fail_full(engine, ordinal, target, err);
    else if (!*out)
        status = instance_add(host, engine, ordinal, target, out, err);
    fxa__lock_give(&host->lock);
    return status;
}

fxa_status fxa__instance_usable(const fxa__instance *instance, fxa_error *err) {
    const fxa_error *failure = &instance->failure;
    if (failure->status != FXA_OK) return fxa__fail(err, failure->status, "%s", failure->text);
    if (instance_is_foreign(instance))
        return fxa__fail(err, FXA_E_UNAVAILABLE,
                         "engine %s was opened by process %lld, of which this is a fork: devices do not survive a "
                         "fork; make a new context",
                         instance->engine->name, (long long)instance->process);
    return FXA_OK;
}

/* ---- References to code ------------------------------------------------------------------------------------------ */

static fxa_status code_load(fxa__code *code, fxa__analysis *a, const fxa__reader *section, size_t *bytes,
                            fxa_error *err) {
    const fxa__engine *engine = a->engine;
    fxa__reader r = *section;
    FXA_TRY(engine->load(a, &r, &code->code, bytes, err));
    if (fxa__reader_done(&r)) return FXA_OK;
    engine->release(code->instance->self, code->code);
    return fxa__fail(err, FXA_E_BYTES, "the code of engine %s is damaged: %zu of %zu bytes were understood",
                     engine->name, r.at, r.size);
}

fxa_status fxa__code_create(fxa__instance *instance, fxa__analysis *a, const fxa__reader *section, fxa__code **out,
                            fxa_error *err) {
    size_t bytes = 0;
    *out = NULL;
    FXA__ASSERT(a->engine == instance->engine && a->self == instance->self);
    instance_drain(instance);
    fxa__code *code = fxa__alloc(instance->host, sizeof *code);
    if (!code) return fxa__fail_memory(err, "the code of a plan");
    code->instance = instance;
    fxa_status status =
        section ? code_load(code, a, section, &bytes, err) : a->engine->compile(a, &code->code, &bytes, err);
    if (status != FXA_OK) {
        fxa__free(instance->host, code, sizeof *code);
        return status;
    }
    FXA__ASSERT(code->code || bytes == 0);
    if (!fxa__add_size(bytes, sizeof *code, &code->bytes)) code->bytes = SIZE_MAX;
    atomic_init(&code->refs, 1);
    fxa__host_retain(instance->host);
    *out = code;
    return FXA_OK;
}

fxa__code *fxa__code_retain(fxa__code *code) {
    atomic_fetch_add_explicit(&code->refs, 1, memory_order_relaxed);
    return code;
}

/* Pushes code onto its instance's list of dropped code. The host owns this list, so code in the list holds no reference
 * to the host. */
static void code_push_dropped(fxa__code *code) {
    fxa__instance *i = code->instance;
    code->next = atomic_load(&i->dropped);
    while (!atomic_compare_exchange_weak(&i->dropped, &code->next, code)) {}
}

void fxa__code_release(fxa__code *code) {
    if (!code || atomic_fetch_sub_explicit(&code->refs, 1, memory_order_acq_rel) != 1) return;
    fxa__instance *i = code->instance;
    fxa__host *host = i->host;
    if (i->engine->device == FXA_HOST) {
        code_end(code);
    } else {
        code_push_dropped(code);
        if (atomic_load(&host->closed)) instance_drain(i);
    }
    fxa__host_release(host);
}

/* Thread function: releases the code in the instance's list `dropped`, then the reference to the host, which
 * fxa__code_drop has passed to this thread. */
static void *code_drain_thread(void *what) {
    fxa__instance *i = what;
    fxa__host *host = i->host;
    instance_drain(i);
    fxa__host_release(host);
    return NULL;
}

/* Code whose last reference is dropped while the context exists is released by the next call that drains the list
 * `dropped` (instance.h). After the context was destroyed, a new thread releases the code; if the thread cannot be
 * created, code and host are leaked. */
void fxa__code_drop(void *what) {
    fxa__code *code = what;
    if (atomic_fetch_sub_explicit(&code->refs, 1, memory_order_acq_rel) != 1) return;
    fxa__instance *i = code->instance;
    pthread_t thread;
    code_push_dropped(code);
    if (!atomic_load(&i->host->closed) && fxa__host_release_not_last(i->host)) return;
    if (pthread_create(&thread, NULL, code_drain_thread, i) == 0) (void)pthread_detach(thread);
}
