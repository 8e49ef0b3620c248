/* SPDX-License-Identifier: Apache-2.0
 *
 * A parallel loop on XLA's threads (jax_pool.h). The loop's memory is freed when its last helper has finished, which
 * may be long after the call.
 */
#include "jax_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct pool_work {
    atomic_int next, holders;
    int32_t n, done; /* done: protected by lock */
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    void (*task)(void *arg, int32_t i);
    void *arg; /* the caller's, valid only while a part runs */
} pool_work;

static void work_leave(pool_work *work) {
    if (atomic_fetch_sub(&work->holders, 1) == 1) {
        pthread_cond_destroy(&work->all_done);
        pthread_mutex_destroy(&work->lock);
        free(work);
    }
}

static void work_take(pool_work *work) {
    int32_t ran = 0;
    for (int32_t i; (i = atomic_fetch_add(&work->next, 1)) < work->n; ran++) {
        work->task(work->arg, i);
    }
    pthread_mutex_lock(&work->lock);
    work->done += ran;
    if (work->done == work->n) {
        pthread_cond_broadcast(&work->all_done);
    }
    pthread_mutex_unlock(&work->lock);
}

static void work_help(void *data) {
    work_take(data);
    work_leave(data);
}

static int64_t pool_size(const fxa__jax_pool *pool) {
    int64_t count = 0;
    fxa__xla_threads_args args = {FXA__XLA_SIZE(fxa__xla_threads_args, count), NULL, pool->context, &count};
    if (!FXA__XLA_HAS(pool->api, pool_threads) || !FXA__XLA_HAS(pool->api, pool_schedule)) {
        return 0;
    }
    fxa__xla_error *error = pool->api->pool_threads(&args);
    if (error) {
        fxa__xla_destroy_args destroy = {FXA__XLA_SIZE(fxa__xla_destroy_args, error), NULL, error};
        pool->api->error_destroy(&destroy);
        return 0;
    }
    return count;
}

static void work_spread(pool_work *work, const fxa__jax_pool *pool, int64_t helpers) {
    for (int64_t i = 0; i < helpers; i++) {
        fxa__xla_schedule_args args = {FXA__XLA_SIZE(fxa__xla_schedule_args, data), NULL, pool->context, work_help,
                                       work};
        atomic_fetch_add(&work->holders, 1);
        fxa__xla_error *error = pool->api->pool_schedule(&args);
        if (error) {
            fxa__xla_destroy_args destroy = {FXA__XLA_SIZE(fxa__xla_destroy_args, error), NULL, error};
            pool->api->error_destroy(&destroy);
            work_leave(work);
            return;
        }
    }
}

void fxa__jax_pool_loop(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    const fxa__jax_pool *pool = user;
    int64_t size = pool && n > 1 ? pool_size(pool) : 0;
    int64_t helpers = size < n - 1 ? size : n - 1;
    pool_work *work = helpers > 0 ? calloc(1, sizeof *work) : NULL;
    if (!work) {
        for (int32_t i = 0; i < n; i++) {
            task(arg, i);
        }
        return;
    }
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->all_done, NULL);
    atomic_init(&work->next, 0);
    atomic_init(&work->holders, 1);
    work->n = n;
    work->task = task;
    work->arg = arg;
    work_spread(work, pool, helpers);
    work_take(work);
    pthread_mutex_lock(&work->lock);
    while (work->done < n) {
        pthread_cond_wait(&work->all_done, &work->lock);
    }
    pthread_mutex_unlock(&work->lock);
    work_leave(work);
}
