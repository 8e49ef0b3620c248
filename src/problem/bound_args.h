/* SPDX-License-Identifier: Apache-2.0
 *
 * Bound arguments: the checked pointers and scalars of one run. Engines access the memory of a run only through a
 * struct fxa__bound_args.
 */
#ifndef FXA_PROBLEM_BOUND_ARGS_H
#define FXA_PROBLEM_BOUND_ARGS_H

#include "../base/run_progress.h"
#include "problem.h"

enum { FXA__MAX_CONSTANTS = FXA_MAX_PARAMS }; /* maximum number of scalar constants of a plan */
enum { FXA__SCALED_SLOTS = FXA_SLOT_DV + 1 }; /* number of slots of operands that may have scales */

typedef struct fxa__bound_args {
    void *slot[FXA_SLOT_MAX];
    bool skip_pointer_checks; /* true = do not check that pointers belong to the device (FXA_SKIP_POINTER_CHECKS) */
    /* Factor of Q K^T. If the problem has the flag SCALARS_IN_MEMORY and runs on a device, kernels read scale, seed and
     * params from slots, and the members `scale`, `seed` and `params` are not used. */
    double scale;
    /* [slot] Scales of 8-bit operands.
     * - load: factor that multiplies elements read from memory. 1 on a device, because kernels read the scale slots.
     * - store: factor that multiplies elements before they are written. 1 on a device.
     * - amax: address that receives the maximum absolute value of the elements, or NULL.
     * dS, the gradient of the scores, has no slot: store[FXA_SLOT_DO] and amax[FXA_SLOT_DO] belong to dS. */
    double load[FXA__SCALED_SLOTS], store[FXA__SCALED_SLOTS];
    float *amax[FXA__SCALED_SLOTS];
    const double *params;
    const fxa_view *tensors;  /* [n_captures] captured tensors of the program */
    const fxa_view *dtensors; /* [n_captures] gradients of captured tensors; data NULL = no gradient is requested */
    double *dparams;
    const double *bprop_params;
    const fxa_view *bprop_tensors;
    uint64_t seed;
    void *workspace; /* the engine's part of the workspace */
    size_t workspace_size;
    void *stream;
    void *index_memory;  /* memory of the bounds check, fxa__index_size bytes; NULL = no check */
    void *parallel_user; /* `user` argument of fxa__pool_run */
    fxa_progress_fn progress_fn;
    void *progress_user;
    const double *constants; /* set by fxa_plan_run: scalar constants of the plan, if the engine has any */
    fxa__pool *pool;         /* set by fxa_plan_run, for engines that use threads */
    fxa__progress *progress; /* set by fxa_plan_run; NULL = the caller has no progress function */
} fxa__bound_args;

/* Maximum number of views of a run: captured tensors of the program, their gradients, and tensors of the backward
 * program. */
#define FXA__ARGS_VIEWS (3 * FXA_MAX_TENSORS)
/* Minimum struct_size of fxa_args. A struct that ends after the member `scale` suffices for a run without a program. */
#define FXA__ARGS_MIN offsetof(fxa_args, params)
/* Checks the arguments of a run against the problem: pointers are set and aligned, outputs do not overlap other memory,
 * counts and params are valid, and the workspace has fxa__index_workspace + engine_workspace bytes. If `readable` (host
 * memory), also reads and checks lengths, offsets, page numbers and scalars. Fills *out and views[FXA__ARGS_VIEWS], the
 * views of captured tensors that *out points to. Does not write to memory that `args` points to. */
fxa_status fxa__bound_args_make(const fxa__problem *p, const fxa_args *args, size_t engine_workspace, bool readable,
                                fxa_view *views, fxa__bound_args *out, fxa_error *err);

/* Like fxa__bound_args_make, but checks only the arguments that a program reads: lengths, offsets, tables of index
 * maps, params and captured tensors. `views` needs capacity for 2 * n_captures + n_bprop_captures views. Slots of
 * operands are copied unchecked and may be NULL. */
fxa_status fxa__bound_args_make_inputs(const fxa__problem *p, const fxa_args *args, fxa_view *views,
                                       fxa__bound_args *out, fxa_error *err);

#endif
