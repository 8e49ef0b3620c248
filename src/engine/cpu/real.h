/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to elements of rows and matrices of type real, which is float or double depending on kernels->real_size.
 */
#ifndef FXA_ENGINE_CPU_REAL_H
#define FXA_ENGINE_CPU_REAL_H

#include "cpu.h"

/* Returns the address of element i. */
static inline void *fxa__cpu_real_at(const fxa__cpu_kernels *kernels, const void *x, int64_t i) {
    return (char *)(uintptr_t)x + i * (int64_t)kernels->real_size;
}

static inline double fxa__cpu_real_get(const fxa__cpu_kernels *kernels, const void *x, int64_t i) {
    return kernels->real_size == sizeof(float) ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static inline void fxa__cpu_real_set(const fxa__cpu_kernels *kernels, void *x, int64_t i, double value) {
    if (kernels->real_size == sizeof(float))
        ((float *)x)[i] = (float)value;
    else
        ((double *)x)[i] = value;
}

#endif
