/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward on Hopper: wgmma and TMA, f16 and bf16, head dimensions 64 and 128.
 *
 * One CTA per multiprocessor takes query tiles from a counter. A single lane of the first warpgroup is the producer
 * (forward_producer.cuh), the other warpgroups are consumers (forward_consumer.cuh); forward_layout.cuh is what they
 * share.
 *
 * The running maximum is frozen after the partial tiles and one full tile (or, for a bounded program, is 0 from the
 * start): exp2 needs no true maximum, only a sum that neither overflows nor vanishes. Rows whose sum leaves that range
 * flag their tile, and the same CTA computes it again at the end with the maximum updated everywhere. So the result
 * never depends on the guess, only the time does.
 *
 * Invariants: all consumers visit the same tiles in the same order; every step is produced and consumed exactly once,
 * so the counters `step` and `turn` of the two sides agree.
 *
 * Launch: persistent, min(tiles, multiprocessors) CTAs.
 */
#include "forward_consumer.cuh"
#include "forward_producer.cuh"


extern "C" __constant__ FxaShape fxa_forward_shape = {THREADS, Shared::BYTES, BM, BN, 16, 1};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_forward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const Shared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) sh.init();
    __syncthreads();
    if (group == 0) {
        registers_down<GROUPS == 3 ? 32 : 40>();
        if (__shfl_sync(~0u, (int)threadIdx.x >> 5, 0) == 0 && elected()) Producer{maps, a, sh, 0, 0}.run();
    } else {
        registers_up<GROUPS == 3 ? 160 : 232>();
        Consumer(maps, a, sh, group - 1).run();
    }
}
