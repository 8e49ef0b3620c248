/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for avx2: AVX2 with FMA and F16C.
 */
#include "set.h"

#define KERN_AVX2 1
#define VEC_BYTES 32
#define GEMM_MR 6
#define GEMM_VECS 2

#define REAL_IS_DOUBLE 1
#include "body/all.inc"
#undef REAL_IS_DOUBLE
#define REAL_IS_DOUBLE 0
#include "body/all.inc"

const fxa__cpu_kernels fxa__cpu_avx2[2] = {
    KERN_TABLE("avx2", _f32, sizeof(float), 8),
    KERN_TABLE("avx2", _f64, sizeof(double), 4),
};
