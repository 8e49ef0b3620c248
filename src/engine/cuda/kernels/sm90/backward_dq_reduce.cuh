/* SPDX-License-Identifier: Apache-2.0
 *
 * Reduction of dQ in any order, by warp 1 of the Hopper backward kernel: reduce-adds the partial dQ of the key tile to
 * the f32 sum by bulk copies. sm90/ordered_dq.cuh adds the partial dQ in a fixed order instead.
 */
#ifndef FXA_CUDA_SM90_BACKWARD_DQ_REDUCE_CUH
#define FXA_CUDA_SM90_BACKWARD_DQ_REDUCE_CUH

#include "sm90/backward_shared.cuh"

namespace {

/*
 * Reduction of the partial dQ of one query block, by one lane. With FIRST_PARTIAL_STORES the first partial dQ of the
 * block is stored and the others are added, so that the sum need not be set to 0 before. A CTA whose partial dQ is
 * ready claims the store by a flag in FxaArgs.first_share; other CTAs wait until the stored partial dQ has arrived.
 */
struct DqReduction {
    static constexpr int CLAIMED = -1, STORED = 1;
    int *first;
    bool stores;

    /* Reads the block's flag before the partial dQ is ready, to hide the latency. */
    FXA_INLINE void read_state() { stores = FIRST_PARTIAL_STORES && flag_now(first) != STORED; }
    FXA_INLINE void claim()
    {
        if (!stores) return;
        int now;
        do
            now = flag_claim(first, CLAIMED);
        while (now == CLAIMED);
        stores = now == 0;
    }
    FXA_INLINE void reduce(float *to, u32 from, int bytes) const
    {
        if (stores)
            bulk_store(to, from, bytes);
        else
            bulk_add(to, from, bytes);
        bulk_commit();
    }
    FXA_INLINE void publish() const
    {
        if (!stores) return;
        bulk_wait();
        if (BQ == 128) first[1] = STORED;
        flag_set(first, STORED);
    }
};

/* Reduces the partial dQ of all query blocks of the key tile. A buffer is released when the bulk copies have read it.
 * For a partial dQ that is stored, not added, the block's flag is set when all of it has arrived in memory. */
FXA_INLINE void reduce_dq(const FxaArgs &a, const BackwardShared &sh, const BackwardTile &at)
{
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        for (int j = 0; j < row.total; j++) {
            const long long first = at.workspace_row(a, h) + (long long)block_of(row.tile(j)) * BQ;
            float *to = a.grad_q_sum + first * FXA_D;
            DqReduction reduction = {a.first_share + first / 64, false};
            if (elected()) reduction.read_state();
            __syncwarp();
#pragma unroll
            for (int x = 0; x < 2; x++) {
                named_sync(BAR_DQ_FULL + x, 160);
                if (DQ_REDUCED_BYTES[x] && elected()) {
                    if (x == 0) reduction.claim();
                    reduction.reduce(to + x * (DQ_BYTES / 4), sh.dq(x), DQ_REDUCED_BYTES[x]);
                }
            }
            if (elected()) bulk_wait_read<0>();
            __syncwarp();
            named_arrive(BAR_DQ_EMPTY, 160);
            named_arrive(BAR_DQ_EMPTY + 1, 160);
            if (elected()) reduction.publish();
        }
    }
    if (elected()) {
        bulk_wait();
        count_reduced(a, at);
    }
}

} // namespace

#endif
