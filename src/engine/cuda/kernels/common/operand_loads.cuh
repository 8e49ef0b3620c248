/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain loads of what value() and mask() read for each pair (diagonal row, dense tensor, FxaOperands), and
 * plain stores of the gradients of captured tensors, for kernels that do not copy these with their tiles.
 */
#ifndef FXA_CUDA_COMMON_OPERAND_LOADS_CUH
#define FXA_CUDA_COMMON_OPERAND_LOADS_CUH

#include "common/diagonal_sum.cuh"
#include "common/storage.cuh"

/* Addresses of diagonal row, FxaOperands and dense tensor of a (b, h). dense_at() returns 0 past the lengths. */
struct OperandLoads {
    const float *diagonal; /* entry for q - k = 0 */
    const int *q_words, *k_words;
    const Stored *dense;
    int q_len, k_len;

    FXA_INLINE OperandLoads(const FxaArgs &a, int b, int h, int q_len_, int k_len_)
        : diagonal(a.diagonal.data + b * a.diagonal.b + h * a.diagonal.h + a.diagonal.zero),
          q_words(a.q_vector.data + b * a.q_vector.b + h * a.q_vector.h),
          k_words(a.k_vector.data + b * a.k_vector.b + h * a.k_vector.h),
          dense((const Stored *)a.dense.data + b * a.dense.b + h * a.dense.h), q_len(q_len_), k_len(k_len_)
    {
    }

    FXA_INLINE float dense_at(const FxaArgs &a, int q, int k) const
    {
        return q < q_len && k < k_len ? from_stored(__ldg(dense + q * a.dense.s + k)) : 0.f;
    }
};

/* Stores ds, the gradient of the new score of (q, k), as the gradient of the dense tensor's element (q, k). */
FXA_INLINE void store_dense(const FxaArgs &a, int b, int h, int q, int k, float ds)
{
#if PROG_GRAD_DENSE
    row_of(a.grad_dense, b, h, q)[k] = to_stored(ds);
#endif
}

/* Calls store_dense(), and adds ds to the gradient of the diagonal row. n: index of the key tile. */
FXA_INLINE void store_captured(const FxaArgs &a, int b, int h, int n, int q, int k, float ds)
{
    store_dense(a, b, h, q, k, ds);
#if PROG_GRAD_DIAGONAL
    const FxaDiagonalGrad &g = a.grad_diagonal;
    const int at = q - k + g.zero + n * g.zero_step;
    if ((unsigned)at < (unsigned)g.size) diagonal_add(diagonal_row(a, b, h, n) + at, ds);
#endif
}

#endif
