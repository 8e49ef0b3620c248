/* SPDX-License-Identifier: Apache-2.0
 *
 * What a row of the online softmax comes to, in every forward by the same operations: its largest score, its LSE, and
 * the factor of its output. Scores are in units of unit() (common/score.cuh).
 */
#ifndef FXA_CUDA_COMMON_SOFTMAX_EPILOGUE_CUH
#define FXA_CUDA_COMMON_SOFTMAX_EPILOGUE_CUH

#include "common/swizzle.cuh"

/* A maximum of a row, as what is subtracted from its scores. */
FXA_INLINE float finite_or_zero(float m)
{
    return m == NEG_INF ? 0.f : m;
}

/* The largest new score of a row, of its largest value and what its exponentials add up to. A maximum drops a NaN; the
 * sum has it, or comes of an infinite score. */
FXA_INLINE float row_maximum_of(float top, float sum, float unit)
{
    if (sum != sum && top != POS_INF) return sum;
    return top == NEG_INF ? NEG_INF : top * (unit * LN2);
}

/*
 * What becomes of a row at the end. m: its maximum before it was multiplied by the unit (0 where nothing was attended);
 * sum: what its exponentials 2^((s - m) unit - bias) add up to. The sink, a key with a score and no value, only joins
 * here. A factor of 0 means zeros. A maximum that overflows in log2 (-3.4e38, the usual large penalty) still has an
 * LSE: the logarithm of its sum is nothing beside it; so has a sink of that size. The bias is multiplied back into the
 * sum before its logarithm is taken: added to that of the biased sum, -24 and a little, it would cancel and leave the
 * error of 24.
 */
struct SoftmaxEpilogue {
    float factor, lse;

    FXA_INLINE SoftmaxEpilogue(const FxaArgs &a, int h, float m, float unit, float bias, float sum)
    {
        constexpr float MOST = 3.4e38f;
        const float own = a.sink ? a.sink[h] : NEG_INF;
        const bool far_sink = fabsf(own * LOG2E) > MOST && fabsf(own) < POS_INF;
        const float z = far_sink ? copysignf(MOST, own) : own * LOG2E;
        const float lift = __int_as_float((127 + (int)bias) << 23); /* 2^bias */
        float top = m * unit, fade = 1.f;
        const bool far = fabsf(top) > MOST;
        if (far) top = copysignf(MOST, top);
        sum *= lift;
        if (z != NEG_INF) {
            const float most = sum == 0.f ? z : fmaxf(top, z);
            fade = sum == 0.f ? 0.f : exp2_fast(top - most);
            sum = sum * fade + exp2_fast(z - most);
            top = most;
        }
        factor = sum == 0.f ? 0.f : fade / sum * lift;
        if (FXA_DROPOUT) factor *= a.keep_inverse;
        lse = sum == 0.f ? NEG_INF : (top + log2_fast(sum)) * LN2;
        if (far && fade == 1.f) lse = m * (unit * LN2) + (sum - sum);
        if (far_sink && fade == 0.f) lse = own + (sum - sum);
    }
};

#endif
