/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls the caller's fxa_progress_fn in the default floating point state, whatever a kernel has set.
 */
#include "run_progress.h"

#include "float_state.h"
#include "invariant.h"
#include "num.h"

#include <stdbool.h>

/* The product b * h * each may overflow: a packed batch can have many entries and a maximum length far above the other
 * lengths. */
void fxa__progress_begin(fxa__progress *progress, int64_t b, int64_t h, int64_t each) {
    int64_t heads, parts;
    if (!progress) return;
    bool fits = fxa__mul_i64(b, h, &heads) && fxa__mul_i64(heads, each, &parts);
    progress->total = fits ? (uint64_t)parts + 1 : UINT64_MAX;
}

void fxa__progress_tell(fxa__progress *progress, uint64_t done) {
    FXA__ASSERT(done <= progress->total);
    FXA__FLOAT_SCOPE;
    progress->fn(progress->user, done, progress->total);
}
