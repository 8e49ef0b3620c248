/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode on Hopper: forward for few queries and many keys. All query rows of a KV head (its query heads times q_len)
 * share each key that is read, and the keys are split over CTAs (split-KV). The time is bounded by one read of K and V.
 *
 * Grid: persistent, min(work items, multiprocessors) CTAs, or clusters with one CTA per work item. Warps: one producer
 * warp takes work items from a counter and copies key tiles; it runs ahead of the consumers, into the next work item
 * too, so that memory is never idle. WARPS consumer warps compute. With MOVES_REGISTERS idle warps are launched too,
 * which end at once and leave their registers to the consumers. Pipeline: a ring of STAGES key tiles (K and V together)
 * and one of WORK_SLOTS work items (shared memory: sm90/decode_shared.cuh). Mainloop: sm90/decode_mainloop.cuh.
 * Epilogue: sm90/decode_combine.cuh, at the end of a split and of a work item.
 *
 *     keys of (batch entry, KV head)   | split 0 | split 1 | split 2 | split 3 | split 4 |      a.splits = 5
 *     work items of a row group        |      part 0       |      part 1       | part 2  |      a.run = 2
 *     combine                          by one tree over splits, then over parts
 *
 * The number of splits depends on the problem's shape alone, and one binary tree adds them, so a.run (a power of 2)
 * changes no bit of the result; the host chooses it for speed (host/decode.c). The work items of the last batch entries
 * have fewer splits (a.cut), so that CTAs end together. A work item with a non-finite O is deferred to the end and
 * recomputed (common/nonfinite.cuh). With FXA_CLUSTER, the CTAs of a cluster have one part each of the same row group
 * and combine the parts in shared memory.
 *
 * Row r of a KV head kv_h is query r / group of query head kv_h * group + r % group; a row group is ROWS such rows.
 * a.tiles = parts * KV heads * row groups * batch entries, with parts = splits / run and row groups = group * q_len /
 * ROWS, each rounded up. Tile lists have one row per KV head and batch entry (b_rows, h_rows; tile 0) of key tiles of
 * BN. Workspace:
 *     a.next_tile    counter, 0 before the launch
 *     a.redo         12 bytes per work item, with any contents
 *     a.partial      ROWS * DV floats per work item, if there is more than one part
 *     a.partial_ml   2 * ROWS floats per work item, if there is more than one part
 */
#include "sm90/decode_mainloop.cuh"

namespace {

/* ---- Producer ---------------------------------------------------------------------------------------------------- */

/* Returns the L2 hint for K and V, which are read once. L2_EVICT_FIRST leaves the L2 cache to other data: the kernel is
 * 5 to 7 % faster with few keys, but 3 to 5 % slower with many. */
FXA_INLINE u64 key_cache(const FxaArgs &a)
{
    const long long bytes = (long long)a.batch * a.kv_heads * a.k_len * (FXA_D + FXA_DV) * 2;
    return bytes < 1 << 28 ? L2_EVICT_FIRST : L2_EVICT_NORMAL;
}

/* Source of the producer's copies: batch entry, KV head, first key of the sequence. A TMA box has BOX_ROWS rows;
 * with pages it has the rows of a page, at most BN. */
struct CopySource {
    int b, kv_h, first, box;
    u64 cache;

