/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of a handler, from XLA's frame to a run of the library.
 *
 * Attributes (python/fxattn/jax/_primitives.py writes them):
 *     problem    bytes of fxa_problem_save: program, shapes, layouts, features
 *     operands   what each operand is, in their order: a role
 *     results    the same of results
 *     follow     of modules with symbolic shapes alone: the layout of q, k and v, whose sizes the buffers say
 * A role is a slot of fxa_args, or one of fxa__jax_role. Buffers are dense, so the problem's strides say all; that each
 * buffer is as large as the problem wants it is checked at every call, since a module may come from anywhere.
 */
#ifndef FXATTN_JAX_CALL_H
#define FXATTN_JAX_CALL_H

#include "fxattn/fxattn.h"

#include "jax_abi.h"

#include <stdbool.h>

typedef enum fxa__jax_role {
    FXA__JAX_SCALARS = 64,        /* operand: f64 scale, params, params of the backward program */
    FXA__JAX_DPARAMS,             /* result: f64, one per param */
    FXA__JAX_WORKSPACE,           /* result: what the plan needs; on the host the handler sees to that itself */
    FXA__JAX_ROOM,                /* operand: shares the memory of a result, which it fills beforehand */
    FXA__JAX_TENSORS = 128,       /* and up: captured; as a result its gradient */
    FXA__JAX_BPROP_TENSORS = 256, /* and up: captured by the backward program */
    FXA__JAX_ROLES = 384
} fxa__jax_role;

typedef struct fxa__jax_call {
    const fxa__xla_frame *frame;
    bool cuda;
    fxa_plan *plan;
    fxa_problem problem; /* as resolved by the plan */
    size_t n_params, n_bprop_params;
    uintptr_t addresses; /* of all buffers, or-ed: what they are multiples of */
    fxa_args args;
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    void *host_workspace;
    fxa_error err;
} fxa__jax_call;

/* The plan of a frame, kept for the calls that follow: all there is to do before an execution. */
fxa_status fxa__jax_call_prepare(fxa__jax_call *call);
/* The plan of the call for sizes that its buffers have (jax_follow.c); `roles` are those of the operands. */
fxa_status fxa__jax_follow(fxa__jax_call *call, int64_t layout, const int64_t *roles);
/* The whole run. */
fxa_status fxa__jax_call_run(fxa__jax_call *call);

#endif
