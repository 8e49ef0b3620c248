/* SPDX-License-Identifier: Apache-2.0
 *
 * How a broken invariant ends the process, in builds with FXA_ASSERT alone; see invariant.h.
 */
#include "invariant.h"

#if FXA_ASSERT
#include <stdio.h>
#include <stdlib.h>

void fxa__invariant_broken(const char *condition, const char *file, int line) {
    (void)fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
    abort();
}
#endif
