/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of an FxaDiagonalGrad (sums of dS over pairs of equal q - k): floats, whose additions have no fixed order,
 * or with PROG_GRAD_DIAGONAL_EXACT exact sums.
 */
#ifndef FXA_CUDA_COMMON_DIAGONAL_SUM_CUH
#define FXA_CUDA_COMMON_DIAGONAL_SUM_CUH

#include "common/program_interface.cuh"

#if PROG_GRAD_DIAGONAL_EXACT
typedef FxaExact DiagonalSum;
#else
typedef float DiagonalSum;
#endif

/* Returns the sums to which key tile n of (b, h) adds. */
FXA_INLINE DiagonalSum *diagonal_row(const FxaArgs &a, int b, int h, int n)
{
    const FxaDiagonalGrad &g = a.grad_diagonal;
    return (DiagonalSum *)g.data + b * g.b + h * g.h + n * g.n;
}

FXA_INLINE void diagonal_add(DiagonalSum *at, float x)
{
#if PROG_GRAD_DIAGONAL_EXACT
    exact_add(at, x);
#else
    atomicAdd(at, x);
#endif
}

FXA_INLINE double diagonal_read(const DiagonalSum *at)
{
#if PROG_GRAD_DIAGONAL_EXACT
    return exact_value(at);
#else
    return (double)*at;
#endif
}

#endif
