/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of tiles by wgmma: descriptors of operands in shared memory, and whole products that are started and not
 * waited for.
 */
#ifndef FXA_CUDA_SM90_WGMMA_CUH
#define FXA_CUDA_SM90_WGMMA_CUH

#include "common/swizzle.cuh"
#include "sm90/ptx_wgmma.cuh"

/*
 * Descriptor of a swizzled tile (common/swizzle.cuh): address, LBO and SBO in units of 16 bytes, 128-byte swizzle.
 * K-major operands step by 32 bytes per k16 inside a block of 64 columns; N-major ones by 16 rows, and LBO is the
 * distance between blocks of 64 columns.
 */
FXA_INLINE u64 descriptor(u32 address, u32 block_bytes)
{
    return (1ull << 62) | ((u64)(1024 >> 4) << 32) | ((u64)((block_bytes & 0x3ffff) >> 4) << 16) |
           (u64)((address & 0x3ffff) >> 4);
}

FXA_INLINE u64 k_major(u32 address)
{
    return descriptor(address, 16);
}

template <int rows> FXA_INLINE u64 n_major(u32 address)
{
    return descriptor(address, rows * 128);
}

/* What to add for k-step k of a K-major tile of so many rows, of an N-major one. */
template <int rows> FXA_INLINE constexpr u32 k_step(int k)
{
    return (u32)(((k / 4) * rows * 128 + (k % 4) * 32) >> 4);
}

FXA_INLINE constexpr u32 n_step(int k)
{
    return (u32)((k * 2048) >> 4);
}

/* ---- Whole products, started but not waited for ----------------------------------------------------------------- */

/* How many steps of 16 one statement has, where it may have several (sm90/ptx_wgmma.cuh). */
FXA_INLINE constexpr int steps_of(int columns, bool several)
{
    return !several ? 1 : columns / 16 % 4 ? 2 : 4;
}

/* x[64 x N] = 64 rows of a tile from `left` on times the rows of the tile `right`, over so many columns. */
template <int columns, int left_rows, int right_rows, int steps = 1, int n>
FXA_INLINE void issue_rows(float (&x)[n], u32 left, u32 right)
{
    const u64 a = k_major(left), b = k_major(right);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < columns / 16; k += steps)
        wgmma<0, steps>(x, a + k_step<left_rows>(k), b + k_step<right_rows>(k), k > 0);
    wgmma_commit();
}

/* The same with the left rows in registers. */
template <int columns, int right_rows, int n, int words>
FXA_INLINE void issue_held(float (&x)[n], const u32 (&left)[words], u32 right)
{
    const u64 b = k_major(right);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < columns / 16; k++) wgmma<0, 1>(x, left, k, b + k_step<right_rows>(k), k > 0);
    wgmma_commit();
}

/* sum[64 x N] += weights[64 x rows], from registers, times the rows of a tile. */
template <int rows, int steps = 1, int n, int words>
FXA_INLINE void issue_sum(float (&sum)[n], u32 (&weights)[words], u32 tile)
{
    const u64 b = n_major<rows>(tile);
    static_assert(words == rows / 4, "a word has two weights of two rows");
    settle(weights);
    settle(sum);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < rows / 16; k += steps) wgmma<1, steps>(sum, weights, k, b + n_step(k));
    wgmma_commit();
}

#endif
