/* SPDX-License-Identifier: Apache-2.0
 *
 * Mutex and condition variable, a thin layer over pthreads.
 */
#ifndef FXA_BASE_SYNC_H
#define FXA_BASE_SYNC_H

#include "fxattn/fxattn.h"

#include <pthread.h>

typedef struct fxa__lock {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
} fxa__lock;

fxa_status fxa__lock_init(fxa__lock *lock, fxa_error *err);
void fxa__lock_destroy(fxa__lock *lock);
void fxa__lock_take(fxa__lock *lock);
void fxa__lock_give(fxa__lock *lock);
void fxa__lock_wait(fxa__lock *lock); /* called with the lock held; returns after fxa__lock_wake, or spuriously */
void fxa__lock_wake(fxa__lock *lock); /* wakes all waiters */

#endif
