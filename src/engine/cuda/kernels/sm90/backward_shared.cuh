/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile sizes and shared memory of the Hopper backward kernel, shared by all its warps. From the base, which is aligned
 * to 1024 bytes:
 *
 *     offset         contents                                                     bytes x buffers
 *     0              K tile [BK, D]; dK replaces it                               K_BYTES
 *     V_AT           V tile [BK, DV]; dV replaces it                              V_BYTES
 *     Q_AT           Q block [BQ, D]                                              Q_BYTES x STAGES
 *     DO_AT          dO block [BQ, DV]                                            DO_BYTES x STAGES
 *     DS_AT          WITH_DS: dS [BQ, BK], 16 bits                                DS_BYTES x STAGES
 *     DQ_AT          WITH_DQ: partial dQ of each warpgroup, f32                   DQ_BYTES x 2
 *     DENSE_AT       PROG_DENSE: block of the dense tensor [BQ, BK]               DENSE_BYTES x STAGES
 *     LSE_AT         LSE of the block's rows, base 2                              4 BQ x STAGES
 *     DELTA_AT       delta of the block's rows                                    4 BQ x STAGES
 *     Q_OPERAND_AT   PROG_OPERANDS: row operands (captured values per query)      Q_OPERAND_BYTES x STAGES
 *     K_OPERAND_AT   PROG_OPERANDS: key operands (captured values per key)        K_OPERAND_BYTES x STAGES
 *     KV_BAR_AT      barrier of K and V                                           16
 *     RINGS_AT       barriers of the rings of Q, dO and dS                        16 STAGES x 3
 *     INDICES_AT     entry of the tile list for the block                         4 x STAGES
 *     TICKET_AT      ORDERED_DQ: number of CTAs that started before this one      4
 */
#ifndef FXA_CUDA_SM90_BACKWARD_SHARED_CUH
#define FXA_CUDA_SM90_BACKWARD_SHARED_CUH

#include "common/backward_tile.cuh"
#include "sm90/pipeline.cuh"
#include "common/pair_gradients.cuh"
#include "sm90/wgmma.cuh"

