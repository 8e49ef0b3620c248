/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine is: a table of functions. Engines include base, program, problem and this file; never each other,
 * never plan. registry.c is the only file that names concrete engines.
 *
 * An engine that says "supported" must compile and run the problem; anything else is a bug in its query.
 */
#ifndef FXA_ENGINE_ENGINE_H
#define FXA_ENGINE_ENGINE_H

#include "../problem/bind.h"

typedef struct fxa__engine {
    const char *name;
    uint32_t version;      /* changes when saved code or results change */
    const char *variable;  /* of the environment: who sets it asks for this engine; NULL: none */
    bool dynamic_geometry; /* one compiled code serves every b, length, stride: see fxa__problem.code_key */
    bool device;           /* slots point to device memory */
    bool threads;          /* runs get bind->pool, others NULL. It has p->host->width workers for a context's life:
                              workspace may be sized by it, also when it is asked without code */

    /* Fills supported, deterministic, reason (workspace is set by the caller from `workspace`). Pure and cheap. */
    void (*query)(const fxa__problem *p, fxa_support *report);
    /* Makes immutable code; *bytes is what it costs the cache. May give NULL code. */
    fxa_status (*compile)(fxa__host *host, const fxa__problem *p, void **code, size_t *bytes, fxa_error *err);
    void (*release)(fxa__host *host, void *code);
    /* Exact bytes for one run of p, without the bind's. False: it does not fit in size_t. A support query asks before
     * anything is compiled: code is NULL then, and the answer must be that of the code to come; false with 0 bytes:
     * memory ran out before that was known. */
    bool (*workspace)(const void *code, const fxa__problem *p, size_t *bytes);
    /* No allocation, no lock but the pool's own. Arguments have been checked. Tells bind->progress of its parts. */
    fxa_status (*run)(const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err);
    /* What fxa_plan_detail says of code; lives as long as the code. NULL: nothing to say. */
    const char *(*detail)(const void *code, const fxa__problem *p);
    /* The engine's section of plan bytes; both NULL: it has none and compiles again on load. */
    void (*save)(const void *code, fxa__writer *w);
    fxa_status (*load)(fxa__host *host, const fxa__problem *p, fxa__reader *r, void **code, size_t *bytes,
                       fxa_error *err);
} fxa__engine;

/* In order of preference; NULL past the end. */
const fxa__engine *fxa__engine_at(size_t index);
const fxa__engine *fxa__engine_find(const char *name);

extern const fxa__engine fxa__engine_cpu, fxa__engine_ref;

#endif
