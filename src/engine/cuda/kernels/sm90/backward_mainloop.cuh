/* SPDX-License-Identifier: Apache-2.0
 *
 * Mainloop of a consumer warpgroup of the Hopper backward kernel: it has 64 keys, keeps their dK and dV in registers,
 * and computes half of each partial dQ. Keys are the rows of the accumulators, queries the columns.
 *
 *     tensor cores   S, dP             dV             dQ, dK
 *     other units           P and dS        dS to shared    dQ to shared, dK, dV after the last block
 */
#ifndef FXA_CUDA_SM90_BACKWARD_MAINLOOP_CUH
#define FXA_CUDA_SM90_BACKWARD_MAINLOOP_CUH

#include "sm90/backward_scores.cuh"

namespace {

struct BackwardMainloop : BackwardScores {
    FXA_INLINE BackwardMainloop(const FxaMaps &maps_, const FxaArgs &a_, BackwardShared sh_, const BackwardTile &at_,
                                int group_)
        : BackwardScores(maps_, a_, sh_, at_, group_)
    {
    }

    FXA_INLINE void ds_to_shared(const u32 (&ds)[BQ / 4]) const
    {
        if (PROG_GRAD_DIAGONAL) sh.ds_ring().wait_empty(step);
        /* used if BQ is 64; blocks of 128 queries leave no register for `first` */
        const u32 first = transposed(sh.ds(step), 0);
#pragma unroll
        for (int j = 0; j < BQ / 16; j++) {
            const u32 to = BQ == 64 ? first + j * 16 * 128 : transposed(sh.ds(step), j);
            store_matrix_transposed(to, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
        }
    }

    /* Waits until both warpgroups have written dS of block m to shared memory, and passes dS to the warps that sum
     * diagonals and to the store of the dense tensor's gradient. */
    FXA_INLINE void publish_ds(int m) const
    {
        async_fence();
        if (SKIPS_BLOCKS)
            named_sync_apart<BAR_DS, 256>(); /* one warpgroup may arrive from skip_block(), the other one not */
        else
            named_sync(BAR_DS, 256);
        if (PROG_GRAD_DIAGONAL && threadIdx.x == 128) barrier_arrive(sh.ds_ring().full(step));
#if PROG_GRAD_DENSE
        if (leader) {
            tma_store(&maps.grad_dense, sh.ds(step) + group * BQ * 128, at.n * BK + group * 64, m * BQ, h, at.b);
            bulk_commit();
            /* Waits until all stores except the one just issued have read shared memory. After the next barrier of this
             * warpgroup, the buffer of the next block's dS is then free. */
            bulk_wait_read<1>();
        }
#endif
    }

    /* Issues the product for this warpgroup's half of the partial dQ = dS K. */
    FXA_INLINE void issue_dq(float (&dq)[DQ_COLUMNS / 2]) const
    {
        const u64 rows = k_major(sh.ds(step) + (BQ == 128 ? group * 64 * 128 : 0));
        const u32 half = FXA_D > 64 ? group * BK * 128 : group * DQ_COLUMNS * 2;
        const u64 columns = n_major<BK>(sh.k() + (BQ == 128 ? 0 : half));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++) wgmma<1, 1>(dq, rows + k_step<BQ>(k), columns + n_step(k), k > 0);
        wgmma_commit();
    }

    FXA_INLINE void dq_to_shared(const float (&dq)[DQ_COLUMNS / 2]) const
    {
        named_sync(BAR_DQ_EMPTY + group, 160);
#pragma unroll
        for (int i = 0; i < DQ_COLUMNS / 8; i++)
            store_shared_float4(sh.dq(group) + (i * 128 + (threadIdx.x & 127)) * 16, dq[4 * i], dq[4 * i + 1],
                                dq[4 * i + 2], dq[4 * i + 3]);
        async_fence();
        named_arrive(bar_dq_full(step, group), 160);
    }

    template <bool MASKED> FXA_INLINE void block_step()
    {
        float s[BQ / 2], dp[BQ / 2], diagonal[BQ / 4 + 2] = {};
        u32 p[BQ / 4], ds[BQ / 4], dense[BQ / 4] = {};
        sh.q_ring().wait_full(step);
        const int entry = take_word(sh.block_entry(step)), m = MASKED ? block_of(entry) : entry;
        clear_queries<MASKED>(m);
        if (KV_IN_REGISTERS)
            issue_rows_of_registers<FXA_D, BQ>(s, k_rows, sh.q(step));
        else
            issue_rows<FXA_D, BK, BQ, steps_of(FXA_D, SEVERAL_STEPS)>(s, sh.k() + group * 64 * 128, sh.q(step));
        sh.o_ring().wait_full(step);
        if (KV_IN_REGISTERS)
            issue_rows_of_registers<FXA_DV, BQ>(dp, v_rows, sh.grad_o(step));
        else
            issue_rows<FXA_DV, BK, BQ, steps_of(FXA_DV, SEVERAL_STEPS)>(dp, sh.v() + group * 64 * 128, sh.grad_o(step));
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + first_key();
        if (PROG_DENSE) load_dense(dense);
        if (PROG_DIAGONAL) load_diagonal(diagonal, q0, k0);
        if (PAIRS_READ_PROGRAM || MASKED) program.tile(a, q0, k0);
        const u32 kept = FXA_DROPOUT ? kept_of_column(a, at.b, h, m * BQ, k0) : 0;
        wgmma_wait<GRADS_READ_SCORE ? 0 : 1>();
        settle(s);
        if (GRADS_READ_SCORE)
            settle(dp);
        else
            softcap_all(program, a, s, !MASKED || (k0 + 8 < at.k_len && (m + 1) * BQ <= at.q_len));
        probabilities<MASKED>(s, dp, p, m, dense, diagonal, kept);
        wgmma_wait<0>();
        settle(dp);
        score_gradients(s, dp, ds, m, kept);
        if (WITH_DS) ds_to_shared(ds);
        issue_sum<BQ, steps_of(BQ, SEVERAL_STEPS)>(dv, p, sh.grad_o(step));
        if (WITH_DS) publish_ds(m);
        finish_step(p, ds);
        step++;
    }

