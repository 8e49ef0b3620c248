/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of pairs (q, k) in the backward kernels: dS, computed from the pair's weight in P, the derivative of the
 * score program, and dP - delta; and what dS adds to the gradients of captured tensors and params.
 */
#ifndef FXA_CUDA_COMMON_PAIR_GRADIENTS_CUH
#define FXA_CUDA_COMMON_PAIR_GRADIENTS_CUH

#include "common/score.cuh"

/* dS = weight * derivative * rest, with the weight in P and rest = dP - delta, is computed in two steps:
 * times_derivative() returns weight * derivative, and times_rest() returns this product times rest. If the derivative
 * may be infinite or NaN (PROG_DERIVATIVE 2), a weight or rest of 0 returns 0. */
FXA_INLINE float times_derivative(float weight, float derivative)
{
    return PROG_DERIVATIVE == 2 && weight == 0.f ? 0.f : weight * derivative;
}

FXA_INLINE float times_rest(float product, float rest)
{
    return PROG_DERIVATIVE == 2 && rest == 0.f ? 0.f : product * rest;
}

/* Returns the gradient of the scaled score: user_backward() of ds, the gradient of the new score, if the program has a
 * user-written backward, otherwise ds. */
FXA_INLINE float user_gradient(const Program &program, const FxaArgs &a, float s, const Pair &pair, float ds)
{
#if PROG_USER_BACKWARD
    return ds == 0.f ? 0.f : call_user_backward(program, a, s, pair, ds);
#else
    return ds;
#endif
}

/* Gradients of params and captured tensors. A thread adds what its pairs (q, k) contribute to the registers `sums`
 * (PROG_GRAD_SUMS), and with PROG_GRAD_SCATTER to memory, by the atomics of scatter(). */
struct PairGradients {
    float sums[PROG_GRAD_SUMS ? PROG_GRAD_SUMS : 1];

    FXA_INLINE void clear()
    {
        for (int i = 0; i < PROG_GRAD_SUMS; i++) sums[i] = 0.f;
    }

    /* Adds what a pair (q, k) contributes to the gradients. ds: gradient of the pair's new score (the result of the
     * score program). A pair with ds = 0 adds nothing, because the derivatives by which ds is multiplied (partials())
     * may be infinite or NaN. */
    FXA_INLINE void add(Program &program, const FxaArgs &a, int b, int h, float s, const Pair &pair, float ds)
    {
#if PROG_GRAD_SUMS
        const Partials g = call_partials(program, a, s, pair);
#pragma unroll
        for (int i = 0; i < PROG_GRAD_SUMS; i++) sums[i] = ds == 0.f ? sums[i] : __fmaf_rn(ds, g.of[i], sums[i]);
#endif
#if PROG_GRAD_SCATTER
        if (__any_sync(~0u, ds != 0.f)) call_scatter(program, a, b, h, s, pair, ds);
        keep_order(); /* the next pair comes after this one: addresses of several pairs take too many registers */
#endif
    }

    /* Adds up each of the `sums` over the lanes of the warp, and stores the totals in FxaArgs.sums; all lanes of the
     * warp call this function. row: key tile * FxaShape.sum_rows + warp */
    FXA_INLINE void store(const FxaArgs &a, int b, int h, int row) const
    {
#if PROG_GRAD_SUMS
#pragma unroll
        for (int i = 0; i < PROG_GRAD_SUMS; i++) {
            float all = sums[i];
#pragma unroll
            for (int x = 16; x; x >>= 1) all += __shfl_xor_sync(~0u, all, x);
            if ((threadIdx.x & 31) == 0) a.sums.data[b * a.sums.b + h * a.sums.h + row * PROG_GRAD_SUMS + i] = all;
        }
#endif
    }
};

#endif
