/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes scores and gradients of (q, k) pairs in the Hopper backward kernel, on the accumulators of a consumer
 * warpgroup: P and dS of a query block, and the gradients of captured tensors. Keys are the rows of the accumulators,
 * queries the columns; a thread has two keys, k0 and k0 + 8, and two queries of every 8.
 */
#ifndef FXA_CUDA_SM90_BACKWARD_SCORES_CUH
#define FXA_CUDA_SM90_BACKWARD_SCORES_CUH

#include "sm90/backward_shared.cuh"
#include "common/dropout.cuh"

namespace {

struct BackwardScores {
    const FxaMaps &maps;
    const FxaArgs &a;
    BackwardShared sh;
    BackwardTile at;
    Program program;
    int group, warp, lane, h;
    bool leader;
    u32 step;
    float unit;
    float dk[FXA_D / 2], dv[FXA_DV / 2];
    u32 k_rows[KV_IN_REGISTERS ? FXA_D / 4 : 1], v_rows[KV_IN_REGISTERS ? FXA_DV / 4 : 1];
    PairGradients captured;

    FXA_INLINE BackwardScores(const FxaMaps &maps_, const FxaArgs &a_, BackwardShared sh_, const BackwardTile &at_,
                              int group_)
        : maps(maps_), a(a_), sh(sh_), at(at_), group(group_), warp((threadIdx.x & 127) >> 5), lane(threadIdx.x & 31),
          leader((threadIdx.x & 127) == 0), step(0), unit(Program::unit(a_))
    {
#pragma unroll
        for (int i = 0; i < FXA_D / 2; i++) dk[i] = 0.f;
#pragma unroll
        for (int i = 0; i < FXA_DV / 2; i++) dv[i] = 0.f;
    }

    /* Returns the index in the tile of the thread's first key; its second key is 8 later. */
    FXA_INLINE int first_key() const { return group * 64 + warp * 16 + (lane >> 2); }

    /* Sets the rows of K and V past the last key to 0 (clear_rows), by both warpgroups together. clear_queries() sets
     * the rows of Q and dO past the last query to 0; each warpgroup writes all these zeros itself. */
    FXA_INLINE void clear_keys() const
    {
        const int keys = at.k_len - at.n * BK, thread = group * 128 + (threadIdx.x & 127);
        if (keys >= BK || !has_rows_past_k_len(a)) return;
        clear_rows<BK, FXA_D>(sh.k(), keys, thread, 256);
        clear_rows<BK, FXA_DV>(sh.v(), keys, thread, 256);
        named_sync(BAR_KEYS, 256);
    }

    template <bool MASKED> FXA_INLINE void clear_queries(int m) const
    {
        const int queries = at.q_len - m * BQ;
        if (!MASKED || queries >= BQ || !has_rows_past_q_len(a)) return;
        sh.o_ring().wait_full(step);
        clear_rows<BQ, FXA_D>(sh.q(step), queries, threadIdx.x & 127, 128);
        clear_rows<BQ, FXA_DV>(sh.grad_o(step), queries, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    /* Loads this warp's 16 rows of a tile as A operand of products: rows[4 * k] to rows[4 * k + 3] for k-step k. */
    template <int words> FXA_INLINE void load_rows(u32 (&rows)[words], u32 tile) const
    {
#pragma unroll
        for (int k = 0; k < words / 4; k++) {
            u32 r[4];
            load_matrix(swizzled<BK>(tile, group * 64 + warp * 16 + (lane & 15), 2 * k + (lane >> 4)), r);
#pragma unroll
            for (int x = 0; x < 4; x++) rows[4 * k + x] = r[x];
        }
    }

    /* Returns the address of this lane's part of a transposed 16 x 16 matrix access to a [q][k] tile: queries 16 j to
     * 16 j + 15, this warp's 16 keys. */
    FXA_INLINE u32 transposed(u32 tile, int j) const
    {
        const int q = j * 16 + ((lane >> 4) << 3) + (lane & 7), chunk = warp * 2 + ((lane >> 3) & 1);
        return swizzled<BQ>(tile + group * BQ * 128, q, chunk);
    }

    FXA_INLINE void load_dense(u32 (&words)[BQ / 4]) const
    {
#pragma unroll
        for (int j = 0; j < BQ / 16; j++) {
            u32 r[4];
            load_matrix_transposed(transposed(sh.dense(step), j), r);
#pragma unroll
            for (int x = 0; x < 4; x++) words[4 * j + x] = r[x];
        }
    }

    /* Loads the entries of the diagonal row (values that depend on q - k) for this thread's (q, k) pairs.
     * entries[2 * (c / 8 - r + 1) + c % 2] belongs to the thread's key k0 + 8 r and query q0 + c. */
    FXA_INLINE void load_diagonal(float (&entries)[BQ / 4 + 2], int q0, int k0) const
    {
        const FxaDiagonal &d = a.diagonal;
        const float *row = d.data + at.b * d.b + h * d.h + d.zero + q0 - k0;
#pragma unroll
        for (int i = 0; i < BQ / 4 + 2; i++) entries[i] = __ldg(row + 8 * (i >> 1) - 8 + (i & 1));
    }

    /* Computes P in 16 bits as the operand p of the product dV, with 0 for dropped (q, k) pairs. Replaces the scores s
     * by P * derivative. With GRADS_READ_SCORE also computes the gradients of captured tensors, before the scores are
     * replaced; otherwise dp is not read. */
    template <bool MASKED>
    FXA_INLINE void probabilities(float (&s)[BQ / 2], const float (&dp)[BQ / 2], u32 (&p)[BQ / 4], int m,
                                  const u32 (&dense)[BQ / 4], const float (&diagonal)[BQ / 4 + 2], u32 kept)
    {
        constexpr bool OPERANDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + first_key();
        const u32 lse = sh.lse(step) + (lane & 3) * 8;
        int k_word[2] = {};
        if (OPERANDS) {
            k_word[0] = load_shared(sh.k_operands(step) + first_key() * 4);
            k_word[1] = load_shared(sh.k_operands(step) + first_key() * 4 + 32);
        }
        const int queries[2] = {k0 < at.k_len ? at.q_len - q0 : 0, k0 + 8 < at.k_len ? at.q_len - q0 : 0};
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 l = load_shared_float2(lse + j * 32);
            const Float2 d = GRADS_READ_SCORE ? load_shared_float2(sh.delta(step) + (lane & 3) * 8 + j * 32) : Float2{};
            float weight[2][2];
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int c = j * 8 + x;
                const int q_word = OPERANDS ? load_shared(sh.q_operands(step) + (lane & 3) * 8 + c * 4) : 0;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = fragment(2 * j + x, r);
                    const u32 word = dense[j * 2 + r];
                    const Pair pair = {q0 + c,
                                       k0 + 8 * r,
                                       c,
                                       8 * r,
                                       diagonal[2 * (j - r + 1) + x],
                                       x ? unpack_high(word) : unpack_low(word),
                                       q_word,
                                       k_word[r]};
                    float derivative;
                    const float value = score_value<!GRADS_READ_SCORE>(program, a, s[i], pair, derivative);
                    float w = exp2_fast(__fmaf_rn(value, unit, -(x ? l.y : l.x)));
                    if (MASKED && !((c < queries[r]) & score_mask(program, a, pair))) w = derivative = 0.f;
                    weight[r][x] = keeps(kept, i) ? w : 0.f;
                    if (GRADS_READ_SCORE) {
                        const float grad = !FXA_DROPOUT ? dp[i] : keeps(kept, i) ? dp[i] * a.keep_inverse : 0.f;
                        captured.add(program, a, at.b, h, s[i], pair, w == 0.f ? 0.f : w * (grad - (x ? d.y : d.x)));
                    }
                    s[i] = PROG_DERIVATIVE ? times_derivative(w, derivative) : w;
                }
            }
            p[j * 2] = pack16(weight[0][0], weight[0][1]);
            p[j * 2 + 1] = pack16(weight[1][0], weight[1][1]);
        }
    }

