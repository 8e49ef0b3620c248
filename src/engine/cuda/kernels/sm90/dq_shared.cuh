/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile sizes and shared memory of the Hopper dQ kernel, shared by its producer and its consumers. From the base, which
 * is aligned to 1024 bytes:
 *
 *     offset         contents                                                     bytes x buffers
 *     0              Q tile [BM, D]                                               Q_BYTES
 *     DO_AT          dO tile [BM, DV]                                             DO_BYTES
 *     OUT_AT         dQ tile; above head dim 128 it replaces Q                    Q_BYTES
 *     K_AT           K tile [BN, D]                                               K_BYTES x K_STAGES
 *     V_AT           V tile [BN, DV]                                              V_BYTES x V_STAGES
 *     DENSE_AT       DENSE_TILES: tile of the dense tensor [BM, BN]               DENSE_BYTES x K_STAGES
 *     RINGS_AT       barriers of the rings of Q, K and V                          16 x stages of each ring
 *     SLOT_AT        TileSlot: coordinates of the query tile                      TileSlot::bytes
 *     INDICES_AT     index of the key tile                                        4 x K_STAGES
 */
#ifndef FXA_CUDA_SM90_DQ_SHARED_CUH
#define FXA_CUDA_SM90_DQ_SHARED_CUH

#include "sm90/pipeline.cuh"
#include "common/tile_scheduler.cuh"
#include "common/pair_gradients.cuh"
#include "sm90/wgmma.cuh"

namespace {

static_assert(!PROG_USER_BACKWARD, "kernels of sm90 do not call user_backward()");
constexpr FxaTileShape TILE = fxa_dq_sm90(TRAITS);
constexpr int BM = TILE.launch.q_rows, BN = TILE.launch.k_rows, THREADS = TILE.launch.threads;
/* True if consumers load Q and dO of a query tile to registers, so that the buffers of Q and dO receive the next tile
 * at once; dQ is then stored through a separate buffer. Above head dim 128, Q and dO stay in shared memory, and dQ is
 * stored through the buffer of Q. */
constexpr bool IN_REGISTERS = !fxa_is_wide(TRAITS);
/* true = tiles of the dense tensor are copied to shared memory; false = plain loads read the dense tensor */
constexpr bool DENSE_TILES = PROG_DENSE && IN_REGISTERS;
constexpr int Q_BYTES = BM * D_STORED * 2, DO_BYTES = BM * DV_STORED * 2;
constexpr int K_BYTES = BN * D_STORED * 2, V_BYTES = BN * DV_STORED * 2, DENSE_BYTES = DENSE_TILES ? BM * BN * 2 : 0;
constexpr int K_STAGES = TILE.stages, V_STAGES = TILE.v_stages;
/* registers per thread of producer and consumers */
constexpr int PRODUCER_REGISTERS = IN_REGISTERS && !PROG_DENSE && !FXA_DROPOUT ? 24 : 40,
              CONSUMER_REGISTERS = PRODUCER_REGISTERS == 24 ? 240 : 232;
enum { BAR_TILE = 1, BAR_CLEAR = 3 }; /* numbers of named barriers: warpgroup g has BAR_TILE + g and BAR_CLEAR + g */

struct DqShared {
    u32 base;

    static constexpr int DO_AT = Q_BYTES, OUT_AT = IN_REGISTERS ? DO_AT + DO_BYTES : 0;
    static constexpr int K_AT = DO_AT + DO_BYTES + (IN_REGISTERS ? Q_BYTES : 0), V_AT = K_AT + K_STAGES * K_BYTES;
    static constexpr int DENSE_AT = V_AT + V_STAGES * V_BYTES, RINGS_AT = DENSE_AT + K_STAGES * DENSE_BYTES;
    static constexpr int SLOT_AT = RINGS_AT + Ring<1>::bytes + Ring<K_STAGES>::bytes + Ring<V_STAGES>::bytes;
    static constexpr int INDICES_AT = SLOT_AT + TileSlot::bytes, BYTES = INDICES_AT + 4 * K_STAGES + 1024;
    static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");
    static_assert(DO_AT % 1024 == 0 && K_AT % 1024 == 0 && K_BYTES % 1024 == 0 && V_BYTES % 1024 == 0 &&
                      DENSE_AT % 1024 == 0 && DENSE_BYTES % 1024 == 0,
                  "swizzled tiles are aligned to 1024 bytes");
    static_assert(BM == 2 * 64 && FXA_PAD_ROWS % BM == 0, "64 rows of a warpgroup; rows of the padded workspace");

    FXA_INLINE u32 q() const { return base; }
    FXA_INLINE u32 grad_o() const { return base + DO_AT; }
    FXA_INLINE u32 out() const { return base + OUT_AT; }
    FXA_INLINE u32 k(u32 step) const { return base + K_AT + (step % K_STAGES) * K_BYTES; }
    FXA_INLINE u32 v(u32 step) const { return base + V_AT + (step % V_STAGES) * V_BYTES; }
    FXA_INLINE u32 dense(u32 step) const { return base + DENSE_AT + (step % K_STAGES) * DENSE_BYTES; }
    FXA_INLINE Ring<1> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<K_STAGES> k_ring() const { return {q_ring().at + Ring<1>::bytes}; }
    FXA_INLINE Ring<V_STAGES> v_ring() const { return {k_ring().at + Ring<K_STAGES>::bytes}; }
    FXA_INLINE TileSlot slot() const { return {base + SLOT_AT}; }
    FXA_INLINE u32 tile_index(u32 step) const { return base + INDICES_AT + 4 * (step % K_STAGES); }

    FXA_INLINE void init() const
    {
        q_ring().init(8);
        k_ring().init(8);
        v_ring().init(8);
        barrier_init_done();
    }
};

} // namespace

#endif
