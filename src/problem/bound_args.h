/* SPDX-License-Identifier: Apache-2.0
 *
 * Bound arguments: the pointers and scalars of one run, checked against the problem once. Engines read and write
 * through this struct only.
 */
#ifndef FXA_PROBLEM_BOUND_ARGS_H
#define FXA_PROBLEM_BOUND_ARGS_H

#include "../base/run_progress.h"
#include "problem.h"

enum { FXA__MAX_CONSTANTS = FXA_MAX_PARAMS }; /* maximum number of scalar constants of a plan */
enum { FXA__SCALED_SLOTS = FXA_SLOT_DV + 1 }; /* slots of operands that may have scales */

typedef struct fxa__bound_args {
    void *slot[FXA_SLOT_MAX];
    bool skip_pointer_checks; /* FXA_SKIP_POINTER_CHECKS: the device of the pointers is not queried */
    /* Score scale. On a device with SCALARS_IN_MEMORY the slots hold scale, seed and params instead. */
    double scale;
    /* [slot] Factors applied to elements after reading and before writing (1 on a device, where kernels read the scale
     * slots), and the address that receives the amax, or NULL. The entries of slot DO belong to dS. */

    double load[FXA__SCALED_SLOTS], store[FXA__SCALED_SLOTS];
    float *amax[FXA__SCALED_SLOTS];
    const double *params;
    const fxa_view *tensors;  /* views with data pointers */
    const fxa_view *dtensors; /* data is NULL for tensors without a requested gradient */
    double *dparams;
    const double *bprop_params;
    const fxa_view *bprop_tensors;
    uint64_t seed;
    void *workspace; /* the engine's part of the workspace */
    size_t workspace_size;
    void *stream;
    void *index_memory;  /* FXA_BOUNDS_CHECK: fxa__index_size bytes, else NULL */
    void *parallel_user; /* passed to pool */
    fxa_progress_fn progress_fn;
    void *progress_user;
    const double *constants; /* set by the run: scalar constants of the plan, if the engine has any */
    fxa__pool *pool;         /* set by the run, for engines with threads */
    fxa__progress *progress; /* set by the run; NULL = no progress function */
} fxa__bound_args;

/* Maximum number of views of a run: tensors, their gradients, and tensors of bprop. */
#define FXA__ARGS_VIEWS (3 * FXA_MAX_TENSORS)
/* Minimum struct_size of fxa_args. Older callers end after the scale, which suffices for a run without a program. */
#define FXA__ARGS_MIN offsetof(fxa_args, params)
/* Checks args against the problem: presence, alignment, overlap, counts, int params, and a workspace of
 * fxa__index_workspace + engine_workspace bytes. Fills *out, whose views of captured tensors are stored in
 * views[FXA__ARGS_VIEWS]. If `readable` (host memory), lengths, offsets, page numbers and scalars are read and checked
 * too. Writes no memory of the caller. */
fxa_status fxa__bound_args_make(const fxa__problem *p, const fxa_args *args, size_t engine_workspace, bool readable,
                                fxa_view *views, fxa__bound_args *out, fxa_error *err);

/* Checks and fills only what a program reads: tables, params and tensors. views needs capacity for 2 * n_captures +
 * n_bprop_captures. Slots of operands are copied unchecked and may be NULL. */
fxa_status fxa__bound_args_make_inputs(const fxa__problem *p, const fxa_args *args, fxa_view *views,
                                       fxa__bound_args *out, fxa_error *err);

#endif
