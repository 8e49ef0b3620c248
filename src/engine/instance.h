/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances of engines, and reference-counted code that they compiled. Plans use engines through instances only.
 *
 * There is one instance per engine, device and target. The first request opens the instance, and the end of the
 * fxa__host (the part of a context that its plans share) closes it. Code is shared by the cache and by the plans that
 * run it: the cache and each plan hold a reference. The last reference may be dropped in any thread, by a finalizer for
 * example, while other threads compile and run. Device code whose last reference is dropped is therefore not released
 * at once, but pushed onto a lock-free list of its instance:
 *
 *     fxa__code_release --> instance->dropped --> released by the next call that opens an instance, compiles a problem,
 *                                                 clears a cache or destroys the context
 *
 * After the context has been destroyed, code is released when its last reference is dropped; fxa__code_drop, whose
 * caller may not call the driver, starts a thread that releases the code.
 */
#ifndef FXA_ENGINE_INSTANCE_H
#define FXA_ENGINE_INSTANCE_H

#include "engine.h"

#define FXA__MAX_INSTANCES 256 /* maximum number of instances of a host; a call that needs one more gets E_LIMIT */

typedef struct fxa__code fxa__code;

typedef struct fxa__instance {
    fxa__tenant tenant; /* must be the first member: a pointer to it is cast to fxa__instance */
    fxa__host *host;
    const fxa__engine *engine;
    int32_t ordinal;
    char *target; /* description of a device that is not in this machine; NULL = device `ordinal` */
    void *self;   /* the instance's state: result of engine->open */
    char identity[FXA__IDENTITY];
    fxa_error failure; /* the failure of engine->open; its status is FXA_OK if the instance is open */
    int64_t process;   /* ID of the process that opened the instance */
    /* list of device code that has no references left and is not released yet */
    _Atomic(fxa__code *) dropped;
} fxa__instance;

/* Finds or opens the instance of an engine for a device or target. Returns FXA_OK also if the engine's `open` failed;
 * fxa__instance_usable returns that failure. Fails with E_MEMORY, or E_LIMIT above FXA__MAX_INSTANCES. */
fxa_status fxa__instance_get(fxa__host *host, const fxa__engine *engine, int32_t ordinal, const char *target,
                             fxa__instance **out, fxa_error *err);
/* Returns FXA_OK if the instance can be used in this process; else the failure of `open`, or E_UNAVAILABLE if this
 * process was forked from the one that opened the device, since an open device cannot be used after a fork. */
fxa_status fxa__instance_usable(const fxa__instance *instance, fxa_error *err);
/* Returns a new analysis of p on an instance; engine->analyze has not been called for it yet. The problem must outlive
 * the analysis. */
static inline fxa__analysis fxa__analysis_of(const fxa__instance *instance, const fxa__problem *p) {
    return (fxa__analysis){.engine = instance->engine, .self = instance->self, .problem = p};
}
/* Releases all code of the host's instances that has no references left. */
void fxa__instances_drain(fxa__host *host);
/* Called when the context is destroyed: releases all code that has no references left. After this call, code is
 * released as soon as its last reference is dropped. */
void fxa__instances_close(fxa__host *host);

struct fxa__code {
    atomic_size_t refs;
    fxa__instance *instance;
    void *code;      /* the engine's code; NULL for engines that need none */
    size_t bytes;    /* size that the cache counts, this struct included */
    fxa__code *next; /* next code in instance->dropped */
};

/* Creates code for the problem of `a`, with one reference. If `section` is NULL, the engine compiles the code; else the
 * engine loads the code from these plan bytes, and fails if bytes are left over. */
fxa_status fxa__code_create(fxa__instance *instance, fxa__analysis *a, const fxa__reader *section, fxa__code **out,
                            fxa_error *err);
/* Adds a reference; returns `code`. */
fxa__code *fxa__code_retain(fxa__code *code);
/* Drops a reference to code; `code` may be NULL. */
void fxa__code_release(fxa__code *code);
/* Drops a reference to device code. For the destructor of a CUDA graph, which may not call the driver: the code is
 * released later, in another thread or call. */
void fxa__code_drop(void *code);

#endif
