/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the lock of sync.h, a mutex with a condition variable, by pthreads. Only initialisation returns a status,
 * because the other operations cannot fail on an initialised lock.
 */
#include "sync.h"

#include "error.h"

fxa_status fxa__lock_init(fxa__lock *lock, fxa_error *err) {
    int code = pthread_mutex_init(&lock->mutex, NULL);
    if (code) return fxa__fail(err, FXA_E_SYSTEM, "the system refused a mutex (error %d)", code);
    code = pthread_cond_init(&lock->cond, NULL);
    if (code) {
        pthread_mutex_destroy(&lock->mutex);
        return fxa__fail(err, FXA_E_SYSTEM, "the system refused a condition variable (error %d)", code);
    }
    return FXA_OK;
}

void fxa__lock_destroy(fxa__lock *lock) {
    pthread_cond_destroy(&lock->cond);
    pthread_mutex_destroy(&lock->mutex);
}

void fxa__lock_take(fxa__lock *lock) { pthread_mutex_lock(&lock->mutex); }
void fxa__lock_give(fxa__lock *lock) { pthread_mutex_unlock(&lock->mutex); }
void fxa__lock_wait(fxa__lock *lock) { pthread_cond_wait(&lock->cond, &lock->mutex); }
void fxa__lock_wake(fxa__lock *lock) { pthread_cond_broadcast(&lock->cond); }
