/* SPDX-License-Identifier: Apache-2.0
 *
 * tanh of score programs, and of soft caps: a tile is bent by whichever of three ways all of its pairs allow
 * (softcap_all() of common/score.cuh, which has the program). What each may be off by: docs/numerics.md.
 */
#ifndef FXA_CUDA_COMMON_SOFTCAP_TANH_CUH
#define FXA_CUDA_COMMON_SOFTCAP_TANH_CUH

#include "common/swizzle.cuh"

/*
 * tanh of score programs: the hardware's (relative error 2^-11) with FXA_FAST_MATH, else within 4 ulps: an odd
 * polynomial near 0, 1 - 2 / (1 + exp(2 x)) beyond. Lanes that are near go through the polynomial alone (the reciprocal
 * keeps the rest under their condition), so that functions beyond cost a warp what its far lanes need.
 */
constexpr float TANH_NEAR = 0.6f;

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
    if (fabsf(x) >= TANH_NEAR) {
        const float y = reciprocal_fast(exp2_fast(x * (2.f * LOG2E)) + 1.f);
        t = __fmaf_rn(-2.f, y, 1.f);
    }
    return t;
#endif
}

/* s times a polynomial of s^2, whose coefficients are numbers of the run: tanh near 0 of the score times a factor,
 * times the unit, with neither product. */
FXA_INLINE float score_softcap_series(float s, const float *c)
{
    const float z = s * s;
    float p = c[FXA_CUDA_SOFTCAP_TERMS - 1];
#pragma unroll
    for (int i = FXA_CUDA_SOFTCAP_TERMS - 2; i >= 0; i--) p = __fmaf_rn(p, z, c[i]);
    return s * p;
}

/* A run's numbers for score_softcap_four: u tanh(s factor / (2 log2(e))), inverse = -1 / (2 u). */
struct SoftcapExp {
    float factor, inverse, u;
};

/*
 * u (1 - 2 / (1 + e)) with e = 2^(s factor), of four pairs by one reciprocal: with p = inverse (1 + e) (1 + e') that of
 * p p' gives 1 / p = -2 u / ((1 + e) (1 + e')), and that times (1 + e') is what a pair adds to u. Five instructions and
 * a half for each and one and a quarter of the special function unit, which is what tiles wait for; no pair may have e
 * so large that p p' overflows, nor be NaN, which its neighbours would be too. Off by up to 2^-20 u: docs/numerics.md
 * has the sum.
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
        const float share = r * p[1 - i], rest = share + b.u;
        s[2 * i] = __fmaf_rn(share, e[2 * i + 1], rest);
        s[2 * i + 1] = __fmaf_rn(share, e[2 * i], rest);
    }
}

#endif
