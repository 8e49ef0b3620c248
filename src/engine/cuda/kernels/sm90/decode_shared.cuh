/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles, shared memory and items of sm90/decode.cu.
 */
#ifndef FXA_CUDA_SM90_DECODE_SHARED_CUH
#define FXA_CUDA_SM90_DECODE_SHARED_CUH

#include "sm90/pipeline.cuh"
#include "common/tile_scheduler.cuh"
#include "common/score.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_decode_sm90(TRAITS);
constexpr int TILES = FXA_ROW_TILES < 2 ? 1 : 2; /* of a warp */
constexpr int ROW_PARTS = FXA_ROW_TILES / TILES, ROWS = TILE.launch.q_rows;
constexpr int BN = TILE.launch.k_rows, KEY_PARTS = BN == 128 && ROW_PARTS == 1 ? 8 : 4;
constexpr int BOX_ROWS = TILE.launch.store_rows; /* of a copy, where pages do not say it */
constexpr int KEYS = BN / KEY_PARTS, STEPS = KEYS / 16;
constexpr int WARPS = KEY_PARTS * ROW_PARTS, WORKERS = 32 * WARPS, THREADS = WORKERS + 32;
constexpr bool TAKES = WARPS == 8; /* registers of idle warps: nine warps have no more of them than twelve */
constexpr int LAUNCHED = TILE.launch.threads;
static_assert(LAUNCHED == (TAKES ? 384 : THREADS), "common/tile_shape.h has other warps");
/* A warp has room for its rows of K, and then of V, beside Q and O: so a stage is empty again before its scores are. */
constexpr bool AHEAD = STEPS == 1 && TILES * (FXA_D / 8 + FXA_DV / 4) + FXA_DV / 4 <= 128;
constexpr int K_BYTES = BN * D_STORED * 2, STAGE_BYTES = K_BYTES + BN * DV_STORED * 2;
constexpr int OUT_BYTES = KEY_PARTS * ROWS * FXA_DV * 4, STATS_BYTES = KEY_PARTS * ROWS * 8;
constexpr int QUADS = ROWS * FXA_DV / 4, EACH = (QUADS + WORKERS - 1) / WORKERS; /* of O, all and of a thread */
constexpr bool FOLDS = TILE.folds; /* else threads have no room for what pieces before have left, and a.run is 1 */
constexpr int FIXED_BYTES = OUT_BYTES + STATS_BYTES + 256 + 1024;
constexpr int STAGES = TILE.stages;
constexpr int OUT_AT = STAGES * STAGE_BYTES, STATS_AT = OUT_AT + OUT_BYTES, ORDER_AT = STATS_AT + STATS_BYTES;
constexpr int BARS_AT = ORDER_AT + 16, ITEM_BARS_AT = BARS_AT + Ring<STAGES>::bytes;
constexpr int ITEMS = 2, ITEMS_AT = ITEM_BARS_AT + Ring<ITEMS>::bytes; /* that the roles have at a time */
constexpr int SPOILT_AT = ITEMS_AT + 4 * ITEMS, AGAIN_AT = SPOILT_AT + 8; /* see Consumer */
constexpr int NUMBERS_AT = AGAIN_AT + 4;                                  /* of the tiles in the stages */
constexpr int BYTES = OUT_AT + FIXED_BYTES;
static_assert(BYTES == TILE.launch.shared_bytes && FOLDS == (EACH == 1), "common/tile_shape.h has another size");
static_assert(STAGES >= 1 && NUMBERS_AT + 4 * STAGES <= ORDER_AT + 256 && STEPS >= 1, "shared memory");
constexpr int CLUSTER = TILE.launch.parts;
static_assert(CLUSTER == 1 || FOLDS, "shares in shared memory");
static_assert(!FXA_DROPOUT, "other problems go by the forward kernels");

/* Barriers of the warps that compute, and of all: the two roles come to the second from places of their own. The third
 * says that the others are there, for which the warp that copies does not wait. */