    FXA_INLINE CopySource(const FxaArgs &a, int b_, int kv_h_, int first_)
        : b(b_), kv_h(kv_h_), first(first_), box(FXA_PAGED ? min(a.page_size, BN) : BOX_ROWS), cache(key_cache(a))
    {
    }
};

/* Copies K or V of the tile that starts with key `row` to a pipeline stage. Each lane copies one box of at.box rows and
 * 64 elements of the head dim; neighbouring lanes copy neighbouring elements of the same rows, so that rows are read in
 * memory order. */
template <int columns>
FXA_INLINE void copy_boxes(const FxaMap *map, const FxaArgs &a, const CopySource &at, u32 to, u32 full, int row)
{
    constexpr int BLOCKS = (columns + 63) / 64;
#pragma unroll 1
    for (int i = threadIdx.x & 31; i / BLOCKS * at.box < BN; i += 32) {
        const int r = i / BLOCKS * at.box, c = i % BLOCKS * 64;
        const KeyAddress from(a, at.b, at.first, row + r);
        tma_load(to + c * BN * 2 + r * 128, map, full, c, from.s, at.kv_h, from.b, at.cache);
    }
    __syncwarp();
}

/* Copies K and V of key tile n to an empty pipeline stage, by all lanes of the warp. */
FXA_INLINE void copy_tile(const FxaMaps &maps, const FxaArgs &a, u32 base, const CopySource &at, u32 step, int n)
{
    const u32 to = base + step % STAGES * STAGE_BYTES, full = Ring<STAGES>{base + BARS_AT}.full(step);
    if ((threadIdx.x & 31) == 0) {
        put_word(base + INDICES_AT + step % STAGES * 4, n);
        barrier_expect(full, STAGE_BYTES);
    }
    __syncwarp();
    copy_boxes<FXA_D>(&maps.k, a, at, to, full, n * BN);
    copy_boxes<FXA_DV>(&maps.v, a, at, to + K_BYTES, full, n * BN);
}

/* Copies the first key tiles of the CTA's first work item, at most STAGES. Returns their number, which is 0 with pages,
 * varlen or a tile list. When a kernel starts, its code is in no cache, and this function is a short path to the first
 * copy. */
FXA_INLINE int copy_first(const FxaMaps &maps, const FxaArgs &a, u32 base)
{
    if (FXA_PAGED || FXA_VARLEN || a.list.items || a.k_len % BN) return 0;
    const SplitIndex index(a, blockIdx.x);
    const int b = quotient(index.head, a.by_kv_heads), kv_h = index.head - b * a.kv_heads, total = a.k_len / BN;
    const int split = quotient(total + a.splits - 1, a.by_splits), begin = index.part * index.run * split;
    const int count = max(min(min(begin + index.run * split, total) - begin, STAGES), 0);
    const CopySource from(a, b, kv_h, 0);
#pragma unroll 1
    for (int i = 0; i < count; i++) copy_tile(maps, a, base, from, i, begin + i);
    return count;
}

/* the producer takes the next work item when this number of tiles of the current one is left, not earlier, so that slow
 * CTAs take fewer work items */
enum { TAKE_NEXT_AT = 3 };

template <class F>
FXA_INLINE void copy_tiles(const FxaMaps &maps, const FxaArgs &a, u32 base, const DecodeWork &at, int begin, int end,
                           u32 &step, F take_next)
{
    const Ring<STAGES> ring = {base + BARS_AT};
    const CopySource from(a, at.b, at.kv_h, at.k_first);
    int next = begin < end ? at.row.tile(begin) : 0;
    if (begin >= end) take_next();
#pragma unroll 1
    for (int j = begin; j < end; j++, step++) {
        const int n = next;
        if (j == max(begin, end - TAKE_NEXT_AT)) take_next();
        if (j + 1 < end) next = at.row.tile(j + 1);
        ring.wait_empty(step);
        copy_tile(maps, a, base, from, step, n);
    }
}

/* Prefetches Q of a work item into the L2 cache. The consumers load Q from the cache when the key tiles have
 * arrived. */
FXA_INLINE void prefetch_queries(const FxaArgs &a, const DecodeWork &at)
{
    constexpr int LINES = (FXA_D + 63) / 64; /* cache lines of 128 bytes per row */
#pragma unroll 1
    for (int i = threadIdx.x & 31; i < at.rows * LINES; i += 32) {
        const int q = at.query(a, i / LINES);
        if (q < at.q_len) prefetch_l2(rows_of(a.q, at.b, at.q_head(a, i / LINES), at.q_first + q) + i % LINES * 64);
    }
    __syncwarp();
}

/* Copies the key tiles of a work item except the first `copied` tiles. For a recomputation, copies the tiles of each
 * split (part of the item's keys) `times` times. */
template <class F>
FXA_INLINE void copy_splits(const FxaMaps &maps, const FxaArgs &a, u32 base, int work, int copied, int times, u32 &step,
                            F take_next)
{
    const DecodeWork at(a, work);
    const int some = times > 1 ? 1 : at.splits;
    for (int i = 0; i < at.splits * times; i += some) {
        const int split = times > 1 ? i / times : 0;
        copy_tiles(maps, a, base, at, at.begin(split) + copied, at.begin(split + some), step, take_next);
    }
}

/* ---- Consumers --------------------------------------------------------------------------------------------------- */

struct DecodeConsumer {
    const FxaArgs &a;
    u32 base, step;
    int warp, next; /* next work item */
    QueryRows rows; /* Q of the next work item */
    float *out;
    Float2 *stats;
    int *order;

