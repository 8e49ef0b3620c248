/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of all kernels: the start of a launch, exp2 on the FMA units, negated Q or K, the swizzled layout of tiles in
 * shared memory, sums over the lanes of a row and over the threads of a CTA.
 */
#ifndef FXA_CUDA_COMMON_SWIZZLE_CUH
#define FXA_CUDA_COMMON_SWIZZLE_CUH

#include "common/ptx.cuh"
#include "common/tile_shape.h"

/* Waits for the previous launches; a kernel calls it before its first access to device memory. A kernel may instead
 * call launch_wait() at its end if it neither reads what an earlier launch of the run writes nor writes what an earlier
 * launch accesses. */
FXA_INLINE void launch_begin()
{
    launch_next();
    launch_wait();
}

/* Returns 2^x for x < 126 without the special function unit: 2^floor(x) by a shift, 2^(x - floor(x)) by a cubic
 * polynomial, with a relative error below 2^-13. For NaN returns a number above 2^120, which no valid sum of weights
 * reaches. */
FXA_INLINE float exp2_by_fma(float x)
{
    /* 1.5 * 2^23: x + BIAS, rounded down, has floor(x) in its low bits */
    constexpr float BIAS = 12582912.f;
    x = max_or_nan(x, -127.f);
    const float r = add_down(x, BIAS);
    const float f = x - (r - BIAS);
    const float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.07711909f, f, 0.22756439f), f, 0.69514614f), f, 1.f);
    return __int_as_float((__float_as_int(r) << 23) + __float_as_int(p));
}

/* Returns two 16-bit elements of the storage type times -1 or 0 (FxaArgs.turned: the scale is negative or 0). The
 * product is exact, and NaN or infinity times 0 is NaN. */
FXA_INLINE u32 negate_pair(const FxaArgs &a, u32 x)
{
    const u32 by = a.turned == 2 ? 0 : FXA_F16 ? 0xBC00BC00u : 0xBF80BF80u, none = 0x80008000u;
    return fma_pair(x, by, none);
}

/* Applies negate_pair() to `bytes` bytes of shared memory, by `threads` threads. */
FXA_INLINE void negate_tile(const FxaArgs &a, u32 from, int bytes, int thread, int threads)
{
#pragma unroll 1
    for (int i = thread * 16; i < bytes; i += threads * 16) {
        const Word4 x = load_shared_words(from + i);
        store_shared_float4(from + i, __int_as_float(negate_pair(a, x.x)), __int_as_float(negate_pair(a, x.y)),
                            __int_as_float(negate_pair(a, x.z)), __int_as_float(negate_pair(a, x.w)));
    }
}

/*
 * Tiles of 16-bit elements in shared memory are stored as blocks of 64 columns. Each block is `rows` rows of 128 bytes,
 * whose 16-byte chunks are permuted depending on the row: the layout that TMA writes with its 128-byte swizzle and
 * wgmma reads. A tile's address is a multiple of 1024 bytes. `chunk` counts groups of 8 columns from the tile's first
 * column. The columns are padded to a multiple of 64 (fxa_stored_columns()); columns past the tensor's head dim are 0.
 *
 *     row 0   | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |     128 bytes: chunk stored at each place
 *     row 1   | 1 | 0 | 3 | 2 | 5 | 4 | 7 | 6 |
 *     row 2   | 2 | 3 | 0 | 1 | 6 | 7 | 4 | 5 |     chunk ^ (row & 7)
 */
constexpr int D_STORED = fxa_stored_columns(FXA_D), DV_STORED = fxa_stored_columns(FXA_DV);

template <int rows> FXA_INLINE u32 swizzled(u32 tile, int row, int chunk)
{
    return tile + (u32)((chunk >> 3) * (rows * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

/* Returns the sum of x over the four lanes that share a row of an accumulator tile; quad_max() returns the maximum. */
FXA_INLINE float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

FXA_INLINE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Returns in thread 0 the sum of x over the threads of the CTA, added in a fixed order. May be called once. */
template <int threads> FXA_INLINE double sum_of_threads(double x)
{
    static_assert((threads & (threads - 1)) == 0, "halves of a power of two");
    __shared__ double part[threads];
    part[threadIdx.x] = x;
    for (int n = threads / 2; n; n >>= 1) {
        __syncthreads();
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    }
    return part[0];
}

#endif
