/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward for few queries and many keys on Hopper: all query rows of a KV head (its query heads times q_len) share each
 * key that is read, and the keys are split over CTAs. What bounds it is reading K and V once.
 *
 * The keys of one (entry, KV head, group of rows) are cut into `splits` pieces, and an item is `run` of them, 2^i, the
 * last one what is left: pieces are of the entry's shape alone and added up by one tree, so `run` changes no bit and
 * may be as large as leaves all CTAs something to do. The last entries have items of fewer pieces (a.cut). CTAs are
 * persistent and take items from a counter, so that they end together. One warp of a CTA takes them and copies tiles of
 * keys into a ring; it runs ahead of the others, from item to item too, so that memory is never idle. The others
 * compute (sm90/decode_mainloop.cuh); sm90/decode_combine.cuh is the end of a piece and of an item. One whose O is not
 * finite is left for the end of all, and gone over again (common/nonfinite.cuh).
 *
 * Those that compute have the registers of warps that end at once (TAKES), so that they hold what they have loaded and
 * wait for few things one after the other: a step ends when the last of them has gone that way.
 *
 * FXA_CLUSTER: the CTAs of a cluster have one item each, all shares of a row group, and add them up in shared memory.
 *
 * Packed row r of a KV head is query r / group of head kv_h * group + r % group. An item has ROWS of them. Launch: grid
 * min(items, multiprocessors), of clusters as many as items; a.tiles items = shares * KV heads * row groups * batch,
 * shares = splits / run and row groups = group * q_len / ROWS, each rounded up. Lists have one row per KV head and
 * entry (of b_rows, h_rows; tile 0) of key tiles of BN. Workspace: a.next_tile, 0; a.redo, 12 bytes per item, which may
 * hold anything; where there is more than one share a.partial, ROWS * DV floats and a.partial_ml, 2 * ROWS floats per
 * item.
 */
#include "sm90/decode_mainloop.cuh"

namespace {

/* ---- The warp that copies --------------------------------------------------------------------------------------- */

/* Keys are read once. Lines that are to go first leave in the L2 cache what others have to write there: few keys were 5
 * to 7 % faster for it, and many 3 to 5 % slower, beside cuDNN in each run. */
FXA_INLINE u64 key_cache(const FxaArgs &a)
{
    const long long bytes = (long long)a.batch * a.kv_heads * a.k_len * (FXA_D + FXA_DV) * 2;
    return bytes < 1 << 28 ? L2_EVICT_FIRST : L2_EVICT_NORMAL;
}

/* Where tiles are copied from: entry, KV head, the entry's first key. Boxes are pages where those are smaller than a
 * tile. */
struct CopyPlace {
    int b, kv_h, first, box;
    u64 cache;

