/* SPDX-License-Identifier: Apache-2.0
 *
 * Mainloop of a consumer warpgroup of the Hopper forward kernel, for 64 query rows: S = Q K^T of tile j + 1 is computed
 * together with O += P V of tile j, so that the tensor cores work during the softmax.
 *
 *     tensor cores   S 0             S 1, P 0 V        S 2, P 1 V        P 2 V
 *     other units         softmax 0        softmax 1         softmax 2    row_factors, store_rows
 */
#ifndef FXA_CUDA_SM90_FORWARD_MAINLOOP_CUH
#define FXA_CUDA_SM90_FORWARD_MAINLOOP_CUH

#include "sm90/forward_softmax.cuh"

namespace {

struct ForwardMainloop : ForwardSoftmax {
    FXA_INLINE ForwardMainloop(const FxaMaps &maps_, const FxaArgs &a_, ForwardShared sh_, int group_)
        : ForwardSoftmax(maps_, a_, sh_, group_)
    {
    }

    FXA_INLINE void issue_s(float (&s)[BN / 2]) const
    {
        constexpr int N = steps_of(FXA_D, true);
        const u64 k_descriptor = k_major(sh.k(step));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < FXA_D / 16; k += N)
            wgmma<0, N>(s, q_descriptor + k_step<BM>(k), k_descriptor + k_step<BN>(k), k > 0);
        wgmma_commit();
    }

