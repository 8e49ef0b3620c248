/* SPDX-License-Identifier: Apache-2.0
 *
 * What all kernels share: how tiles lie in shared memory, a cheap exp2, sums over the lanes of a row.
 */
#ifndef FXA_CUDA_COMMON_SWIZZLE_CUH
#define FXA_CUDA_COMMON_SWIZZLE_CUH

#include "common/ptx.cuh"

/* The begin of a kernel, before it touches memory of the device: all but those that wait at their end, which read
 * nothing that another launch of the run writes and write what none before them touches. */
FXA_INLINE void launch_begin()
{
    launch_next();
    launch_wait();
}

/* exp2 without the special function unit: 2^n by shifting, the fraction by a cubic; relative error below 2^-13. Of x
 * below 126; NaN gives a number above 2^120, which nobody takes for a sum. */
FXA_INLINE float exp2_by_fma(float x)
{
    constexpr float BIAS = 12582912.f; /* 1.5 * 2^23: adding it rounds down to an integer in the low bits */
    x = max_or_nan(x, -127.f);
    const float r = add_down(x, BIAS);
    const float f = x - (r - BIAS);
    const float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.07711909f, f, 0.22756439f), f, 0.69514614f), f, 1.f);
    return __int_as_float((__float_as_int(r) << 23) + __float_as_int(p));
}

/* Two elements of storage times -1 or 0 (a.turned); nothing is rounded, and a NaN or an infinity times 0 is a NaN. */
FXA_INLINE u32 negate_pair(const FxaArgs &a, u32 x)
{
    const u32 by = a.turned == 2 ? 0 : FXA_F16 ? 0xBC00BC00u : 0xBF80BF80u, none = 0x80008000u;
    return fma_pair(x, by, none);
}

/* The same of so many bytes of shared memory. */
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
 * Every 16-bit tile in shared memory is stored as blocks of 64 columns, each block `rows` rows of 128 bytes, in which
 * the 16-byte chunks are permuted by the row: what TMA writes with its 128-byte swizzle and what wgmma reads. Bases are
 * aligned to 1024 bytes. chunk counts groups of 8 columns from the tile's first column. So D columns take the room of
 * the next multiple of 64; what is past the tensor's columns holds zeros.
 */
constexpr int stored_columns(int d)
{
    return (d + 63) / 64 * 64;
}

constexpr int D_STORED = stored_columns(FXA_D), DV_STORED = stored_columns(FXA_DV);

template <int rows> FXA_INLINE u32 swizzled(u32 tile, int row, int chunk)
{
    return tile + (u32)((chunk >> 3) * (rows * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

/* Sum and maximum over the four lanes that share a row of an accumulator. */
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

#endif
