/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward for few queries and many keys on Hopper: all query rows of a KV head (its query heads times q_len) share each
 * key that is read, and the keys are split over CTAs. What bounds it is reading K and V once.
 *
 * The keys of one (entry, KV head, group of rows) are cut into `splits` pieces, and an item is `run` of them, 2^i, the
 * last one what is left: pieces are of the entry's shape alone and added up by one tree, so `run` changes no bit and
 * may be as large as leaves all CTAs something to do. CTAs are persistent and take items in turn. One warp of a CTA
 * copies tiles of keys into a ring and runs ahead of the others, from item to item too, so that memory is never idle.
 * The others compute S^T = K Q^T and O^T += V^T P^T with mma.sync, keys as rows and query rows as columns: KEY_PARTS
 * warps have keys of their own, ROW_PARTS query rows of their own. decode_merge.cuh is the end of a piece and of an
 * item. One whose O is not finite is left for the end of all, and gone over again (finite.cuh).
 *
 * Packed row r of a KV head is query r / group of head kv_h * group + r % group. An item has ROWS of them. Launch: grid
 * min(items, multiprocessors), or so many that none has more than 1024 items, with items = shares * KV heads * row
 * groups * batch, shares = splits / run and row groups = group * q_len / ROWS, each rounded up. Lists have one row per
 * KV head and entry (of b_rows, h_rows; tile 0) of key tiles of BN. Workspace where there is more than one share:
 * a.redo, 8 bytes per item, which may hold anything; a.partial, ROWS * DV floats and a.partial_ml, 2 * ROWS floats per
 * item.
 */
#include "decode_merge.cuh"
#include "finite.cuh"
#include "pair_loads.cuh"

namespace {

/* ---- The warp that copies --------------------------------------------------------------------------------------- */

/* One lane per box, which is a page where those are smaller than a tile. */
FXA_INLINE void copy_tiles(const FxaMaps &maps, const FxaArgs &a, u32 base, const Part &at, int begin, int end,
                           u32 &step)
{
    const Ring<STAGES> ring = {base + BARS_AT};
    const int lane = threadIdx.x & 31, box = FXA_PAGED ? min(a.page_size, BN) : BN, r = lane * box;
    int next = begin < end ? at.row.tile(begin) : 0;
    for (int j = begin; j < end; j++, step++) {
        const int n = next;
        if (j + 1 < end) next = at.row.tile(j + 1);
        const KeyPlace from(a, at.b, at.k_first, n * BN + (r < BN ? r : 0));
        const u32 to = base + step % STAGES * STAGE_BYTES, full = ring.full(step);
        ring.wait_empty(step);
        if (lane == 0) {
            put_word(base + NUMBERS_AT + step % STAGES * 4, n);
            barrier_expect(full, STAGE_BYTES);
        }
        __syncwarp();
        if (r >= BN) continue;
#pragma unroll
        for (int c = 0; c < FXA_D; c += 64)
            tma_load(to + c * BN * 2 + r * 128, &maps.k, full, c, from.s, at.kv_h, from.b, CACHE_FIRST_OUT);
#pragma unroll
        for (int c = 0; c < FXA_DV; c += 64)
            tma_load(to + K_BYTES + c * BN * 2 + r * 128, &maps.v, full, c, from.s, at.kv_h, from.b, CACHE_FIRST_OUT);
    }
}

/* All tiles of an item, or those of each of its pieces so often. */
FXA_INLINE void copy_item(const FxaMaps &maps, const FxaArgs &a, u32 base, int item, int times, u32 &step)
{
    const Part at(a, item);
    const int some = times > 1 ? 1 : at.pieces;
    for (int i = 0; i < at.pieces * times; i += some) {
        const int piece = times > 1 ? i / times : 0;
        copy_tiles(maps, a, base, at, at.begin(piece), at.begin(piece + some), step);
    }
}

/* ---- The warps that compute ------------------------------------------------------------------------------------- */

struct Worker {
    const FxaArgs &a;
    const Part &at;
    int lane, key0, row0; /* its first key of a tile, its first row */
    Program program[TILES][2];
    u32 q[TILES][FXA_D / 8];
    float unit, top[TILES][2], sum[TILES][2], o[FXA_DV / 16][TILES][4];

