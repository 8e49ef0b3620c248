/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of values in the compute type of a kernel set, f32 or f64, for tests of its kernels.
 */
#ifndef FXA_TESTS_REALS_H
#define FXA_TESTS_REALS_H

#include "engine/cpu/cpu.h"
#include "support/memory/guard.h"
#include "t.h"

__attribute__((unused)) static double real_at(const fxa__cpu_kernels *k, const void *x, int64_t i) {
    return k->real_size == sizeof(float) ? (double)((const float *)x)[i] : ((const double *)x)[i];
}
__attribute__((unused)) static void real_put(const fxa__cpu_kernels *k, void *x, int64_t i, double value) {
    if (k->real_size == sizeof(float))
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}
__attribute__((unused)) static double real_unit(const fxa__cpu_kernels *k) {
    return k->real_size == sizeof(float) ? 0x1p-24 : 0x1p-53;
}

__attribute__((unused)) static guard reals_open(const fxa__cpu_kernels *k, t_rng *rng, int64_t n) {
    guard g = guard_open((size_t)n * k->real_size);
    for (int64_t i = 0; i < n; i++) real_put(k, g.data, i, t_real(rng, -1, 1));
    return g;
}

#endif
