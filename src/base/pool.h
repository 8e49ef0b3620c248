/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of one context. The host (host.h) knows from the start how many workers a run may use; the threads are
 * started when the first plan of an engine that wants them is made, so that a run creates nothing, and joined with the
 * host's last reference.
 *
 * A job is a function that is called once for every worker number 0..width-1. Worker numbers own scratch memory; work
 * items are taken inside the function by an atomic counter of the engine's. The caller is worker 0 and also plays every
 * worker that no thread has come for when it has nothing left to do: a sleeping thread delays nobody, and a pool with
 * fewer threads than workers, or none, works just as well. So nothing may depend on which workers run at the same time.
 */
#ifndef FXA_BASE_POOL_H
#define FXA_BASE_POOL_H

#include "fxattn/fxattn.h"

typedef struct fxa__pool fxa__pool;
typedef struct fxa__host fxa__host;
typedef void (*fxa__task_fn)(void *arg, int32_t worker);

/* CPUs that this process may run on, at least 1. */
int32_t fxa__cpu_count(void);

/* `width` workers (1..FXA_MAX_THREADS): the caller and up to width - 1 threads, as many as the system gives. With
 * `parallel` no thread is started: it is the caller's own, and runs every job. */
fxa_status fxa__pool_create(fxa__host *host, int32_t width, fxa_parallel_fn parallel, void *parallel_user,
                            fxa__pool **out, fxa_error *err);
/* Joins the threads; no job may be running. In a child after fork there are none to join. Takes NULL. */
void fxa__pool_destroy(fxa__pool *pool);

/* The most workers that are of use to a job; what workspaces are sized by. Constant. */
int32_t fxa__pool_width(const fxa__pool *pool);

/* Calls fn(arg, w) once for each w in 0..width-1 and returns when all are done; width <= fxa__pool_width. Allocates
 * nothing, cannot fail. fn runs in FXA__FLOAT_FLUSH (float_state.h), whatever the state of its thread. One
 * job runs at a time: a call that finds the pool busy with another caller's, or that comes from inside fn, does all its
 * workers one after the other on the calling thread, and so does width 1. user: what the caller's own parallel gets for
 * this job, NULL for what the pool was made with. */
void fxa__pool_run(fxa__pool *pool, void *user, int32_t width, fxa__task_fn fn, void *arg);

#endif
