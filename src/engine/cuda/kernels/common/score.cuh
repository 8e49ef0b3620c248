/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between kernels and the score program. program.cuh, the only generated text, defines switches and one
 * struct Program. All attention kernels, forward and backward, call the same functions of Program.
 *
 * Switches, 0 unless defined. fwd, bwd: defined for forward or backward kernels only.
 *
 *   PROG_VALUE                value() computes the new score; otherwise the new score is the scaled product
 *   PROG_BOUNDED n            |value()| <= n for all inputs (soft cap: 1); the forward then needs no running maximum
 *   PROG_SOFTCAP              the program reads the score only as softcap(score); value() takes that result
 *   PROG_SOFTCAP_SERIES       softcap() has two faster forms for small scores: softcap_series() and softcap_exp()
 *   PROG_SOFTCAP_HAS_UNIT     fwd: softcap() includes the factor softcap_unit(), of any sign, and unit() is 1.
 *                             PROG_BOUNDED bounds value() without the factor. If the factor overflows f32,
 *                             softcap_unit() is a quarter of the factor and unit() is 4.
 *   PROG_MASK                 mask() can be false
 *   PROG_UNIFORM_OPERANDS     uniform_mask() is a shorter mask() for tiles whose row and key operands are all equal
 *   PROG_OPERANDS 1, 2        pairs read row and key operands (values of captured tensors that depend on the row or
 *                             the key alone, struct FxaOperand): 1 = in mask() only, 2 = also in value()
 *   PROG_PACK_OPERANDS        row and key operands are packed before a run: for pairs, or only for the ranges that
 *                             tile_class() reads
 *   PROG_DIAGONAL             value() reads pair.diagonal, from the table of diagonal() that fxa_diagonal_fill writes
 *   PROG_DENSE                value() reads pair.dense, an element of a 16-bit tensor [b, h, q, k]
 *   PROG_OUT_OF_LINE bits     functions called out of line (common/out_of_line.cuh): 1 = value(), 2 = mask() and
 *                             uniform_mask(), 4 = partials(), scatter() and user_backward()
 *   PROG_DERIVATIVE 1, 2      bwd: d new score / d scaled score is not 1, or a captured tensor's gradient reads scores;
 *                             2: the derivative may be infinite or NaN, but gradient 0 times it is 0
 *   PROG_USER_BACKWARD        bwd: the user-written user_backward() computes the gradient of the score; not in sm90/
 *   PROG_GRAD_DIAGONAL        bwd: dS is summed over pairs of equal q - k, for the diagonal row
 *   PROG_GRAD_DIAGONAL_EXACT  bwd: the sums of PROG_GRAD_DIAGONAL are FxaExact, not floats
 *   PROG_GRAD_DENSE           bwd: dS is stored as the gradient of the dense tensor (PROG_DENSE)
 *   PROG_GRAD_SUMS n          bwd: n sums over all pairs of (b, h), of the terms that partials() computes: gradients of
 *                             params, and of tensors with an element per head
 *   PROG_GRAD_SCATTER         bwd: scatter() adds the gradient of each pair to tensors; with PROG_DERIVATIVE not in
 *                             kernels of sm90
 *   PROG_GRAD_EXACT bits      bwd: bit i: the gradient of captured tensor i is summed in FxaExact, hence deterministic
 *
 * struct Program inherits defaults from ProgramBase. All but head() and tile() are const or static.
 *
 *   unit(a)                   uniform factor > 0 of all scores (scale, cap): new score * log2(e) = value() * unit()
 *   head(a, b, h, q_len, k_len)   computes members that depend on batch entry and head
 *   tile(a, q, k)             computes members that depend on the tile; q, k: first query and key of this thread
 *   value(a, s, pair)         s: product of Q and K, unscaled; with PROG_SOFTCAP the result of softcap()
 *   value(a, s, pair, slope)  PROG_DERIVATIVE: returns the same bits and sets slope = d new score / d scaled score
 *   user_backward(a, s, pair, dscore)   PROG_USER_BACKWARD: returns the gradient of the scaled score
 *   softcap(a, s)             PROG_SOFTCAP: tanh of the product times a run-time factor
 *   softcap_series(a, s)      softcap() by a polynomial, if |s| < series_limit(a) for all pairs of a warp in a tile
 *   softcap_exp(a)            constants of score_softcap_four(), for |s| < exp_limit(a); exp_limit() is 0 if its error
 *                             would exceed 2^-20 of the largest result of softcap()
 *   mask(a, pair)             true if the pair is attended; called in partial tiles only. value() and slope of a
 *                             masked pair may be anything
 *   uniform_mask(a, pair)     PROG_UNIFORM_OPERANDS: the conditions of mask() except equality of row and key operand
 *   partials(a, s, pair, g)   g[i] = d new score / d x, x being the param or element that sum i is the gradient of;
 *                             s: product of Q and K; may be 0 without PROG_DERIVATIVE. Reads only q, k and offsets.
 *   scatter(a, b, h, s, pair, ds)   ds = d loss / d new score; all lanes of a warp call it together, with ds = 0 where
 *                             there is nothing to add (sum_lanes())
 *   diagonal(a, b, h, d)      value of the diagonal row at d = q - k
 *   tile_class(a, b, h, q0, q1, k0, k1)   TILE_EMPTY, TILE_PARTIAL or TILE_FULL for the pairs q0..q1 x k0..k1
 */
