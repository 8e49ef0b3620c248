/* SPDX-License-Identifier: Apache-2.0
 *
 * dQ alone on Hopper, by query tiles: the other half of a bit-stable backward, beside sm90/backward.cu with
 * FXA_SEPARATE_DQ, and of every backward with head dimensions above 128 (sm90/backward_wide.cu). Two more products than
 * the joint kernel (S and dP again), but no f32 sum in memory, no atomics, no conversion afterwards, and it follows any
 * list.
 *
 * Persistent as the forward, with the forward's lists at 128 x 64; the consumers are in sm90/dq_mainloop.cuh. Launch:
 * min(tiles, multiprocessors) CTAs.
 */
#include "sm90/dq_mainloop.cuh"

namespace {

struct Producer {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    u32 step, turn;

    FXA_INLINE void load_q(const Work &w) const
    {
        const Rows rows(q_starts(a), w.q_first, w.m * BM, w.h, w.b);
        sh.q_ring().wait_empty(turn);
        sh.slot().put(0, w, w.row.partial, w.row.total);
        const u32 full = sh.q_ring().full(turn);
        barrier_expect(full, Q_BYTES + DO_BYTES);
        tma_load_tile<BM, FXA_D>(sh.q(), &maps.q, full, rows, CACHE_FIRST_OUT);
        tma_load_tile<BM, FXA_DV>(sh.grad_o(), &maps.grad_o, full, rows, CACHE_FIRST_OUT);
    }

    FXA_INLINE void load_keys(const Work &w, int n) const
    {
        const u32 full = sh.k_ring().full(step);
        sh.k_ring().wait_empty(step);
        put_word(sh.number(step), n);
        barrier_expect(full, K_BYTES + DENSE_BYTES);
        tma_load_tile<BN, FXA_D>(sh.k(step), &maps.k, full, Rows(k_starts(a), w.k_first, n * BN, w.kv_h, w.b),
                                 CACHE_KEEP);
        if (DENSE_TILES)
            tma_load(sh.dense(step), &maps.dense, full, n * BN, w.m * BM, a.dense.h ? w.h : 0, a.dense.b ? w.b : 0,
                     CACHE_FIRST_OUT);
    }

    FXA_INLINE void load_values(const Work &w, int n) const
    {
        sh.v_ring().wait_empty(step);
        barrier_expect(sh.v_ring().full(step), V_BYTES);
        tma_load_tile<BN, FXA_DV>(sh.v(step), &maps.v, sh.v_ring().full(step),
                                  Rows(k_starts(a), w.k_first, n * BN, w.kv_h, w.b), CACHE_KEEP);
    }

    /* A tile that attends to nothing still loads Q, so that its zeros are written. */
    FXA_INLINE void run()
    {
        Work w;
        for (w.plan<BM, BN>(a, blockIdx.x); w.tile < a.tiles; turn++) {
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
        sh.q_ring().wait_empty(turn);
        sh.slot().put_end();
        barrier_arrive(sh.q_ring().full(turn));
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_grad_q_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_grad_q(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    produce_and_consume<Producer, Consumer, FEW, MANY, Shared>(maps, a, memory);
}
