/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariants of the library's own code. Arguments of callers are not invariants: wrong arguments are refused with an
 * error text.
 *
 * CMakeLists.txt sets FXA_ASSERT for the library that tests link, and for sanitizer, fuzz and Debug builds. In these
 * builds a violated invariant prints its position and ends the process. In the installed library FXA__ASSERT does
 * nothing. FXA__HOLDS is for invariants that memory safety depends on: it returns the condition, so that the caller can
 * return E_INTERNAL.
 */
#ifndef FXA_BASE_INVARIANT_H
#define FXA_BASE_INVARIANT_H

#include <stdbool.h>

#if FXA_ASSERT
_Noreturn void fxa__invariant_broken(const char *condition, const char *file, int line);
static inline bool fxa__invariant_holds(bool holds, const char *condition, const char *file, int line) {
    if (!holds) fxa__invariant_broken(condition, file, line);
    return true;
}
#define FXA__HOLDS(condition) fxa__invariant_holds(condition, #condition, __FILE__, __LINE__)
#define FXA__ASSERT(condition) ((void)FXA__HOLDS(condition))
#else
#define FXA__HOLDS(condition) (condition)
#define FXA__ASSERT(condition) ((void)(0 && (condition))) /* not evaluated, but its functions count as used */
#endif

#endif