#ifndef FXA_CUDA_COMMON_SCORE_CUH
#define FXA_CUDA_COMMON_SCORE_CUH

#include "common/softcap_tanh.cuh"
#include "common/tile_shape.h"
#include "common/exact_sum.cuh"
#include "common/softmax_epilogue.cuh"
#include "common/varlen.cuh"
#include "common/trig.cuh"

/* A pair of query q and key k. q_off = q - the thread's first query, k_off = k - its first key. The offsets are
 * constants after unrolling, so an expression that is affine in q and k costs one addition of a constant to a base that
 * tile() computes. diagonal, dense: elements of the diagonal row and the dense tensor; q_word, k_word: row and key
 * operand (values of captured tensors that depend on q or k alone). */
struct Pair {
    int q, k, q_off, k_off;
    float diagonal, dense;
    int q_word, k_word;
};

enum { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };

/* KEY_LANES: bits of the lane number that select the keys of a lane in a backward kernel; the other bits
 * (QUERY_LANES) select its queries. The default is the layout of tensor-core accumulators with keys as rows. */
#ifndef FXA_KEY_LANES
#define FXA_KEY_LANES 28
#endif
enum { KEY_LANES = FXA_KEY_LANES, QUERY_LANES = 31 & ~KEY_LANES, ALL_LANES = 31 };

/* Sets x to its sum over the lanes whose numbers differ in the bits `lanes` alone; these lanes add to the same element
 * of a gradient. Returns true in one of them, which then adds the sum, if it is not 0. All lanes of the warp call this
 * function. Atomics limit the speed of scattered gradients; this sum reduces their number to a quarter or a
 * sixteenth. */
template <int lanes> FXA_INLINE bool sum_lanes(float &x)
{
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
        if (lanes & bit) x += __shfl_xor_sync(~0u, x, bit);
    return (threadIdx.x & lanes) == 0 && x != 0.f;
}

/* Returns {minimum, maximum} of a row or key operand over the positions first..last, rounded out to blocks of 64, for
 * tile_class(). */
FXA_INLINE Int2 operand_range(const FxaOperand &v, int b, int h, int first, int last)
{
    const Int2 *r = (const Int2 *)v.ranges + b * v.ranges_b + h * v.ranges_h;
    Int2 all = r[first >> 6];
    for (int i = (first >> 6) + 1; i <= last >> 6; i++) {
        all.x = min(all.x, r[i].x);
        all.y = max(all.y, r[i].y);
    }
    return all;
}

/* Defaults of the members of Program. */
struct ProgramBase {
    static FXA_INLINE float unit(const FxaArgs &a) { return a.scale_log2; }
    static FXA_INLINE float softcap_unit(const FxaArgs &) { return 1.f; }
    static FXA_INLINE int tile_class(const FxaArgs &, int, int, int, int, int, int) { return TILE_FULL; }
    FXA_INLINE void head(const FxaArgs &, int, int, int, int) {}
    FXA_INLINE void tile(const FxaArgs &, int, int) {}
};

#include "program.cuh"

#define FXA_TRAIT_VALUE(member, macro, otherwise, meaning) macro,
constexpr FxaTraits TRAITS = {FXA_SETTINGS(FXA_TRAIT_VALUE) FXA_SWITCHES(FXA_TRAIT_VALUE)};
#undef FXA_TRAIT_VALUE

/* True if the backward calls functions of Program also for the pairs of full tiles (no pair is masked), and therefore
 * calls tile() for full tiles too. PROG_DERIVATIVE alone is possible without PROG_VALUE. */
constexpr bool PAIRS_READ_PROGRAM = PROG_VALUE || PROG_DERIVATIVE || PROG_USER_BACKWARD;

