/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for scalar: plain C with one lane. Every machine can run these kernels, and all others are tested against
 * them.
 */
#include "set.h"

#define KERN_SCALAR 1
#define VEC_BYTES 0
#define GEMM_MR 4
#define GEMM_VECS 4

#define REAL_IS_DOUBLE 1
#include "body/all.inc"
#undef REAL_IS_DOUBLE
#define REAL_IS_DOUBLE 0
#include "body/all.inc"

const fxa__cpu_kernels fxa__cpu_scalar[2] = {
    KERN_TABLE("scalar", _f32, sizeof(float), 1),
    KERN_TABLE("scalar", _f64, sizeof(double), 1),
};
