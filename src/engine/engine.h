/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine interface: a table of functions. Engines include only base, program, problem and this file; they include
 * neither other engines nor plan. registry.c is the only file that names concrete engines; instance.h opens them.
 *
 * An engine has one instance per host and device (instance.h). `open` creates the instance at the first support query;
 * its result `self` is the first argument of the other functions. Only `open` reads the environment. Several threads
 * may call functions with one self at the same time.
 *
 * An engine whose `query` reports a problem as supported must compile and run it. The exception is a compiler that
 * refuses: E_UNSUPPORTED from `compile` becomes the result of later queries of all problems with the same `key`.
 */
#ifndef FXA_ENGINE_ENGINE_H
#define FXA_ENGINE_ENGINE_H

#include "../base/device_memory.h"
#include "../problem/bound_args.h"

/* Bytes of an instance's identity: the properties of the machine that its code and results depend on, such as the
 * instruction set, or the device, its driver and the compiler. Part of every cache key, and stored in plan bytes. */
#define FXA__IDENTITY 160

/* Result of a support query. */
typedef struct fxa__query_result {
    fxa_support report; /* report.engine is set by the caller; report.workspace is the exact size, and UINT64_MAX,
                           for more than a size_t holds, makes the caller refuse the problem */
    void *made;         /* code that the engine compiled to answer the query, owned by the caller; NULL = none */
    size_t made_bytes;  /* size of `made` for the cache */
} fxa__query_result;

/* Turns the report into a refusal with a reason. A reason that does not fit is cut before a word and ends in "...". */
void fxa__support_refuse(fxa_support *report, const char *reason);
/* Converts the status of work done inside `query` to its return value: E_UNSUPPORTED becomes FXA_OK and a refusal with
 * the reason of `why`; other failures are returned with `why` as the error. */
fxa_status fxa__answer_end(fxa_status status, const fxa_error *why, fxa__query_result *out, fxa_error *err);

