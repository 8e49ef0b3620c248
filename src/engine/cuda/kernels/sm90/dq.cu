/* SPDX-License-Identifier: Apache-2.0
 *
 * dQ on Hopper by query tiles: the second kernel of a deterministic backward, after sm90/backward.cu with
 * FXA_SEPARATE_DQ, and of every backward with head dims above 128 (sm90/backward_wide.cu). It computes two more
 * products than the fused kernel (S and dP again), but needs no f32 sum in memory, no atomics and no conversion
 * afterwards, and it supports any tile list.
 *
 * Grid: persistent, min(tiles, multiprocessors) CTAs, which take query tiles of BM rows from a counter, with tile lists
 * like the forward's, for tiles of 128 queries and 64 keys. Warps: one lane of the first warpgroup is the producer, the
 * other two warpgroups are consumers of 64 rows each. Pipeline: one buffer of Q and dO, rings of K_STAGES and V_STAGES
 * key tiles (shared memory: sm90/dq_shared.cuh). Mainloop and epilogue: sm90/dq_mainloop.cuh.
 */
#include "sm90/dq_mainloop.cuh"

namespace {

struct DqProducer {
    const FxaMaps &maps;
    const FxaArgs &a;
    DqShared sh;
    u32 step, q_step;

    FXA_INLINE void load_q(const WorkTile &w) const
    {
        const TmaRows rows(q_starts(a), w.q_first, w.m * BM, w.h, w.b);
        sh.q_ring().wait_empty(q_step);
        sh.slot().put(0, w, w.row.partial, w.row.total);
        const u32 full = sh.q_ring().full(q_step);
        barrier_expect(full, Q_BYTES + DO_BYTES);
        tma_load_tile<BM, FXA_D>(sh.q(), &maps.q, full, rows, L2_EVICT_FIRST);
        tma_load_tile<BM, FXA_DV>(sh.grad_o(), &maps.grad_o, full, rows, L2_EVICT_FIRST);
    }

    FXA_INLINE void load_keys(const WorkTile &w, int n) const
    {
        const u32 full = sh.k_ring().full(step);
        sh.k_ring().wait_empty(step);
        put_word(sh.tile_index(step), n);
        barrier_expect(full, K_BYTES + DENSE_BYTES);
        tma_load_tile<BN, FXA_D>(sh.k(step), &maps.k, full, TmaRows(k_starts(a), w.k_first, n * BN, w.kv_h, w.b),
                                 L2_EVICT_LAST);
        if (DENSE_TILES)
            tma_load(sh.dense(step), &maps.dense, full, n * BN, w.m * BM, a.dense.h ? w.h : 0, a.dense.b ? w.b : 0,
                     L2_EVICT_FIRST);
    }

    FXA_INLINE void load_values(const WorkTile &w, int n) const
    {
        sh.v_ring().wait_empty(step);
        barrier_expect(sh.v_ring().full(step), V_BYTES);
        tma_load_tile<BN, FXA_DV>(sh.v(step), &maps.v, sh.v_ring().full(step),
                                  TmaRows(k_starts(a), w.k_first, n * BN, w.kv_h, w.b), L2_EVICT_LAST);
    }

    /* Loads all query tiles of this CTA and their key tiles. A query tile without key tiles is loaded too, so that its
     * dQ is set to 0. */
    FXA_INLINE void run()
    {
        WorkTile w;
        for (w.plan<BM, BN>(a, blockIdx.x); w.tile < a.tiles; q_step++) {
            int ahead = w.row.first;
            const int total = w.row.total;
            if (!total) load_q(w);
            for (int j = 0; j < total; j++, step++) {
                const int n = ahead;
                if (j + 1 < total) ahead = w.row.tile(j + 1);
                load_keys(w, n);
                if (j == 0) load_q(w);
                load_values(w, n);
            }
            w.plan<BM, BN>(a, next_tile(a));
        }
        sh.q_ring().wait_empty(q_step);
        sh.slot().put_end();
        barrier_arrive(sh.q_ring().full(q_step));
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_grad_q_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_grad_q(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    produce_and_consume<DqProducer, DqMainloop, PRODUCER_REGISTERS, CONSUMER_REGISTERS, DqShared>(maps, a, memory);
}
