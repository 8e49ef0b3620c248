/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax of the Hopper forward kernel, on the accumulators of a consumer warpgroup: score program and mask on a tile S
 * = Q K^T, row maxima with lazy rescaling, exponentials, dropout. A thread has the rows q0 and q0 + 8 and two keys of
 * every 8; fragment() returns the index of the accumulator of a (q, k) pair (sm90/wgmma.cuh).
 */
#ifndef FXA_CUDA_SM90_FORWARD_SOFTMAX_CUH
#define FXA_CUDA_SM90_FORWARD_SOFTMAX_CUH

#include "common/dropout.cuh"
#include "sm90/forward_epilogue.cuh"

namespace {

struct ForwardSoftmax : ForwardEpilogue {
    FXA_INLINE ForwardSoftmax(const FxaMaps &maps_, const FxaArgs &a_, ForwardShared sh_, int group_)
        : ForwardEpilogue(maps_, a_, sh_, group_)
    {
    }

    /* Loads the elements of the dense tensor (a captured tensor with an element per (q, k) pair) for this thread's
     * pairs from shared memory, two per word. */
    FXA_INLINE void load_dense(u32 (&words)[BN / 4]) const
    {
        const u32 at = sh.dense(step) + row_in_tile() * 128 + (lane & 3) * 4;
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            words[i] = (u32)load_shared(at + (i >> 4) * BM * 128 + (i & 1) * 1024 +
                                        ((((i >> 1) & 7) ^ (lane >> 2)) << 4));
    }

    /* Loads the entries of the diagonal row (values that depend on q - k) for this thread's (q, k) pairs.
     * entries[2 * (c / 8 - r + 1) + c % 2] belongs to row q0 + 8 r and the thread's key c of the tile; pairs of equal
     * q - k share an entry. */
    FXA_INLINE void load_diagonal(float (&entries)[BN / 4 + 2]) const
    {
        const u32 at = sh.diagonal(step) + (BN - 1 + row_in_tile() - (lane & 3) * 2) * 4;
#pragma unroll
        for (int i = 0; i < BN / 4 + 2; i++) entries[i] = load_shared_float(at + 4 * (8 - 8 * (i >> 1) - (i & 1)));
    }