    FXA_INLINE Worker(const FxaArgs &a_, const Part &at_, int warp)
        : a(a_), at(at_), lane(threadIdx.x & 31), key0(warp % KEY_PARTS * KEYS),
          row0(warp / KEY_PARTS * TILES * 8), unit(Program::unit(a_))
    {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int r = row0 + t * 8 + (lane >> 2);
            const bool inside = r < at.rows && at.query(a, r) < at.q_len;
            const int row = inside ? r : 0;
            const u16 *from = rows_of(a.q, at.b, at.q_head(a, row), at.q_first + at.query(a, row));
#pragma unroll
            for (int k = 0; k < FXA_D / 8; k++) q[t][k] = inside ? load_pair(from, k * 8 + (lane & 3) * 2, a.d) : 0;
            if (a.turned)
#pragma unroll
                for (int k = 0; k < FXA_D / 8; k++) q[t][k] = turn_pair(a, q[t][k]);
#pragma unroll
            for (int x = 0; x < 2; x++)
                program[t][x].head(a, at.b, at.q_head(a, min(row_of(t, x), at.rows - 1)), at.q_len, at.k_len);
        }
    }

    FXA_INLINE int row_of(int tile, int x) const { return row0 + tile * 8 + (lane & 3) * 2 + x; }

    FXA_INLINE void clear()
    {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                top[t][x] = NEG_INF;
                sum[t][x] = 0.f;
            }
#pragma unroll
        for (int d = 0; d < FXA_DV / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++) o[d][t][0] = o[d][t][1] = o[d][t][2] = o[d][t][3] = 0.f;
    }

    FXA_INLINE void products(float (&s)[STEPS][TILES][4], u32 keys) const
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int t = 0; t < TILES; t++) s[i][t][0] = s[i][t][1] = s[i][t][2] = s[i][t][3] = 0.f;
#pragma unroll
            for (int k = 0; k < FXA_D / 16; k++) {
                u32 rows[4];
                operand_a<BN>(rows, keys, key0 + i * 16, k, lane);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(s[i][t], rows, q[t][2 * k], q[t][2 * k + 1]);
            }
        }
    }

    template <bool MASKED> FXA_INLINE void score(float (&s)[STEPS][TILES][4], int n)
    {
        const int k0 = n * BN + key0 + (lane >> 2);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int r = min(row_of(t, x), at.rows - 1), row = at.query(a, r);
                const PairLoads loads(a, at.b, at.q_head(a, r), at.q_len, at.k_len);
                const int keys = row < at.q_len ? at.k_len - k0 : 0;
                const int q_word = PROG_VECTOR ? __ldg(loads.q_words + row) : 0;
                if (PROG_VALUE || MASKED) program[t][x].tile(a, row, k0);
#pragma unroll
                for (int i = 0; i < 2 * STEPS; i++) {
                    const int c = i * 8;
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    const Pair pair = {row, k0 + c, 0, c, PROG_DIAGONAL ? __ldg(loads.diagonal + row - k0 - c) : 0.f,
                                       PROG_DENSE ? loads.dense_at(a, row, k0 + c) : 0.f, q_word,
                                       PROG_VECTOR ? __ldg(loads.k_words + k0 + c) : 0};
                    y = score_value<false>(program[t][x], a, y, pair);
                    if (MASKED && !((c < keys) & score_mask(program[t][x], a, pair))) y = NEG_INF;
                }
            }
    }

    /* Columns are query rows: their maxima and sums run over the lanes 4, 8, 16 apart. */
    FXA_INLINE void softmax(float (&s)[STEPS][TILES][4], float bias)
    {
        float fade[TILES][2];
        bool shrink = false;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float m = fmaxf(s[0][t][x], s[0][t][x + 2]);
#pragma unroll
                for (int i = 1; i < STEPS; i++) m = fmaxf(m, fmaxf(s[i][t][x], s[i][t][x + 2]));
#pragma unroll
                for (int i = 4; i < 32; i *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, i));
                m = fmaxf(m, top[t][x]);
                const float shift = finite_or_zero(m);
                fade[t][x] = exp2_fast((top[t][x] - shift) * unit);
                shrink |= m != top[t][x];
                top[t][x] = m;
                sum[t][x] *= fade[t][x];
#pragma unroll
                for (int i = 0; i < 2 * STEPS; i++) {
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    y = exp2_fast((y - shift) * unit - bias);
                    sum[t][x] += y;
                }
            }
        if (!__any_sync(~0u, shrink)) return;
