/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward on Hopper for head dims up to 128: dK and dV of one key tile, and its partial dQ.
 *
 * Grid: a CTA per tile of BK keys, KV head and batch entry (common/backward_tile.cuh); 384 threads.
 * Warps: of the first warpgroup, 0 is the producer (one lane), 1 reduces dQ (with ordered dQ also 2), and 2 and 3 sum
 * dS along diagonals, for the gradient of a diagonal row. The other two warpgroups are consumers of 64 keys each.
 * Pipeline: K and V are loaded once; Q and dO have rings of STAGES query blocks. A CTA runs through the blocks of its
 * list for every query head of the KV group in turn, so dK and dV need no atomics.
 *
 *     sm90/backward_shared.cuh      tile sizes, shared memory
 *     sm90/backward_producer.cuh    copies
 *     sm90/backward_mainloop.cuh    products of a block; epilogue: dK and dV through the buffers of K and V
 *     sm90/backward_scores.cuh      P, dS, gradients of captured tensors
 *     sm90/backward_dq_reduce.cuh   partial dQ to the f32 sum, in any order; sm90/ordered_dq.cuh: in a fixed order
 *     sm90/backward_diagonals.cuh   sums of dS along diagonals
 *
 * Scores are computed transposed, with keys as rows: P and dS are then operands of dV and dK in registers, and only dS
 * passes through shared memory, for dQ = dS K. The f32 sum of dQ has the layout of the accumulators, and
 * fxa_grad_q_finish converts it. The backward is deterministic with FXA_DQ_ORDERED, and with FXA_SEPARATE_DQ, where
 * sm90/dq.cu computes dQ by query tiles instead.
 */
#include "sm90/backward_mainloop.cuh"
#include "sm90/backward_producer.cuh"
#include "sm90/backward_dq_reduce.cuh"
#include "sm90/backward_diagonals.cuh"
#include "sm90/ordered_dq.cuh"

extern "C" __constant__ FxaShape fxa_backward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_backward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const BackwardShared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) prefetch_and_init(maps, sh);
    launch_wait();
    /* launch_next() follows launch_wait(), because the next launch reads FxaArgs.sent, which an earlier launch has
     * reset by then. */
    launch_next();
    if (ORDERED_DQ && threadIdx.x == 0) put_word(sh.ticket(), take_ticket(a));
    if (ORDERED_DQ) __syncthreads();
    const BackwardTile at = ORDERED_DQ ? ticket_tile(a, take_word(sh.ticket())) : BackwardTile(a);
    if (at.outside(a)) {
        if (WITH_DQ && threadIdx.x == 0) count_reduced(a, at);
        return;
    }
    if (!ORDERED_DQ) __syncthreads();
    if (group == 0) {
        registers_down<FXA_SEPARATE_DQ ? 24 : 40>();
        if (warp == 0) {
            if (elected()) copy_all(maps, a, sh, at);
        } else if (ORDERED_DQ && warp <= REDUCE_WARPS) {
            reduce_ordered_dq(a, sh, at, warp - 1);
        } else if (WITH_DQ && warp == 1) {
            reduce_dq(a, sh, at);
        } else if (PROG_GRAD_DIAGONAL && warp >= 2) {
            sum_diagonals(a, sh, at, warp, threadIdx.x & 31);
        }
    } else {
        registers_up<FXA_SEPARATE_DQ ? 240 : 232>();
        BackwardMainloop(maps, a, sh, at, group - 1).run();
    }
}
