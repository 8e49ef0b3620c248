/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances of engines, and reference-counted code that they compiled. Plans use engines through instances only.
 *
 * There is one instance per engine, device and target. The first request opens it, and it lives as long as its host.
 * Code is shared by the cache and by the plans that run it; each holds a reference. The last reference may be dropped
 * in any thread, by a finalizer for example, while other threads compile and run. Code of a device is then not released
 * but pushed onto a lock-free list of its instance:
 *
 *     fxa__code_release --> instance->dropped --> released by the next call that opens, compiles, clears a cache
 *                                                 or destroys the context
 *
 * After the context was destroyed code is released at once; fxa__code_drop, whose caller may not call the driver,
 * starts a thread for it.
 */
#ifndef FXA_ENGINE_INSTANCE_H
#define FXA_ENGINE_INSTANCE_H

#include "engine.h"

#define FXA__MAX_INSTANCES 256 /* per host; callers with ever new targets get E_LIMIT */

typedef struct fxa__code fxa__code;

typedef struct fxa__instance {
    fxa__tenant tenant; /* must be first: see base/host.h */
    fxa__host *host;
    const fxa__engine *engine;
    int32_t ordinal;
    char *target; /* device description of a device that is not here; NULL = the device itself */
    void *self;   /* result of engine->open */
    char identity[FXA__IDENTITY];
    fxa_error failure;            /* status FXA_OK = open; else the reason why `open` failed */
    int64_t process;              /* process that opened the instance */
    _Atomic(fxa__code *) dropped; /* list of code of a device without references, not yet released */
} fxa__instance;

/* Finds or opens the instance of an engine for a device or target. Returns FXA_OK also if the engine's `open` failed;
 * fxa__instance_usable returns that failure. Fails with E_MEMORY, or E_LIMIT above FXA__MAX_INSTANCES. */
fxa_status fxa__instance_get(fxa__host *host, const fxa__engine *engine, int32_t ordinal, const char *target,
                             fxa__instance **out, fxa_error *err);
/* Returns FXA_OK if the instance can be used in this process. Else the failure of `open`, or E_UNAVAILABLE in a process
 * forked from the one that opened a device, since devices do not survive a fork. */
fxa_status fxa__instance_usable(const fxa__instance *instance, fxa_error *err);
/* Releases the dropped code of all instances of the host. */
void fxa__instances_drain(fxa__host *host);
/* Called when the context is destroyed: releases dropped code. From then on, code is released as soon as its last
 * reference is dropped. */
void fxa__instances_close(fxa__host *host);

struct fxa__code {
    atomic_size_t refs;
    fxa__instance *instance;
    void *code;      /* the engine's code; NULL for engines that need none */
    size_t bytes;    /* bytes that the cache counts, this struct included */
    fxa__code *next; /* in instance->dropped */
};

/* Source of code: a support query, plan bytes or, if both pointers are NULL, the compiler. */
typedef struct fxa__code_source {
    void *made;                 /* code that a support query compiled (fxa__query_result.made); NULL = none */
    size_t made_bytes;          /* bytes that the cache counts for `made` */
    const fxa__reader *section; /* section of plan bytes, all of which must be read; NULL = none */
} fxa__code_source;

/* Creates code with one reference. Takes ownership of from->made, on failure too. */
fxa_status fxa__code_create(fxa__instance *instance, const fxa__problem *p, const fxa__code_source *from,
                            fxa__code **out, fxa_error *err);
/* Adds a reference; returns `code`. */
fxa__code *fxa__code_retain(fxa__code *code);
/* Drops a reference. `code` may be NULL. */
void fxa__code_release(fxa__code *code);
/* Drops a reference to code of a device from a CUDA graph's destructor, which may not call the driver; the code is
 * released later. */
void fxa__code_drop(void *code);

#endif
