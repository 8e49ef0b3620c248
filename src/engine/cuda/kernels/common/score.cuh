/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the score program meets the kernels. program.cuh is the only generated text: switches and one struct Program.
 * Every kernel calls the same functions of it, forward and backward, whichever way round its accumulators lie.
 *
 * Switches, 0 unless defined:
 *   PROG_VALUE          value() changes the score; else the new score is the scaled one
 *   PROG_SLOPE          the slope is not always 1, or gradients of what is captured read the score; 2: it may be
 *                       infinite or NaN, and a gradient of 0 then wins
 *   PROG_OWN            own() gives the gradient of the score, and there is no slope; kernels for sm_80 and f32 only
 *   PROG_MASK           mask() is not always true
 *   PROG_BOUNDED        |value()| is at most so much (soft cap: 1), so that the forward needs no running maximum
 *   PROG_SAME           mask_same() is mask() where q_word == k_word in all pairs of a warp in a tile
 *   PROG_BEND           the score is read by bend() alone, and value() takes what that gives in its place
 *   PROG_NEAR           bend_near() is bend(), for less, while |s| < near(); bend_far() says how pairs are bent four at
 *                       a time while |s| < far(), off by no more than 2^-20 of the largest that bend() gives
 *   PROG_UNIT_ONE       unit() is 1, because bend() has it in what it gives, bend_unit(a), of any sign; PROG_BOUNDED is
 *                       without it. Where bend_unit(a) would not be a float, unit() has 4 of it
 *   PROG_DIAGONAL       value() reads pair.diagonal; diagonal() gives the row that fxa_diagonal_fill tabulates
 *   PROG_DENSE          value() reads pair.dense, an element of a 16-bit tensor [b, h, q, k]
 *   PROG_VECTOR         pair.q_word and pair.k_word are read: 1 by mask() alone, 2 by value() too
 *   PROG_WORDS          words are written, as 1 and 2 are, or for their ranges alone, which tile_class() reads
 *   PROG_SCALARS        scale and params are read by a.scalars
 *   PROG_GRAD_DIAGONAL  the gradient of the diagonal row is wanted; PROG_GRAD_DENSE: that of the dense tensor. Both
 *                       need d value / d tensor = 1, so they exclude PROG_SLOPE.
 *   PROG_GRAD_SUMS      so many sums over all pairs of (b, h): gradients of params and of tensors with an element per
 *                       head. partials() gives the terms.
 *   PROG_GRAD_SCATTER   scatter() adds the gradient of a pair to tensors by itself, in any order
 *                       With PROG_SLOPE the latter is for sm_80 and f32. sm90/backward_wide.cu has no gradients of
 *                       captured tensors.
 *   PROG_APART          by bits, what is so much work that kernels call it (common/out_of_line.cuh): 1: value();
 *                       2: mask() and mask_same(); 4: partials(), scatter(), own()
 *
 *   PROG_GRAD_EXACT     tensors, by bits, whose gradients are collected in FxaExact: in any order, with the same bits
 *   PROG_GRAD_FIXED     sums along diagonals are FxaExact
 *
 * struct Program, which inherits what it does not need from ProgramBase:
 *   static float unit(a)               > 0; the new score times log2(e) is value() * unit(). So a factor that all
 *                                      scores have in common (the scale, the cap) costs nothing per pair.
 *   void head(a, b, h, q_len, k_len)   what depends on batch entry and head alone, kept in members
 *   void tile(a, q, k)                 what depends on the tile: q and k are this thread's first query and key
 *   float value(a, s, pair)            s is the product Q.K, not yet scaled; with PROG_BEND what bend() made of it
 *   float value(a, s, pair, slope)     the same bits, and slope = d new score / d scaled score; for PROG_SLOPE
 *   float own(a, s, pair, dscore)      for PROG_OWN: d loss / d scaled score of d loss / d new score
 *   float bend(a, s)                   for PROG_BEND: tanh of the product times a number of the run
 *   float bend_near(a, s), float near(a)   for PROG_NEAR: taken where all pairs of a warp in a tile are near 0, where
 *                                      tanh is a polynomial
 *   Bend bend_far(a), float far(a)     for PROG_NEAR: where not all are; 0 where the host says that the score would be
 *                                      off by too much
 *   bool mask(a, pair)                 only called in tiles that tile_class() calls partial; where it is false, value
 *                                      and slope may be anything, NaN too
 *   bool mask_same(a, pair)            for PROG_SAME: of documents, what is left of the mask inside one of them
 *   void partials(a, s, pair, g)       g[i] = d new score / d what sum i is of; s: the product. Without PROG_SLOPE it
 *                                      does not depend on s, which may be 0 then. Of the pair only q, k and their
 *                                      offsets are there
 *   void scatter(a, b, h, s, pair, ds) ds = d loss / d new score; s and pair as for partials(). All lanes of a warp
 *                                      call it together, with 0 where there is nothing to add (sum_lanes())
 *   static float diagonal(a, b, h, d)  d = q - k
 *   static int tile_class(a, b, h, q0, q1, k0, k1)   TILE_EMPTY, TILE_PARTIAL or TILE_FULL for pairs in q0..q1 x k0..k1
 */
