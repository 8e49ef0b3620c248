/* SPDX-License-Identifier: Apache-2.0
 *
 * Emulation in AVX-512 F of the AVX512_BF16 instructions that the cpu engine uses, as Intel's manual defines them:
 * rounding to nearest even; subnormal inputs and outputs are zero; independent of the thread's mode. The kernels for
 * bf16 thus run on processors that have AVX-512 only.
 *
 * As in the manual, two results are unspecified: which of several NaN is returned, and whether a sum that rounds up to
 * the smallest normal number is flushed.
 */
#ifndef FXA_TESTS_BF16_MODEL_H
#define FXA_TESTS_BF16_MODEL_H

#if defined(__x86_64__)

#include <immintrin.h>

#define BF16_MODEL static inline __attribute__((target("avx512f,avx512bw")))

BF16_MODEL __m512i bf16_model_flush(__m512i x) {
    __m512i size = _mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff));
    __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    return _mm512_mask_and_epi32(x, small, x, _mm512_set1_epi32((int)0x80000000u));
}

/* Returns x * y + sum with a single rounding; sum is not subnormal. */
BF16_MODEL __m512 bf16_model_fma(__m512i x, __m512i y, __m512 sum) {
    __m512 a = _mm512_castsi512_ps(bf16_model_flush(x)), b = _mm512_castsi512_ps(bf16_model_flush(y));
    __m512 z = _mm512_fmadd_round_ps(a, b, sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_castsi512_ps(bf16_model_flush(_mm512_castps_si512(z)));
}

/* Return the bf16 in the lower (even) or upper (odd) 16 bits of each 32-bit lane as floats. */
BF16_MODEL __m512i bf16_model_even(__m512i x) { return _mm512_slli_epi32(x, 16); }
BF16_MODEL __m512i bf16_model_odd(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)); }

/* VDPBF16PS: adds the product of the odd (upper) elements first. */
BF16_MODEL __m512 bf16_model_dot(__m512 sum, __m512i x, __m512i y) {
    sum = _mm512_castsi512_ps(bf16_model_flush(_mm512_castps_si512(sum)));
    sum = bf16_model_fma(bf16_model_odd(x), bf16_model_odd(y), sum);
    return bf16_model_fma(bf16_model_even(x), bf16_model_even(y), sum);
}

/* Returns x rounded to bf16, in the lower 16 bits of each 32-bit lane. A NaN becomes quiet. */
BF16_MODEL __m512i bf16_model_round(__m512 x) {
    __m512i bits = bf16_model_flush(_mm512_castps_si512(x)), one = _mm512_set1_epi32(1);
    __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
    __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    return _mm512_srli_epi32(_mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x00400000)), 16);
}

/* VCVTNE2PS2BF16: the lower half of the result comes from `low`, the upper half from `high`. */
BF16_MODEL __m512i bf16_model_round_two(__m512 high, __m512 low) {
    __m256i a = _mm512_cvtepi32_epi16(bf16_model_round(low)), b = _mm512_cvtepi32_epi16(bf16_model_round(high));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

#endif
#endif
