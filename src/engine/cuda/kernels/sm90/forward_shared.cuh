/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile sizes and shared memory of the Hopper forward kernel, shared by its producer and its consumers. From the base,
 * which is aligned to 1024 bytes:
 *
 *     offset         contents                                                     bytes x buffers
 *     0              Q tile [BM, D]; O of the same tile replaces it               Q_BUFFER_BYTES x Q_BUFFERS
 *     K_AT           K tile [BN, D]                                               K_BYTES x STAGES
 *     V_AT           V tile [BN, DV]                                              V_BYTES x STAGES
 *     DENSE_AT       PROG_DENSE: tile of the dense tensor [BM, BN]                DENSE_BYTES x DENSE_STAGES
 *     DIAGONAL_AT    PROG_DIAGONAL: entries of the diagonal row of a tile         DIAGONAL_BYTES x 2 STAGES
 *     K_OPERAND_AT   PROG_OPERANDS: key operands (captured values per key)        K_OPERAND_BYTES x 2 STAGES
 *     Q_OPERAND_AT   PROG_OPERANDS: row operands (captured values per query)      Q_OPERAND_BYTES x Q_BUFFERS
 *     RINGS_AT       barriers of the rings of Q, K, V and the dense tensor        16 x stages of each ring
 *     SLOTS_AT       TileSlot: coordinates of the query tile                      TileSlot::bytes x Q_BUFFERS
 *     INDICES_AT     index of the key tile, with the bits of FxaTileList          4 x 2 STAGES
 *     FLAG_AT        recompute_flag, v_nonfinite                                  4 each
 *
 * Diagonal entries, key operands and tile indices have 2 STAGES buffers, because consumers read them after they have
 * released the stage of K.
 */
#ifndef FXA_CUDA_SM90_FORWARD_SHARED_CUH
#define FXA_CUDA_SM90_FORWARD_SHARED_CUH

#include "common/nonfinite.cuh"
#include "common/fixed_max.cuh"
#include "sm90/pipeline.cuh"
#include "common/tile_scheduler.cuh"
#include "common/score.cuh"
#include "sm90/wgmma.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_forward_sm90(TRAITS);
static_assert(TILE.fits, "the host chooses another kernel");
constexpr bool SMALL = fxa_is_small(TRAITS);
constexpr int GROUPS = TILE.groups; /* consumer warpgroups */
/* Ping-pong scheduling: the products of the consumer warpgroups alternate, which is faster at head dim 64 and slower at
 * head dim 128. Masked steps do not alternate, because some warpgroups skip tiles and the others would wait for the
 * slowest warpgroup. */
constexpr bool PING_PONG = GROUPS == 3;
constexpr int BM = TILE.launch.q_rows, BN = TILE.launch.k_rows, THREADS = TILE.launch.threads;
constexpr int STAGES = TILE.stages, DENSE_STAGES = 2, Q_BUFFERS = TILE.q_buffers;
constexpr int O_BYTES = BM * DV_STORED * 2, Q_BYTES = BM * D_STORED * 2;
constexpr int Q_BUFFER_BYTES = Q_BYTES > O_BYTES ? Q_BYTES : O_BYTES; /* O replaces Q in shared memory */

constexpr int K_BYTES = BN * D_STORED * 2, V_BYTES = BN * DV_STORED * 2;
constexpr int DENSE_BYTES = PROG_DENSE ? BM * BN * 2 : 0;
constexpr int DIAGONAL_BYTES = PROG_DIAGONAL ? (BM + BN) * 4 : 0;
constexpr int K_OPERAND_BYTES = PROG_OPERANDS ? BN * 4 : 0, Q_OPERAND_BYTES = PROG_OPERANDS ? BM * 4 : 0;
constexpr bool BOUNDED = PROG_BOUNDED && !FXA_F16; /* f16 cannot hold exp2(score) without a maximum subtracted */
/* True if half of the exp2 are computed on the FMA units (exp2_by_fma), because tanh and exp2 saturate the special
 * function unit. */
constexpr bool EMULATE_EXP2 = BOUNDED && FXA_FAST_MATH && SMALL;
/* Bits of a query tile's index. RECOMPUTE: recompute pass, in which the maximum is updated in every step and V is made
 * finite. MARK_POS_INF, MARK_NEG_INF, set in addition: the pass finds infinities of V (common/nonfinite.cuh). */
constexpr int RECOMPUTE = 0x40000000, MARK_POS_INF = 0x20000000, MARK_NEG_INF = 0x10000000;
constexpr int FULL_TILE = 7 * FXA_CUDA_FULL; /* set in the index of a key tile for which no warpgroup calls mask() */
/* True if a warpgroup skips key tiles that none of its 64 queries attends to (FXA_CUDA_SKIP bits of FxaTileList). In a
 * query tile of 192 rows, one of the three warpgroups often skips. In a query tile of 128 rows, aligned to the
 * documents of a document mask, neither of the two warpgroups ever would. */
constexpr bool SKIPS_TILES = PROG_MASK && TILE.query_parts;
/* True if |score| has a compile-time bound: one instance of next_step() then runs the first tile, masked tiles and
 * recompute passes, selected by run-time conditions, because each instance takes as long to compile as the rest of the
 * kernel. Without a bound, each case has its own instance, because run-time conditions would make sliding windows,
 * document masks and packed sequences 1 to 7 % slower. */