    /* Sets the rows of V past the last key to 0, before their product with P: TMA fills with zeros only past the
     * longest length of the batch. Each warpgroup writes all of these zeros itself. */
    template <bool MASKED> FXA_INLINE void clear_values(int n) const
    {
        const int keys = k_len - n * BN;
        if (!MASKED || keys >= BN || !has_rows_past_k_len(a)) return;
        sh.v_ring().wait_full(step);
        clear_rows<BN, FXA_DV>(sh.v(step), keys, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    /* In a recompute pass (common/nonfinite.cuh), replaces elements of a tile of V in shared memory, before it is
     * multiplied by P. values_of(tile) is the pass: VALUES_FINITE replaces infinities and NaN by 0; VALUES_POS_INF and
     * VALUES_NEG_INF replace NaN and infinities of their sign by 1, all other elements by 0. All consumer warpgroups
     * call this function together, because they share the tile. If VALUES_FINITE replaces an element, sets
     * v_nonfinite, so that the other two passes follow. */
    FXA_INLINE void replace_values(int tile) const
    {
        if (!(tile & RECOMPUTE)) return;
        sh.v_ring().wait_full(step);
        if (change_values(sh.v(step), V_BYTES, values_of(tile), (int)threadIdx.x - 128, 128 * GROUPS) &&
            values_of(tile) == VALUES_FINITE)
            store_shared(sh.v_nonfinite(), 1);
        async_fence();
        named_sync(BAR_VALUES, 128 * GROUPS);
    }

    FXA_INLINE void release_dense() const
    {
        if (PROG_DENSE) release(sh.dense_ring().empty(step));
    }

    /* Releases the Q buffer of a finished query tile to the producer, after the TMA store has read O from the
     * buffer. */
    FXA_INLINE void release_q()
    {
        if (!storing) return;
        __syncwarp();
        if (lane == 0) {
            bulk_wait_read<0>();
            barrier_arrive(sh.q_ring().empty(stored));
        }
        storing = false;
    }

    /* Runs the first key tile of a query tile, always as a masked step. All work that does not depend on the product S
     * = Q K^T is done while S is computed. */
    FXA_INLINE void first_step(int tile)
    {
        float s[BN / 2];
        sh.k_ring().wait_full(step);
        const int index = take_word(sh.tile_index(step)), n = index & FXA_CUDA_SKIP - 1;
        const bool full = index & FXA_CUDA_FULL << group;
        issue_s(s);
        begin_tile(sh.slot(q_step).m());
        const bool uniform = has_uniform_operands(n, full);
        release_q();
        if (PROG_DENSE) sh.dense_ring().wait_full(step);
#pragma unroll
        for (int i = 0; i < FXA_DV / 2; i++) o[i] = 0.f;
        wgmma_wait<0>();
        settle(s);
        release(sh.k_ring().empty(step));
        score<true>(s, n, full, uniform);
        release_dense();
        raise_max<true>(s);
        exponentiate<true, false>(s, tile);
        apply_dropout(s, n);
        pack(s);
        clear_values<true>(n);
        replace_values(tile);
    }

    /* Computes S of the next tile together with P V of the current tile, then the softmax of the next tile during P V.
     * `first` (MERGED_STEP only): the next tile is the first one, so there is no P V */
    template <bool MASKED, bool FIXED_MAX> FXA_INLINE void next_step(int tile, bool first = false)
    {
        float s[BN / 2];
        const u32 v_step = SKIPS_TILES && MASKED ? pending : step;
        step++;
        sh.k_ring().wait_full(step);
        const int index = MASKED || PROG_VALUE || FXA_DROPOUT ? take_word(sh.tile_index(step)) : 0;
        const int n = index & FXA_CUDA_SKIP - 1;
        const bool full = index & FXA_CUDA_FULL << group;
        bool uniform;
        if (PING_PONG && !MASKED) named_sync(BAR_PING_PONG + group, 256);
        issue_s(s);
        if (first) {
            release_q();
            if (PROG_DENSE) sh.dense_ring().wait_full(step);
#pragma unroll
            for (int i = 0; i < FXA_DV / 2; i++) o[i] = 0.f;
            uniform = MASKED && has_uniform_operands(n, full);
            wgmma_wait<0>();
        } else {
            sh.v_ring().wait_full(v_step);
            issue_sum<BN, 4>(o, p, sh.v(v_step));
            if (PING_PONG && !MASKED) named_arrive(BAR_PING_PONG + (group + 1 == GROUPS ? 0 : group + 1), 256);
            if (PROG_DENSE) sh.dense_ring().wait_full(step);
            uniform = MASKED && has_uniform_operands(n, full);
            wgmma_wait<1>();
        }
        settle(s);
        release(sh.k_ring().empty(step));
        score<MASKED>(s, n, full, uniform);
        release_dense();
        const bool grew = FIXED_MAX || (MERGED_STEP && !(tile & RECOMPUTE)) ? false : raise_max<false>(s);
        exponentiate<false, FIXED_MAX && BOUNDED>(s, tile);
        apply_dropout(s, n);
        wgmma_wait<0>();
        settle(o);
        settle(p);
        release(sh.v_ring().empty(v_step), !first);
        pack(s);
        if (grew) {
#pragma unroll
            for (int i = 0; i < FXA_DV / 2; i++) o[i] *= rescale[(i >> 1) & 1];
        }
        clear_values<MASKED>(n);
        replace_values(tile);
        if (SKIPS_TILES && MASKED) pending = step;
    }

    /* Skips the next key tile if this warpgroup's queries attend to none of its keys: releases the tile's buffers
     * unread and returns true. */
    FXA_INLINE bool skip_tile()
    {
        sh.k_ring().wait_full(step + 1);
        if (!(take_word(sh.tile_index(step + 1)) & FXA_CUDA_SKIP << group)) return false;
        step++;
        release(sh.k_ring().empty(step));
        sh.v_ring().wait_full(step);
        release(sh.v_ring().empty(step));
        return true;
    }

    /* Computes the last product P V and the epilogue; the part that does not depend on O runs during the product. */
    FXA_INLINE void finish(int tile, int m)
    {
        float factor[2];
        bool bad[2];
        const u32 v_step = SKIPS_TILES ? pending : step;
        sh.v_ring().wait_full(v_step);
        issue_sum<BN, 4>(o, p, sh.v(v_step));
        row_factors(tile, factor, bad);
        wgmma_wait<0>();
        settle(o);
        settle(p);
        release(sh.v_ring().empty(v_step));
        if (!MERGED_STEP) step++;
        store_rows(tile, m, factor, bad);
    }

    /* Runs the first key tile and all masked key tiles of a query tile (MERGED_STEP only). */
    FXA_INLINE void run_masked(int tile)
    {
        row_max[0] = row_max[1] = tile & RECOMPUTE ? NEG_INF : 0.f;
        row_sum[0] = row_sum[1] = 0.f;
#pragma unroll 1
        for (int j = 0; j < masked; j++)
            if (!SKIPS_TILES || j == 0 || !skip_tile()) next_step<true, false>(tile, j == 0);
    }

    /* Runs all key tiles of a query tile. The producer determines how many of the tiles run as masked steps; in a
     * recompute pass all tiles do. Masked and unmasked steps have separate loops: in one loop with a run-time
     * condition, the compiler would keep `step` in ordinary registers, and the loop would grow by a fifth in moves of
     * descriptors (R2UR in the SASS). With MERGED_STEP, two loops of masked steps or a conditional increment of `step`
     * would have the same effect, so `step` starts at -1; otherwise it starts at 0. */
    FXA_INLINE void run_tile(int tile)
    {
        int j = 1;
        if (MERGED_STEP) {
            run_masked(tile);
            j = masked;
        } else {
            first_step(tile);
            pending = step;
#pragma unroll 1
            for (; j < masked; j++)
                if (!SKIPS_TILES || !skip_tile()) next_step<true, false>(tile);
        }
#pragma unroll 1
        for (; j < total; j++) next_step<false, true>(0);
        if (SKIPS_TILES && masked < total) pending = step;
    }

    FXA_INLINE void run()
    {
        if (PING_PONG && group == 0) named_arrive(BAR_PING_PONG, 256);
        for (;; q_step++) {
            const Ring<Q_BUFFERS> ring = sh.q_ring();
            const bool ready = __all_sync(~0u, barrier_test(ring.full(q_step), (q_step / Q_BUFFERS) & 1));
            if (Q_BUFFERS == 1 || !ready) {
                release_q();
                ring.wait_full(q_step);
            }
            const TileSlot slot = sh.slot(q_step);
            const int tile = slot.tile(), m = slot.m();
            if (tile < 0) break;
            q_descriptor = k_major(sh.q(q_step) + group * 64 * 128);
            if (a.turned) {
                negate_rows<BM, FXA_D>(a, sh.q(q_step) + group * 64 * 128);
                named_sync(BAR_CLEAR + group, 128);
            }
            /* m is passed, because reading it again in begin_tile() makes soft caps 3 to 7 % slower */
            if (MERGED_STEP) begin_tile(m);
            run_tile(tile);
            finish(tile, m);
        }
    }
};

} // namespace

#endif