static_assert(!(PROG_DERIVATIVE && (PROG_GRAD_DIAGONAL || PROG_GRAD_DENSE)), "these gradients need a derivative of 1");
static_assert(!(PROG_USER_BACKWARD && (PROG_DERIVATIVE || PROG_SOFTCAP || PROG_GRAD_DIAGONAL)), "excluded together");
static_assert(PROG_SOFTCAP || !(PROG_SOFTCAP_SERIES || PROG_SOFTCAP_HAS_UNIT), "forms of softcap() need softcap()");
static_assert(!PROG_UNIFORM_OPERANDS || (PROG_MASK && PROG_OPERANDS), "uniform_mask() is a mask() that reads operands");
static_assert(!PROG_OPERANDS || PROG_PACK_OPERANDS, "operands of pairs have to be packed");
static_assert(!PROG_BOUNDED || PROG_VALUE, "a bound without value()");
static_assert(!PROG_GRAD_DIAGONAL || PROG_DIAGONAL, "the gradient of no diagonal row");
static_assert(!PROG_GRAD_DENSE || PROG_DENSE, "the gradient of no dense tensor");
static_assert(!PROG_GRAD_DIAGONAL_EXACT || PROG_GRAD_DIAGONAL, "exact sums along diagonals need PROG_GRAD_DIAGONAL");
static_assert(!(PROG_DENSE && FXA_F32), "the dense tensor has 16-bit elements");
static_assert(!PROG_SOFTCAP || PROG_VALUE, "softcap() is read by value()");
static_assert(!(PROG_DIAGONAL || PROG_DENSE) || PAIRS_READ_PROGRAM, "no function reads diagonal row or dense tensor");
static_assert(!PROG_GRAD_EXACT || PROG_GRAD_SUMS || PROG_GRAD_SCATTER || PROG_GRAD_DIAGONAL, "exact sums of nothing");
static_assert(!(PROG_OUT_OF_LINE & 1) || PROG_VALUE || PROG_DERIVATIVE, "value() is called but not defined");
static_assert(!(PROG_OUT_OF_LINE & 2) || PROG_MASK, "mask() is called but not defined");
static_assert(!(PROG_OUT_OF_LINE & 4) || PROG_GRAD_SUMS || PROG_GRAD_SCATTER || PROG_USER_BACKWARD,
              "functions of gradients are called but not defined");

#include "common/out_of_line.cuh"

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

/* dS = weight * derivative * rest, with rest = dP - delta, is computed in two steps: times_derivative() returns weight
 * * derivative, and times_rest() returns this product times rest. If the derivative may be infinite or NaN
 * (PROG_DERIVATIVE 2), a weight or rest of 0 returns 0. */
FXA_INLINE float times_derivative(float weight, float derivative)
{
    return PROG_DERIVATIVE == 2 && weight == 0.f ? 0.f : weight * derivative;
}

FXA_INLINE float times_rest(float product, float rest)
{
    return PROG_DERIVATIVE == 2 && rest == 0.f ? 0.f : product * rest;
}

/* Returns the gradient of the scaled score: user_backward() of ds, the gradient of the new score, if the program has a
 * user-written backward, otherwise ds. */
FXA_INLINE float user_gradient(const Program &program, const FxaArgs &a, float s, const Pair &pair, float ds)
{
#if PROG_USER_BACKWARD
    return ds == 0.f ? 0.f : call_user_backward(program, a, s, pair, ds);
#else
    return ds;
#endif
}

/* Calls each(first, x) for all pairs of a thread, at_once pairs at a time, in a loop that is not unrolled, so that long
 * code is compiled once instead of once per pair. first: index of x[0] in s. Registers cannot be indexed, so the array
 * is rotated by at_once elements each time and ends up in its original order. */
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

/* What a call of score_pairs() in a kernel does. PASS_SCORES: computes new scores. PASS_UNIFORM_MASK: applies
 * score_uniform_mask(), for tiles whose row and key operands are all equal. PASS_MASK: applies score_mask(). */
enum { PASS_SCORES, PASS_UNIFORM_MASK, PASS_MASK };

/* Gradients of params and captured tensors, to which a thread adds pair by pair: in the registers `sums`
 * (PROG_GRAD_SUMS), and by atomics of scatter() (PROG_GRAD_SCATTER). */
struct PairGradients {
    float sums[PROG_GRAD_SUMS ? PROG_GRAD_SUMS : 1];

    FXA_INLINE void clear()
    {
        for (int i = 0; i < PROG_GRAD_SUMS; i++) sums[i] = 0.f;
    }

    /* Adds the terms of a pair to the gradients. ds: gradient of the pair's new score (the result of the score
     * program). Pairs with ds = 0 add nothing, because their partial derivatives (partials()) may be infinite or
     * NaN. */
    FXA_INLINE void add(Program &program, const FxaArgs &a, int b, int h, float s, const Pair &pair, float ds)
    {
#if PROG_GRAD_SUMS
        const Partials g = call_partials(program, a, s, pair);
#pragma unroll
        for (int i = 0; i < PROG_GRAD_SUMS; i++) sums[i] = ds == 0.f ? sums[i] : __fmaf_rn(ds, g.of[i], sums[i]);
#endif
#if PROG_GRAD_SCATTER
        if (__any_sync(~0u, ds != 0.f)) call_scatter(program, a, b, h, s, pair, ds);
        keep_order(); /* one pair after the other: the addresses of all pairs at once take too many registers */
#endif
    }

    /* Adds `sums` over the lanes of the warp and stores the results in FxaArgs.sums; all lanes of the warp call this
     * function. row: key tile * FxaShape.sum_rows + warp */
    FXA_INLINE void store(const FxaArgs &a, int b, int h, int row) const
    {
#if PROG_GRAD_SUMS
#pragma unroll
        for (int i = 0; i < PROG_GRAD_SUMS; i++) {
            float all = sums[i];
#pragma unroll
            for (int x = 16; x; x >>= 1) all += __shfl_xor_sync(~0u, all, x);
            if ((threadIdx.x & 31) == 0) a.sums.data[b * a.sums.b + h * a.sums.h + row * PROG_GRAD_SUMS + i] = all;
        }
#endif
    }
};

#endif
