/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and products of sm_80 and newer: cp.async and mma.sync. Tiles in shared memory are swizzled as in device.cuh.
 * Accumulators of a warp lie as those of wgmma do: row lane / 4 + 8 * (x / 2), column lane % 4 * 2 + x % 2 of register
 * x.
 */
#ifndef FXA_CUDA_AMPERE_CUH
#define FXA_CUDA_AMPERE_CUH

#include "device.cuh"

FXA_INLINE void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> FXA_INLINE void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* d[16 x 8] += a[16 x 16] b[16 x 8] */
FXA_INLINE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
#if FXA_F16
#define MMA_TYPES "f16.f16"
#else
#define MMA_TYPES "bf16.bf16"
#endif
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPES ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* `threads` threads copy rows x D from memory; rows from `limit` on become zeros. */
template <int rows, int threads>
FXA_INLINE void copy_tile(u32 to, const u16 *from, long long stride, int limit, int thread)
{
    constexpr int CHUNKS = FXA_D / 8, STEP = threads / CHUNKS;
    static_assert(threads % CHUNKS == 0 && rows % STEP == 0 && STEP % 8 == 0, "every thread keeps its column");
    const int row = thread / CHUNKS, chunk = thread % CHUNKS;
    const u16 *at = from + row * stride + chunk * 8;
    const u32 first = swizzled<rows>(to, row, chunk);
#pragma unroll
    for (int i = 0; i < rows / STEP; i++) {
        const bool inside = row + i * STEP < limit;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(first + i * STEP * 128),
                     "l"(inside ? at + i * STEP * stride : from), "r"(inside ? 16 : 0)
                     : "memory");
    }
}

FXA_INLINE const u16 *rows_of(const FxaView &t, int b, int h, long long s)
{
    return (const u16 *)t.data + b * t.b + h * t.h + s * t.s;
}

/* Operand A of k-step k: 16 rows of a tile from `row` on. */
template <int rows> FXA_INLINE void operand_a(u32 (&r)[4], u32 tile, int row, int k, int lane)
{
    load_matrix(swizzled<rows>(tile, row + (lane & 15), k * 2 + (lane >> 4)), r);
}

/* Operands B of k-step k for the 16 columns of the product that are the tile's rows from `row` on: r[0], r[1] of the
 * first eight, r[2], r[3] of the others. */
template <int rows> FXA_INLINE void operand_b(u32 (&r)[4], u32 tile, int row, int k, int lane)
{
    load_matrix(swizzled<rows>(tile, row + ((lane >> 4) << 3) + (lane & 7), k * 2 + ((lane >> 3) & 1)), r);
}

/* The same where the tile's rows are the inner dimension: k-step k is rows 16 k on, columns 8 * chunk on. */
template <int rows> FXA_INLINE void operand_b_transposed(u32 (&r)[4], u32 tile, int k, int chunk, int lane)
{
    load_matrix_transposed(swizzled<rows>(tile, k * 16 + (lane & 15), chunk + (lane >> 4)), r);
}

/* What the program reads of a pair from memory. Positions past the lengths read zeros. */
struct PairLoads {
    const float *diagonal; /* of q - k = 0 */
    const int *q_words, *k_words;
    const u16 *dense;
    int q_len, k_len;

    FXA_INLINE PairLoads(const FxaArgs &a, int b, int h, int q_len_, int k_len_)
        : diagonal(a.diagonal.data + b * a.diagonal.b + h * a.diagonal.h + a.diagonal.zero),
          q_words(a.q_vector.data + b * a.q_vector.b + h * a.q_vector.h),
          k_words(a.k_vector.data + b * a.k_vector.b + h * a.k_vector.h),
          dense((const u16 *)a.dense.data + b * a.dense.b + h * a.dense.h), q_len(q_len_), k_len(k_len_)
    {
    }

    FXA_INLINE float dense_at(const FxaArgs &a, int q, int k) const
    {
        return q < q_len && k < k_len ? unpack_low(__ldg(dense + q * a.dense.s + k)) : 0.f;
    }
};

#endif
