/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes, shared memory and work items of the Hopper decode kernel. From the base, which is aligned to 1024 bytes:
 *
 *     offset         contents                                                     bytes x buffers
 *     0              K tile [BN, D], then V tile [BN, DV], of one stage           STAGE_BYTES x STAGES
 *     OUT_AT         O of each warp [KEY_WARPS, ROWS, DV], f32                    OUT_BYTES
 *     STATS_AT       {maximum, sum} of each warp's rows                           STATS_BYTES
 *     ORDER_AT       flag: all partial results of the row group are stored        16
 *     BARS_AT        barriers of the ring of key tiles                            16 x STAGES
 *     WORK_BARS_AT   barriers of the ring of work items                           16 x WORK_SLOTS
 *     WORK_SLOTS_AT  index of the work item                                       4 x WORK_SLOTS
 *     NONFINITE_AT   last even and last odd item number with non-finite O         8
 *     DEFERRED_AT    last deferred work item                                      4
 *     INDICES_AT     index of the key tile                                        4 x STAGES
 *
 * A consumer warp has KEYS = BN / KEY_WARPS keys of each tile, and 8 * TILES of the ROWS query rows of a work item.
 */
#ifndef FXA_CUDA_SM90_DECODE_SHARED_CUH
#define FXA_CUDA_SM90_DECODE_SHARED_CUH

#include "sm90/pipeline.cuh"
#include "common/tile_scheduler.cuh"
#include "common/score.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_decode_sm90(TRAITS);
constexpr int TILES = FXA_ROW_TILES < 2 ? 1 : 2; /* query rows of a warp / 8 */
constexpr int ROW_WARPS = FXA_ROW_TILES / TILES, ROWS = TILE.launch.q_rows;
constexpr int BN = TILE.launch.k_rows, KEY_WARPS = BN == 128 && ROW_WARPS == 1 ? 8 : 4;
constexpr int BOX_ROWS = TILE.launch.store_rows; /* keys per TMA box; not used with pages */
constexpr int KEYS = BN / KEY_WARPS, STEPS = KEYS / 16;
constexpr int WARPS = KEY_WARPS * ROW_WARPS, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;
/* True if idle warps are launched, whose registers the consumers take: a launch of 288 threads has no more registers
 * per thread than one of 384. */
constexpr bool MOVES_REGISTERS = WARPS == 8;
constexpr int LAUNCHED = TILE.launch.threads;
static_assert(LAUNCHED == (MOVES_REGISTERS ? 384 : THREADS), "common/tile_shape.h has other warps");
/* True if a warp has registers for its rows of K, and then of V, in addition to Q and O. Such a warp releases a
 * pipeline stage before it computes the scores. */
constexpr bool PRELOADS = STEPS == 1 && TILES * (FXA_D / 8 + FXA_DV / 4) + FXA_DV / 4 <= 128;
constexpr int K_BYTES = BN * D_STORED * 2, STAGE_BYTES = K_BYTES + BN * DV_STORED * 2;
constexpr int OUT_BYTES = KEY_WARPS * ROWS * FXA_DV * 4, STATS_BYTES = KEY_WARPS * ROWS * 8;
/* QUADS: number of groups of four elements of O of a work item; EACH: number of these per thread, rounded up */
constexpr int QUADS = ROWS * FXA_DV / 4, EACH = (QUADS + CONSUMERS - 1) / CONSUMERS;
/* true if a thread keeps the sums of earlier splits (parts of the keys) in registers; otherwise a work item has one
 * split (a.run = 1) */
constexpr bool KEEPS_SUMS = TILE.folds;
constexpr int FIXED_BYTES = OUT_BYTES + STATS_BYTES + 256 + 1024;
constexpr int STAGES = TILE.stages;
constexpr int OUT_AT = STAGES * STAGE_BYTES, STATS_AT = OUT_AT + OUT_BYTES, ORDER_AT = STATS_AT + STATS_BYTES;
constexpr int BARS_AT = ORDER_AT + 16, WORK_BARS_AT = BARS_AT + Ring<STAGES>::bytes;
/* work items in flight between the producer and the consumers */
constexpr int WORK_SLOTS = 2, WORK_SLOTS_AT = WORK_BARS_AT + Ring<WORK_SLOTS>::bytes;
constexpr int NONFINITE_AT = WORK_SLOTS_AT + 4 * WORK_SLOTS, DEFERRED_AT = NONFINITE_AT + 8; /* see DecodeConsumer */
constexpr int INDICES_AT = DEFERRED_AT + 4; /* key tile index of each stage */
constexpr int BYTES = OUT_AT + FIXED_BYTES;
static_assert(BYTES == TILE.launch.shared_bytes && KEEPS_SUMS == (EACH == 1), "common/tile_shape.h has another size");
static_assert(STAGES >= 1 && INDICES_AT + 4 * STAGES <= ORDER_AT + 256 && STEPS >= 1, "shared memory");
constexpr int CLUSTER = TILE.launch.parts;
static_assert(CLUSTER == 1 || KEEPS_SUMS, "a thread keeps the partial result that its cluster combines");
static_assert(!FXA_DROPOUT, "the forward kernels support dropout");
static_assert(FXA_D == FXA_DV && !fxa_is_wide(TRAITS), "the forward kernels support other head dims");
static_assert(FXA_CLUSTER == 0 || FXA_CLUSTER == 2 || FXA_CLUSTER == 4 || FXA_CLUSTER == 8, "CTAs of a cluster");
static_assert(FXA_ROW_TILES == TILES * ROW_WARPS && ROWS == 8 * FXA_ROW_TILES && BN % BOX_ROWS == 0, "rows and keys");
static_assert(K_BYTES % 1024 == 0 && STAGE_BYTES % 1024 == 0, "swizzled tiles are aligned to 1024 bytes");
static_assert(OUT_AT % 16 == 0 && STATS_AT % 8 == 0 && BARS_AT % 8 == 0 && NONFINITE_AT % 8 == 0, "alignment");