    FXA_INLINE DecodeConsumer(const FxaArgs &a_, u32 base_, u8 *start)
        : a(a_), base(base_), step(0), warp(__shfl_sync(~0u, (int)threadIdx.x >> 5, 0)), next(-1),
          out((float *)(start + OUT_AT)), stats((Float2 *)(start + STATS_AT)), order((int *)(start + ORDER_AT))
    {
    }

    /* Computes O of a split (part of the item's keys): in one pass over the split's tiles, or in a recomputation
     * (values != 0) in three passes (common/nonfinite.cuh). */
    FXA_INLINE void compute(DecodeMainloop &mainloop, int split, int values)
    {
        DecodeMainloop::Marks up = {}, down = {};
        const bool again = values;
#pragma unroll 1
        for (;; values--) {
            mainloop.run_split(base, step, split, values);
            if (values <= VALUES_FINITE) break;
            if (values == VALUES_NEG_INF)
                mainloop.take_marks(down);
            else
                mainloop.take_marks(up);
        }
        if (again) mainloop.put_marks(up, down);
    }

    /* Receives the next work item from the producer and loads its Q. Called before the end of the current work item,
     * because the load takes long while tiles are copied. */
    FXA_INLINE void fetch_next(u32 count)
    {
        const Ring<WORK_SLOTS> ring = {base + WORK_BARS_AT};
        ring.wait_full(count);
        next = take_word(base + WORK_SLOTS_AT + count % WORK_SLOTS * 4);
        release(ring.empty(count));
        /* registers suffice for the next item's Q only if TILES is 1 */
        if (TILES == 1 && next >= 0) load_queries(a, DecodeWork(a, next), warp, rows);
    }

    /* Computes work item number `count` of the CTA. An item whose O is not finite is deferred to the end of the CTA's
     * work. Two words in shared memory have the numbers of the last such work items, one for even and one for odd
     * numbers, because a warp may be one work item ahead of the others. */
    FXA_INLINE void process(int work, int count, int values)
    {
        const DecodeWork at(a, work);
        const int splits = KEEPS_SUMS ? at.splits : 1;
        /* true if each row group (set of query rows) is one work item, so that no results are combined */
        const bool single_part = CLUSTER == 1 && a.tiles == a.batch * a.kv_heads * row_groups(a);
        if (TILES > 1 || count == 0 || values) load_queries(a, at, warp, rows);
        DecodeMainloop mainloop(a, at, warp, rows);
        SplitSums sums;
        if (count == 0) start_sync(); /* Q is requested before the producer requests tiles */
        OutputRow to(a, at, SplitSums::row(at));
        if (KEEPS_SUMS && single_part) to.find();
        const u32 word = base + NONFINITE_AT + count % 2 * 4;
        bool deferred = false;
#pragma unroll 1
        for (int split = 0; split < splits; split++) {
            compute(mainloop, split, values);
            if (split + 1 == splits && !values) fetch_next(count);
            if (!values && mainloop.has_nonfinite() && mainloop.lane == 0) put_word(word, count);
            consumers_sync(); /* all warps have added the previous split and set `word` if their O is not finite */
            deferred = !values && take_word(word) == count;
            if (deferred) continue;
            mainloop.partial_to_shared(out, stats);
            consumers_sync();
            sums.add(a, at, out, stats);
        }
        if (deferred) return defer(work);
        if (CLUSTER > 1) return sums.put_shared(a, base);
        if (KEEPS_SUMS && single_part) return sums.write(a, at, to);
        const SplitIndex index = at.index(a);
        sums.put(a, at, index);
        if (index.parts > 1 && publish_partial(a, index, order)) combine_partials(a, at, index);
    }

