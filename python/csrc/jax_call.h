/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of a handler: turns XLA's call frame into a run of the library.
 *
 * Attributes (python/fxattn/jax/_primitives.py writes them):
 *     problem    bytes of fxa_problem_save: program, shapes, layouts, features
 *     operands   the role of each operand
 *     results    the role of each result
 *     follow     only in modules with symbolic shapes: the layout of q, k and v, whose sizes are read from the buffers
 * A role is a slot of fxa_args or a value of fxa__jax_role. Buffers are dense, with the strides of the problem. Every
 * call checks that each buffer has the size that the problem requires, because a module may come from any source.
 */
#ifndef FXATTN_JAX_CALL_H
#define FXATTN_JAX_CALL_H

#include "fxattn/fxattn.h"

#include "jax_abi.h"

#include <stdbool.h>

typedef enum fxa__jax_role {
    FXA__JAX_SCALARS = 64,        /* operand: f64 scale, params, params of the backward program */
    FXA__JAX_DPARAMS,             /* result: f64, one per param */
    FXA__JAX_WORKSPACE,           /* result: the plan's workspace on a device; on the host the handler allocates it */
    FXA__JAX_ALIAS,               /* operand that aliases a result and initializes its memory */
    FXA__JAX_TENSORS = 128,       /* + i: captured tensor i; as a result, its gradient */
    FXA__JAX_BPROP_TENSORS = 256, /* + i: tensor i captured by the backward program */
    FXA__JAX_ROLES = 384
} fxa__jax_role;

typedef struct fxa__jax_call {
    const fxa__xla_frame *frame;
    bool cuda;
    fxa_plan *plan;
    fxa_problem problem; /* the plan's problem, with defaults resolved */
    size_t n_params, n_bprop_params;
    uintptr_t addresses; /* bitwise OR of all buffer addresses, for their common alignment */
    fxa_args args;
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    void *host_workspace;
    fxa_error err;
} fxa__jax_call;

/* Makes and caches the plan of a frame, so that executions only look it up. Returns a status. */
fxa_status fxa__jax_call_prepare(fxa__jax_call *call);
/* Replaces the call's plan by that for the sizes of its buffers (jax_follow.c). `roles`: one for each operand. */
fxa_status fxa__jax_follow(fxa__jax_call *call, int64_t layout, const int64_t *roles);
/* Gets the plan, binds the buffers and runs. Returns a status; the message is in call->err. */
fxa_status fxa__jax_call_run(fxa__jax_call *call);

#endif
