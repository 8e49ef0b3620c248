/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine is: a table of functions. Engines include base, program, problem and this file; never each other,
 * never plan. registry.c is the only file that names concrete engines; instance.h is how the others come to one.
 *
 * An engine has an instance per host and device (instance.h): `open` makes it at the first question, and what it made,
 * `self`, comes back in every other call. The environment is read in `open` and nowhere else. Calls with the same self
 * may come from several threads at a time.
 *
 * An engine that says "supported" must compile and run the problem; anything else is a bug in its query, but for a
 * compiler that has the last word: E_UNSUPPORTED of `compile` is taken as the answer from then on, to all problems of
 * which `key` writes the same.
 */
#ifndef FXA_ENGINE_ENGINE_H
#define FXA_ENGINE_ENGINE_H

#include "../base/device_memory.h"
#include "../problem/bind.h"

/* What the results and the code of an instance depend on besides the problem and the engine's version: an instruction
 * set; a device, its driver, a compiler. Part of every key, and kept in plan bytes. */
#define FXA__IDENTITY 160

/* The answer to a question about a problem. */
typedef struct fxa__answer {
    fxa_support report; /* engine is set by the asker; workspace is what a run needs, exactly: what needs more than a
                           size_t holds says UINT64_MAX, and is refused for that */
    void *made;         /* an engine that had to compile to know hands its code over: the asker keeps or releases it */
    size_t made_bytes;
} fxa__answer;

/* Makes the report a no, with its reason; what does not fit is cut off before a word, and "..." says so. */
void fxa__support_refuse(fxa_support *report, const char *reason);
/* What `query` returns of a status that came about while it looked: a no for E_UNSUPPORTED, whose reason is `why`. */
fxa_status fxa__answer_end(fxa_status status, const fxa_error *why, fxa__answer *out, fxa_error *err);

typedef struct fxa__engine {
    const char *name;
    uint32_t version;     /* changes when saved code or results change */
    const char *variable; /* of the environment: who sets it asks for this engine; NULL: none */
    uint32_t device;      /* fxa_device: where everything that a run points to lies */
    bool threads;         /* runs get bind->pool, others NULL. It has p->host->width workers for a context's life:
                             workspace may be sized by it */

    /* An instance of the engine on device `ordinal`, or of what the profile `target` describes, when that is not NULL.
     * Writes the identity. A failure is remembered as the reason why the engine cannot run here, but for E_MEMORY; of a
     * target that it does not understand it is E_PROBLEM.
     * Both NULL: nothing to keep, self is NULL and the identity "". */
    fxa_status (*open)(fxa__host *host, int32_t ordinal, const char *target, void **self, char identity[FXA__IDENTITY],
                       fxa_error *err);
    void (*close)(fxa__host *host, void *self);
    /* Of a device: writes the text of device `ordinal` that `open` takes as a target, without opening anything.
     * E_UNAVAILABLE with the reason. NULL: it has none. */
    fxa_status (*profile)(int32_t ordinal, fxa__writer *w, fxa_error *err);

    /* Fills the answer (zeroed before): supported or the reason, deterministic, workspace, tiles. code: what this
     * instance compiled under the key of p, or NULL when there is none at hand. Fails only when it cannot tell. */
    fxa_status (*query)(void *self, const fxa__problem *p, const void *code, fxa__answer *out, fxa_error *err);
    /* Whether there is what it compiles with; else its reason, E_UNSUPPORTED or E_MEMORY. Support queries ask for it
     * and then for code that is there already; plans do not: there may be code of theirs. NULL: there is. */
    fxa_status (*ready)(void *self, fxa_error *err);
    /* Writes what code depends on. NULL: everything that the problem says. */
    void (*key)(void *self, const fxa__problem *p, fxa__writer *w);
    /* What `key` leaves out of the problem's numbers, and runs of its plan get as bind->numbers. NULL: nothing. */
    fxa_status (*numbers)(void *self, const fxa__problem *p, double numbers[FXA__NUMBERS], fxa_error *err);
    /* When a plan is made: what its runs share and code does not have, since code is there for several problems. Kept
     * with the code; runs do without it where it could not be made. NULL: nothing. */
    void (*prepare)(void *self, const void *code, const fxa__problem *p, const double *numbers);
    /* Seconds that a run of a supported problem will take, about. NULL: not known; the order of engines decides. */
    double (*cost)(void *self, const fxa__problem *p);
    /* Makes immutable code, its memory from p->host; *bytes is what it costs the cache. May give NULL code. NULL:
     * `load` without a reader does it. */
    fxa_status (*compile)(void *self, const fxa__problem *p, void **code, size_t *bytes, fxa_error *err);
    /* Never while a call of `run` with the code is under way. Of a device: from a thread that opens, compiles or
     * clears, not from whoever dropped the last reference; what `run` began there may not have ended, and the engine
     * sees to it that this does no harm. */
    void (*release)(void *self, void *code);
    /* Are the pointers of the bind really on this device? NULL: not asked. */
    fxa_status (*check)(void *self, const fxa__problem *p, const fxa__bind *bind, fxa_error *err);
    /* Of a device, for problems with FXA_GRAPH_CAPTURE, before `run`: where the stream is being recorded into a graph,
     * drop(what) is called once the graph and all that was made of it are gone, by a thread that must not call the
     * device; *tied says whether it will be. NULL: code is never needed past its plans. */
    fxa_status (*tie)(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied, fxa_error *err);
    /* No allocation, no lock but the pool's own. Arguments have been checked. May tell bind->progress how far it is.
     * Of a device it only begins: afterwards nothing that bind or p lead to on the host may be looked at any more. */
    fxa_status (*run)(void *self, const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err);
    /* With asserts: looks at the red zones of a workspace after a run, or at a copy of it: fxa__carver_after. */
    void (*zones)(void *self, const void *code, const fxa__problem *p, const void *workspace);
    /* What fxa_plan_description says of code; lives as long as the code. NULL: nothing to say. */
    const char *(*detail)(const void *code, const fxa__problem *p);
    /* What fxa_plan_dump says of code: how it runs the score program, as lines for people. NULL: nothing. */
    void (*listing)(const void *code, const fxa__problem *p, fxa__writer *w);
    /* The engine's section of plan bytes; both NULL: it has none and compiles again on load. `save` may write nothing:
     * then there is no section either. */
    void (*save)(void *self, const void *code, fxa__writer *w);
    fxa_status (*load)(void *self, const fxa__problem *p, fxa__reader *r, void **code, size_t *bytes, fxa_error *err);
    const fxa__memory *memory; /* of a device, else NULL */
    /* fxa_merge on pointers of this device, whose arguments have been checked; it only begins, on args->stream. NULL:
     * what is joined goes to the host and back, through `memory`, which waits. */
    fxa_status (*merge)(void *self, const fxa_merge_args *args, fxa_error *err);
} fxa__engine;

#if FXA_ASSERT
#define FXA__ZONES(function) .zones = (function)
#else
#define FXA__ZONES(function) .zones = NULL
#endif

/* In order of preference; NULL past the end. */
const fxa__engine *fxa__engine_at(size_t index);
const fxa__engine *fxa__engine_find(const char *name);

extern const fxa__engine fxa__engine_cpu, fxa__engine_ref, fxa__engine_cudnn, fxa__engine_cuda;

#endif
