/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for sse2, which every x86-64 machine has. It has no fused multiply-add.
 */
#include "set.h"

#define KERN_SSE2 1
#define VEC_BYTES 16
#define GEMM_MR 4
#define GEMM_VECS 2

#define REAL_IS_DOUBLE 1
#include "body/all.inc"
#undef REAL_IS_DOUBLE
#define REAL_IS_DOUBLE 0
#include "body/all.inc"

const fxa__cpu_kernels fxa__cpu_sse2[2] = {
    KERN_TABLE("sse2", _f32, sizeof(float), 4),
    KERN_TABLE("sse2", _f64, sizeof(double), 2),
};