namespace {

static_assert(!PROG_USER_BACKWARD, "kernels of sm90 do not call user_backward()");
constexpr FxaTileShape TILE = fxa_backward_sm90(TRAITS);
/* BK: keys of a tile; BQ: queries of a block */
constexpr int BK = TILE.launch.k_rows, BQ = TILE.launch.q_rows, THREADS = TILE.launch.threads;
constexpr bool SMALL = fxa_is_small(TRAITS);
/* True if the gradients of captured tensors need the scores. probabilities() then computes these gradients, for which
 * it needs dP, before it replaces the scores by P * derivative. */
constexpr bool GRADS_READ_SCORE = PROG_DERIVATIVE && (PROG_GRAD_SUMS || PROG_GRAD_SCATTER);
/* Several k-steps per inline-assembly statement reduce compile time by a tenth. Several k-steps are not used with
 * derivatives, dense tensors or gradients of captured tensors, where other registers are spilled and some programs are
 * 4 % slower. */
constexpr bool SEVERAL_STEPS =
    !PROG_DERIVATIVE && !PROG_DENSE && !PROG_GRAD_DIAGONAL && !PROG_GRAD_SUMS && !PROG_GRAD_SCATTER;
constexpr int STAGES = TILE.stages; /* pipeline stages of Q, dO and of dS */
/* True if a warp keeps its rows of K and V in registers. Blocks of 64 queries at head dim 64 leave registers free. */
constexpr bool KV_IN_REGISTERS =
    SMALL && BQ == 64 && PROG_DERIVATIVE && !GRADS_READ_SCORE && !PROG_DENSE && !FXA_DROPOUT;
constexpr bool WITH_DQ = !FXA_SEPARATE_DQ;
/* True if the first partial dQ of a query block is stored and the others are added to it; otherwise the sum is set to 0
 * before the launch, and all partial dQ are added. False without dQ, and in two cases:
 *     all key tiles of a head have the same query blocks: their CTAs reach each block at the same time, and all CTAs
 *     but one would wait for the store
 *     the gradient of the dense tensor is stored: a block's flag is then read and set more slowly than a block is
 *     computed */
constexpr bool FIRST_PARTIAL_STORES = TILE.first_share_stores;
constexpr bool ORDERED_DQ = FXA_DQ_ORDERED;
static_assert(!ORDERED_DQ || !FIRST_PARTIAL_STORES, "ordered dQ counts in FxaArgs.first_share");
constexpr bool WITH_DS = WITH_DQ || PROG_GRAD_DENSE || PROG_GRAD_DIAGONAL; /* true if dS passes through shared memory */
constexpr int K_BYTES = BK * D_STORED * 2, V_BYTES = BK * DV_STORED * 2, DS_BYTES = BQ * BK * 2;
constexpr int Q_BYTES = BQ * D_STORED * 2, DO_BYTES = BQ * DV_STORED * 2;
/* Columns (head dim) of dQ that a warpgroup computes. Each of the two warpgroups computes 64 rows of a partial dQ: with
 * blocks of 128 queries half of the rows and all columns; with blocks of 64 queries all rows and half of the columns.
 * Both divisions have the same layout in the f32 sum. At head dims 32 and 96 the second warpgroup also computes columns
 * past D, from zeros, which are not added to the sum: products of another width make the compiler serialize wgmma. */
constexpr int DQ_COLUMNS = TILE.dq_columns;
constexpr int DQ_BYTES = 64 * DQ_COLUMNS * 4;
constexpr int DQ_REDUCED_BYTES[2] = {DQ_BYTES, BQ == 128 ? DQ_BYTES : 64 * (FXA_D - DQ_COLUMNS) * 4};
/* Warps that reduce dQ. With ordered dQ (summed in a fixed order) a warp waits until the previous key tile has added
 * its partial dQ, and then until its own partial dQ has arrived in memory. Both waits together take longer than a
 * block, so two warps alternate. The two warps share a buffer of the partial dQ: it is free once a warp's copies have
 * read it, which is earlier than the arrival in memory. */
constexpr int REDUCE_WARPS = TILE.dq_writers;
constexpr int DENSE_BYTES = PROG_DENSE ? DS_BYTES : 0;
constexpr int Q_OPERAND_BYTES = PROG_OPERANDS ? BQ * 4 : 0, K_OPERAND_BYTES = PROG_OPERANDS ? BK * 4 : 0;
/* Numbers of named barriers. The warps that reduce dQ and the consumers share one BAR_DQ_EMPTY and one BAR_DQ_FULL per
 * consumer warpgroup; BAR_DQ_SECOND is the full barrier of the second of the reducing warps. */
enum { BAR_DS = 1, BAR_END = 2, BAR_DQ_EMPTY = 3, BAR_DQ_FULL = 5, BAR_DENSE = 7, BAR_CLEAR = 9, BAR_KEYS = 11 };
enum { BAR_DQ_SECOND = 12 };
static_assert(!fxa_is_wide(TRAITS), "sm90/backward_wide.cu is for wider heads");
static_assert(BK == 2 * 64 && FXA_PAD_ROWS % BQ == 0 && BQ % FXA_DQ_SHARE_ROWS == 0, "64 keys of a warpgroup; blocks");
static_assert(DQ_REDUCED_BYTES[1] >= 0 && DQ_REDUCED_BYTES[1] <= DQ_BYTES && DQ_REDUCED_BYTES[1] % 16 == 0, "dQ");
static_assert(BQ == 128 ? DQ_COLUMNS == FXA_D : 2 * DQ_COLUMNS >= FXA_D, "two warpgroups compute all columns of dQ");

/* True if a warpgroup skips query blocks that attend to none of its own 64 keys (FXA_CUDA_SKIP bits of FxaTileList).
 * With causal and document masks the first block of every key tile attends to the keys of one warpgroup only. At head
 * dim 64 no block is skipped, because blocks take too little time for a gain. */
constexpr bool SKIPS_BLOCKS = TILE.query_parts;
static_assert(!SKIPS_BLOCKS || (PROG_MASK && TILE.query_parts == 2), "the list has bits for each warpgroup");

typedef KeyTile<BK, BQ> BackwardTile;

FXA_INLINE int block_of(int entry)
{
    return SKIPS_BLOCKS ? entry & FXA_CUDA_SKIP - 1 : entry;
}

/* Increments the counter of (b, KV head) in FxaArgs.sent: called by a warp that has added all its partial dQ of a key
 * tile, after its bulk copies have arrived. */
FXA_INLINE void count_reduced(const FxaArgs &a, const BackwardTile &at)
{
    if (a.sent) count_up(a.sent + sent_index(a, at.b, at.kv_h));
}

FXA_INLINE int bar_dq_full(u32 step, int group)
{
    return (step % REDUCE_WARPS ? BAR_DQ_SECOND : BAR_DQ_FULL) + group;
}

struct BackwardShared {
    u32 base;

