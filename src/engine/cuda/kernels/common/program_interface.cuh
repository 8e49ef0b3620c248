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
 *   PROG_UNIFORM_OPERANDS     uniform_mask() is a shorter mask() for tiles in which all q_word and k_word are equal
 *   PROG_OPERANDS 1, 2        pairs read q_word and k_word (values of captured tensors that depend on the row or the
 *                             key alone, struct FxaOperand): 1 = in mask() only, 2 = also in value()
 *   PROG_PACK_OPERANDS        FxaOperands are written before a run: for q_word and k_word, or only for the ranges
 *                             that tile_class() reads
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
 *   uniform_mask(a, pair)     PROG_UNIFORM_OPERANDS: the conditions of mask() except q_word == k_word
 *   partials(a, s, pair, g)   g[i] = d new score / d x, x being the param or element that sum i is the gradient of;
 *                             s: product of Q and K; may be 0 without PROG_DERIVATIVE. Reads only q, k and offsets.
 *   scatter(a, b, h, s, pair, ds)   ds = d loss / d new score; all lanes of a warp call it together, with ds = 0 where
 *                             there is nothing to add (sum_lanes())
 *   diagonal(a, b, h, d)      value at d = q - k of the diagonal row, the table over q - k (FxaDiagonal)
 *   tile_class(a, b, h, q0, q1, k0, k1)   TILE_EMPTY, TILE_PARTIAL or TILE_FULL for the pairs q0..q1 x k0..k1
 */
#ifndef FXA_CUDA_COMMON_PROGRAM_INTERFACE_CUH
#define FXA_CUDA_COMMON_PROGRAM_INTERFACE_CUH

#include "common/exact_sum.cuh"
#include "common/softcap_tanh.cuh"
#include "common/tile_shape.h"
#include "common/trig.cuh"
#include "common/varlen.cuh"

/* A pair of query q and key k, and the values that functions of Program read for it:
 *
 *   q_off, k_off     q - the thread's first query, k - the thread's first key: constants after unrolling, so an
 *                    expression that is affine in q and k costs one addition of a constant to a base, which
 *                    Program::tile() computes once per tile
 *   diagonal         the part of the score that depends on b, h and q - k alone (FxaDiagonal)
 *   dense            the element [b, h, q, k] of a captured tensor of 16-bit elements
 *   q_word, k_word   values of captured tensors that depend on q or on k alone (FxaOperand) */
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

/* Sets x to its sum over the lanes whose numbers are equal but for the bits `lanes`; these lanes add to the same
 * element of a gradient. Returns true in one of them, which then adds the sum, if it is not 0. All lanes of the warp
 * call this function. Atomics limit the speed of scattered gradients; this sum reduces their number to a quarter or a
 * sixteenth. */
template <int lanes> FXA_INLINE bool sum_lanes(float &x)
{
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
        if (lanes & bit) x += __shfl_xor_sync(~0u, x, bit);
    return (threadIdx.x & lanes) == 0 && x != 0.f;
}

/* Returns {minimum, maximum} of an FxaOperand over all blocks of 64 queries or keys that contain one of `first` to
 * `last`, for tile_class(). */
FXA_INLINE Int2 operand_range(const FxaOperand &v, int b, int h, int first, int last)
{
    static_assert(1 << 6 == FXA_RANGE_ROWS, "first >> 6 is the index of a range");
    const Int2 *r = (const Int2 *)v.ranges + b * v.ranges_b + h * v.ranges_h;
    Int2 all = r[first >> 6];
    for (int i = (first >> 6) + 1; i <= last >> 6; i++) {
        all.x = min(all.x, r[i].x);
        all.y = max(all.y, r[i].y);
    }
    return all;
}

/* Members that struct Program inherits unless the generated text defines them. */
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

/* True if the backward calls functions of Program also for pairs (q, k) of full tiles (no pair is masked), and
 * therefore calls tile() for full tiles too. PROG_DERIVATIVE alone is possible without PROG_VALUE. */
constexpr bool PAIRS_READ_PROGRAM = PROG_VALUE || PROG_DERIVATIVE || PROG_USER_BACKWARD;

static_assert(PROG_DERIVATIVE >= 0 && PROG_DERIVATIVE <= 2 && PROG_OPERANDS >= 0 && PROG_OPERANDS <= 2, "switches");
static_assert(PROG_OUT_OF_LINE >= 0 && PROG_OUT_OF_LINE <= 7, "bits of the functions that are called");
static_assert(PROG_GRAD_SUMS >= 0 && PROG_GRAD_SUMS <= FXA_CUDA_SUMS, "FxaSumTargets has FXA_CUDA_SUMS targets");
static_assert(PROG_GRAD_EXACT >> FXA_CUDA_TENSORS == 0, "a bit for each captured tensor");
static_assert(!(PROG_SOFTCAP_SERIES && FXA_FAST_MATH), "the hardware's tanh needs no faster forms");
static_assert(FXA_DROPOUT >= 0 && FXA_DROPOUT <= 2 && !(FXA_O_F32 && FXA_F32), "settings");
static_assert(!FXA_DQ_ORDERED || !(FXA_SEPARATE_DQ || PROG_GRAD_DIAGONAL), "ordered dQ is fused, without diagonals");
static_assert(!FXA_DQ_ORDERED || !(FXA_VARLEN || PROG_MASK), "ordered dQ: every key tile has every block");
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

#endif
