/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the lock of sync.h, a mutex with a condition variable, by pthreads. Only initialisation returns a status,
 * because the other operations cannot fail on an initialised lock.
 */
#include "sync.h"

#include "error.h"
#include "invariant.h"

#if FXA_ASSERT
/* In builds with asserts, the mutex detects a thread that locks it twice, or unlocks it without having locked it.
 * Returns an error number. */
static int lock_init_mutex(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attr;
    int code = pthread_mutexattr_init(&attr);
    if (code) return code;
    (void)pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    code = pthread_mutex_init(mutex, &attr);
    (void)pthread_mutexattr_destroy(&attr);
    return code;
}
#else
static int lock_init_mutex(pthread_mutex_t *mutex) { return pthread_mutex_init(mutex, NULL); }
#endif

/* Verifies that a call on an initialised lock succeeded. */
static void lock_expect(int code) {
    FXA__ASSERT(code == 0);
    (void)code;
}

fxa_status fxa__lock_init(fxa__lock *lock, fxa_error *err) {
    int code = lock_init_mutex(&lock->mutex);
    if (code) return fxa__fail(err, FXA_E_SYSTEM, "the system refused a mutex (error %d)", code);
    code = pthread_cond_init(&lock->cond, NULL);
    if (code) {
        pthread_mutex_destroy(&lock->mutex);
        return fxa__fail(err, FXA_E_SYSTEM, "the system refused a condition variable (error %d)", code);
    }
    return FXA_OK;
}

void fxa__lock_destroy(fxa__lock *lock) {
    lock_expect(pthread_cond_destroy(&lock->cond));
    lock_expect(pthread_mutex_destroy(&lock->mutex));
}

void fxa__lock_take(fxa__lock *lock) { lock_expect(pthread_mutex_lock(&lock->mutex)); }
void fxa__lock_give(fxa__lock *lock) { lock_expect(pthread_mutex_unlock(&lock->mutex)); }
void fxa__lock_wait(fxa__lock *lock) { lock_expect(pthread_cond_wait(&lock->cond, &lock->mutex)); }
void fxa__lock_wake(fxa__lock *lock) { lock_expect(pthread_cond_broadcast(&lock->cond)); }
