/* SPDX-License-Identifier: Apache-2.0
 *
 * Operands of pairs by plain loads, and gradients of captured tensors by plain stores, for kernels that do not copy
 * them with their tiles.
 */
#ifndef FXA_CUDA_COMMON_OPERAND_LOADS_CUH
#define FXA_CUDA_COMMON_OPERAND_LOADS_CUH

#include "common/diagonal_sum.cuh"
#include "common/storage.cuh"

/* Addresses of a head's operands. Positions past the lengths read zeros of the dense tensor. */
struct OperandLoads {
    const float *diagonal; /* entry of q - k = 0 */
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

/* Stores the gradients of the dense tensor, and store_captured() also of the diagonal row, for a pair whose new
 * score has the gradient ds. n: key tile */
FXA_INLINE void store_dense(const FxaArgs &a, int b, int h, int q, int k, float ds)
{
#if PROG_GRAD_DENSE
    row_of(a.grad_dense, b, h, q)[k] = to_stored(ds);
#endif
}

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
