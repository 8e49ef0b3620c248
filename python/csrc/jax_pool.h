/* SPDX-License-Identifier: Apache-2.0
 *
 * The parallel loop of a run on the thread pool of XLA's CPU client, so that no second set of threads competes for the
 * cores. A pool may have one thread, be busy with other work for as long as it likes, or run nothing before the caller
 * returns: so the caller takes parts itself until none is left, and waits for parts that somebody has begun, never for
 * somebody to come.
 */
#ifndef FXATTN_JAX_POOL_H
#define FXATTN_JAX_POOL_H

#include "jax_abi.h"

/* What a run gives as fxa_args.parallel_user. */
typedef struct fxa__jax_pool {
    const fxa__xla_api *api;
    fxa__xla_context *context;
} fxa__jax_pool;

/* An fxa_parallel_fn. Without a pool, parts run one after the other. */
void fxa__jax_pool_loop(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

#endif