/* Named barriers. consumers_sync(): all consumers wait. roles_sync(): consumers and producer wait, in different places
 * of the code. start_sync(): consumers wait at their start; the producer arrives by start_arrive() without waiting. */
FXA_INLINE void consumers_sync()
{
    named_sync_apart<1, CONSUMERS>();
}

FXA_INLINE void roles_sync()
{
    named_sync_apart<2, THREADS>();
}

FXA_INLINE void start_arrive()
{
    __syncwarp();
    named_arrive(3, THREADS);
}

FXA_INLINE void start_sync()
{
    named_sync_apart<3, THREADS>();
}

/* Returns the number of row groups of a (b, KV head): sets of ROWS query rows that a work item computes together. */
FXA_INLINE int row_groups(const FxaArgs &a)
{
    return (a.group * a.q_len + ROWS - 1) / ROWS;
}

/* Returns an array of links: element w is the work item that follows work item w in the list of the work items that are
 * deferred for recomputation; -1 = none. The array is stored after the flags of publish_partial(). */
FXA_INLINE int *deferred_of(const FxaArgs &a)
{
    return (int *)((u64 *)a.redo + a.tiles);
}

/* Position of work item `work`: (b, KV head) number `head`, row group number `group` (ROWS query rows of the KV head),
 * and number `part` of the `parts` parts into which the keys of the row group are divided. A part has `run` splits of
 * the keys; the last part of a row group has the remaining splits. Work items with the same keys are neighbours, so
 * that these keys are read from memory once. */
struct SplitIndex {
    int head, group, part, parts, run;
    /* index, among the parts (one per work item) of the launch, of the first part with the same query rows */
    int first_part;

    FXA_INLINE SplitIndex(const FxaArgs &a, int work)
    {
        const int groups = row_groups(a);
        int first = 0, heads = a.batch * a.kv_heads;
#pragma unroll
        for (int i = 0; i < FXA_CUDA_DECODE_CUTS; i++) heads -= a.cut[i];
        run = a.run;
        parts = (a.splits + run - 1) >> (__ffs(run) - 1);
        first_part = 0;
        int i = 0;
#pragma unroll 1
        for (; i < FXA_CUDA_DECODE_CUTS && work >= heads * parts * groups; i++) {
            work -= heads * parts * groups;
            first_part += heads * parts * groups;
            first += heads;
            heads = a.cut[i];
            run >>= 1;
            parts *= 2;
        }
        if (CLUSTER > 1) { /* each CTA of a cluster has a part of the keys of the same query rows */
            const int rest = work / CLUSTER;
            head = quotient(rest, a.by_row_groups);
            group = rest - head * groups;
            part = work % CLUSTER;
        } else {
            const int rest = quotient(work, a.by_row_groups);
            head = quotient(rest, a.by_shares) >> i;
            group = work - rest * groups;
            part = rest - head * parts;
        }
        first_part += (head * groups + group) * parts;
        head += first;
    }
};

/* A work item: `rows` query rows of a KV head from first_row on, the `row` of the tile list with their key tiles, and
 * `splits` splits of these key tiles from first_split on. */
struct DecodeWork {
    int work, b, kv_h;
    int first_row, rows;
    int q_first, q_len, k_first, k_len;
    ListRow row;
    int first_split, splits, split_tiles;

    FXA_INLINE DecodeWork(const FxaArgs &a, int work_) : work(work_)
    {
        const SplitIndex index(a, work);
        b = quotient(index.head, a.by_kv_heads);
        kv_h = index.head - b * a.kv_heads;
        first_row = index.group * ROWS;
        q_first = q_sequence(a, b).first;
        q_len = q_length(a, b);
        k_first = k_sequence(a, b).first;
        k_len = k_length(a, b);
        row = ListRow(a, b, kv_h, 0, (k_len + BN - 1) / BN, q_len < a.q_len, k_len % BN != 0);
        rows = min(ROWS, a.group * a.q_len - first_row);
        first_split = index.part * index.run;
        splits = min(index.run, a.splits - first_split);
        split_tiles = quotient(row.total + a.splits - 1, a.by_splits);
    }
    /* Returns the position, in `row`, of the first tile of split i (a range of the tiles of `row`); this is also the
     * end of split i - 1. */
    FXA_INLINE int begin(int i) const { return min((first_split + i) * split_tiles, row.total); }
    FXA_INLINE int query(const FxaArgs &a, int r) const { return quotient(first_row + r, a.by_group); }
    FXA_INLINE int q_head(const FxaArgs &a, int r) const { return first_row + r + (kv_h - query(a, r)) * a.group; }
    /* Returns the position of the work item. Computes the position again, because a stored one would occupy registers
     * in the loop over tiles. */
    FXA_INLINE SplitIndex index(const FxaArgs &a) const
    {
        u32 number = work;
        keep(number);
        return SplitIndex(a, (int)number);
    }
};

} // namespace

#endif
