/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hopper forward kernel's sizes and its shared memory: what producer and consumers agree on.
 *
 * Tile numbers, strips and words have twice as many places as K has stages, because they are read after K's stage is
 * given back.
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
constexpr bool SMALL = FXA_D <= 64 && FXA_DV <= 64;
constexpr int GROUPS = TILE.groups;
/* Products of the warpgroups in turn: gains at 64, loses at 128. Not in steps with masks, over which some of them pass:
 * all would take as long as the slowest. */
constexpr bool PING_PONG = GROUPS == 3;
constexpr int BM = TILE.launch.q_rows, BN = TILE.launch.k_rows, THREADS = TILE.launch.threads;
constexpr int STAGES = TILE.stages, DENSE_STAGES = 2, Q_BUFFERS = TILE.q_buffers;
constexpr int O_BYTES = BM * DV_STORED * 2, Q_BYTES = BM * D_STORED * 2;
constexpr int Q_ROOM = Q_BYTES > O_BYTES ? Q_BYTES : O_BYTES; /* O is staged where Q was */

constexpr int K_BYTES = BN * D_STORED * 2, V_BYTES = BN * DV_STORED * 2;
constexpr int DENSE_BYTES = PROG_DENSE ? BM * BN * 2 : 0;
constexpr int STRIP_BYTES = PROG_DIAGONAL ? (BM + BN) * 4 : 0;
constexpr int KWORD_BYTES = PROG_OPERANDS ? BN * 4 : 0, QWORD_BYTES = PROG_OPERANDS ? BM * 4 : 0;
constexpr bool BOUNDED = PROG_BOUNDED && !FXA_F16; /* f16 cannot hold exp2 of an unshifted score */
/* Where tanh and exp2 fill the special function unit, half of the exp2 goes to the other pipes. */
constexpr bool EMULATE = BOUNDED && FXA_FAST_MATH && SMALL;
/* In a tile's number: a second visit, never frozen, with V made finite; visits that look for infinities in it. */
constexpr int SAFE = 0x40000000, UP = 0x20000000, DOWN = 0x10000000;
constexpr int WHOLE = 7 * FXA_CUDA_FULL; /* in a key tile's number: nothing is asked of any warpgroup's pairs */
/* Whether a warpgroup passes over a key tile of which its own 64 queries attend to nothing, as FxaTileList says of
 * partial tiles. Of 192 queries one third is often so; of 128 that begin where documents do, none. */
constexpr bool PASSES = PROG_MASK && TILE.query_parts;
/* The first tile, masked ones and safe visits of a bounded program in one instance of the consumers' step, which asks
 * what it is: each instance takes a compiler as long as all that is beside them. Without a bound that costs 1 to 7 % of
 * windows, of documents and of packed sequences. */
constexpr bool JOINED = BOUNDED;
enum { BAR_PING_PONG = 1, BAR_CLEAR = 4, BAR_VALUES = 7 }; /* named; one per consumer warpgroup but for the last */

/* Shared memory: the buffers, then the barriers, then what the producer tells the consumers. */
struct Shared {
    u32 base;

    static constexpr int K_AT = Q_BUFFERS * Q_ROOM, V_AT = K_AT + STAGES * K_BYTES;
    static constexpr int DENSE_AT = V_AT + STAGES * V_BYTES, STRIP_AT = DENSE_AT + DENSE_STAGES * DENSE_BYTES;
    static constexpr int KWORD_AT = STRIP_AT + 2 * STAGES * STRIP_BYTES;
    static constexpr int QWORD_AT = KWORD_AT + 2 * STAGES * KWORD_BYTES;
    static constexpr int RINGS_AT = QWORD_AT + Q_BUFFERS * QWORD_BYTES;
    static constexpr int SLOTS_AT = RINGS_AT + Ring<Q_BUFFERS>::bytes + 2 * Ring<STAGES>::bytes + Ring<2>::bytes;
    static constexpr int NUMBERS_AT = SLOTS_AT + TileSlot::bytes * Q_BUFFERS;
    static constexpr int FLAG_AT = NUMBERS_AT + 8 * STAGES;
    static constexpr int BYTES = FLAG_AT + 16 + 1024; /* 1024: to align the base */
    static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");

    FXA_INLINE u32 q(u32 turn) const { return base + (turn % Q_BUFFERS) * Q_ROOM; }
    FXA_INLINE u32 k(u32 step) const { return base + K_AT + (step % STAGES) * K_BYTES; }
    FXA_INLINE u32 v(u32 step) const { return base + V_AT + (step % STAGES) * V_BYTES; }
    FXA_INLINE u32 dense(u32 step) const { return base + DENSE_AT + (step % DENSE_STAGES) * DENSE_BYTES; }
    FXA_INLINE u32 strip(u32 step) const { return base + STRIP_AT + (step % (2 * STAGES)) * STRIP_BYTES; }
    FXA_INLINE u32 k_words(u32 step) const { return base + KWORD_AT + (step % (2 * STAGES)) * KWORD_BYTES; }
    FXA_INLINE u32 q_words(u32 turn) const { return base + QWORD_AT + (turn % Q_BUFFERS) * QWORD_BYTES; }
    FXA_INLINE Ring<Q_BUFFERS> q_ring() const { return {base + RINGS_AT}; }
    FXA_INLINE Ring<STAGES> k_ring() const { return {q_ring().at + Ring<Q_BUFFERS>::bytes}; }
    FXA_INLINE Ring<STAGES> v_ring() const { return {k_ring().at + Ring<STAGES>::bytes}; }
    FXA_INLINE Ring<DENSE_STAGES> dense_ring() const { return {v_ring().at + Ring<STAGES>::bytes}; }
    /* Its tile may have SAFE in it. */
    FXA_INLINE TileSlot slot(u32 turn) const { return {base + SLOTS_AT + TileSlot::bytes * (turn % Q_BUFFERS)}; }
    FXA_INLINE u32 number(u32 step) const { return base + NUMBERS_AT + 4 * (step % (2 * STAGES)); }
    FXA_INLINE u32 flag() const { return base + FLAG_AT; } /* some tile of this CTA must be visited again */
    FXA_INLINE u32 found() const { return base + FLAG_AT + 4; } /* V of a second visit was not finite */

    FXA_INLINE void init() const
    {
        store_shared(flag(), 0);
        q_ring().init(4 * GROUPS);
        k_ring().init(4 * GROUPS);
        v_ring().init(4 * GROUPS);
        dense_ring().init(4 * GROUPS);
        barrier_init_done();
    }
};

} // namespace

#endif