#ifndef FXA_CUDA_SCORE_CUH
#define FXA_CUDA_SCORE_CUH

#include "common/softcap_tanh.cuh"
#include "common/exact_sum.cuh"
#include "common/softmax_epilogue.cuh"
#include "common/varlen.cuh"
#include "common/trig.cuh"

/*
 * One pair. q = the thread's first query + q_off, and k likewise; the offsets are constants once loops are unrolled, so
 * whatever is affine in q and k costs one addition of a constant, or nothing, when tile() has kept its base.
 */
struct Pair {
    int q, k, q_off, k_off;
    float diagonal, dense;
    int q_word, k_word;
};

enum { TILE_EMPTY, TILE_PARTIAL, TILE_FULL };

/* By which bits of their numbers lanes of a backward kernel have other keys; by the others they have other queries.
 * Matrix units have keys as rows. */
#ifndef FXA_KEY_LANES
#define FXA_KEY_LANES 28
#endif
enum { KEY_LANES = FXA_KEY_LANES, QUERY_LANES = 31 & ~KEY_LANES, ALL_LANES = 31 };

/* Of lanes that differ in these bits alone, which add to one element: their sum, and true for the one that adds it. All
 * lanes of the warp come here. Atomics are what scattered gradients wait for, and these are a quarter to a sixteenth of
 * them. */
template <int lanes> FXA_INLINE bool sum_lanes(float &x)
{
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
        if (lanes & bit) x += __shfl_xor_sync(~0u, x, bit);
    return (threadIdx.x & lanes) == 0 && x != 0.f;
}

/* {smallest, largest} word of a vector over positions first..last, by blocks of 64: what tile_class() reads. */
FXA_INLINE Int2 vector_range(const FxaVector &v, int b, int h, int first, int last)
{
    const Int2 *r = (const Int2 *)v.ranges + b * v.ranges_b + h * v.ranges_h;
    Int2 all = r[first >> 6];
    for (int i = (first >> 6) + 1; i <= last >> 6; i++) {
        all.x = min(all.x, r[i].x);
        all.y = max(all.y, r[i].y);
    }
    return all;
}

/* What a program need not say. */
struct ProgramBase {
    static FXA_INLINE float unit(const FxaArgs &a) { return a.scale_log2; }
    static FXA_INLINE float bend_unit(const FxaArgs &) { return 1.f; }
    static FXA_INLINE int tile_class(const FxaArgs &, int, int, int, int, int, int) { return TILE_FULL; }
    FXA_INLINE void head(const FxaArgs &, int, int, int, int) {}
    FXA_INLINE void tile(const FxaArgs &, int, int) {}
};

#include "program.cuh"

