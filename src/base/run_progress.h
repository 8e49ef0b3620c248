/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress of a run for the caller's fxa_progress_fn. fxa_plan_run creates an fxa__progress if the caller passes a
 * progress function; else bound->progress is NULL. Engines set the number of parts and add completed parts, from any
 * thread. A part is a tile or a row, not a pair, so that the calls cost little.
 *
 * The total contains one additional part for the work at the end of a run (joining and storing sums), so that done ==
 * total is reported only at the end.
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

/* Sets the total to b * h * each parts. Engines call this function once, before any part is done and before threads
 * start; a run without this call has one part. */
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
