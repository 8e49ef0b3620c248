/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward on Hopper: dK and dV of one key tile, and its share of dQ; head dimensions up to 128.
 *
 * A CTA owns 128 keys of one KV head: its two consumer warpgroups hold dK and dV of 64 keys each in registers and walk
 * the query blocks of the tile's list, for every query head of the group in turn (so dK and dV of shared heads need no
 * atomics). Scores are computed transposed, keys as rows: P and dS then feed dV and dK from registers, and only dS goes
 * through shared memory, for dQ = dS K. dQ leaves by bulk reductions into an f32 sum whose layout is that of the
 * accumulators; fxa_grad_q_finish turns it into dQ. They come in any order, or with FXA_DQ_ORDERED in that of key
 * tiles, and the whole backward is bit-stable. So it is with FXA_SEPARATE_DQ, where that part is left out: sm90/dq.cu
 * computes dQ by query tiles.
 *
 * Warps of the first warpgroup: 0 copies (one lane), 1 sends dQ (by turns 2 too), 2 and 3 add up diagonals of dS for
 * the gradient of a diagonal row. Launch: see common/backward_tile.cuh.
 */
#include "sm90/backward_mainloop.cuh"
#include "sm90/backward_producer.cuh"
#include "sm90/ordered_dq.cuh"

extern "C" __constant__ FxaShape fxa_backward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_backward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const Shared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) begin(maps, sh);
    launch_wait();
    launch_next(); /* not before: who reads FxaArgs.sent without waiting for this launch must not see it unset */
    if (TURNS && threadIdx.x == 0) put_word(sh.ticket(), take_ticket(a));
    if (TURNS) __syncthreads();
    const Place at = TURNS ? ticket_place(a, take_word(sh.ticket())) : Place(a);
    if (at.outside(a)) {
        if (WITH_DQ && threadIdx.x == 0) say_sent(a, at);
        return;
    }
    if (!TURNS) __syncthreads();
    if (group == 0) {
        registers_down<FXA_SEPARATE_DQ ? 24 : 40>();
        if (warp == 0) {
            if (elected()) copy_all(maps, a, sh, at);
        } else if (TURNS && warp <= SENDERS) {
            send_in_turn(a, sh, at, warp - 1);
        } else if (WITH_DQ && warp == 1) {
            send_dq(a, sh, at);
        } else if (PROG_GRAD_DIAGONAL && warp >= 2) {
            sum_diagonals(a, sh, at, warp, threadIdx.x & 31);
        }
    } else {
        registers_up<FXA_SEPARATE_DQ ? 240 : 232>();
        Consumer(maps, a, sh, at, group - 1).run();
    }
}
