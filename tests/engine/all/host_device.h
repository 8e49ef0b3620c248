/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces src/engine/cuda/kernels/common/swizzle.cuh in tests that compile kernel headers as C for the host.
 */
#ifndef HOST_DEVICE_H
#define HOST_DEVICE_H

#include <string.h>

#define FXA_CUDA_COMMON_SWIZZLE_CUH
#define FXA_INLINE static inline
#define __device__
#define __noinline__

typedef unsigned u32;
typedef unsigned long long u64;

static inline int __float_as_int(float x) {
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float __int_as_float(int bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
