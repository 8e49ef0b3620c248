/* SPDX-License-Identifier: Apache-2.0
 *
 * Mainloop of a consumer warpgroup of the Hopper dQ kernel: 64 query rows, whose dQ stays in registers. Each step
 * computes S = Q K^T and dP = dO V^T, then P and dS, then dQ += dS K. The epilogue stores dQ through shared memory.
 */
#ifndef FXA_CUDA_SM90_DQ_MAINLOOP_CUH
#define FXA_CUDA_SM90_DQ_MAINLOOP_CUH

#include "sm90/dq_shared.cuh"
#include "common/dropout.cuh"
#include "common/operand_loads.cuh"

namespace {

struct DqMainloop : TileCoordinates {
    const FxaMaps &maps;
    const FxaArgs &a;
    DqShared sh;
    Program program;
    int group, warp, lane;
    u32 step, q_step;
    int q0;
    float unit, lse[2], delta[2], dq[FXA_D / 2];
    u32 q[FXA_D / 4], grad_o[FXA_DV / 4]; /* IN_REGISTERS: this thread's elements of Q and dO */

    FXA_INLINE DqMainloop(const FxaMaps &maps_, const FxaArgs &a_, DqShared sh_, int group_)
        : maps(maps_), a(a_), sh(sh_), group(group_), warp((threadIdx.x & 127) >> 5), lane(threadIdx.x & 31), step(0),
          q_step(0), unit(Program::unit(a_))
    {
    }

    FXA_INLINE int warp_row() const { return group * 64 + warp * 16; }

    template <int n> FXA_INLINE void load_rows(u32 (&to)[n], u32 tile) const
    {
#pragma unroll
        for (int k = 0; k < n / 4; k++) {
            u32 r[4];
            load_matrix(swizzled<BM>(tile + warp_row() * 128, lane & 15, k * 2 + (lane >> 4)), r);
#pragma unroll
            for (int x = 0; x < 4; x++) to[4 * k + x] = r[x];
        }
    }

    /* Issues x[64 x 64] = this warpgroup's 64 rows of Q or dO, in registers or in shared memory, times the transposed
     * rows of a K or V tile. */
    template <int n>
    FXA_INLINE void issue_scores(float (&x)[BN / 2], const u32 (&rows)[n], u32 row_tile, u32 key_tile) const
    {
        if constexpr (!IN_REGISTERS) {
            issue_rows<4 * n, BM, BN>(x, row_tile + group * 64 * 128, key_tile);
        } else {
            issue_rows_of_registers<4 * n, BN>(x, rows, key_tile);
        }
    }

    /* Sets the rows of K and V past the last key to 0 (clear_rows). */
    template <bool MASKED> FXA_INLINE void clear_keys(int n) const
    {
        const int keys = k_len - n * BN;
        if (!MASKED || keys >= BN || !has_rows_past_k_len(a)) return;
        sh.v_ring().wait_full(step);
        clear_rows<BN, FXA_D>(sh.k(step), keys, threadIdx.x & 127, 128);
        clear_rows<BN, FXA_DV>(sh.v(step), keys, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    FXA_INLINE u32 dense_word(int j, int r) const
    {
        const u32 at = sh.dense(step) + (warp_row() + (lane >> 2)) * 128 + (lane & 3) * 4;
        return DENSE_TILES ? (u32)load_shared(at + r * 1024 + ((j ^ (lane >> 2)) << 4)) : 0;
    }

    /* Replaces the scores s by P * derivative. */
    template <bool MASKED> FXA_INLINE void probabilities(float (&s)[BN / 2], int n)
    {
        constexpr bool OPERANDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int k0 = n * BN + (lane & 3) * 2;
        const OperandLoads loads(a, b, h, q_len, k_len);
        const int q_word[2] = {OPERANDS ? __ldg(loads.q_words + q0) : 0, OPERANDS ? __ldg(loads.q_words + q0 + 8) : 0};
        const int keys[2] = {q0 < q_len ? k_len - k0 : 0, q0 + 8 < q_len ? k_len - k0 : 0};
        if (PAIRS_READ_PROGRAM || MASKED) program.tile(a, q0, k0);
        softcap_all(program, a, s, !MASKED || (q0 + 8 < q_len && (n + 1) * BN <= k_len));
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u32 word = dense_word(j, r);
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const int c = j * 8 + x, i = fragment(2 * j + x, r);
                    float dense = x ? unpack_high(word) : unpack_low(word);
                    if (PROG_DENSE && !DENSE_TILES) dense = loads.dense_at(a, q0 + 8 * r, k0 + c);
                    const Pair pair = {q0 + 8 * r,
                                       k0 + c,
                                       8 * r,
                                       c,
                                       PROG_DIAGONAL ? __ldg(loads.diagonal + q0 - k0 + 8 * r - c) : 0.f,
                                       dense,
                                       q_word[r],
                                       OPERANDS ? __ldg(loads.k_words + k0 + c) : 0};
                    float derivative;
                    float w =
                        exp2_fast(__fmaf_rn(score_value<true>(program, a, s[i], pair, derivative), unit, -lse[r]));
                    if (MASKED && !((c < keys[r]) & score_mask(program, a, pair))) w = derivative = 0.f;
                    s[i] = PROG_DERIVATIVE ? times_derivative(w, derivative) : w;
                }
            }
    }