    /* With PASS_SCORES computes the new scores (results of the score program) of key tile n. A later call with
     * PASS_MASK or PASS_UNIFORM_MASK sets the scores of masked (q, k) pairs to -inf. */
    template <int PASS> FXA_INLINE void score_pairs(float (&s)[BN / 2], int n)
    {
        const int k0 = n * BN + (lane & 3) * 2;
        u32 dense[BN / 4] = {};
        float diagonal[BN / 4 + 2] = {};
        int q_word[2] = {};
        constexpr bool MASK_READS = PROG_UNIFORM_OPERANDS ? PASS == PASS_MASK : PASS != PASS_SCORES;
        constexpr bool OPERANDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASK_READS);
        if (PROG_DENSE && !PASS) load_dense(dense);
        if (PROG_DIAGONAL && !PASS) load_diagonal(diagonal);
        if (OPERANDS) {
            q_word[0] = load_shared(sh.q_operands(q_step) + row_in_tile() * 4);
            q_word[1] = load_shared(sh.q_operands(q_step) + row_in_tile() * 4 + 32);
        }
        program.tile(a, q0, k0);
#pragma unroll
        for (int j = 0; j < BN / 4; j++) {
            const int c = (j >> 1) * 8 + (j & 1);
            const int k_word = OPERANDS ? load_shared(sh.k_operands(step) + (lane & 3) * 8 + c * 4) : 0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = fragment(j, r);
                const u32 word = dense[(j >> 1) * 2 + r];
                const Pair pair = {q0 + 8 * r,
                                   k0 + c,
                                   8 * r,
                                   c,
                                   diagonal[2 * ((j >> 1) - r + 1) + (j & 1)],
                                   (j & 1) ? unpack_high(word) : unpack_low(word),
                                   q_word[r],
                                   k_word};
                if (PASS == PASS_SCORES) s[i] = score_value<true>(program, a, s[i], pair);
                if (PASS == PASS_MASK && !score_mask(program, a, pair)) s[i] = NEG_INF;
                if (PASS == PASS_UNIFORM_MASK && !score_uniform_mask(program, a, pair)) s[i] = NEG_INF;
            }
        }
    }

    /* Returns true if the operands (values of captured tensors, for example document ids) of all keys of tile n and of
     * all queries of this warp are equal, so that uniform_mask(), which is shorter than mask(), suffices. Called while
     * the products run. */
    FXA_INLINE bool has_uniform_operands(int n, bool full) const
    {
        if (!PROG_UNIFORM_OPERANDS || full || (n + 1) * BN > k_len) return false;
        const Word4 k = load_shared_words(sh.k_operands(step) + lane * 16 % (BN * 4));
        const u32 x = load_shared(sh.q_operands(q_step) + row_in_tile() * 4), one = __shfl_sync(~0u, x, 0);
        const u32 y = load_shared(sh.q_operands(q_step) + row_in_tile() * 4 + 32);
        return __all_sync(~0u, x == one && y == one && k.x == one && k.y == one && k.z == one && k.w == one);
    }

    /* Masks the keys past the last key of the sequence: all but the first `keys` keys of the tile. Few tiles need this
     * function; because it is separate, mask() is compiled only once. */
    FXA_INLINE void mask_past_end(float (&s)[BN / 2], int keys) const
    {
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            if ((i >> 2) * 8 + (i & 1) >= keys - (lane & 3) * 2) s[i] = NEG_INF;
    }

    /* Turns the products of key tile n into new scores (results of the score program), -inf for masked (q, k) pairs.
     * Rows past q_len have undefined scores. full: true = a masked step leaves out the mask (a third of the softmax's
     * time), because no pair of the tile is masked. uniform: result of has_uniform_operands() */
    template <bool MASKED> FXA_INLINE void score(float (&s)[BN / 2], int n, bool full, bool uniform)
    {
        softcap_all(program, a, s, !MASKED || (q0 + 8 < q_len && (n + 1) * BN <= k_len));
        if (PROG_VALUE) score_pairs<PASS_SCORES>(s, n);
        if (!MASKED || full) return;
        const int keys = k_len - n * BN;
        if (PROG_UNIFORM_OPERANDS && uniform)
            score_pairs<PASS_UNIFORM_MASK>(s, n);
        else if (PROG_MASK)
            score_pairs<PASS_MASK>(s, n);
        if (keys < BN) mask_past_end(s, keys);
    }

    /* Updates the row maxima. Returns true if O has to be multiplied by `rescale`, because a maximum grew by more than
     * the lazy rescaling threshold. */
    template <bool FIRST> FXA_INLINE bool raise_max(const float (&s)[BN / 2])
    {
        float top[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = FIRST ? s[r * 2] : row_max[r];
#pragma unroll
            for (int i = 0; i < BN / 4; i++) x = fmaxf(x, s[fragment(i, r)]);
            top[r] = quad_max(x);
        }
        if (FIRST) {
            row_max[0] = top[0];
            row_max[1] = top[1];
            return false;
        }
        if (!__any_sync(~0u, (top[0] - row_max[0]) * unit > fixed_max_threshold(FXA_F16) ||
                                (top[1] - row_max[1]) * unit > fixed_max_threshold(FXA_F16))) return false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rescale[r] = exp2_fast((row_max[r] - finite_or_zero(top[r])) * unit);
            row_sum[r] *= rescale[r];
            row_max[r] = top[r];
        }
        return true;
    }

    /* Subtracts the row maxima and `bias` from the scores in a recompute pass. With PROG_SOFTCAP_HAS_UNIT a row whose
     * `unit` is not 1 is always recomputed (is_out_of_range()), so only this function multiplies by `unit`. */
    FXA_INLINE void subtract_max(float (&s)[BN / 2], float bias) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < BN / 4; i++) {
                float &x = s[fragment(i, r)];
                x = (x - finite_or_zero(row_max[r])) * (PROG_SOFTCAP_HAS_UNIT ? unit : 1.f) - bias;
            }
    }

    /* Replaces each score by its weight, exp2 of the score minus the row maximum, and adds the weights to row_sum.
     * ZERO: row_max is 0, which holds for MERGED_STEP outside of recompute passes */
    template <bool FIRST, bool ZERO> FXA_INLINE void exponentiate(float (&s)[BN / 2], int tile)
    {
        constexpr bool BARE = ZERO || (MERGED_STEP && PROG_SOFTCAP_HAS_UNIT);
        if (!ZERO && (tile & RECOMPUTE)) subtract_max(s, BARE ? bias(tile) : 0.f);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float shift = BARE ? 0.f : tile & RECOMPUTE ? bias(tile) : finite_or_zero(row_max[r]) * unit;
            float sum = FIRST ? 0.f : row_sum[r];
#pragma unroll
            for (int i = 0; i < BN / 4; i++) {
                const int x = fragment(i, r);
                const float y = PROG_SOFTCAP_HAS_UNIT ? (BARE ? s[x] : s[x] - shift)
                                : BARE        ? s[x] * unit
                                              : __fmaf_rn(s[x], unit, -shift);
                s[x] = EMULATE_EXP2 && ZERO && (i & 1) ? exp2_by_fma(y) : exp2_fast(y);
                sum += s[x];
            }
            row_sum[r] = sum;
        }
    }

    /* Sets dropped weights to 0 for the product with V. The row sum includes them. */
    FXA_INLINE void apply_dropout(float (&s)[BN / 2], int n) const
    {
#if FXA_DROPOUT
#pragma unroll
        for (int half = 0; half < BN / 64; half++) {
            const u32 kept = kept_of_row(a, b, h, q0, n * BN + half * 64);
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!keeps(kept, i)) s[half * 32 + i] = 0.f;
        }
#endif
    }

    FXA_INLINE void pack(const float (&s)[BN / 2])
    {
#pragma unroll
        for (int i = 0; i < BN / 4; i++) p[i] = pack16(s[2 * i], s[2 * i + 1]);
    }
};

} // namespace

#endif