    static constexpr int V_AT = K_BYTES, Q_AT = V_AT + V_BYTES, DO_AT = Q_AT + STAGES * Q_BYTES;
    static constexpr int DS_AT = DO_AT + STAGES * DO_BYTES, DQ_AT = DS_AT + (WITH_DS ? STAGES * DS_BYTES : 0);
    static constexpr int DENSE_AT = DQ_AT + (WITH_DQ ? 2 * DQ_BYTES : 0);
    static constexpr int LSE_AT = DENSE_AT + STAGES * DENSE_BYTES;
    static constexpr int DELTA_AT = LSE_AT + STAGES * BQ * 4, Q_OPERAND_AT = DELTA_AT + STAGES * BQ * 4;
    static constexpr int K_OPERAND_AT = Q_OPERAND_AT + STAGES * Q_OPERAND_BYTES,
                         KV_BAR_AT = K_OPERAND_AT + STAGES * K_OPERAND_BYTES;
    static constexpr int RINGS_AT = KV_BAR_AT + 16, INDICES_AT = RINGS_AT + 3 * Ring<STAGES>::bytes;
    static constexpr int TICKET_AT = INDICES_AT + 4 * STAGES, BYTES = TICKET_AT + 8 + 1024;
    static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");
    static_assert(V_AT % 1024 == 0 && Q_AT % 1024 == 0 && Q_BYTES % 1024 == 0 && DO_BYTES % 1024 == 0 &&
                      DS_AT % 1024 == 0 && DS_BYTES % 1024 == 0 && DENSE_AT % 1024 == 0,
                  "swizzled tiles are aligned to 1024 bytes");
    static_assert(DQ_AT % 16 == 0 && LSE_AT % 16 == 0 && Q_OPERAND_AT % 16 == 0 && KV_BAR_AT % 16 == 0, "bulk copies");

    FXA_INLINE u32 k() const { return base; }
    FXA_INLINE u32 v() const { return base + V_AT; }
    FXA_INLINE u32 q(u32 step) const { return base + Q_AT + (step % STAGES) * Q_BYTES; }
    FXA_INLINE u32 grad_o(u32 step) const { return base + DO_AT + (step % STAGES) * DO_BYTES; }
    FXA_INLINE u32 ds(u32 step) const { return base + DS_AT + (step % STAGES) * DS_BYTES; }
    FXA_INLINE u32 dq(int group) const { return base + DQ_AT + group * DQ_BYTES; }
    FXA_INLINE u32 dense(u32 step) const { return base + DENSE_AT + (step % STAGES) * DENSE_BYTES; }
    FXA_INLINE u32 lse(u32 step) const { return base + LSE_AT + (step % STAGES) * BQ * 4; }
    FXA_INLINE u32 delta(u32 step) const { return base + DELTA_AT + (step % STAGES) * BQ * 4; }
    FXA_INLINE u32 q_operands(u32 step) const { return base + Q_OPERAND_AT + (step % STAGES) * Q_OPERAND_BYTES; }
    FXA_INLINE u32 k_operands(u32 step) const { return base + K_OPERAND_AT + (step % STAGES) * K_OPERAND_BYTES; }
    FXA_INLINE u32 kv_full() const { return base + KV_BAR_AT; }
    FXA_INLINE Ring<STAGES> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<STAGES> o_ring() const { return {q_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE Ring<STAGES> ds_ring() const { return {o_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE u32 block_entry(u32 step) const { return base + INDICES_AT + 4 * (step % STAGES); }
    FXA_INLINE u32 ticket() const { return base + TICKET_AT; }

    FXA_INLINE void init() const
    {
        barrier_init(kv_full(), 1);
        q_ring().init(8);
        o_ring().init(8);
        ds_ring().init(2);
        barrier_init_done();
    }
};

} // namespace

#endif
