/* SPDX-License-Identifier: Apache-2.0
 *
 * The pointers of one run, checked against its problem once: what engines read and write through.
 */
#ifndef FXA_PROBLEM_BIND_H
#define FXA_PROBLEM_BIND_H

#include "../base/run_progress.h"
#include "problem.h"

enum { FXA__NUMBERS = FXA_MAX_PARAMS };       /* of a plan, at most */
enum { FXA__SCALED_SLOTS = FXA_SLOT_DV + 1 }; /* slots of operands that scales may belong to */

typedef struct fxa__bind {
    void *slot[FXA_SLOT_MAX];
    bool trusted; /* FXA_SKIP_POINTER_CHECKS: whose pointers these are is not asked */
    double scale; /* on a device with SCALARS_IN_MEMORY: the slots have this, seed and params */
    /* By slot: what elements are multiplied with when they are read, and before they are written (on a device 1: the
     * slots of scales have them); where the largest result goes, or NULL; of DO that of dS. */
    double load[FXA__SCALED_SLOTS], store[FXA__SCALED_SLOTS];
    float *amax[FXA__SCALED_SLOTS];
    const double *params;
    const fxa_view *tensors;  /* with data */
    const fxa_view *dtensors; /* data NULL where no gradient is wanted */
    double *dparams;
    const double *bprop_params;
    const fxa_view *bprop_tensors;
    uint64_t seed;
    void *workspace; /* the engine's part */
    size_t workspace_size;
    void *stream;
    void *index_memory;  /* STRICT_INDEX: of fxa__index_size */
    void *parallel_user; /* for bind->pool */
    fxa_progress_fn progress_fn;
    void *progress_user;
    const double *numbers;   /* set by the run: the plan's, of engines that have some */
    fxa__pool *pool;         /* set by the run, for engines with threads */
    fxa__progress *progress; /* set by the run; NULL: nobody asked */
} fxa__bind;

/* Room for the views of a bind: of tensors, of their gradients, and of bprop's tensors. */
#define FXA__BIND_VIEWS (3 * FXA_MAX_TENSORS)
/* The smallest fxa_args a caller may have, an older one: it reaches the scale, enough for a run without program. */
#define FXA__ARGS_MIN offsetof(fxa_args, params)
/* Checks args against the problem (presence, alignment, overlap, counts, int params, workspace of fxa__index_room +
 * engine_workspace bytes) and joins pointers and shapes of captured tensors in views[FXA__BIND_VIEWS]. Memory that is
 * `readable` here, of the host, is looked at: lengths, offsets, page numbers and scalars. Writes nothing of the
 * caller's. */
fxa_status fxa__bind_make(const fxa__problem *p, const fxa_args *args, size_t engine_workspace, bool readable,
                          fxa_view *views, fxa__bind *out, fxa_error *err);

/* What a program reads, without the operands: tables, params and tensors are checked and laid out in views[], of which
 * there is room for twice the captures and those of bprop. Slots of operands are as they are given, also NULL. */
fxa_status fxa__bind_make_inputs(const fxa__problem *p, const fxa_args *args, fxa_view *views, fxa__bind *out,
                                 fxa_error *err);

#endif
