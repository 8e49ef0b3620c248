/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a run is, for the fxa_progress_fn of its caller. fxa_plan_run makes one when it is asked for; engines say
 * how many parts they have and add those that are done, from any thread. The pointer is NULL when nobody asked: then
 * each call costs that look, so engines tell of tiles and rows, never of pairs.
 *
 * One part more than the engine's own stands for what is left when all of them are done (joining, storing sums): the
 * total is told once, at the very end.
 */
#ifndef FXA_BASE_RUN_PROGRESS_H
#define FXA_BASE_RUN_PROGRESS_H

#include "fxattn/fxattn.h"

#include <stdatomic.h>

typedef struct fxa__progress {
    fxa_progress_fn fn;
    void *user;
    uint64_t total;
    _Atomic uint64_t done;
} fxa__progress;

/* b * h * each parts, once, before any of them is done and before there are threads; without it a run is one part. */
void fxa__progress_begin(fxa__progress *progress, int64_t b, int64_t h, int64_t each);

void fxa__progress_tell(fxa__progress *progress, uint64_t done);

static inline void fxa__progress_add(fxa__progress *progress, int64_t parts) {
    if (progress && parts > 0)
        fxa__progress_tell(progress, atomic_fetch_add(&progress->done, (uint64_t)parts) + (uint64_t)parts);
}

static inline void fxa__progress_end(fxa__progress *progress) {
    if (progress) fxa__progress_tell(progress, progress->total);
}

#endif
