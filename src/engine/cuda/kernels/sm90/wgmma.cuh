/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of tiles by wgmma: descriptors of operands in shared memory, and products of entire tiles, which are issued
 * and committed without waiting.
 */
#ifndef FXA_CUDA_SM90_WGMMA_CUH
#define FXA_CUDA_SM90_WGMMA_CUH

#include "common/swizzle.cuh"
#include "sm90/ptx_wgmma.cuh"

/*
 * Descriptor of a swizzled tile (common/swizzle.cuh): address, LBO and SBO in units of 16 bytes, 128-byte swizzle.
 * K-major operands step by 32 bytes per k-step of 16 inside a block of 64 columns; N-major ones by 16 rows, and LBO is
 * the distance between blocks of 64 columns.
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

/* Returns the offset of k-step k, to be added to the descriptor of a K-major tile of `rows` rows; n_step() returns the
 * offset for an N-major tile. */
template <int rows> FXA_INLINE constexpr u32 k_step(int k)
{
    return (u32)(((k / 4) * rows * 128 + (k % 4) * 32) >> 4);
}

FXA_INLINE constexpr u32 n_step(int k)
{
    return (u32)((k * 2048) >> 4);
}

/* Returns the index, in a thread's accumulators, of the thread's column j in its row r (0 or 1; the two rows are 8
 * apart). A thread has two columns of every 8: its column j is column j / 2 * 8 + thread % 4 * 2 + j % 2 of the
 * tile. */
FXA_INLINE constexpr int fragment(int j, int r)
{
    return (j >> 1) * 4 + r * 2 + (j & 1);
}

/* ---- Products of tiles, issued and committed without waiting ----------------------------------------------------- */

/* Returns the number of k-steps (of 16 columns each) per inline-assembly statement (sm90/ptx_wgmma.cuh); 1 unless
 * `several`. */
FXA_INLINE constexpr int steps_of(int columns, bool several)
{
    return !several ? 1 : columns / 16 % 4 ? 2 : 4;
}

/* x[64 x N] = 64 rows of a tile, from address `left`, times the transposed rows of the tile `right`, over `columns`
 * columns. */
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

/* x[64 x N] = 64 rows in registers times the transposed rows of the tile `right`, over `columns` columns. */
template <int columns, int right_rows, int n, int words>
FXA_INLINE void issue_rows_of_registers(float (&x)[n], const u32 (&left)[words], u32 right)
{
    const u64 b = k_major(right);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < columns / 16; k++) wgmma<0, 1>(x, left, k, b + k_step<right_rows>(k), k > 0);
    wgmma_commit();
}

/* sum[64 x N] += weights[64 x rows], from registers, times a tile of `rows` rows. */
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
