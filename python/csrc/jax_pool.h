/* SPDX-License-Identifier: Apache-2.0
 *
 * The parallel loop of a run, on the thread pool of XLA's CPU client, so that no second set of threads competes for the
 * cores. The pool may have one thread, be busy with other work, or start nothing before the caller returns. So the
 * calling thread takes parts itself until none is left, and waits only for parts that a helper has begun.
 */
#ifndef FXATTN_JAX_POOL_H
#define FXATTN_JAX_POOL_H

#include "jax_abi.h"

/* fxa_args.parallel_user of a run. */
typedef struct fxa__jax_pool {
    const fxa__xla_api *api;
    fxa__xla_context *context;
} fxa__jax_pool;

/* The fxa_parallel_fn: calls task(arg, i) for i < n. Runs the parts one after the other if `user` is NULL. */
void fxa__jax_pool_loop(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

#endif
