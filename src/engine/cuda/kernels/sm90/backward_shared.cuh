/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hopper backward kernel's sizes and its shared memory: what all its warps agree on.
 */
#ifndef FXA_CUDA_SM90_BACKWARD_SHARED_CUH
#define FXA_CUDA_SM90_BACKWARD_SHARED_CUH

#include "common/backward_tile.cuh"
#include "sm90/pipeline.cuh"
#include "common/score.cuh"
#include "sm90/wgmma.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_backward_sm90(TRAITS);
constexpr int BK = TILE.launch.k_rows, BQ = TILE.launch.q_rows, THREADS = TILE.launch.threads;
constexpr bool SMALL = FXA_D <= 64 && FXA_DV <= 64;
/* Gradients of what is captured need the score, which the slope takes the place of: they wait for dP before it. */
constexpr bool SCORED = PROG_DERIVATIVE && (PROG_GRAD_SUMS || PROG_GRAD_SCATTER);
/* Statements of plain ones have several steps of a product, for which a compiler takes a tenth less time; beside slopes
 * that changes what it spills, and some programs lose 4 %. */
constexpr bool PLAIN = !PROG_DERIVATIVE && !PROG_DENSE && !PROG_GRAD_DIAGONAL && !PROG_GRAD_SUMS && !PROG_GRAD_SCATTER;
constexpr int STAGES = TILE.stages; /* of Q, dO and of dS */
/* Whether a warp keeps its rows of K and V in registers, which a small block of a small head leaves. */
constexpr bool KV_HELD = SMALL && BQ == 64 && PROG_DERIVATIVE && !SCORED && !PROG_DENSE && !FXA_DROPOUT;
constexpr bool WITH_DQ = !FXA_SEPARATE_DQ;
/* Whether who comes first to a block of queries stores its share of dQ; else the sum is 0 before. Where all key tiles
 * of a head have all blocks, they come to each at the same time, and all but one would wait. Beside stores of all of dS
 * the way of a word there and back takes longer than a block leaves time for. */
constexpr bool FIRST_STORED = TILE.first_share_stores;
constexpr bool TURNS = FXA_DQ_ORDERED;
static_assert(!TURNS || (WITH_DQ && !PROG_MASK && !FXA_VARLEN), "turns are of key tiles that all have all blocks");
static_assert(!TURNS || !PROG_GRAD_DIAGONAL, "the warp that would send by turns adds up diagonals");
constexpr bool WITH_DS = WITH_DQ || PROG_GRAD_DENSE || PROG_GRAD_DIAGONAL; /* dS goes through shared memory */
constexpr int K_BYTES = BK * D_STORED * 2, V_BYTES = BK * DV_STORED * 2, DS_BYTES = BQ * BK * 2;
constexpr int Q_BYTES = BQ * D_STORED * 2, DO_BYTES = BQ * DV_STORED * 2;
/* A warpgroup's share of dQ is 64 rows: all columns of half of the queries where a block has 128, else half of the
 * columns; both lie alike in the f32 sum. With 32 and 96 columns the second warpgroup also computes columns that are
 * not there, from zeros, and does not send them: products of another width beside these make the compiler serialise. */
constexpr int DQ_COLUMNS = TILE.dq_columns;
constexpr int DQ_BYTES = 64 * DQ_COLUMNS * 4;
constexpr int DQ_SENT[2] = {DQ_BYTES, BQ == 128 ? DQ_BYTES : 64 * (FXA_D - DQ_COLUMNS) * 4};
/* Who waits for a turn and then until what it has sent is there takes longer than a block: two warps do so by turns.
 * They share a buffer, which is free before that. */
constexpr int SENDERS = TILE.dq_writers;
constexpr int DENSE_BYTES = PROG_DENSE ? DS_BYTES : 0;
constexpr int QWORD_BYTES = PROG_OPERANDS ? BQ * 4 : 0, KWORD_BYTES = PROG_OPERANDS ? BK * 4 : 0;
/* Named barriers. Of dQ there is one per consumer warpgroup, shared with the warps that send; BAR_DQ_SECOND is full for
 * the second of these. */