    /* Processes a block none of whose queries attends to this warpgroup's keys. The warpgroup's dS is 0; the warpgroup
     * still computes its half of the partial dQ, from the dS of the other warpgroup's keys. */
    FXA_INLINE void skip_block()
    {
        const u32 ds[BQ / 4] = {};
        float dq[DQ_COLUMNS / 2];
        const int m = block_of(take_word(sh.block_entry(step)));
        sh.o_ring().wait_full(step);
        release(sh.o_ring().empty(step));
        ds_to_shared(ds);
        publish_ds(m);
        issue_dq(dq);
        wgmma_wait<0>();
        settle(dq);
        dq_to_shared(dq);
        release(sh.q_ring().empty(step));
        step++;
    }

    FXA_INLINE bool is_skipped() const
    {
        sh.q_ring().wait_full(step);
        return take_word(sh.block_entry(step)) & FXA_CUDA_SKIP << group;
    }

    /* Computes the products that follow dV: the partial dQ (unless sm90/dq.cu computes dQ) and dK += dS^T Q. Releases
     * the buffers of Q and dO. */
    FXA_INLINE void finish_step(u32 (&p)[BQ / 4], u32 (&ds)[BQ / 4])
    {
#if FXA_SEPARATE_DQ
        issue_sum<BQ, steps_of(BQ, SEVERAL_STEPS)>(dk, ds, sh.q(step));
        wgmma_wait<1>();
        settle(dv);
        settle(p);
        release(sh.o_ring().empty(step));
        if (PROG_GRAD_DENSE) named_sync(BAR_DENSE + group, 128);
#else
        float dq[DQ_COLUMNS / 2];
        issue_dq(dq);
        wgmma_wait<1>();
        settle(dv);
        settle(p);
        release(sh.o_ring().empty(step));
        issue_sum<BQ, steps_of(BQ, SEVERAL_STEPS)>(dk, ds, sh.q(step));
        wgmma_wait<1>();
        settle(dq);
        dq_to_shared(dq);
#endif
        wgmma_wait<0>();
        settle(dk);
        settle(ds);
        release(sh.q_ring().empty(step));
    }

    /* Stores dK and dV through the buffers of K and V, each warp its own 16 rows. */
    FXA_INLINE void store_gradients() const
    {
        const int row = group * 64 + warp * 16, keys = at.k_len - at.n * BK - row;
        const TmaRows rows(k_starts(a), at.k_first, at.n * BK + row, at.kv_h, at.b);
        const float scale = run_scale(a), scale_v = FXA_DROPOUT ? a.keep_inverse : 1.f;
        named_sync(BAR_END, 256);
        rows_to_shared<BK>(sh.v() + row * 128, dv, scale_v, scale_v);
        store_shared_rows<BK, FXA_DV>(&maps.grad_v, a.grad_v, rows, sh.v() + row * 128, keys, a.dv);
        rows_to_shared<BK>(sh.k() + row * 128, dk, scale, scale);
        store_shared_rows<BK, FXA_D>(&maps.grad_k, a.grad_k, rows, sh.k() + row * 128, keys, a.d);
        if (lane == 0) bulk_wait();
    }

    FXA_INLINE void run()
    {
        if (WITH_DQ && warp == 0) named_arrive(BAR_DQ_EMPTY + group, 160);
        barrier_wait(sh.kv_full(), 0);
        clear_keys();
        if (a.turned) { /* each warpgroup negates half of K, and the product dQ = dS K reads all of K */
            negate_rows<BK, FXA_D>(a, sh.k() + group * 64 * 128);
            named_sync(BAR_KEYS, 256);
        }
        if (KV_IN_REGISTERS) {
            load_rows(k_rows, sh.k());
            load_rows(v_rows, sh.v());
        }
        for (int g = 0; g < a.group; g++) {
            h = at.first_head(a) + g;
            const ListRow row = at.row(a, h);
            program.head(a, at.b, h, at.q_len, at.k_len);
            captured.clear();
            int j = 0;
#pragma unroll 1
            for (; j < row.partial; j++) {
                if (SKIPS_BLOCKS && is_skipped())
                    skip_block();
                else
                    block_step<true>();
            }
#pragma unroll 1
            for (; j < row.total; j++) block_step<false>();
            captured.store(a, at.b, h, at.n * 8 + group * 4 + warp);
        }
        store_gradients();
    }
};

} // namespace

#endif
