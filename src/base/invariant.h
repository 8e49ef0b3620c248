/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariants of the library's own code, where a reader would otherwise have to trust a comment. They are never about
 * what a caller of the library gives: that is checked, and refused with a text.
 *
 * FXA_ASSERT is set by CMakeLists.txt: for what the tests link, and for everything in sanitizer, fuzz and Debug builds.
 * There a broken invariant says where and ends the process. The library as it is installed has none of this: an
 * FXA__ASSERT is nothing, and FXA__HOLDS, for invariants that keep memory safe, is a question whose answer "no" the
 * caller turns into FXA_E_INTERNAL.
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
#define FXA__ASSERT(condition) ((void)sizeof(!(condition))) /* not evaluated, but what it names counts as used */
#endif

#endif