enum { BAR_DS = 1, BAR_END = 2, BAR_DQ_EMPTY = 3, BAR_DQ_FULL = 5, BAR_DENSE = 7, BAR_CLEAR = 9, BAR_TURNED = 11 };
enum { BAR_DQ_SECOND = 12 };
static_assert(FXA_D <= 128 && FXA_DV <= 128, "backward_wide_sm90.cu is for the others");

/* Whether a warpgroup passes over a block of queries that attends to none of its own 64 keys, as FxaTileList says of
 * partial ones: of causal masks and documents the first of every tile. Blocks of small heads are over too soon. */
constexpr bool PASSES = TILE.query_parts;

typedef KeyTile<BK, BQ> Place;

FXA_INLINE int block_of(int item)
{
    return PASSES ? item & FXA_CUDA_SKIP - 1 : item;
}

/* That a warp has sent all of dQ of a key tile, and it has arrived. */
FXA_INLINE void say_sent(const FxaArgs &a, const Place &at)
{
    if (a.sent) count_up(a.sent + sent_place(a, at.b, at.kv_h));
}

FXA_INLINE int bar_dq_full(u32 step, int group)
{
    return (step % SENDERS ? BAR_DQ_SECOND : BAR_DQ_FULL) + group;
}

struct Shared {
    u32 base;

    static constexpr int V_AT = K_BYTES, Q_AT = V_AT + V_BYTES, DO_AT = Q_AT + STAGES * Q_BYTES;
    static constexpr int DS_AT = DO_AT + STAGES * DO_BYTES, DQ_AT = DS_AT + (WITH_DS ? STAGES * DS_BYTES : 0);
    static constexpr int DENSE_AT = DQ_AT + (WITH_DQ ? 2 * DQ_BYTES : 0);
    static constexpr int LSE_AT = DENSE_AT + STAGES * DENSE_BYTES;
    static constexpr int DELTA_AT = LSE_AT + STAGES * BQ * 4, QWORD_AT = DELTA_AT + STAGES * BQ * 4;
    static constexpr int KWORD_AT = QWORD_AT + STAGES * QWORD_BYTES, KV_BAR_AT = KWORD_AT + STAGES * KWORD_BYTES;
    static constexpr int RINGS_AT = KV_BAR_AT + 16, NUMBERS_AT = RINGS_AT + 3 * Ring<STAGES>::bytes;
    static constexpr int TICKET_AT = NUMBERS_AT + 4 * STAGES, BYTES = TICKET_AT + 8 + 1024;
    static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");

    FXA_INLINE u32 k() const { return base; }
    FXA_INLINE u32 v() const { return base + V_AT; }
    FXA_INLINE u32 q(u32 step) const { return base + Q_AT + (step % STAGES) * Q_BYTES; }
    FXA_INLINE u32 grad_o(u32 step) const { return base + DO_AT + (step % STAGES) * DO_BYTES; }
    FXA_INLINE u32 ds(u32 step) const { return base + DS_AT + (step % STAGES) * DS_BYTES; }
    FXA_INLINE u32 dq(int group) const { return base + DQ_AT + group * DQ_BYTES; }
    FXA_INLINE u32 dense(u32 step) const { return base + DENSE_AT + (step % STAGES) * DENSE_BYTES; }
    FXA_INLINE u32 lse(u32 step) const { return base + LSE_AT + (step % STAGES) * BQ * 4; }
    FXA_INLINE u32 delta(u32 step) const { return base + DELTA_AT + (step % STAGES) * BQ * 4; }
    FXA_INLINE u32 q_words(u32 step) const { return base + QWORD_AT + (step % STAGES) * QWORD_BYTES; }
    FXA_INLINE u32 k_words(u32 step) const { return base + KWORD_AT + (step % STAGES) * KWORD_BYTES; }
    FXA_INLINE u32 kv_full() const { return base + KV_BAR_AT; }
    FXA_INLINE Ring<STAGES> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<STAGES> o_ring() const { return {q_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE Ring<STAGES> ds_ring() const { return {o_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE u32 number(u32 step) const { return base + NUMBERS_AT + 4 * (step % STAGES); }
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
