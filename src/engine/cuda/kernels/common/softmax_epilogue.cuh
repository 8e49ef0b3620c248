/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax epilogue of a row, by the same operations in every forward: its largest score, its LSE and the factor of its
 * output. Scores are in units of unit() (common/score.cuh).
 */
#ifndef FXA_CUDA_COMMON_SOFTMAX_EPILOGUE_CUH
#define FXA_CUDA_COMMON_SOFTMAX_EPILOGUE_CUH

#include "common/swizzle.cuh"

/* Returns the maximum of a row as it is subtracted from the row's scores. */
FXA_INLINE float finite_or_zero(float m)
{
    return m == NEG_INF ? 0.f : m;
}

/* Returns the largest new score of a row, from its largest value and the sum of its weights. A maximum ignores NaN;
 * the sum is NaN if a score is NaN or +inf. */
FXA_INLINE float row_maximum_of(float top, float sum, float unit)
{
    if (sum != sum && top != POS_INF) return sum;
    return top == NEG_INF ? NEG_INF : top * (unit * LN2);
}

/*
 * LSE and output factor of a row. m: maximum before the multiplication by the unit, 0 if nothing was attended; sum: sum
 * of the weights 2^((s - m) unit - bias). The sink, a key with a score and no value, is added only here. A factor of 0
 * means zeros.
 *
 * A maximum that overflows in base 2 (-3.4e38, a common large-negative mask) still has an LSE, because the logarithm of
 * its sum is negligible; so has a sink of that size. The bias is multiplied into the sum before the logarithm: added to
 * the logarithm of the biased sum, about -24, it would cancel and leave the error of 24.
 */
struct SoftmaxEpilogue {
    float factor, lse;

    FXA_INLINE SoftmaxEpilogue(const FxaArgs &a, int h, float m, float unit, float bias, float sum)
    {
        constexpr float LARGEST = 3.4e38f;
        const float own = a.sink ? a.sink[h] : NEG_INF;
        const bool far_sink = fabsf(own * LOG2E) > LARGEST && fabsf(own) < POS_INF;
        const float z = far_sink ? copysignf(LARGEST, own) : own * LOG2E;
        const float unbias = __int_as_float((127 + (int)bias) << 23); /* 2^bias */
        float top = m * unit, rescale = 1.f;
        const bool far = fabsf(top) > LARGEST;
        if (far) top = copysignf(LARGEST, top);
        sum *= unbias;
        if (z != NEG_INF) {
            const float most = sum == 0.f ? z : fmaxf(top, z);
            rescale = sum == 0.f ? 0.f : exp2_fast(top - most);
            sum = sum * rescale + exp2_fast(z - most);
            top = most;
        }
        factor = sum == 0.f ? 0.f : rescale / sum * unbias;
        if (FXA_DROPOUT) factor *= a.keep_inverse;
        lse = sum == 0.f ? NEG_INF : (top + log2_fast(sum)) * LN2;
        if (far && rescale == 1.f) lse = m * (unit * LN2) + (sum - sum);
        if (far_sink && rescale == 0.f) lse = own + (sum - sum);
    }
};

#endif