#pragma unroll
        for (int d = 0; d < FXA_DV / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int x = 0; x < 4; x++) o[d][t][x] *= fade[t][x & 1];
    }

    /* What follows the last key of the entry has weight 0 and may be anything (clear_rows). Each warp has its own keys;
     * where warps share them, one of them clears, and all wait. */
    FXA_INLINE void clear_values(u32 values, int n) const
    {
        const int keys = at.k_len - n * BN;
        if (keys >= (ROW_PARTS > 1 ? BN : key0 + KEYS) || !loose_keys(a)) return;
        if (row0 == 0) clear_rows<BN, FXA_DV>(values, max(keys, key0), lane, 32, key0 + KEYS);
        if (ROW_PARTS > 1)
            workers_sync();
        else
            __syncwarp();
    }

    FXA_INLINE void add_values(const float (&s)[STEPS][TILES][4], u32 values)
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 p[TILES][2];
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                p[t][0] = transpose8x8(pack16(s[i][t][0], s[i][t][1]));
                p[t][1] = transpose8x8(pack16(s[i][t][2], s[i][t][3]));
            }
#pragma unroll
            for (int d = 0; d < FXA_DV / 16; d++) {
                u32 rows[4]; /* V transposed: its columns are the rows of the product */
                load_matrix_transposed(swizzled<BN>(values, key0 + i * 16 + (lane & 7) + 8 * (lane >> 4),
                                                    d * 2 + ((lane >> 3) & 1)), rows);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(o[d][t], rows, p[t][0], p[t][1]);
            }
        }
    }

    /* The rows of this warp's keys, in every block of 64 columns. Warps that share them write the same, but what one
     * has changed another must not change again: a barrier on either side. */
    FXA_INLINE void change(u32 tile, int values) const
    {
        if (ROW_PARTS > 1) workers_sync();
        if (row0 == 0)
#pragma unroll
            for (int c = 0; c < FXA_DV; c += 64)
                change_values(tile + c * BN * 2 + key0 * 128, KEYS * 128, values, lane, 32);
        async_fence(); /* the buffer is TMA's again after this */
        __syncwarp();
        if (ROW_PARTS > 1) workers_sync();
    }

    /* The tiles of a piece, from step `step` of the ring on. */
    FXA_INLINE void walk(u32 base, u32 &step, int piece, int values)
    {
        const Ring<STAGES> ring = {base + BARS_AT};
        const int end = at.begin(piece + 1);
        clear();
#pragma unroll 1
        for (int i = at.begin(piece); i < end; i++, step++) {
            const u32 keys = base + step % STAGES * STAGE_BYTES;
            float s[STEPS][TILES][4];
            ring.wait_full(step);
            const int n = take_word(base + NUMBERS_AT + step % STAGES * 4);
            products(s, keys);
            if (i < at.row.partial)
                score<true>(s, n);
            else
                score<false>(s, n);
            softmax(s, values > VALUES_FINITE ? values_bias(values, FXA_F16) : BIAS);
            clear_values(keys + K_BYTES, n);
            if (values) change(keys + K_BYTES, values);
            add_values(s, keys + K_BYTES);
            give_back(ring.empty(step));
        }
    }

    FXA_INLINE bool is_spoilt() const
    {
        float x = 0.f;
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++)
            x = __fmaf_rn(o[i / 4 / TILES][i / 4 % TILES][i % 4], 0.f, x);
        return __any_sync(~0u, x != x);
    }

    /* Bit by bit, in the order of loops: where O is to be +inf, -inf. */
    typedef u32 Marks[(FXA_DV / 16 * TILES * 4 + 31) / 32];

    FXA_INLINE void take_marks(Marks &marks) const
    {
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++) {
            if (i % 32 == 0) marks[i / 32] = 0;
            marks[i / 32] |= (u32)(o[i / 4 / TILES][i / 4 % TILES][i % 4] > 0.f) << (i % 32);
        }
    }

    FXA_INLINE void put_marks(const Marks &up, const Marks &down)
    {
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++) {
            const bool plus = up[i / 32] >> (i % 32) & 1, minus = down[i / 32] >> (i % 32) & 1;
            float &x = o[i / 4 / TILES][i / 4 % TILES][i % 4];
            if (plus || minus) x = plus && minus ? POS_INF - POS_INF : plus ? POS_INF : NEG_INF;
        }
    }

    /* O, maximum and sum of this warp to shared memory. */
    FXA_INLINE void hand_in(float *out, Float2 *stats) const
    {
        u32 place = (row0 + (lane & 3) * 2) << 16 | lane >> 2;
        keep(place); /* else addresses take registers from the loop over tiles */
        const int part = key0 / KEYS, column = place & 0xffff;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int r = (int)(place >> 16) + t * 8 + x;
                float all = sum[t][x];
#pragma unroll
                for (int i = 4; i < 32; i *= 2) all += __shfl_xor_sync(~0u, all, i);
                if (lane < 4) stats[part * ROWS + r] = Float2{top[t][x], all};
#pragma unroll
                for (int d = 0; d < FXA_DV / 16; d++) {
                    out[out_place(part, r, d * 16 + column)] = o[d][t][x];
                    out[out_place(part, r, d * 16 + column + 8)] = o[d][t][x + 2];
                }
            }
    }
};

