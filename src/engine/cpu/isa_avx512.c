/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for avx512: AVX-512 F, BW, DQ, VL.
 */
#include "kern.h"

#define KERN_AVX512 1
#define VEC_BYTES 64
#define GEMM_MR 12
#define GEMM_VECS 2

#define REAL_IS_DOUBLE 1
#include "kern_all.inc"
#undef REAL_IS_DOUBLE
#define REAL_IS_DOUBLE 0
#include "kern_all.inc"

const fxa__cpu_kernels fxa__cpu_avx512[2] = {
    KERN_TABLE("avx512", _f32, sizeof(float), 16),
    KERN_TABLE("avx512", _f64, sizeof(double), 8),
};
