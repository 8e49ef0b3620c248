/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles, shared memory and items of decode_sm90.cu.
 */
#ifndef FXA_CUDA_DECODE_LAYOUT_CUH
#define FXA_CUDA_DECODE_LAYOUT_CUH

#include "hopper.cuh"

#ifndef FXA_ROW_TILES
#define FXA_ROW_TILES 1 /* of 8 rows: 1, 2 or 4 */
#endif

namespace {

constexpr int TILES = FXA_ROW_TILES < 2 ? 1 : 2; /* of a warp */
constexpr int ROW_PARTS = FXA_ROW_TILES / TILES, ROWS = 8 * FXA_ROW_TILES;
constexpr int BN = FXA_D + FXA_DV > 256 ? 64 : 128, KEY_PARTS = BN == 128 && ROW_PARTS == 1 ? 8 : 4;
constexpr int KEYS = BN / KEY_PARTS, STEPS = KEYS / 16;
constexpr int WARPS = KEY_PARTS * ROW_PARTS, WORKERS = 32 * WARPS, THREADS = WORKERS + 32;
constexpr int K_BYTES = BN * D_STORED * 2, STAGE_BYTES = K_BYTES + BN * DV_STORED * 2;
constexpr int OUT_BYTES = KEY_PARTS * ROWS * FXA_DV * 4, STATS_BYTES = KEY_PARTS * ROWS * 8;
constexpr int QUADS = ROWS * FXA_DV / 4, EACH = (QUADS + WORKERS - 1) / WORKERS; /* of O, all and of a thread */
constexpr bool FOLDS = EACH == 1; /* else threads have no room for what pieces before have left, and a.run is 1 */
constexpr int AGAIN_BYTES = 128; /* a bit for each item of a CTA: it is computed again */
constexpr int FIXED_BYTES = OUT_BYTES + STATS_BYTES + AGAIN_BYTES + 256 + 1024;
constexpr int ROOM = (227 * 1024 - FIXED_BYTES) / STAGE_BYTES, STAGES = ROOM < 8 ? ROOM : 8;
constexpr int OUT_AT = STAGES * STAGE_BYTES, STATS_AT = OUT_AT + OUT_BYTES, AGAIN_AT = STATS_AT + STATS_BYTES;
constexpr int ORDER_AT = AGAIN_AT + AGAIN_BYTES, BARS_AT = ORDER_AT + 16;
constexpr int NUMBERS_AT = BARS_AT + Ring<STAGES>::bytes; /* of the tiles in the stages */
constexpr int BYTES = OUT_AT + FIXED_BYTES;
static_assert(STAGES >= 1 && NUMBERS_AT + 4 * STAGES <= ORDER_AT + 256 && STEPS >= 1, "shared memory");
static_assert(!FXA_DROPOUT, "other problems go by the forward kernels");

/* Barriers of the warps that compute, and of all: the two roles come to the second from places of their own. */
FXA_INLINE void workers_sync()
{
    named_sync_apart<1, WORKERS>();
}

FXA_INLINE void roles_sync()
{
    named_sync_apart<2, THREADS>();
}

FXA_INLINE int row_groups(const FxaArgs &a)
{
    return (a.group * a.q_len + ROWS - 1) / ROWS;
}

/* Of a row group. */
FXA_INLINE int all_shares(const FxaArgs &a)
{
    return (a.splits + a.run - 1) / a.run;
}

/* Items of this CTA: i, i + gridDim.x, ...; at most 8 * AGAIN_BYTES of them. */
FXA_INLINE int all_items(const FxaArgs &a)
{
    return a.batch * a.kv_heads * all_shares(a) * row_groups(a);
}

FXA_INLINE u32 again_word(u32 base, int count)
{
    return base + AGAIN_AT + count / 32 * 4;
}

/* An item: the row groups of the same keys follow each other, so that those are read from memory once. Its share is
 * `run` of the pieces of the keys, the last one of a row group those that are left. */
struct Part {
    int group, share, head, b, kv_h;
    int place, first_row, rows; /* place: among (b, KV head, row group) */
    int q_first, q_len, k_first, k_len;
    ListRow row;
    int first_piece, pieces, piece_tiles;

    FXA_INLINE Part(const FxaArgs &a, int item)
        : group(item % row_groups(a)), share(item / row_groups(a) % all_shares(a)),
          head(item / row_groups(a) / all_shares(a)),
          b(head / a.kv_heads), kv_h(head % a.kv_heads), place(head * row_groups(a) + group), first_row(group * ROWS),
          q_first(q_span(a, b).first), q_len(q_length(a, b)), k_first(k_span(a, b).first), k_len(k_length(a, b)),
          row(a, b, kv_h, 0, (k_len + BN - 1) / BN, q_len < a.q_len, k_len % BN != 0)
    {
        rows = min(ROWS, a.group * a.q_len - first_row);
        first_piece = share * a.run;
        pieces = min(a.run, a.splits - first_piece);
        piece_tiles = (row.total + a.splits - 1) / a.splits;
    }
    /* Where piece i of the item begins in the list's tiles, and where the one before it ends. */
    FXA_INLINE int begin(int i) const { return min((first_piece + i) * piece_tiles, row.total); }
    FXA_INLINE int q_head(const FxaArgs &a, int r) const { return kv_h * a.group + (first_row + r) % a.group; }
    FXA_INLINE int query(const FxaArgs &a, int r) const { return (first_row + r) / a.group; }
    FXA_INLINE long long partial(const FxaArgs &a) const { return (long long)place * all_shares(a) + share; }
};

} // namespace

#endif