#ifndef PROG_VALUE
#define PROG_VALUE 0
#endif
#ifndef PROG_SLOPE
#define PROG_SLOPE 0
#endif
#ifndef PROG_OWN
#define PROG_OWN 0
#endif
#ifndef PROG_MASK
#define PROG_MASK 0
#endif
#ifndef PROG_SAME
#define PROG_SAME 0
#endif
#ifndef PROG_BEND
#define PROG_BEND 0
#endif
#ifndef PROG_NEAR
#define PROG_NEAR 0
#endif
#ifndef PROG_UNIT_ONE
#define PROG_UNIT_ONE 0
#endif
#ifndef PROG_BOUNDED
#define PROG_BOUNDED 0
#endif
#ifndef PROG_DIAGONAL
#define PROG_DIAGONAL 0
#endif
#ifndef PROG_DENSE
#define PROG_DENSE 0
#endif
#ifndef PROG_VECTOR
#define PROG_VECTOR 0
#endif
#ifndef PROG_GRAD_DIAGONAL
#define PROG_GRAD_DIAGONAL 0
#endif
#ifndef PROG_GRAD_DENSE
#define PROG_GRAD_DENSE 0
#endif

#ifndef PROG_APART
#define PROG_APART 0
#endif
#ifndef PROG_GRAD_SUMS
#define PROG_GRAD_SUMS 0
#endif
#ifndef PROG_GRAD_SCATTER
#define PROG_GRAD_SCATTER 0
#endif
#ifndef PROG_GRAD_EXACT
#define PROG_GRAD_EXACT 0
#endif
#ifndef PROG_GRAD_FIXED
#define PROG_GRAD_FIXED 0
#endif

/* Whether pairs of the backward ask the program for something in tiles without a mask too: then it has to have seen
 * their tile(). A slope may be the one thing that it says of a score (with_grad). */
constexpr bool ASKED_ALWAYS = PROG_VALUE || PROG_SLOPE || PROG_OWN;

static_assert(!(PROG_SLOPE && (PROG_GRAD_DIAGONAL || PROG_GRAD_DENSE)), "gradients of captured tensors need slope 1");

#include "common/out_of_line.cuh"

/* Products times -1 or 0 (a.turned), for kernels whose operands stay as they are. */
template <int n> FXA_INLINE void turn_products(const FxaArgs &a, float (&s)[n][4])
{
    if (!a.turned) return;
    const float by = a.turned == 2 ? 0.f : -1.f;
#pragma unroll
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] *= by;
}

/* The new score, in every kernel by the same operations; with PROG_NEAR those of a pair depend on its neighbours, which
 * are others in the backward: bend() is as good in both. BENT: s went through bend_all() already. */
template <bool BENT> FXA_INLINE float score_value(const Program &program, const FxaArgs &a, float s, const Pair &pair)
{
#if PROG_BEND
    if (!BENT) s = program.bend(a, s);
#endif
#if PROG_VALUE
    return asked_value(program, a, s, pair);
#else
    return s;
#endif
}

template <bool BENT = false>
FXA_INLINE float score_value(const Program &program, const FxaArgs &a, float s, const Pair &pair, float &slope)
{
#if PROG_SLOPE
#if PROG_BEND
    if (!BENT) s = program.bend(a, s);
#endif
    const Sloped both = asked_slope(program, a, s, pair);
    slope = both.slope;
    return both.value;
#else
    slope = 1.f;
    return score_value<BENT>(program, a, s, pair);
#endif
}

/* By PROG_BOUNDED: |value() * unit()| is at most that. */
FXA_INLINE float score_bound(const FxaArgs &a)
{
    return PROG_BOUNDED * (PROG_UNIT_ONE ? fabsf(Program::bend_unit(a)) : Program::unit(a));
}

/* A weight times the slope, and what that is worth times the rest of a gradient: 0 where either is 0. */
FXA_INLINE float times_slope(float weight, float slope)
{
    return PROG_SLOPE == 2 && weight == 0.f ? 0.f : weight * slope;
}

FXA_INLINE float times_rest(float steep, float rest)
{
    return PROG_SLOPE == 2 && rest == 0.f ? 0.f : steep * rest;
}

/* The gradient of the score, of that of the new score, where the caller has a program for it; else the same. */
FXA_INLINE float own_gradient(const Program &program, const FxaArgs &a, float s, const Pair &pair, float ds)
{
#if PROG_OWN
    return ds == 0.f ? 0.f : asked_own(program, a, s, pair, ds);
#else
    return ds;
#endif
}

