/* SPDX-License-Identifier: Apache-2.0
 *
 * tanh of score programs and of soft caps. The soft cap of a tile is computed in the fastest of three ways that all of
 * its pairs allow (softcap_all() in common/score.cuh). docs/numerics.md has the error bounds.
 */
#ifndef FXA_CUDA_COMMON_SOFTCAP_TANH_CUH
#define FXA_CUDA_COMMON_SOFTCAP_TANH_CUH

#include "common/swizzle.cuh"

/*
 * Returns tanh(x): with FXA_FAST_MATH by the hardware instruction (relative error 2^-11), otherwise within 4 ulps, by
 * an odd polynomial near 0 and by 1 - 2 / (1 + exp(2 x)) beyond. The reciprocal is volatile and stays under its
 * condition, so that warps whose lanes are all near 0 evaluate only the polynomial.
 */
constexpr float TANH_MAX_SERIES = 0.6f;

FXA_INLINE float score_tanh(float x)
{
#if FXA_FAST_MATH
    return tanh_fast(x);
#else
    const float z = x * x;
    float p = __fmaf_rn(0.015612896531820297f, z, -0.05221197009086609f);
    p = __fmaf_rn(p, z, 0.13313119113445282f);
    p = __fmaf_rn(p, z, -0.33332598209381104f);
    float t = __fmaf_rn(x * z, p, x);
    if (fabsf(x) >= TANH_MAX_SERIES) {
        const float y = reciprocal_fast(exp2_fast(x * (2.f * LOG2E)) + 1.f);
        t = __fmaf_rn(-2.f, y, 1.f);
    }
    return t;
#endif
}

/* Returns u * tanh(factor * s) for s near 0, as s times a polynomial of s^2. The host multiplies the run-time
 * coefficients c by `u` and the powers of `factor`. */
FXA_INLINE float score_softcap_series(float s, const float *c)
{
    const float z = s * s;
    float p = c[FXA_CUDA_SOFTCAP_TERMS - 1];
#pragma unroll
    for (int i = FXA_CUDA_SOFTCAP_TERMS - 2; i >= 0; i--) p = __fmaf_rn(p, z, c[i]);
    return s * p;
}

/* Run-time constants of score_softcap_four(), which computes u tanh(s factor / (2 log2(e))) = u (1 - 2 / (1 + 2^(s
 * factor))). inverse = -1 / (2 u) */
struct SoftcapExp {
    float factor, inverse, u;
};

/*
 * Computes u (1 - 2 / (1 + e)) with e = 2^(s factor) for the scores s[0] to s[3], with one reciprocal. Let p = inverse
 * (1 + e) (1 + e') for two of the scores, and p' for the other two. One reciprocal of p p' gives 1 / p = -2 u / ((1 +
 * e) (1 + e')) and 1 / p'; (1 + e') / p is then the term -2 u / (1 + e) of the first score. The cost per score is 5.5
 * instructions, and 1.25 of the special function unit, the bottleneck of a tile. Requires that p p' does not overflow
 * and no score is NaN, which would spread to the others. The error is at most 2^-20 u (docs/numerics.md derives it).
 */
FXA_INLINE void score_softcap_four(const SoftcapExp &b, float *s)
{
    float e[4], p[2];
#pragma unroll
    for (int i = 0; i < 4; i++) e[i] = exp2_fast(s[i] * b.factor);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float half = __fmaf_rn(e[2 * i + 1], b.inverse, b.inverse);
        p[i] = __fmaf_rn(half, e[2 * i], half);
    }
    const float r = reciprocal_free(p[0] * p[1]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float product = r * p[1 - i], rest = product + b.u;
        s[2 * i] = __fmaf_rn(product, e[2 * i + 1], rest);
        s[2 * i + 1] = __fmaf_rn(product, e[2 * i], rest);
    }
}

#endif
