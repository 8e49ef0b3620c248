/* SPDX-License-Identifier: Apache-2.0
 *
 * dQ in a fixed order: each key tile adds its share to a block of queries when the tile before it has, and the first
 * one stores it. FxaArgs.first_share counts the shares that are there.
 *
 * Nobody may wait for a CTA that has not begun, which may need this one's place. So a CTA takes a ticket when it
 * begins, and that says which key tile it has; tickets of a head are given in the order of turns. Then the one with the
 * lowest ticket of those that have not ended waits for nobody: all it could wait for have ended.
 *
 * Tickets go through `section` heads at a time, tile by tile over all of them. Tiles of one head that begin together
 * wait for each other, each a little longer than the one before; with others in between they begin one after the other
 * as multiprocessors become free, and have their turn when they come.
 */
#ifndef FXA_CUDA_SM90_ORDERED_DQ_CUH
#define FXA_CUDA_SM90_ORDERED_DQ_CUH

#include "sm90/backward_shared.cuh"

namespace {

/* The last one sets the counter back. */
FXA_INLINE int take_ticket(const FxaArgs &a)
{
    const u32 ticket = atomicAdd(a.next_tile, 1u);
    if (ticket == gridDim.x * gridDim.y * gridDim.z - 1) *(volatile unsigned *)a.next_tile = 0u;
    return (int)ticket;
}

FXA_INLINE Place ticket_place(const FxaArgs &a, int ticket)
{
    const int tiles = gridDim.x, per = a.section * tiles, s = ticket / per, r = ticket - s * per;
    const int heads = min(a.section, a.kv_heads * a.batch - s * a.section);
    const int n = r / heads, bh = s * a.section + (r - n * heads), b = bh / a.kv_heads;
    return Place(a, n, bh - b * a.kv_heads, b);
}

/*
 * One of the warps that send: blocks i, i + SENDERS, ... of the tile. The turn is waited for while the share is
 * computed; the buffer goes back when it is read, and the turn goes on when all of the share has arrived.
 */
FXA_INLINE void send_in_turn(const FxaArgs &a, const Shared &sh, const Place &at, int i)
{
    u32 step = 0;
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        for (int j = 0; j < row.total; j++, step++) {
            if ((int)(step % SENDERS) != i) continue;
            const long long first = at.workspace_row(a, h) + (long long)row.tile(j) * BQ;
            float *to = a.grad_q_sum + first * FXA_D;
            int *turn = a.first_share + first / 64;
            if (elected()) flag_await(turn, at.n);
            __syncwarp();
#pragma unroll
            for (int x = 0; x < 2; x++) {
                named_sync(bar_dq_full(step, x), 160);
                if (!DQ_SENT[x] || !elected()) continue;
                if (at.n == 0)
                    bulk_store(to + x * (DQ_BYTES / 4), sh.dq(x), DQ_SENT[x]);
                else
                    bulk_add(to + x * (DQ_BYTES / 4), sh.dq(x), DQ_SENT[x]);
                bulk_commit();
            }
            if (elected()) bulk_wait_read<0>();
            __syncwarp();
            named_arrive(BAR_DQ_EMPTY, 160);
            named_arrive(BAR_DQ_EMPTY + 1, 160);
            if (!elected()) continue;
            bulk_wait();
            if (BQ == 128) turn[1] = at.n + 1; /* for who asks whether there is a sum */
            flag_set(turn, at.n + 1);
        }
    }
    if (elected()) say_sent(a, at);
}

} // namespace

#endif
