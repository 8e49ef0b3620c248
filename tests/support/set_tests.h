/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of kernels for each instruction set: SET_TESTS(name, size, check) defines name_scalar, name_sse2 and so on,
 * which call `check` with the set's kernels for a compute type of `size` bytes. A set that the build or the machine
 * lacks is reported as skipped.
 */
#ifndef FXA_TESTS_SET_TESTS_H
#define FXA_TESTS_SET_TESTS_H

#include "engine/cpu/cpu.h"
#include "t.h"

static void set_test(const char *isa, size_t size, void (*check)(const fxa__cpu_kernels *k)) {
    bool usable = false;
    const fxa__cpu_kernels *k;
    for (size_t i = 0; (k = fxa__cpu_set(i, size, &usable)) != NULL; i++) {
        if (strcmp(k->isa, isa) != 0) continue;
        if (!usable) T_SKIP("this processor cannot run the kernels of this test's instruction set");
        check(k);
        return;
    }
    T_SKIP("the library was built without the kernels of this test's instruction set");
}

#define SET_TEST(name, isa, size, check)                                                                               \
    TEST(name##_##isa) { set_test(#isa, size, check); }
#define SET_TESTS(name, size, check)                                                                                   \
    SET_TEST(name, scalar, size, check)                                                                                \
    SET_TEST(name, sse2, size, check)                                                                                  \
    SET_TEST(name, avx2, size, check)                                                                                  \
    SET_TEST(name, avx512, size, check)                                                                                \
    SET_TEST(name, neon, size, check)

#endif
