/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile sizes and shared memory of the Hopper backward kernel for head dims above 128, shared by its warps. From the
 * base, which is aligned to 1024 bytes:
 *
 *     offset         contents                                                     bytes x buffers
 *     0              K tile [BK, D]; dK replaces it                               K_BYTES
 *     V_AT           V tile [BK, DV]; dV replaces it                              V_BYTES
 *     Q_AT           Q block [BQ, D]                                              Q_BYTES x STAGES
 *     DO_AT          dO block [BQ, DV]                                            DO_BYTES x STAGES
 *     EXCHANGE_AT    P * derivative, 16 bits; bits of kept (q, k) pairs           EXCHANGE_BYTES x STAGES
 *     LSE_AT         LSE of the block's rows, base 2                              4 BQ x STAGES
 *     DELTA_AT       delta of the block's rows                                    4 BQ x STAGES
 *     KV_BAR_AT      barriers: K and V loaded; K and V read                       16
 *     RINGS_AT       barriers of the rings of Q, dO and the exchange              16 STAGES x 3
 *     INDICES_AT     {block | PARTIAL, query head}                                8 x STAGES
 */
#ifndef FXA_CUDA_SM90_BACKWARD_WIDE_SHARED_CUH
#define FXA_CUDA_SM90_BACKWARD_WIDE_SHARED_CUH

#include "common/backward_tile.cuh"
#include "sm90/pipeline.cuh"
#include "common/pair_gradients.cuh"
#include "sm90/wgmma.cuh"

namespace {

static_assert(!PROG_USER_BACKWARD, "kernels of sm90 do not call user_backward()");
constexpr FxaTileShape TILE = fxa_backward_wide_sm90(TRAITS);
constexpr int BK = TILE.launch.k_rows, BQ = TILE.launch.q_rows, THREADS = TILE.launch.threads, STAGES = TILE.stages;
constexpr int K_BYTES = BK * D_STORED * 2, V_BYTES = BK * DV_STORED * 2;
constexpr int Q_BYTES = BQ * D_STORED * 2, DO_BYTES = BQ * DV_STORED * 2;
constexpr int EXCHANGE_BYTES = BQ * BK * 2 + (FXA_DROPOUT ? 512 : 0); /* weights, then bits of kept (q, k) pairs */
constexpr int PARTIAL = 0x40000000; /* bit that is set in the index of a partial query block, whose pairs need mask() */
enum { BAR_CLEAR = 1 }; /* number of a named barrier: consumer warpgroup g has BAR_CLEAR + g */
static_assert(!PROG_GRAD_DIAGONAL && !PROG_GRAD_DENSE && !PROG_GRAD_SUMS && !PROG_GRAD_SCATTER,
              "wide heads have no gradients of captured tensors");
static_assert(fxa_is_wide(TRAITS) && FXA_SEPARATE_DQ, "sm90/backward.cu is for narrower heads, sm90/dq.cu for dQ");
static_assert(FXA_PAD_ROWS % BQ == 0, "query blocks of the padded workspace");

typedef KeyTile<BK, BQ> WideTile;

struct WideShared {
    u32 base;

    static constexpr int V_AT = K_BYTES, Q_AT = V_AT + V_BYTES, DO_AT = Q_AT + STAGES * Q_BYTES;
    static constexpr int EXCHANGE_AT = DO_AT + STAGES * DO_BYTES, LSE_AT = EXCHANGE_AT + STAGES * EXCHANGE_BYTES;
    static constexpr int DELTA_AT = LSE_AT + STAGES * BQ * 4, KV_BAR_AT = DELTA_AT + STAGES * BQ * 4;
    static constexpr int RINGS_AT = KV_BAR_AT + 16, INDICES_AT = RINGS_AT + 3 * Ring<STAGES>::bytes;
    static constexpr int BYTES = INDICES_AT + 8 * STAGES + 1024;
    static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");
    static_assert(K_BYTES % 1024 == 0 && V_BYTES % 1024 == 0 && Q_BYTES % 1024 == 0 && DO_BYTES % 1024 == 0,
                  "swizzled tiles are aligned to 1024 bytes");
    static_assert(EXCHANGE_BYTES % 16 == 0 && LSE_AT % 16 == 0 && KV_BAR_AT % 8 == 0, "bulk copies and barriers");

    FXA_INLINE u32 k() const { return base; }
    FXA_INLINE u32 v() const { return base + V_AT; }
    FXA_INLINE u32 q(u32 step) const { return base + Q_AT + (step % STAGES) * Q_BYTES; }
    FXA_INLINE u32 grad_o(u32 step) const { return base + DO_AT + (step % STAGES) * DO_BYTES; }
    FXA_INLINE u32 exchange(u32 step) const { return base + EXCHANGE_AT + (step % STAGES) * EXCHANGE_BYTES; }
    FXA_INLINE u32 lse(u32 step) const { return base + LSE_AT + (step % STAGES) * BQ * 4; }
    FXA_INLINE u32 delta(u32 step) const { return base + DELTA_AT + (step % STAGES) * BQ * 4; }
    FXA_INLINE u32 kv_full() const { return base + KV_BAR_AT; }
    /* Address of the barrier that completes when both warpgroups have read K and V. */
    FXA_INLINE u32 kv_read() const { return base + KV_BAR_AT + 8; }
    FXA_INLINE Ring<STAGES> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<STAGES> o_ring() const { return {q_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE Ring<STAGES> exchange_ring() const { return {o_ring().at + Ring<STAGES>::bytes}; }
    /* Address of {query block m | PARTIAL, query head h} of a step. */
    FXA_INLINE u32 block_entry(u32 step) const { return base + INDICES_AT + 8 * (step % STAGES); }

    FXA_INLINE void init() const
    {
        barrier_init(kv_full(), 1);
        barrier_init(kv_read(), 8);
        q_ring().init(8);
        o_ring().init(8);
        /* Each barrier counts 128 arrivals: thread i of one warpgroup passes its weights to thread i of the other. */
        exchange_ring().init(128, 128);
        barrier_init_done();
    }
};

} // namespace

#endif
