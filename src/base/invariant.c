/* SPDX-License-Identifier: Apache-2.0
 *
 * End of the process for a violated invariant, in builds with FXA_ASSERT only; see invariant.h.
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