    /* Computes dS = P * derivative * (dP - delta) in 16 bits. dP of dropped (q, k) pairs is 0, dP of the others is
     * multiplied by keep_inverse. */
    FXA_INLINE void score_gradients(const float (&s)[BN / 2], float (&dp)[BN / 2], u32 (&ds)[BN / 4], int n) const
    {
        if (FXA_DROPOUT) {
            const u32 kept = kept_of_row(a, b, h, q0, n * BN);
#pragma unroll
            for (int i = 0; i < BN / 2; i++) dp[i] = keeps(kept, i) ? dp[i] * a.keep_inverse : 0.f;
        }
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            ds[i] = pack16(times_rest(s[2 * i], dp[2 * i] - delta[i & 1]),
                           times_rest(s[2 * i + 1], dp[2 * i + 1] - delta[i & 1]));
    }

    template <bool MASKED> FXA_INLINE void key_step()
    {
        float s[BN / 2], dp[BN / 2];
        u32 ds[BN / 4];
        sh.k_ring().wait_full(step);
        const int n = take_word(sh.tile_index(step));
        clear_keys<MASKED>(n);
        issue_scores(s, q, sh.q(), sh.k(step));
        sh.v_ring().wait_full(step);
        issue_scores(dp, grad_o, sh.grad_o(), sh.v(step));
        wgmma_wait<1>();
        settle(s);
        probabilities<MASKED>(s, n);
        wgmma_wait<0>();
        settle(dp);
        release(sh.v_ring().empty(step));
        score_gradients(s, dp, ds, n);
        issue_sum<BN>(dq, ds, sh.k(step));
        wgmma_wait<0>();
        settle(dq);
        settle(ds);
        release(sh.k_ring().empty(step));
        step++;
    }

    FXA_INLINE void begin(int m)
    {
        q0 = m * BM + warp_row() + (lane >> 2);
        const long long row = padded_row(a, b, h) + q0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            lse[r] = a.lse2[row + 8 * r];
            delta[r] = a.delta[row + 8 * r];
        }
        if (a.turned) {
            negate_rows<BM, FXA_D>(a, sh.q() + group * 64 * 128);
            named_sync(BAR_TILE + group, 128);
        }
        if constexpr (IN_REGISTERS) {
            load_rows(q, sh.q());
            load_rows(grad_o, sh.grad_o());
            release(sh.q_ring().empty(q_step));
        }
#pragma unroll
        for (int i = 0; i < FXA_D / 2; i++) dq[i] = 0.f;
        program.head(a, b, h, q_len, k_len);
    }

    FXA_INLINE void store(int m) const
    {
        const int row = m * BM + warp_row();
        const u32 rows = sh.out() + warp_row() * 128;
        if (IN_REGISTERS) { /* waits until the store of the previous tile's dQ has read the buffer */
            if (lane == 0) bulk_wait_read<0>();
            __syncwarp();
        } else { /* dQ replaces Q in shared memory: waits until all warps have read Q */
            named_sync(BAR_TILE + group, 128);
        }
        const float scale = run_scale(a);
        rows_to_shared<BM>(rows, dq, q0 < q_len ? scale : 0.f, q0 + 8 < q_len ? scale : 0.f);
        store_shared_rows<BM, FXA_D>(&maps.grad_q, a.grad_q, TmaRows(q_starts(a), q_first, row, h, b), rows,
                                     q_len - row, a.d);
        if (!IN_REGISTERS) {
            if (lane == 0) bulk_wait_read<0>();
            release(sh.q_ring().empty(q_step));
        }
    }

    FXA_INLINE void run()
    {
        for (;; q_step++) {
            sh.q_ring().wait_full(q_step);
            const TileSlot slot = sh.slot();
            if (slot.tile() < 0) break;
            const int partial = slot.partial(), total = slot.total(), m = slot.m();
            read_coordinates(slot);
            begin(m);
            int j = 0;
#pragma unroll 1
            for (; j < partial; j++) key_step<true>();
#pragma unroll 1
            for (; j < total; j++) key_step<false>();
            store(m);
        }
        if (lane == 0) bulk_wait();
    }
};

} // namespace

#endif
