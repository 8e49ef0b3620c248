/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward on Hopper (wgmma, TMA), f16 and bf16: O and LSE of query tiles.
 *
 * Grid: persistent, min(tiles, multiprocessors) CTAs, which take query tiles of BM rows from a counter. Warps: one lane
 * of the first warpgroup is the producer, the other GROUPS warpgroups are consumers of 64 rows each. Pipeline: rings of
 * Q_BUFFERS query tiles and STAGES key tiles.
 *
 *     sm90/forward_shared.cuh     tile sizes, shared memory
 *     sm90/forward_producer.cuh   the copies, in the order of the tile list
 *     sm90/forward_mainloop.cuh   S = Q K^T and O += P V, one step ahead of the softmax
 *     sm90/forward_softmax.cuh    scores, masks, row maxima, exponentials
 *     sm90/forward_epilogue.cuh   LSE, O through shared memory, flags for a recompute pass
 *
 * The running maximum is fixed after the first tiles (or is 0 from the start, for a program whose scores have a
 * compile-time bound): exp2 needs no true maximum, only sums that neither overflow nor vanish. Rows whose sum or output
 * leaves that range flag their tile, and the same CTA recomputes the tile at the end with the maximum updated in every
 * step (common/fixed_max.cuh), and twice more if V is not finite (common/nonfinite.cuh). The fixed maximum so affects
 * the time, never the result.
 *
 * Invariants: all consumers process the same tiles in the same order, and every step is produced and consumed exactly
 * once, so the counters step and q_step of producer and consumers agree.
 */
#include "sm90/forward_mainloop.cuh"
#include "sm90/forward_producer.cuh"

extern "C" __constant__ FxaShape fxa_forward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_forward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40, CONSUMER_REGISTERS = GROUPS == 3 ? 160 : 232;
    produce_and_consume<ForwardProducer, ForwardMainloop, PRODUCER_REGISTERS, CONSUMER_REGISTERS, ForwardShared>(
        maps, a, memory);
}
