/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for neon (Advanced SIMD), which every aarch64 machine has.
 */
#include "set.h"

#define KERN_NEON 1
#define VEC_BYTES 16
#define GEMM_MR 6
#define GEMM_VECS 2

#define REAL_IS_DOUBLE 1
#include "body/all.inc"
#undef REAL_IS_DOUBLE
#define REAL_IS_DOUBLE 0
#include "body/all.inc"

const fxa__cpu_kernels fxa__cpu_neon[2] = {
    KERN_TABLE("neon", _f32, sizeof(float), 4),
    KERN_TABLE("neon", _f64, sizeof(double), 2),
};