struct Consumer {
    const FxaArgs &a;
    u32 base, step;
    int warp;
    float *out;
    Float2 *stats;
    int *order;

    FXA_INLINE Consumer(const FxaArgs &a_, u32 base_, u8 *start)
        : a(a_), base(base_), step(0), warp(__shfl_sync(~0u, (int)threadIdx.x >> 5, 0)),
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
            if (values == VALUES_DOWN)
                worker.take_marks(down);
            else
                worker.take_marks(up);
        }
        if (again) worker.put_marks(up, down);
    }

    /* values: as they are, or the first of three visits of an item that is computed again. */
    FXA_INLINE void visit(int item, int count, int values)
    {
        const Part at(a, item);
        Worker worker(a, at, warp);
        Sums sums;
        const u32 word = again_word(base, count), bit = 1u << count % 32;
        bool left = false; /* for the end of all */
#pragma unroll 1
        for (int piece = 0; piece < (FOLDS ? at.pieces : 1); piece++) {
            compute(worker, piece, values);
            if (!values && worker.is_spoilt() && worker.lane == 0) or_shared(word, bit);
            workers_sync(); /* the piece before is added up, and all have said what they have */
            left = !values && (u32)load_shared(word) & bit;
            if (left) continue;
            worker.hand_in(out, stats);
            workers_sync();
            sums.add(a, at, out, stats);
        }
        if (left) return;
        sums.put(a, at);
        if (all_shares(a) > 1 && is_last(a, at, order)) merge_shares(a, at);
    }
};

/* Both roles go over the same items: all of them, then those that are marked. */
template <class F> FXA_INLINE void visit_items(const FxaArgs &a, u32 base, F visit)
{
#pragma unroll 1
    for (int values = VALUES_AS_THEY_ARE; values <= VALUES_DOWN; values += VALUES_DOWN) {
        int count = 0;
        if (values) roles_sync();
        for (int item = blockIdx.x; item < all_items(a); item += gridDim.x, count++)
            if (!values || (u32)load_shared(again_word(base, count)) >> count % 32 & 1) visit(item, count, values);
    }
}

FXA_INLINE void produce(const FxaMaps &maps, const FxaArgs &a, u32 base)
{
    u32 step = 0;
    visit_items(a, base, [&](int item, int, int values) {
        copy_item(maps, a, base, item, max(values, 1), step);
    });
}

FXA_INLINE void consume(const FxaArgs &a, u32 base, u8 *start)
{
    Consumer consumer(a, base, start);
    visit_items(a, base, [&](int item, int count, int values) { consumer.visit(item, count, values); });
}

} // namespace

extern "C" __constant__ FxaShape fxa_decode_shape = {THREADS, BYTES, ROWS, BN, BN, 1, 0, 1};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_decode(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    if (threadIdx.x == WORKERS) {
        tma_prefetch(&maps.k);
        tma_prefetch(&maps.v);
        Ring<STAGES>{base + BARS_AT}.init(WARPS);
        barrier_init_done();
    }
    if (threadIdx.x < AGAIN_BYTES / 4) store_shared(base + AGAIN_AT + 4 * threadIdx.x, 0);
    launch_begin();
    __syncthreads();
    if (threadIdx.x >= WORKERS)
        produce(maps, a, base);
    else
        consume(a, base, memory + (base - shared_address(memory)));
}
