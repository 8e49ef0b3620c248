/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of an engine: a table of functions. An engine includes base, program, problem, lower, gpu and this
 * file, neither plan nor another engine. Only registry.c names concrete engines.
 *
 * An engine has one instance per host and device; instance.h manages the instances. `open` creates an instance at the
 * first support query, and its result `self` is the first argument of the other functions. Only `open` reads the
 * environment. Several threads may call the functions of one instance at the same time.
 *
 * An engine must compile and run every problem that its `query` reports as supported, except a problem that its
 * compiler refuses: if `compile` fails with E_UNSUPPORTED, later queries of problems with the same `key` return this
 * failure.
 *
 * The functions for one problem share one analysis of the problem, so an engine derives its program text or graph once:
 *
 *     analyze --> derived --> query, cost, key, constants --> compile or load --> code --> prepare, run, save
 */
#ifndef FXA_ENGINE_ENGINE_H
#define FXA_ENGINE_ENGINE_H

#include "../base/device_memory.h"
#include "../problem/bound_args.h"

/* Maximum size in bytes of an instance's identity: a text with the properties of the machine that code and results
 * depend on, such as the instruction set, or the device, its driver and the compiler. The identity is part of every
 * cache key and is stored in plan bytes. */
#define FXA__IDENTITY 160

/* One problem on one instance of an engine, while a support query or plan creation works on it. One thread uses an
 * analysis, and ends it by fxa__analysis_end. */
typedef struct fxa__analysis {
    const struct fxa__engine *engine;
    void *self; /* the instance's state */
    const fxa__problem *problem;
    /* result of engine->analyze; NULL = analyze has not been called, or `compile` has taken the result over */
    void *derived;
    fxa_error failure;    /* the failure of engine->analyze; its status is FXA_OK if there is none */
    bool has_code_key;    /* true = code_key is valid */
    uint8_t code_key[16]; /* key of the code that the engine compiles (plan/plan.h), stored when first computed */
} fxa__analysis;

/* Turns the report into a refusal with a reason. A reason that does not fit is cut at the end of a word, and "..." is
 * appended. */
void fxa__support_refuse(fxa_support *report, const char *reason);
/* Ends a `query` whose work had the result `status`, and returns what `query` returns. E_UNSUPPORTED becomes FXA_OK and
 * a refusal with the reason in `why`; any other failure is returned with `why` as the error. */
fxa_status fxa__query_end(fxa_status status, const fxa_error *why, fxa_support *report, fxa_error *err);