    FXA_INLINE CopyPlace(const FxaArgs &a, int b_, int kv_h_, int first_)
        : b(b_), kv_h(kv_h_), first(first_), box(FXA_PAGED ? min(a.page_size, BN) : BOX_ROWS), cache(key_cache(a))
    {
    }
};

/* One operand of a tile from key `row` on, on its way to a stage. A lane has a box, of so many rows and 64 columns:
 * those beside each other follow each other, so that rows are read as they lie in memory. */
template <int columns>
FXA_INLINE void copy_boxes(const FxaMap *map, const FxaArgs &a, const CopyPlace &at, u32 to, u32 full, int row)
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

/* Tile n by all lanes of the warp, to a stage that is empty. */
FXA_INLINE void copy_tile(const FxaMaps &maps, const FxaArgs &a, u32 base, const CopyPlace &at, u32 step, int n)
{
    const u32 to = base + step % STAGES * STAGE_BYTES, full = Ring<STAGES>{base + BARS_AT}.full(step);
    if ((threadIdx.x & 31) == 0) {
        put_word(base + NUMBERS_AT + step % STAGES * 4, n);
        barrier_expect(full, STAGE_BYTES);
    }
    __syncwarp();
    copy_boxes<FXA_D>(&maps.k, a, at, to, full, n * BN);
    copy_boxes<FXA_DV>(&maps.v, a, at, to + K_BYTES, full, n * BN);
}

/* Tiles of the first item, as many as there is room for, and how many those are: none where it is not plain where they
 * lie. A kernel that begins has its code in no cache, and this is a short way to the first copy. */
FXA_INLINE int copy_first(const FxaMaps &maps, const FxaArgs &a, u32 base)
{
    if (FXA_PAGED || FXA_VARLEN || a.list.items || a.k_len % BN) return 0;
    const Place place(a, blockIdx.x);
    const int b = quotient(place.head, a.by_kv_heads), kv_h = place.head - b * a.kv_heads, total = a.k_len / BN;
    const int piece = quotient(total + a.splits - 1, a.by_splits), begin = place.share * place.run * piece;
    const int count = max(min(min(begin + place.run * piece, total) - begin, STAGES), 0);
    const CopyPlace from(a, b, kv_h, 0);
#pragma unroll 1
    for (int i = 0; i < count; i++) copy_tile(maps, a, base, from, i, begin + i);
    return count;
}

enum { NEXT_ITEM_TILES = 3 }; /* before an item's last one the next item is asked for: who is slow asks late */

template <class F>
FXA_INLINE void copy_tiles(const FxaMaps &maps, const FxaArgs &a, u32 base, const Part &at, int begin, int end,
                           u32 &step, F ask)
{
    const Ring<STAGES> ring = {base + BARS_AT};
    const CopyPlace from(a, at.b, at.kv_h, at.k_first);
    int next = begin < end ? at.row.tile(begin) : 0;
    if (begin >= end) ask();
#pragma unroll 1
    for (int j = begin; j < end; j++, step++) {
        const int n = next;
        if (j == max(begin, end - NEXT_ITEM_TILES)) ask();
        if (j + 1 < end) next = at.row.tile(j + 1);
        ring.wait_empty(step);
        copy_tile(maps, a, base, from, step, n);
    }
}

/* Q of an item on its way to the L2 cache, where those find it that come for it when its tiles are there. */
FXA_INLINE void prefetch_queries(const FxaArgs &a, const Part &at)
{
    constexpr int LINES = (FXA_D + 63) / 64; /* of 128 bytes, of a row */
#pragma unroll 1
    for (int i = threadIdx.x & 31; i < at.rows * LINES; i += 32) {
        const int q = at.query(a, i / LINES);
        if (q < at.q_len) prefetch_l2(rows_of(a.q, at.b, at.q_head(a, i / LINES), at.q_first + q) + i % LINES * 64);
    }
    __syncwarp();
}

/* All tiles of an item but the first `copied`, or those of each of its pieces so often. */
template <class F>
FXA_INLINE void copy_item(const FxaMaps &maps, const FxaArgs &a, u32 base, int item, int copied, int times, u32 &step,
                          F ask)
{
    const Part at(a, item);
    const int some = times > 1 ? 1 : at.pieces;
    for (int i = 0; i < at.pieces * times; i += some) {
        const int piece = times > 1 ? i / times : 0;
        copy_tiles(maps, a, base, at, at.begin(piece) + copied, at.begin(piece + some), step, ask);
    }
}

/* ---- The warps that compute ------------------------------------------------------------------------------------- */

struct Consumer {
    const FxaArgs &a;
    u32 base, step;
    int warp, next; /* the item behind this one, */
    QueryRows rows; /* and its Q */
    float *out;
    Float2 *stats;
    int *order;

    FXA_INLINE Consumer(const FxaArgs &a_, u32 base_, u8 *start)
        : a(a_), base(base_), step(0), warp(__shfl_sync(~0u, (int)threadIdx.x >> 5, 0)), next(-1),
          out((float *)(start + OUT_AT)), stats((Float2 *)(start + STATS_AT)), order((int *)(start + ORDER_AT))
    {
    }

    /* O of a piece in the worker: as it is, or by three visits of its tiles. */
    FXA_INLINE void compute(Worker &worker, int piece, int values)
    {
        Worker::Marks up = {}, down = {};
        const bool again = values;
#pragma unroll 1
        for (;; values--) {
            worker.walk(base, step, piece, values);
            if (values <= VALUES_FINITE) break;
            if (values == VALUES_NEG_INF)
                worker.take_marks(down);
            else
                worker.take_marks(up);
        }
        if (again) worker.put_marks(up, down);
    }

    /* Q is asked for before the end of the item before: it is a trip through a memory that is busy. */
    FXA_INLINE void look_ahead(u32 count)
    {
        const Ring<ITEMS> ring = {base + ITEM_BARS_AT};
        ring.wait_full(count);
        next = take_word(base + ITEMS_AT + count % ITEMS * 4);
        release(ring.empty(count));
        if (TILES == 1 && next >= 0) load_queries(a, Part(a, next), warp, rows); /* two tiles have no room for them */
    }

