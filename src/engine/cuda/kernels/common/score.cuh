/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores and masks of pairs (q, k), by the functions of Program (common/program_interface.cuh). All main kernels call
 * these functions for each tile.
 */
#ifndef FXA_CUDA_COMMON_SCORE_CUH
#define FXA_CUDA_COMMON_SCORE_CUH

#include "common/out_of_line.cuh"
#include "common/softmax_epilogue.cuh"

/* Multiplies the products of Q and K by -1 or 0 if the scale is negative or 0 (FxaArgs.turned), for kernels that leave
 * Q and K unchanged. */
template <int n> FXA_INLINE void negate_products(const FxaArgs &a, float (&s)[n][4])
{
    if (!a.turned) return;
    const float by = a.turned == 2 ? 0.f : -1.f;
#pragma unroll
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] *= by;
}

/* Returns value(): the new score (the result of the score program) without the factor unit(). All kernels compute it by
 * the same operations. CAPPED: s is already the result of softcap_all(), which chooses among several forms of softcap()
 * by this pair and the neighbouring pairs. Forward and backward may therefore use different forms for a pair; all forms
 * have the precision of softcap(). */
template <bool CAPPED> FXA_INLINE float score_value(const Program &program, const FxaArgs &a, float s, const Pair &pair)
{
#if PROG_SOFTCAP
    if (!CAPPED) s = program.softcap(a, s);
#endif
#if PROG_VALUE
    return call_value(program, a, s, pair);
#else
    return s;
#endif
}

template <bool CAPPED = false>
FXA_INLINE float score_value(const Program &program, const FxaArgs &a, float s, const Pair &pair, float &derivative)
{
#if PROG_DERIVATIVE
#if PROG_SOFTCAP
    if (!CAPPED) s = program.softcap(a, s);
#endif
    const ValueAndDerivative both = call_derivative(program, a, s, pair);
    derivative = both.derivative;
    return both.value;
#else
    derivative = 1.f;
    return score_value<CAPPED>(program, a, s, pair);
#endif
}

/* Returns an upper bound of |value() * unit()|; requires PROG_BOUNDED. */
FXA_INLINE float score_bound(const FxaArgs &a)
{
    return PROG_BOUNDED * (PROG_SOFTCAP_HAS_UNIT ? fabsf(Program::softcap_unit(a)) : Program::unit(a));
}

/* Calls each(first, x) for all scores s of a thread, at_once scores at a time, in a loop that is not unrolled, so that
 * long code is compiled once instead of once per score. first: index of x[0] in s. Registers cannot be indexed, so the
 * array is rotated by at_once elements each time and ends up in its original order. */
template <int at_once, int n, class F> FXA_INLINE void in_batches(float (&s)[n], F each)
{
    static_assert(n % at_once == 0, "pairs of a thread");
#pragma unroll 1
    for (int first = 0; first < n; first += at_once) {
        float x[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) x[i] = s[i];
        each(first, x);
#pragma unroll
        for (int i = 0; i < n - at_once; i++) s[i] = s[i + at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) s[n - at_once + i] = x[i];
    }
}

/* Computes softcap() of each pair separately, for tiles that allow none of the faster forms of softcap_fast(). */
template <int n> FXA_INLINE void softcap_batches(const Program &program, const FxaArgs &a, float (&s)[n])
{
#if PROG_SOFTCAP
    constexpr int AT_ONCE = n < 8 ? n : 8;
    in_batches<AT_ONCE>(s, [&](int, float (&x)[AT_ONCE]) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) x[i] = program.softcap(a, x[i]);
    });
#endif
}

/* Computes softcap() of all pairs of a tile by a fast form that is valid for all of them. Returns false, with s
 * unchanged, if no fast form is valid. full: all pairs of the thread exist; if not, s holds undefined values, which
 * must not affect the choice, and no fast form is used. NaN allows no fast form. Four chains of maxima of |s| are
 * faster than one long chain. */
template <int n> FXA_INLINE bool softcap_fast(const Program &program, const FxaArgs &a, float (&s)[n], bool full)
{
#if PROG_SOFTCAP_SERIES
    float largest[4] = {};
#pragma unroll
    for (int i = 0; i < n; i++) largest[i & 3] = max_or_nan(largest[i & 3], fabsf(s[i]));
    const float top = max_or_nan(max_or_nan(largest[0], largest[1]), max_or_nan(largest[2], largest[3]));
    if (__all_sync(~0u, full && top < program.series_limit(a))) {
#pragma unroll
        for (int i = 0; i < n; i++) s[i] = program.softcap_series(a, s[i]);
        return true;
    }
    if (__all_sync(~0u, full && top < program.exp_limit(a))) {
        const SoftcapExp softcap = program.softcap_exp(a);
#pragma unroll
        for (int i = 0; i < n; i += 4) score_softcap_four(softcap, s + i);
        return true;
    }
    return false;
#elif PROG_SOFTCAP
#pragma unroll
    for (int i = 0; i < n; i++) s[i] = program.softcap(a, s[i]);
#endif
    return true;
}

template <int n> FXA_INLINE void softcap_all(const Program &program, const FxaArgs &a, float (&s)[n], bool full)
{
    if (!softcap_fast(program, a, s, full)) softcap_batches(program, a, s);
}

FXA_INLINE bool score_mask(const Program &program, const FxaArgs &a, const Pair &pair)
{
#if PROG_MASK
    return call_mask(program, a, pair);
#else
    return true;
#endif
}

FXA_INLINE bool score_uniform_mask(const Program &program, const FxaArgs &a, const Pair &pair)
{
#if PROG_UNIFORM_OPERANDS
    return call_uniform_mask(program, a, pair);
#else
    return score_mask(program, a, pair);
#endif
}

/* What score_pairs() of a kernel does with the pairs of a tile. PASS_SCORES: computes new scores. PASS_UNIFORM_MASK:
 * applies score_uniform_mask(), for tiles in which all Pair.q_word and k_word are equal. PASS_MASK: applies
 * score_mask(). */
enum { PASS_SCORES, PASS_UNIFORM_MASK, PASS_MASK };

#endif