typedef struct fxa__engine {
    const char *name;
    uint32_t version;     /* must change when the format of saved code, or any result, changes */
    const char *variable; /* environment variable that selects this engine when set; NULL = none */
    uint32_t device;      /* kind of memory (fxa_device) in which all pointers of a run must be */
    /* If true, bound->pool of a run is the context's thread pool, else NULL. The workspace size may depend on the
     * number of workers of the pool, p->host->width, because this number is constant. */
    bool threads;

    /* Opens an instance for device `ordinal`, or, if the device description `target` is not NULL, for the device that
     * it describes. Writes the identity of the instance. A malformed `target` fails with E_PROBLEM. The caller stores
     * every failure but E_MEMORY as the reason why the engine is unavailable. An engine without state has `open` and
     * `close` NULL; `self` is then NULL and the identity "". */
    fxa_status (*open)(fxa__host *host, int32_t ordinal, const char *target, void **self, char identity[FXA__IDENTITY],
                       fxa_error *err);
    void (*close)(fxa__host *host, void *self);
    /* Writes the description of device `ordinal`, a text that `open` accepts as `target`, without opening the device.
     * Fails with E_UNAVAILABLE and the reason. NULL: the engine's devices have no descriptions. */
    fxa_status (*describe)(int32_t ordinal, fxa__writer *w, fxa_error *err);

    /* Sets *derived to data of problem p that several of the functions below use, such as program text or a graph.
     * E_UNSUPPORTED: the engine cannot run p. Only fxa__analysis_get calls `analyze`. NULL: the engine derives
     * nothing. */
    fxa_status (*analyze)(void *self, const fxa__problem *p, void **derived, fxa_error *err);
    /* Frees the result of `analyze`, which is not NULL. */
    void (*analysis_free)(void *self, void *derived);
    /* Queries whether the engine supports the problem. Fails only if the query cannot be answered. The caller has set
     * report->engine to the engine's name and the other members of the report to zero. Sets these members:
     *   supported                      if the problem is supported
     *   reason                         if the problem is refused
     *   deterministic, multiplies_zeros, tile_q, tile_k
     *   workspace                      exact size in bytes; UINT64_MAX if it exceeds a size_t, for which the caller
     *                                  refuses the problem
     * `code`: this instance's cached code for the key of the problem; NULL = none. */
    fxa_status (*query)(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err);
    /* Returns FXA_OK if the engine's compiler is present, else E_UNSUPPORTED with the reason, or E_MEMORY. Support
     * queries call this function and, without a compiler, search the caches for code; plan creation does not call it.
     * NULL: the compiler is always present. */
    fxa_status (*ready)(void *self, fxa_error *err);
    /* Writes the part of the problem that compiled code depends on. For a problem that the engine refuses, writes the
     * part that the refusal depends on. NULL: code depends on the entire problem. */
    void (*key)(fxa__analysis *a, fxa__writer *w);
    /* Writes the scalar constants of the problem that the function `key` leaves out, so that problems that differ only
     * in these constants share code. A run receives them as bound->constants. NULL: the engine has no such
     * constants. */
    fxa_status (*constants)(fxa__analysis *a, double constants[FXA__MAX_CONSTANTS], fxa_error *err);
    /* Computes data of one problem when a plan is created, for use by all runs. Problems with different data may share
     * code, so the data is stored next to the code. A failure is not reported: runs work without the data. NULL:
     * nothing to compute. */
    void (*prepare)(void *self, const void *code, const fxa__problem *p, const double *constants);
    /* Returns the estimated seconds of a run of a supported problem. NULL: no estimate; fxattn then prefers the engine
     * that is first in the registry. */
    double (*cost)(fxa__analysis *a);
    /* Compiles the problem to immutable code in memory that the problem's host allocates. May take over a->derived.
     * Sets *bytes to the size of the code, which the cache counts. May set *code to NULL. */
    fxa_status (*compile)(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err);
    /* Frees code that no call of `run` is using. Kernels that `run` has started on a device may still use the code, so
     * the engine waits for them. The calling thread need not be the one that dropped the last reference to the code
     * (instance.h). */
    void (*release)(void *self, void *code);
    /* Checks that all pointers of the bound arguments are memory of the instance's device. NULL: no check. */
    fxa_status (*check)(void *self, const fxa__problem *p, const fxa__bound_args *bound, fxa_error *err);
    /* Called before `run` for problems with FXA_GRAPH_CAPTURE. If `stream` is being captured into a CUDA graph, sets
     * *tied to true and arranges that, when the graph and its executables are destroyed, a thread that may not call the
     * driver calls drop(what). NULL: CUDA graphs do not need the code after the last plan with it is destroyed. */
    fxa_status (*tie)(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied, fxa_error *err);
    /* Runs the code with checked arguments. Allocates nothing, takes no lock except the thread pool's, and may report
     * progress to bound->progress. On a device, `run` starts the work and returns; the started work must not read host
     * memory of `bound` or `p`. */
    fxa_status (*run)(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                      fxa_error *err);
    /* Checks after a run that the red zones between the buffers of a workspace, or of a copy of a workspace, were not
     * written (fxa__carver_after). Only in builds with asserts. */
    void (*zones)(void *self, const void *code, const fxa__problem *p, const void *workspace);
    /* Returns the text of fxa_plan_description, which lives as long as the code. If `description` is NULL, the text is
     * "". */
    const char *(*description)(const void *code, const fxa__problem *p);
    /* Writes the text of fxa_plan_dump: a readable description of how the code runs the score program. If `dump` is
     * NULL, the text is "". */
    void (*dump)(const void *code, const fxa__problem *p, fxa__writer *w);
    /* `save` writes and `load` reads the engine's section of plan bytes. If both are NULL or `save` writes nothing,
     * plan bytes have no such section, and loading a plan compiles it again. */
    void (*save)(void *self, const void *code, fxa__writer *w);
    fxa_status (*load)(fxa__analysis *a, fxa__reader *r, void **code, size_t *bytes, fxa_error *err);
    const fxa__memory *memory; /* allocates device memory, copies to and from it; NULL for engines of the host */
    /* Starts fxa_merge on args->stream. The arguments are checked and in memory of this device. NULL: fxattn copies the
     * operands to the host, merges them there, copies the result to the device, and waits for the stream. */
    fxa_status (*merge)(void *self, const fxa_merge_args *args, fxa_error *err);
} fxa__engine;

/* Sets *out to the result of engine->analyze. The first call for an analysis calls engine->analyze; later calls return
 * the stored result or the stored failure. */
static inline fxa_status fxa__analysis_get(fxa__analysis *a, void **out, fxa_error *err) {
    if (!a->derived && a->failure.status == FXA_OK)
        a->failure.status = a->engine->analyze(a->self, a->problem, &a->derived, &a->failure);
    *out = a->derived;
    if (a->failure.status == FXA_OK) return FXA_OK;
    return fxa__fail(err, a->failure.status, "%s", a->failure.text);
}
/* Ends an analysis: frees the result of engine->analyze, if there is one. */
static inline void fxa__analysis_end(fxa__analysis *a) {
    if (a->derived) a->engine->analysis_free(a->self, a->derived);
    a->derived = NULL;
}

#if FXA_ASSERT
#define FXA__ZONES(function) .zones = (function)
#else
#define FXA__ZONES(function) .zones = NULL
#endif

/* Returns the engines of this build in order of preference; NULL past the end. */
const fxa__engine *fxa__engine_at(size_t index);
/* Returns the engine called `name`; NULL if there is none. */
const fxa__engine *fxa__engine_find(const char *name);

extern const fxa__engine fxa__engine_cpu, fxa__engine_ref, fxa__engine_cudnn, fxa__engine_cuda;

#endif