    /* An item that is spoilt is left for the end of all. Words by turns: who is an item ahead writes the other one. */
    FXA_INLINE void visit(int item, int count, int values)
    {
        const Part at(a, item);
        const int pieces = FOLDS ? at.pieces : 1;
        const bool alone = CLUSTER == 1 && a.tiles == a.batch * a.kv_heads * row_groups(a); /* no shares */
        if (TILES > 1 || count == 0 || values) load_queries(a, at, warp, rows);
        Worker worker(a, at, warp, rows);
        Sums sums;
        if (count == 0) begun_sync(); /* Q is on its way, ahead of tiles that others ask for */
        RowPlace to(a, at, Sums::row(at));
        if (FOLDS && alone) to.find();
        const u32 word = base + SPOILT_AT + count % 2 * 4;
        bool left = false;
#pragma unroll 1
        for (int piece = 0; piece < pieces; piece++) {
            compute(worker, piece, values);
            if (piece + 1 == pieces && !values) look_ahead(count);
            if (!values && worker.is_spoilt() && worker.lane == 0) put_word(word, count);
            workers_sync(); /* the piece before is added up, and all have said what they have */
            left = !values && take_word(word) == count;
            if (left) continue;
            worker.hand_in(out, stats);
            workers_sync();
            sums.add(a, at, out, stats);
        }
        if (left) return leave(item);
        if (CLUSTER > 1) return sums.put_near(a, base);
        if (FOLDS && alone) return sums.write(a, at, to);
        const Place place = at.place(a);
        sums.put(a, at, place);
        if (place.shares > 1 && is_last(a, place, order)) merge_shares(a, at, place);
    }

    FXA_INLINE void leave(int item) const
    {
        if (threadIdx.x) return;
        again_of(a)[item] = take_word(base + AGAIN_AT);
        put_word(base + AGAIN_AT, item);
    }
};

/* Both roles go over the same items: the CTA's own, those that `next` says, then those that are left, all by one text
 * of `visit`. */
template <class N, class F> FXA_INLINE void visit_items(const FxaArgs &a, u32 base, N next, F visit)
{
    int item = blockIdx.x, values = VALUES_UNCHANGED;
#pragma unroll 1
    for (u32 count = 0;; count++) {
        if (count) item = values ? *(volatile int *)(again_of(a) + item) : next(count - 1);
        if (item < 0 && !values) {
            values = VALUES_NEG_INF;
            roles_sync();
            item = take_word(base + AGAIN_AT);
        }
        if (item < 0) return;
        visit(item, count, values);
    }
}

/* Takes items, and says which. Each is asked for while the last tiles of the one before it are copied: sooner, and who
 * is slow would have what others could have ended. As many are asked for as there are, so that the counter is 0 behind
 * the launch as before it. */
FXA_INLINE void produce(const FxaMaps &maps, const FxaArgs &a, u32 base)
{
    const Ring<ITEMS> ring = {base + ITEM_BARS_AT};
    const bool first_lane = (threadIdx.x & 31) == 0;
    const int first = copy_first(maps, a, base);
    u32 step = first, asked = 0;
    const auto next = [&](u32 count) {
        int item = CLUSTER > 1 ? -1 : (int)(gridDim.x + __shfl_sync(~0u, asked, 0));
        if (item >= a.tiles) item = -1;
        ring.wait_empty(count);
        __syncwarp(); /* consumers may have given it back before a lane that comes late looks */
        if (first_lane) {
            put_word(base + ITEMS_AT + count % ITEMS * 4, item);
            barrier_arrive(ring.full(count));
        }
        return item;
    };
    visit_items(a, base, next, [&](int item, u32 count, int values) {
        if (count && !values) prefetch_queries(a, Part(a, item));
        copy_item(maps, a, base, item, count ? 0 : first, max(values, 1), step, [&] {
            if (CLUSTER == 1 && first_lane && !values) asked = count_around(a.next_tile, a.tiles - 1);
        });
    });
}

FXA_INLINE void consume(const FxaArgs &a, u32 base, u8 *start)
{
    Consumer consumer(a, base, start);
    const auto next = [&](u32) { return consumer.next; };
    visit_items(a, base, next, [&](int item, u32 count, int values) { consumer.visit(item, (int)count, values); });
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
    if (threadIdx.x == WORKERS) {
        tma_prefetch(&maps.k);
        tma_prefetch(&maps.v);
        Ring<STAGES>{base + BARS_AT}.init(WARPS);
        Ring<ITEMS>{base + ITEM_BARS_AT}.init(WARPS);
        barrier_init_done();
        async_fence(); /* this thread's own copies come next */
    }
    if (threadIdx.x < 3) put_word(base + SPOILT_AT + 4 * threadIdx.x, -1); /* AGAIN_AT too */
    launch_begin();
    if (threadIdx.x >= WORKERS) {
        if (TAKES) registers_down<56>();
        if (threadIdx.x >= THREADS) return;
        begun_arrive();
        produce(maps, a, base);
    } else {
        if (TAKES) registers_up<224>();
        consume(a, base, memory + (base - shared_address(memory)));
        if (CLUSTER > 1) merge_cluster(a, base);
    }
}