/* each(first, x) of all pairs of a thread, `at_once` of them at a time by one text: registers have no index, so the
 * array is turned by as many each time, and lies as it did at the end. first: the number of x[0]. Much text for each
 * pair is most of what a compiler has to do; the moves are little beside it. */
template <int at_once, int n, class F> FXA_INLINE void in_turns(float (&s)[n], F each)
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

/* Each pair by itself, as well as can be: few tiles of few problems come here. */
template <int n> FXA_INLINE void bend_apart(const Program &program, const FxaArgs &a, float (&s)[n])
{
#if PROG_BEND
    constexpr int AT_ONCE = n < 8 ? n : 8;
    in_turns<AT_ONCE>(s, [&](int, float (&x)[AT_ONCE]) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) x[i] = program.bend(a, x[i]);
    });
#endif
}

/* Bends all products of a tile by what is cheap, if that will do; else says so. What is near is found in four chains:
 * one is as long as the polynomial of a tile. whole: all pairs of the thread exist; others hold anything, and what they
 * hold must not decide how these are computed. A NaN is neither near nor far. */
template <int n> FXA_INLINE bool bend_short(const Program &program, const FxaArgs &a, float (&s)[n], bool whole)
{
#if PROG_NEAR
    float most[4] = {};
#pragma unroll
    for (int i = 0; i < n; i++) most[i & 3] = max_or_nan(most[i & 3], fabsf(s[i]));
    const float top = max_or_nan(max_or_nan(most[0], most[1]), max_or_nan(most[2], most[3]));
    if (__all_sync(~0u, whole && top < program.near(a))) {
#pragma unroll
        for (int i = 0; i < n; i++) s[i] = program.bend_near(a, s[i]);
        return true;
    }
    if (__all_sync(~0u, whole && top < program.far(a))) {
        const Bend bend = program.bend_far(a);
#pragma unroll
        for (int i = 0; i < n; i += 4) score_bend_four(bend, s + i);
        return true;
    }
    return false;
#elif PROG_BEND
#pragma unroll
    for (int i = 0; i < n; i++) s[i] = program.bend(a, s[i]);
#endif
    return true;
}

template <int n> FXA_INLINE void bend_all(const Program &program, const FxaArgs &a, float (&s)[n], bool whole)
{
    if (!bend_short(program, a, s, whole)) bend_apart(program, a, s);
}

FXA_INLINE bool score_mask(const Program &program, const FxaArgs &a, const Pair &pair)
{
#if PROG_MASK
    return asked_mask(program, a, pair);
#else
    return true;
#endif
}

FXA_INLINE bool score_mask_same(const Program &program, const FxaArgs &a, const Pair &pair)
{
#if PROG_SAME
    return asked_mask_same(program, a, pair);
#else
    return score_mask(program, a, pair);
#endif
}

/* What a tile asks of its pairs: nothing, score_mask_same() alone because all of them exist, or everything. */
enum { ASK_NOTHING, ASK_SHORT, ASK_ALL };

/* Gradients of captured tensors and params that a thread adds up, or passes on, pair by pair. */
struct PairGradients {
    float sums[PROG_GRAD_SUMS ? PROG_GRAD_SUMS : 1];

    FXA_INLINE void clear()
    {
        for (int i = 0; i < PROG_GRAD_SUMS; i++) sums[i] = 0.f;
    }

    /* Pairs without weight are passed over: their partials may be anything. */
    FXA_INLINE void add(Program &program, const FxaArgs &a, int b, int h, float s, const Pair &pair, float ds)
    {
#if PROG_GRAD_SUMS
        const Partials g = asked_partials(program, a, s, pair);
#pragma unroll
        for (int i = 0; i < PROG_GRAD_SUMS; i++) sums[i] = ds == 0.f ? sums[i] : __fmaf_rn(ds, g.of[i], sums[i]);
#endif
#if PROG_GRAD_SCATTER
        if (__any_sync(~0u, ds != 0.f)) asked_scatter(program, a, b, h, s, pair, ds);
        keep_order(); /* one pair after the other: the addresses of all take too many registers */
#endif
    }

    /* The sums of a warp, all lanes of it there. row: tile * rows + warp. */
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