FXA_INLINE void workers_sync()
{
    named_sync_apart<1, WORKERS>();
}

FXA_INLINE void roles_sync()
{
    named_sync_apart<2, THREADS>();
}

FXA_INLINE void begun_arrive()
{
    __syncwarp();
    named_arrive(3, THREADS);
}

FXA_INLINE void begun_sync()
{
    named_sync_apart<3, THREADS>();
}

FXA_INLINE int row_groups(const FxaArgs &a)
{
    return (a.group * a.q_len + ROWS - 1) / ROWS;
}

/* Of each item, behind the flags of shares: the one before it in the list of those that its CTA computes again. */
FXA_INLINE int *again_of(const FxaArgs &a)
{
    return (int *)((u64 *)a.redo + a.tiles);
}

/* Which item it is: the row groups of the same keys follow each other, so that those are read from memory once. Its
 * share is `run` of the pieces of the keys, the last one of a row group those that are left. */
struct Place {
    int head, group, share, shares, run;
    int first_share; /* of its row group, among all of the launch */

    FXA_INLINE Place(const FxaArgs &a, int item)
    {
        const int groups = row_groups(a);
        int first = 0, heads = a.batch * a.kv_heads;
#pragma unroll
        for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) heads -= a.cut[i];
        run = a.run;
        shares = (a.splits + run - 1) >> (__ffs(run) - 1);
        first_share = 0;
        int i = 0;
#pragma unroll 1
        for (; i < FXA_CUDA_DECODE_CUTS && item >= heads * shares * groups; i++) {
            item -= heads * shares * groups;
            first_share += heads * shares * groups;
            first += heads;
            heads = a.cut[i];
            run >>= 1;
            shares *= 2;
        }
        if (CLUSTER > 1) { /* as many shares */
            const int rest = item / CLUSTER;
            head = quotient(rest, a.by_row_groups);
            group = rest - head * groups;
            share = item % CLUSTER;
        } else {
            const int rest = quotient(item, a.by_row_groups);
            head = quotient(rest, a.by_shares) >> i;
            group = item - rest * groups;
            share = rest - head * shares;
        }
        first_share += (head * groups + group) * shares;
        head += first;
    }
};

/* What an item has to do. */
struct Part {
    int item, b, kv_h;
    int first_row, rows;
    int q_first, q_len, k_first, k_len;
    ListRow row;
    int first_piece, pieces, piece_tiles;

    FXA_INLINE Part(const FxaArgs &a, int item_) : item(item_)
    {
        const Place place(a, item);
        b = quotient(place.head, a.by_kv_heads);
        kv_h = place.head - b * a.kv_heads;
        first_row = place.group * ROWS;
        q_first = q_sequence(a, b).first;
        q_len = q_length(a, b);
        k_first = k_sequence(a, b).first;
        k_len = k_length(a, b);
        row = ListRow(a, b, kv_h, 0, (k_len + BN - 1) / BN, q_len < a.q_len, k_len % BN != 0);
        rows = min(ROWS, a.group * a.q_len - first_row);
        first_piece = place.share * place.run;
        pieces = min(place.run, a.splits - first_piece);
        piece_tiles = quotient(row.total + a.splits - 1, a.by_splits);
    }
    /* Where piece i of the item begins in the list's tiles, and where the one before it ends. */
    FXA_INLINE int begin(int i) const { return min((first_piece + i) * piece_tiles, row.total); }
    FXA_INLINE int query(const FxaArgs &a, int r) const { return quotient(first_row + r, a.by_group); }
    FXA_INLINE int q_head(const FxaArgs &a, int r) const { return first_row + r + (kv_h - query(a, r)) * a.group; }
    /* Again, or its parts would take registers from the loop over tiles. */
    FXA_INLINE Place place(const FxaArgs &a) const
    {
        u32 number = item;
        keep(number);
        return Place(a, (int)number);
    }
};

} // namespace

#endif