typedef struct fxa__engine {
    const char *name;
    uint32_t version;     /* changes when saved code or results change */
    const char *variable; /* environment variable that selects this engine when set; NULL = none */
    uint32_t device;      /* fxa_device: the memory in which all pointers of a run are */
    bool threads;         /* true: bound->pool of runs is the context's pool, else NULL. The pool has p->host->width
                             workers as long as the context lives, so workspace may be sized by them */

    /* Creates an instance on device `ordinal` or, if `target` is not NULL, for the device that this text describes, and
     * writes its identity. The caller stores a failure, E_MEMORY excepted, as the reason why the engine cannot run
     * here. Fails with E_PROBLEM for a target that it cannot read.
     * open and close both NULL: the engine has no state; self is NULL and the identity "". */
    fxa_status (*open)(fxa__host *host, int32_t ordinal, const char *target, void **self, char identity[FXA__IDENTITY],
                       fxa_error *err);
    void (*close)(fxa__host *host, void *self);
    /* Engines of a device: writes the description of device `ordinal`, which `open` accepts as a target, without
     * opening the device. Fails with E_UNAVAILABLE and the reason. NULL: devices have no description. */
    fxa_status (*describe)(int32_t ordinal, fxa__writer *w, fxa_error *err);

    /* Fills `out`, which is all zeroes: supported or the reason, deterministic, workspace, tiles. code: what this
     * instance compiled for the key of p, NULL = nothing in the cache. Fails only if the query cannot be answered. */
    fxa_status (*query)(void *self, const fxa__problem *p, const void *code, fxa__query_result *out, fxa_error *err);
    /* Returns FXA_OK if the engine's compiler is present, else E_UNSUPPORTED with the reason, or E_MEMORY. Support
     * queries call it and, without a compiler, search the caches for code; plans skip it. NULL: always present. */
    fxa_status (*ready)(void *self, fxa_error *err);
    /* Writes the part of the problem that code depends on. NULL: the entire problem. */
    void (*key)(void *self, const fxa__problem *p, fxa__writer *w);
    /* Writes the scalar constants that `key` leaves out. Runs receive them as bound->constants. NULL: the engine has
     * none. */
    fxa_status (*constants)(void *self, const fxa__problem *p, double constants[FXA__MAX_CONSTANTS], fxa_error *err);
    /* Called when a plan is created: computes data of one problem that its runs share. Several problems may share one
     * code, so the data is stored next to the code; a run works without the data if it could not be computed. NULL:
     * nothing to compute. */
    void (*prepare)(void *self, const void *code, const fxa__problem *p, const double *constants);
    /* Returns an estimate of the seconds of a run of a supported problem. NULL: no estimate; fxattn then prefers the
     * first engine in registry order. */
    double (*cost)(void *self, const fxa__problem *p);
    /* Compiles immutable code with memory of p->host; *bytes is its size for the cache; *code may be NULL. NULL:
     * `load` with a NULL reader compiles. */
    fxa_status (*compile)(void *self, const fxa__problem *p, void **code, size_t *bytes, fxa_error *err);
    /* Frees code. No call of `run` with the code is in progress. Engines of a device are called by a thread that opens,
     * compiles or clears a cache, not by the one that dropped the last reference; kernels started by `run` may still be
     * running, and the engine must allow for that. */
    void (*release)(void *self, void *code);
    /* Checks that the pointers of the bound arguments are memory of this device. NULL: no check. */
    fxa_status (*check)(void *self, const fxa__problem *p, const fxa__bound_args *bound, fxa_error *err);
    /* Engines of a device, called before `run` for problems with FXA_GRAPH_CAPTURE. If the stream is being captured,
     * arranges that drop(what) is called when the graph and its executables are destroyed, by a thread that may not
     * call the driver, and sets *tied to true. NULL: no run needs code after all plans with it are destroyed. */
    fxa_status (*tie)(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied, fxa_error *err);
    /* Runs with checked arguments. Allocates nothing and takes no lock but the pool's. May report to bound->progress.
     * On a device it starts the work and returns; the started work must not read host memory of bound or p. */
    fxa_status (*run)(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                      fxa_error *err);
    /* Builds with asserts only: checks the red zones of a workspace, or of a copy, after a run (fxa__carver_after). */
    void (*zones)(void *self, const void *code, const fxa__problem *p, const void *workspace);
    /* Returns the text of fxa_plan_description, which lives as long as the code. NULL: "". */
    const char *(*description)(const void *code, const fxa__problem *p);
    /* Writes the text of fxa_plan_dump: how the code runs the score program, in lines for people. NULL: "". */
    void (*dump)(const void *code, const fxa__problem *p, fxa__writer *w);
    /* Write and read the engine's section of plan bytes. Both NULL, or `save` writes nothing: plan bytes have no
     * section, and a plan is compiled again when it is loaded. */
    void (*save)(void *self, const void *code, fxa__writer *w);
    fxa_status (*load)(void *self, const fxa__problem *p, fxa__reader *r, void **code, size_t *bytes, fxa_error *err);
    const fxa__memory *memory; /* allocation and copies on the device; NULL for engines of the host */
    /* Starts fxa_merge on args->stream, for checked arguments on this device. NULL: operands are copied to the host and
     * the result back by `memory`, which waits for the stream. */
    fxa_status (*merge)(void *self, const fxa_merge_args *args, fxa_error *err);
} fxa__engine;

#if FXA_ASSERT
#define FXA__ZONES(function) .zones = (function)
#else
#define FXA__ZONES(function) .zones = NULL
#endif

/* Returns the engines of this build in order of preference; NULL past the end. */
const fxa__engine *fxa__engine_at(size_t index);
/* Returns the engine of that name, NULL if there is none. */
const fxa__engine *fxa__engine_find(const char *name);

extern const fxa__engine fxa__engine_cpu, fxa__engine_ref, fxa__engine_cudnn, fxa__engine_cuda;

#endif
