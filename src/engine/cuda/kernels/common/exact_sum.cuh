/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums whose order makes no difference: for gradients of captured tensors, to one element of which any pairs may add.
 * A float is a whole number of units of 2^-149, and whole numbers of 320 bits (FxaExact) are added by atomics on words
 * of 64 bits with carries of their own, so the result has the same bits whoever comes first. It is also exact: it is
 * rounded where it is read, and nowhere else. 2^42 of the largest float have room. What is not finite is added to a
 * float beside it: the sums of infinities and NaN do not depend on their order either.
 *
 * C as well as CUDA: tests/engine/cuda/test_cuda_exact.c holds it against sums of whole numbers.
 */
#ifndef FXA_CUDA_COMMON_EXACT_SUM_CUH
#define FXA_CUDA_COMMON_EXACT_SUM_CUH

#include "common/swizzle.cuh"

/* Adds 1 to the number that begins with word i, or takes 1 away. */
FXA_INLINE void exact_carry(u64 *word, int i, bool minus)
{
    for (; i < FXA_CUDA_EXACT; i++)
        if (atomicAdd(word + i, minus ? ~0ull : 1ull) != (minus ? 0ull : ~0ull)) return;
}

FXA_INLINE void exact_put(u64 *word, int i, u64 x, bool minus)
{
    if (x == 0 || i >= FXA_CUDA_EXACT) return;
    const u64 old = atomicAdd(word + i, minus ? 0ull - x : x);
    if (minus ? old < x : old + x < old) exact_carry(word, i + 1, minus);
}

/* x units times 2^shift, x below 2^53. */
FXA_INLINE void exact_shifted(u64 *word, u64 x, int shift, bool minus)
{
    const int i = shift >> 6, by = shift & 63;
    exact_put(word, i, x << by, minus);
    if (by > 11) exact_put(word, i + 1, x >> (64 - by), minus);
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

/* Bits below the unit are cut off; what has no room counts as infinite. */
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

/* The number, by an error of 2^-52 of it. */
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
