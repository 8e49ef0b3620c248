/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines at work: the instance of an engine on a device of a host, and the code that it compiled. Between the table
 * (engine.h) and the plans, which know engines by their instances only.
 *
 * Instances live as long as their host, as the pool does; there is one per engine, device and target, made by the first
 * who asks. Code is shared by the cache and by the plans that run it, each with a reference. It may be dropped by a
 * finalizer, in any thread, while others compile and run: code of a device is then only put aside, without a lock, and
 * released by the next who opens, compiles, clears a cache or ends the context. Past that end it is released at once,
 * by a thread of its own where who drops it must not.
 */
#ifndef FXA_ENGINE_INSTANCE_H
#define FXA_ENGINE_INSTANCE_H

#include "engine.h"

#define FXA__MAX_INSTANCES 256 /* of a host: a caller with ever new targets is refused */

typedef struct fxa__code fxa__code;

typedef struct fxa__instance {
    fxa__tenant tenant; /* first: see base/host.h */
    fxa__host *host;    /* which it lives in */
    const fxa__engine *engine;
    int32_t ordinal;
    char *target; /* or NULL */
    void *self;
    char identity[FXA__IDENTITY];
    fxa_error failure; /* status not OK: it could not be opened, and why */
    int64_t process;   /* of a device: who opened it */
    _Atomic(fxa__code *) dropped;
} fxa__instance;

/* The instance for problems on that device. A failure of `open` is no failure here: see fxa__instance_usable. */
fxa_status fxa__instance_get(fxa__host *host, const fxa__engine *engine, int32_t ordinal, const char *target,
                             fxa__instance **out, fxa_error *err);
/* E_UNAVAILABLE, or what `open` said, with the reason: it could not be opened; or this process was forked from the one
 * that did, and devices do not survive that. */
fxa_status fxa__instance_usable(const fxa__instance *instance, fxa_error *err);
/* Releases the code that was put aside, of all instances of the host. */
void fxa__instances_drain(fxa__host *host);
/* The context has ended: nothing is put aside from here on. */
void fxa__instances_close(fxa__host *host);

struct fxa__code {
    atomic_size_t refs;
    fxa__instance *instance;
    void *code;   /* the engine's; may be NULL */
    size_t bytes; /* what it costs the cache, this struct included */
    fxa__code *next;
};

/* What is to become code: made already (answer.made), a section of plan bytes, which must be used up, or neither: then
 * the problem is compiled. */
typedef struct fxa__code_source {
    void *made;
    size_t made_bytes;
    const fxa__reader *section;
} fxa__code_source;

/* Takes over from->made, also when it fails. */
fxa_status fxa__code_create(fxa__instance *instance, const fxa__problem *p, const fxa__code_source *from,
                            fxa__code **out, fxa_error *err);
fxa__code *fxa__code_retain(fxa__code *code);
void fxa__code_release(fxa__code *code); /* takes NULL */
/* The same of code of a device, by a thread that must not call the device: a graph's, when it is gone. */
void fxa__code_drop(void *code);

#endif