    /* Adds the gradients of captured tensors for (q, k) pair i of the thread, whose dS is ds. */
    FXA_INLINE void add_pair_gradients(int q0, int k0, int i, float ds)
    {
        const int q = (i >> 2) * 8 + (i & 1), k = (i & 2) * 4;
        captured.add(program, a, at.b, h, 0.f, Pair{q0 + q, k0 + k, q, k}, ds);
    }

    /* Computes dS = P * derivative * (dP - delta) in 16 bits. dP of dropped (q, k) pairs is 0, dP of the others is
     * multiplied by keep_inverse. */
    FXA_INLINE void score_gradients(const float (&s)[BQ / 2], float (&dp)[BQ / 2], u32 (&ds)[BQ / 4], int m, u32 kept)
    {
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + first_key();
        if (FXA_DROPOUT) {
#pragma unroll
            for (int i = 0; i < BQ / 2; i++) dp[i] = keeps(kept, i) ? dp[i] * a.keep_inverse : 0.f;
        }
        const u32 delta = sh.delta(step) + (lane & 3) * 8;
        constexpr bool GRADS_READ_DS = !GRADS_READ_SCORE && (PROG_GRAD_SUMS || PROG_GRAD_SCATTER);
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 d = load_shared_float2(delta + j * 32);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = fragment(2 * j, r);
                float x = times_rest(s[i], dp[i] - d.x), y = times_rest(s[i + 1], dp[i + 1] - d.y);
                if (GRADS_READ_DS) { /* a (q, k) pair of weight 0 has gradient 0, even if dP is NaN */
                    x = s[i] == 0.f ? 0.f : x;
                    y = s[i + 1] == 0.f ? 0.f : y;
                }
                ds[j * 2 + r] = pack16(x, y);
                /* Only scattered gradients keep dS in dp: a modified dp occupies registers that the products need. */
                if (PROG_GRAD_SCATTER) {
                    dp[i] = x;
                    dp[i + 1] = y;
                } else if (GRADS_READ_DS) {
                    add_pair_gradients(q0, k0, i, x);
                    add_pair_gradients(q0, k0, i + 1, y);
                }
            }
        }
        /* The loop in_batches() is not unrolled: inlined for every (q, k) pair, scattered gradients take 6 to 9 seconds
         * to compile, and more registers. */
        if (GRADS_READ_DS && PROG_GRAD_SCATTER)
            in_batches<4>(dp, [&](int first, float(&x)[4]) {
#pragma unroll
                for (int i = 0; i < 4; i++) add_pair_gradients(q0, k0, first + i, x[i]);
            });
    }
};

} // namespace

#endif
