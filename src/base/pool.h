/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of one context. The number of workers of a run is fixed when the host is made (host.h). The threads start
 * with the first plan of an engine that uses threads, so that runs create no thread, and are joined when the host's
 * last reference is dropped.
 *
 * A job is a function that is called once for every worker number 0..width-1. A worker uses its number as an index into
 * scratch memory. Work items are assigned inside the function by an atomic counter of the engine. The thread that
 * starts a job is worker 0; when worker 0 has finished, this thread also runs every worker that no other thread has
 * started. A sleeping thread therefore delays nothing, and a pool with fewer threads than workers, or without threads,
 * works as well. Jobs must not depend on which workers run at the same time.
 */
#ifndef FXA_BASE_POOL_H
#define FXA_BASE_POOL_H

#include "fxattn/fxattn.h"

typedef struct fxa__pool fxa__pool;
typedef struct fxa__host fxa__host;
typedef void (*fxa__task_fn)(void *arg, int32_t worker);

/* Returns the number of CPUs that this process may run on, at least 1. */
int32_t fxa__cpu_count(void);

/* Creates a pool of `width` workers (1..FXA_MAX_THREADS): the caller of a job and up to width - 1 threads, as many as
 * the system permits. With `parallel` not NULL, that function runs every job and no thread is started. */
fxa_status fxa__pool_create(fxa__host *host, int32_t width, fxa_parallel_fn parallel, void *parallel_user,
                            fxa__pool **out, fxa_error *err);
/* Joins the threads and frees the pool; no job may be running. After fork, a child has no threads and joins none. NULL
 * is accepted. */
void fxa__pool_destroy(fxa__pool *pool);

/* Returns the maximum number of workers of a job, which never changes and determines sizes of workspaces. */
int32_t fxa__pool_width(const fxa__pool *pool);

/* Calls fn(arg, w) once for each w in 0..width-1 and returns when all calls are done; width <= fxa__pool_width.
 * Allocates nothing and cannot fail. fn runs in the floating point state FXA__FLOAT_FLUSH (float_state.h), on any
 * thread.
 *
 * One job runs at a time. If the pool is busy with another caller's job, or the call comes from inside fn, or width is
 * 1, all workers run one after the other on the calling thread. user: first argument of `parallel` for this job;
 * NULL = parallel_user of the pool. */
void fxa__pool_run(fxa__pool *pool, void *user, int32_t width, fxa__task_fn fn, void *arg);

#endif
