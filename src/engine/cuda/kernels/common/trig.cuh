/* SPDX-License-Identifier: Apache-2.0
 *
 * sin, cos and tan of score programs, within 2 ulps (tan: 4) for every float. CUDA's library inlines the reduction of
 * large arguments, a loop and a table, at every call, and a tile has hundreds of calls: two of them take half a minute
 * to compile. Here the reduction of large arguments is one out-of-line function, and sin and cos of one argument, as a
 * value and its derivative need, share all but the last three instructions. The file is C as well as CUDA, for tests on
 * the host.
 */
#ifndef FXA_CUDA_COMMON_TRIG_CUH
#define FXA_CUDA_COMMON_TRIG_CUH

#include "common/swizzle.cuh"

/* An argument of sin, cos or tan as quarters * pi / 2 + rest. `quarters` is right modulo 4, and |rest| is at most
 * slightly more than pi / 4. */
struct TrigAngle {
    int quarters;
    float rest;
};

/* Largest |x| for which trig_reduce() exactly subtracts the product of `quarters` and the first part of pi / 2. */
#define TRIG_MAX_REDUCED 131072.f

/* Reduces an argument up to TRIG_MAX_REDUCED. x * 2 / pi is rounded to the nearest integer by the addition of a number
 * whose last bit is worth 1. */
FXA_INLINE struct TrigAngle trig_reduce(float x)
{
    const float WHOLE = 12582912.f; /* 1.5 * 2^23 */
    const float shifted = __fmaf_rn(x, 0.636619747f, WHOLE), quarters = __fsub_rn(shifted, WHOLE);
    float rest = __fmaf_rn(quarters, -1.57079625f, x);
    rest = __fmaf_rn(quarters, -7.54978942e-08f, rest);
    rest = __fmaf_rn(quarters, -5.39030295e-15f, rest);
    struct TrigAngle t;
    t.quarters = __float_as_int(shifted);
    t.rest = rest;
    return t;
}

FXA_INLINE float trig_sin(float rest)
{
    const float z = __fmul_rn(rest, rest);
    const float p = __fmaf_rn(__fmaf_rn(-1.95102897e-4f, z, 8.33212398e-3f), z, -0.166666538f);
    return __fmaf_rn(__fmaf_rn(rest, z, 0.f), p, rest); /* + 0: keeps the sign of -0 */
}

FXA_INLINE float trig_cos(float rest)
{
    const float z = __fmul_rn(rest, rest);
    const float p = __fmaf_rn(__fmaf_rn(2.44274498e-5f, z, -1.38872664e-3f), z, 4.16666456e-2f);
    return __fmaf_rn(__fmaf_rn(p, z, -0.5f), z, 1.f);
}

/* Returns the sine of an angle plus `more` quarter turns. */
FXA_INLINE float trig_sine(struct TrigAngle t, int more)
{
    const int quarters = t.quarters + more;
    const float x = quarters & 1 ? trig_cos(t.rest) : trig_sin(t.rest);
    return __int_as_float(__float_as_int(x) ^ (int)(((u32)quarters & 2) << 30));
}

/* Returns word w0, w1, w2 or w3 of 2 / pi, by index `on`. */
FXA_INLINE u32 trig_word(u32 on, u32 w0, u32 w1, u32 w2, u32 w3)
{
    return on == 0 ? w0 : on == 1 ? w1 : on == 2 ? w2 : w3;
}

FXA_INLINE u32 trig_shift(u32 high, u32 low, u32 by)
{
    return (u32)((((u64)high << 32 | low) << by) >> 32);
}

/*
 * Returns the sine of x plus `more` quarter turns, for |x| > TRIG_MAX_REDUCED; NaN if x is infinite.
 *
 * |x| = m * 2^(e - 158): m is the mantissa as 32 bits, the first of which is 1, and e is the exponent field of x. `all`
 * is the number of quarter turns, |x| * 2 / pi, modulo 4, with 62 bits after the binary point. The bits of 2 / pi whose
 * products with m are multiples of 4 quarter turns are skipped, and the next 96 bits are multiplied by m. `all` is too
 * small by less than 2^-61 quarter turns, and no float of this size is closer than 2^-30 quarter turns to a multiple of
 * a quarter turn, so the relative error of the rest is below 2^-31 before the rest is rounded to f32.
 */
static __device__ __noinline__ float trig_large(float x, int more)
{
    const u32 A = 0xa2f9836eu, B = 0x4e441529u, C = 0xfc2757d1u, D = 0xf534ddc0u, E = 0xdb629599u, F = 0x3c439041u;
    const u32 bits = (u32)__float_as_int(x), m = bits << 8 | 0x80000000u, past = (bits >> 23) & 127, on = past >> 5;
    const u32 w1 = trig_word(on, A, B, C, D), w2 = trig_word(on, B, C, D, E), by = past & 31;
    const u32 first = trig_shift(trig_word(on, 0, A, B, C), w1, by), second = trig_shift(w1, w2, by);
    const u32 third = trig_shift(w2, trig_word(on, C, D, E, F), by);
    const u64 all = ((u64)(m * first) << 32) + (u64)m * second + ((u64)m * third >> 32);
    const int quarters = (int)((all + (1ull << 61)) >> 62);
    const float rest = (float)((double)(long long)(all << 2) * 8.5153039502163873e-20); /* pi / 2 * 2^-64 */
    const bool below = x < 0.f, finite = fabsf(x) <= 3.40282347e38f;
    struct TrigAngle t;
    t.quarters = below ? -quarters : quarters;
    t.rest = !finite ? x - x : below ? -rest : rest;
    return trig_sine(t, more);
}

/* Returns sin(x). The branch for large x comes after the common case, so that the common case stays one basic block. */
FXA_INLINE float score_sin(float x)
{
    float y = trig_sine(trig_reduce(x), 0);
    if (fabsf(x) > TRIG_MAX_REDUCED) y = trig_large(x, 0);
    return y;
}

FXA_INLINE float score_cos(float x)
{
    float y = trig_sine(trig_reduce(x), 1);
    if (fabsf(x) > TRIG_MAX_REDUCED) y = trig_large(x, 1);
    return y;
}

FXA_INLINE float score_tan(float x)
{
    return score_sin(x) / score_cos(x);
}

#endif
