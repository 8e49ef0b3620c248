/* SPDX-License-Identifier: Apache-2.0
 *
 * Ordered dQ: the key tiles add their partial dQ of a query block one after the other, in the order of their indices
 * (the first one stores it), so that the sum has the same bits in every run. FxaArgs.first_share counts the partial dQ
 * that have arrived.
 *
 * A CTA may not wait for a CTA that has not started, because the latter may need the multiprocessor of the former. So a
 * CTA takes a ticket when it starts, and the ticket determines its key tile; tickets of a head are in the order of its
 * key tiles. The running CTA with the lowest ticket then never waits: all CTAs with lower tickets have ended.
 *
 * Tickets cover FxaArgs.section heads at a time, tile by tile over these heads. Key tiles of one head that start
 * together would wait for each other. With tiles of other heads in between, they start one after the other, as
 * multiprocessors become free, when the previous key tile of the head has added its partial dQ.
 */
#ifndef FXA_CUDA_SM90_ORDERED_DQ_CUH
#define FXA_CUDA_SM90_ORDERED_DQ_CUH

#include "sm90/backward_shared.cuh"

namespace {

/* Returns the ticket of this CTA: the number of CTAs that have started before it. The last CTA resets the counter. */
FXA_INLINE int take_ticket(const FxaArgs &a)
{
    const u32 ticket = atomicAdd(a.next_tile, 1u);
    if (ticket == gridDim.x * gridDim.y * gridDim.z - 1) *(volatile unsigned *)a.next_tile = 0u;
    return (int)ticket;
}

FXA_INLINE BackwardTile ticket_tile(const FxaArgs &a, int ticket)
{
    const int tiles = gridDim.x, per = a.section * tiles, s = ticket / per, r = ticket - s * per;
    const int heads = min(a.section, a.kv_heads * a.batch - s * a.section);
    const int n = r / heads, bh = s * a.section + (r - n * heads), b = bh / a.kv_heads;
    return BackwardTile(a, n, bh - b * a.kv_heads, b);
}

/*
 * Reduces the partial dQ of the blocks i, i + REDUCE_WARPS, ... of the key tile, by one warp. The wait for the previous
 * key tile runs while the partial dQ is computed; the buffer is released when the bulk copies have read it, and the
 * block's count in FxaArgs.first_share is incremented when all of the partial dQ has arrived.
 */
FXA_INLINE void reduce_ordered_dq(const FxaArgs &a, const BackwardShared &sh, const BackwardTile &at, int i)
{
    u32 step = 0;
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        for (int j = 0; j < row.total; j++, step++) {
            if ((int)(step % REDUCE_WARPS) != i) continue;
            const long long first = at.workspace_row(a, h) + (long long)row.tile(j) * BQ;
            float *to = a.grad_q_sum + first * FXA_D;
            int *arrived = a.first_share + first / 64;
            if (elected()) flag_await(arrived, at.n);
            __syncwarp();
#pragma unroll
            for (int x = 0; x < 2; x++) {
                named_sync(bar_dq_full(step, x), 160);
                if (!DQ_REDUCED_BYTES[x] || !elected()) continue;
                if (at.n == 0)
                    bulk_store(to + x * (DQ_BYTES / 4), sh.dq(x), DQ_REDUCED_BYTES[x]);
                else
                    bulk_add(to + x * (DQ_BYTES / 4), sh.dq(x), DQ_REDUCED_BYTES[x]);
                bulk_commit();
            }
            if (elected()) bulk_wait_read<0>();
            __syncwarp();
            named_arrive(BAR_DQ_EMPTY, 160);
            named_arrive(BAR_DQ_EMPTY + 1, 160);
            if (!elected()) continue;
            bulk_wait();
            /* fxa_grad_q_finish reads one count per 64 rows: arrived[1] is the count of the second 64 rows of a block
             * of 128 */
            if (BQ == 128) arrived[1] = at.n + 1;
            flag_set(arrived, at.n + 1);
        }
    }
    if (elected()) count_reduced(a, at);
}

} // namespace

#endif