constexpr bool MERGED_STEP = BOUNDED;
/* Numbers of named barriers: consumer warpgroup g has BAR_PING_PONG + g and BAR_CLEAR + g; all share BAR_VALUES. */
enum { BAR_PING_PONG = 1, BAR_CLEAR = 4, BAR_VALUES = 7 };
static_assert(BM == 64 * GROUPS, "a consumer warpgroup has 64 rows");
static_assert(BAR_PING_PONG + GROUPS <= BAR_CLEAR && BAR_CLEAR + GROUPS <= BAR_VALUES, "a barrier for each warpgroup");
static_assert(!SKIPS_TILES || TILE.query_parts == GROUPS, "the list has bits for each warpgroup");
/* The index of a query tile is below 2^28, so the bits RECOMPUTE and MARK_* are free in it. */
static_assert(((RECOMPUTE | MARK_POS_INF) & ((1 << 28) - 1)) == 0 && (RECOMPUTE & MARK_POS_INF) == 0, "bits of a tile");

struct ForwardShared {
    u32 base;

    static constexpr int K_AT = Q_BUFFERS * Q_BUFFER_BYTES, V_AT = K_AT + STAGES * K_BYTES;
    static constexpr int DENSE_AT = V_AT + STAGES * V_BYTES, DIAGONAL_AT = DENSE_AT + DENSE_STAGES * DENSE_BYTES;
    static constexpr int K_OPERAND_AT = DIAGONAL_AT + 2 * STAGES * DIAGONAL_BYTES;
    static constexpr int Q_OPERAND_AT = K_OPERAND_AT + 2 * STAGES * K_OPERAND_BYTES;
    static constexpr int RINGS_AT = Q_OPERAND_AT + Q_BUFFERS * Q_OPERAND_BYTES;
    static constexpr int SLOTS_AT = RINGS_AT + Ring<Q_BUFFERS>::bytes + 2 * Ring<STAGES>::bytes + Ring<2>::bytes;
    static constexpr int INDICES_AT = SLOTS_AT + TileSlot::bytes * Q_BUFFERS;
    static constexpr int FLAG_AT = INDICES_AT + 8 * STAGES;
    static constexpr int BYTES = FLAG_AT + 16 + 1024; /* 1024 bytes to align the base */
    static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");
    static_assert(Q_BUFFER_BYTES % 1024 == 0 && K_BYTES % 1024 == 0 && V_BYTES % 1024 == 0 && DENSE_BYTES % 1024 == 0,
                  "swizzled tiles are aligned to 1024 bytes");
    static_assert(DIAGONAL_BYTES % 16 == 0 && K_OPERAND_BYTES % 16 == 0 && Q_OPERAND_BYTES % 16 == 0, "bulk copies");
    static_assert(RINGS_AT % 8 == 0 && SLOTS_AT % 16 == 0 && FLAG_AT % 4 == 0, "barriers and words");
    /* A diagonal row must have an entry for q - k of every (q, k) pair of a tile, even past q_len and k_len. */
    static_assert(BN <= FXA_DIAGONAL_KEYS && BM <= FXA_DIAGONAL_QUERIES && BM < FXA_DIAGONAL_EXCESS, "diagonal rows");

    FXA_INLINE u32 q(u32 q_step) const { return base + (q_step % Q_BUFFERS) * Q_BUFFER_BYTES; }
    FXA_INLINE u32 k(u32 step) const { return base + K_AT + (step % STAGES) * K_BYTES; }
    FXA_INLINE u32 v(u32 step) const { return base + V_AT + (step % STAGES) * V_BYTES; }
    FXA_INLINE u32 dense(u32 step) const { return base + DENSE_AT + (step % DENSE_STAGES) * DENSE_BYTES; }
    FXA_INLINE u32 diagonal(u32 step) const { return base + DIAGONAL_AT + (step % (2 * STAGES)) * DIAGONAL_BYTES; }
    FXA_INLINE u32 k_operands(u32 step) const { return base + K_OPERAND_AT + (step % (2 * STAGES)) * K_OPERAND_BYTES; }
    FXA_INLINE u32 q_operands(u32 q_step) const { return base + Q_OPERAND_AT + (q_step % Q_BUFFERS) * Q_OPERAND_BYTES; }
    FXA_INLINE Ring<Q_BUFFERS> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<STAGES> k_ring() const { return {q_ring().at + Ring<Q_BUFFERS>::bytes}; }
    FXA_INLINE Ring<STAGES> v_ring() const { return {k_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE Ring<DENSE_STAGES> dense_ring() const { return {v_ring().at + Ring<STAGES>::bytes}; }
    /* The producer's message about a query tile, whose index may contain the bits RECOMPUTE and MARK_*. */
    FXA_INLINE TileSlot slot(u32 q_step) const { return {base + SLOTS_AT + TileSlot::bytes * (q_step % Q_BUFFERS)}; }
    FXA_INLINE u32 tile_index(u32 step) const { return base + INDICES_AT + 4 * (step % (2 * STAGES)); }
    /* Address of a word that is nonzero if a tile of this CTA has to be recomputed. */
    FXA_INLINE u32 recompute_flag() const { return base + FLAG_AT; }
    /* Address of a word that is nonzero if V of a recompute pass was not finite. */
    FXA_INLINE u32 v_nonfinite() const { return base + FLAG_AT + 4; }

    FXA_INLINE void init() const
    {
        store_shared(recompute_flag(), 0);
        q_ring().init(4 * GROUPS);
        k_ring().init(4 * GROUPS);
        v_ring().init(4 * GROUPS);
        dense_ring().init(4 * GROUPS);
        barrier_init_done();
    }
};

} // namespace

#endif
