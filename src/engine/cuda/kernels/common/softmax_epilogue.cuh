/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax epilogue of a row, with the same operations in every forward kernel: the row's largest score, the row's LSE
 * and the factor by which the row's sum of weighted values is multiplied to get O. Scores here lack the factor
 * Program::unit() of all scores: a score s stands for the new score s * unit() / log2(e)
 * (common/program_interface.cuh).
 */
#ifndef FXA_CUDA_COMMON_SOFTMAX_EPILOGUE_CUH
#define FXA_CUDA_COMMON_SOFTMAX_EPILOGUE_CUH

#include "common/swizzle.cuh"

/* Returns what is subtracted from the scores of a row with maximum m: m, or 0 if no pair of the row is attended
 * (-inf). */
FXA_INLINE float finite_or_zero(float m)
{
    return m == NEG_INF ? 0.f : m;
}

/* Returns the largest new score (score after the score program) of a row. top: largest score before the factor `unit`
 * of all scores; sum: sum of the row's weights. fmaxf ignores NaN, but the sum is NaN if a score is NaN or +inf, and is
 * then returned unless top is +inf. */
FXA_INLINE float row_maximum_of(float top, float sum, float unit)
{
    if (sum != sum && top != POS_INF) return sum;
    return top == NEG_INF ? NEG_INF : top * (unit * LN2);
}

/*
 * LSE of a row, and the factor by which the kernel multiplies the row's sum of weighted values to get O. m: maximum of
 * the row's scores before the factor `unit` of all scores, 0 if no pair is attended; sum: sum of the weights 2^((s - m)
 * unit - bias). The head's sink, a key with a score and no value, is added only here. If factor = 0 the kernel stores
 * zeros.
 *
 * A row whose maximum overflows when multiplied by log2(e) (-3.4e38, a common large-negative mask) still gets a finite
 * LSE: its maximum, because the logarithm of the sum is negligible. A sink of that magnitude is treated likewise. The
 * sum is multiplied by 2^bias before the logarithm, because adding the bias to a logarithm near -24 is less precise.
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
            const float largest = sum == 0.f ? z : fmaxf(top, z);
            rescale = sum == 0.f ? 0.f : exp2_fast(top - largest);
            sum = sum * rescale + exp2_fast(z - largest);
            top = largest;
        }
        factor = sum == 0.f ? 0.f : rescale / sum * unbias;
        if (FXA_DROPOUT) factor *= a.keep_inverse;
        lse = sum == 0.f ? NEG_INF : (top + log2_fast(sum)) * LN2;
        if (far && rescale == 1.f) lse = m * (unit * LN2) + (sum - sum);
        if (far_sink && rescale == 0.f) lse = own + (sum - sum);
    }
};

#endif