    FXA_INLINE void defer(int work) const
    {
        if (threadIdx.x) return;
        deferred_of(a)[work] = take_word(base + DEFERRED_AT);
        put_word(base + DEFERRED_AT, work);
    }
};

/* Calls process() for the CTA's first work item, then the work items that next() returns, then the deferred ones.
 * Producer and consumers both call this function, and so process the same work items. All three cases share one call,
 * to compile process() once. */
template <class N, class F> FXA_INLINE void for_each_work(const FxaArgs &a, u32 base, N next, F process)
{
    int work = blockIdx.x, values = VALUES_UNCHANGED;
#pragma unroll 1
    for (u32 count = 0;; count++) {
        if (count) work = values ? *(volatile int *)(deferred_of(a) + work) : next(count - 1);
        if (work < 0 && !values) {
            values = VALUES_NEG_INF;
            roles_sync();
            work = take_word(base + DEFERRED_AT);
        }
        if (work < 0) return;
        process(work, count, values);
    }
}

/* Takes work items from the counter and passes them to the consumers. The next work item is taken only when the last
 * tiles of the current one are copied, so that a slow CTA does not take work that other CTAs could finish. The counter
 * is incremented a.tiles times in total, modulo a.tiles, and so is 0 after the launch. */
FXA_INLINE void produce(const FxaMaps &maps, const FxaArgs &a, u32 base)
{
    const Ring<WORK_SLOTS> ring = {base + WORK_BARS_AT};
    const bool first_lane = (threadIdx.x & 31) == 0;
    const int first = copy_first(maps, a, base);
    u32 step = first, taken = 0;
    const auto next = [&](u32 count) {
        int work = CLUSTER > 1 ? -1 : (int)(gridDim.x + __shfl_sync(~0u, taken, 0));
        if (work >= a.tiles) work = -1;
        ring.wait_empty(count);
        /* No lane may still wait for the empty slot when the first lane fills it: consumers may release the slot again,
         * and the lane would miss the phase of the barrier. */
        __syncwarp();
        if (first_lane) {
            put_word(base + WORK_SLOTS_AT + count % WORK_SLOTS * 4, work);
            barrier_arrive(ring.full(count));
        }
        return work;
    };
    for_each_work(a, base, next, [&](int work, u32 count, int values) {
        if (count && !values) prefetch_queries(a, DecodeWork(a, work));
        copy_splits(maps, a, base, work, count ? 0 : first, max(values, 1), step, [&] {
            if (CLUSTER == 1 && first_lane && !values) taken = count_around(a.next_tile, a.tiles - 1);
        });
    });
}

FXA_INLINE void consume(const FxaArgs &a, u32 base, u8 *start)
{
    DecodeConsumer consumer(a, base, start);
    const auto next = [&](u32) { return consumer.next; };
    for_each_work(a, base, next, [&](int work, u32 count, int values) { consumer.process(work, (int)count, values); });
}

} // namespace

extern "C" __constant__ FxaShape fxa_decode_shape = TILE.launch;

#if FXA_CLUSTER > 1
#define CLUSTERED __cluster_dims__(FXA_CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

extern "C" __global__ void CLUSTERED __launch_bounds__(LAUNCHED, 1)
    fxa_decode(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    if (threadIdx.x == CONSUMERS) {
        tma_prefetch(&maps.k);
        tma_prefetch(&maps.v);
        Ring<STAGES>{base + BARS_AT}.init(WARPS);
        Ring<WORK_SLOTS>{base + WORK_BARS_AT}.init(WARPS);
        barrier_init_done();
        async_fence(); /* orders the initialization before the copies of this thread */
    }
    /* two words at NONFINITE_AT, and the word at DEFERRED_AT that follows them */
    if (threadIdx.x < 3) put_word(base + NONFINITE_AT + 4 * threadIdx.x, -1);
    launch_begin();
    if (threadIdx.x >= CONSUMERS) {
        if (MOVES_REGISTERS) registers_down<56>();
        if (threadIdx.x >= THREADS) return;
        start_arrive();
        produce(maps, a, base);
    } else {
        if (MOVES_REGISTERS) registers_up<224>();
        consume(a, base, memory + (base - shared_address(memory)));
        if (CLUSTER > 1) combine_cluster(a, base);
    }
}
