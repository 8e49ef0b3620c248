/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward on Hopper: wgmma and TMA, f16 and bf16.
 *
 * One CTA per multiprocessor takes query tiles from a counter. A single lane of the first warpgroup is the producer
 * (sm90/forward_producer.cuh), the other warpgroups are consumers (sm90/forward_mainloop.cuh); sm90/forward_shared.cuh
 * is what they share.
 *
 * The running maximum is frozen after the first tiles (or, for a bounded program, is 0 from the start): exp2 needs no
 * true maximum, only sums that neither overflow nor vanish. Rows whose sum or output leaves that range flag their tile,
 * and the same CTA computes it again at the end with the maximum updated everywhere (common/fixed_max.cuh); where V is
 * not finite twice more (common/nonfinite.cuh). So the result never depends on the guess, only the time does.
 *
 * Invariants: all consumers visit the same tiles in the same order; every step is produced and consumed exactly once,
 * so the counters `step` and `turn` of the two sides agree.
 *
 * Launch: persistent, min(tiles, multiprocessors) CTAs.
 */
#include "sm90/forward_mainloop.cuh"
#include "sm90/forward_producer.cuh"

extern "C" __constant__ FxaShape fxa_forward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_forward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    produce_and_consume<Producer, Consumer, GROUPS == 3 ? 32 : 40, GROUPS == 3 ? 160 : 232, Shared>(maps, a, memory);
}
