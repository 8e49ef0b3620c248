/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact sums, for gradients of captured tensors that have elements with terms of many (q, k). A float is an integer
 * multiple of 2^-149, so a sum of floats is an integer of 320 bits (FxaExact), to which threads add by atomics on its
 * 64-bit words, carries included. The result has the same bits in any order of additions, and is rounded only where it
 * is read. 2^42 floats of the largest size fit. Infinities and NaN are added to a separate float (FxaExact.rest), whose
 * value does not depend on the order either.
 *
 *     word   4             3             2             1             0
 *            sign, carry   ...                                       bit 0 = 2^-149
 *
 * The file is C as well as CUDA: tests/engine/cuda/test_cuda_exact_sum.c compares it with sums of integers.
 */
#ifndef FXA_CUDA_COMMON_EXACT_SUM_CUH
#define FXA_CUDA_COMMON_EXACT_SUM_CUH

#include "common/swizzle.cuh"

/* Adds a carry: 1, or with `minus` -1, to the integer of the words from i on. */
FXA_INLINE void exact_carry(u64 *word, int i, bool minus)
{
    for (; i < FXA_CUDA_EXACT; i++)
        if (atomicAdd(word + i, minus ? ~0ull : 1ull) != (minus ? 0ull : ~0ull)) return;
}

FXA_INLINE void exact_add_word(u64 *word, int i, u64 x, bool minus)
{
    if (x == 0 || i >= FXA_CUDA_EXACT) return;
    const u64 old = atomicAdd(word + i, minus ? 0ull - x : x);
    if (minus ? old < x : old + x < old) exact_carry(word, i + 1, minus);
}

/* Adds x * 2^shift, or with `minus` subtracts it, in units of 2^-149. Requires x < 2^53. */
FXA_INLINE void exact_shifted(u64 *word, u64 x, int shift, bool minus)
{
    const int i = shift >> 6, by = shift & 63;
    exact_add_word(word, i, x << by, minus);
    if (by > 11) exact_add_word(word, i + 1, x >> (64 - by), minus);
}

FXA_INLINE void exact_add(struct FxaExact *to, float x)
{
    const u32 bits = (u32)__float_as_int(x);
    const int e = (int)(bits >> 23 & 255u);
    if (e == 255)
        atomicAdd(&to->rest, x);
    else
        exact_shifted(to->word, (bits & 0x7fffffu) | (e ? 0x800000u : 0u), e ? e - 1 : 0, bits >> 31 != 0);
}

/* Adds x: bits below 2^-149 are cut off, and values past the largest 320-bit integer count as infinite. */
FXA_INLINE void exact_add_double(struct FxaExact *to, double x)
{
    const u64 bits = (u64)__double_as_longlong(x);
    const int e = (int)(bits >> 52 & 2047u), shift = e - 926;
    const u64 m = (bits & 0xfffffffffffffull) | 1ull << 52;
    if (shift > 64 * FXA_CUDA_EXACT - 56)
        atomicAdd(&to->rest, e == 2047 ? (float)x : __int_as_float(bits >> 63 ? (int)0xff800000u : 0x7f800000));
    else if (shift > -53)
        exact_shifted(to->word, shift < 0 ? m >> -shift : m, shift < 0 ? 0 : shift, bits >> 63 != 0);
}

/* Returns an exact sum as a double, with a relative error of at most 2^-52. */
FXA_INLINE double exact_value(const struct FxaExact *from)
{
    const bool minus = from->word[FXA_CUDA_EXACT - 1] >> 63 != 0;
    bool carry = minus;
    double x = 0, unit = 0x1p-149;
    for (int i = 0; i < FXA_CUDA_EXACT; i++, unit *= 0x1p64) {
        const u64 word = (minus ? ~from->word[i] : from->word[i]) + (carry ? 1u : 0u);
        carry = carry && word == 0;
        x += (double)word * unit;
    }
    return (minus ? -x : x) + (double)from->rest;
}

#endif
