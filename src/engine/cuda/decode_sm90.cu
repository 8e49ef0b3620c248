/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward for few queries and many keys on Hopper: all query rows of a KV head (its query heads times q_len) share each
 * key that is read, and the keys are split over CTAs. What bounds it is reading K and V once.
 *
 * Every warp is a worker of its own with a private ring of TMA buffers: 32 keys of each tile of 128 keys. It computes
 * S^T = K Q^T and O^T += V^T P^T with mma.sync, keys as rows and query rows as columns, without any barrier between
 * warps until the end; one whose O is not finite goes over its keys again (finite.cuh). Warps then merge in shared memory, and the CTA that finishes last merges the splits.
 *
 * Packed row r of a KV head is query r / group of head kv_h * group + r % group. A CTA takes ROWS of them. Launch: grid
 * (splits, KV heads * row groups, batch) with row groups = group * q_len / ROWS rounded up. Lists have one row per KV
 * head and entry (of b_rows, h_rows; tile 0) of key tiles of 128. Workspace: a.redo, a zeroed int per (b, grid row),
 * left at zero; a.partial, ROWS * D floats and a.partial_ml, 2 * ROWS floats per CTA. Head dimensions up to 128, equal.
 */
#include "ampere.cuh"
#include "finite.cuh"
#include "hopper.cuh"
#include "pair_loads.cuh"
#include "score.cuh"

#ifndef FXA_ROW_TILES
#define FXA_ROW_TILES 1 /* of 8 rows: 1, 2 or 4 */
#endif

namespace {

constexpr int TILES = FXA_ROW_TILES, ROWS = 8 * TILES;
constexpr int WARPS = 4, THREADS = 32 * WARPS, BN = 128, KEYS = BN / WARPS;
constexpr int STAGES = FXA_D <= 64 ? 6 : 3;
constexpr int TILE_BYTES = KEYS * D_STORED * 2, RING_BYTES = STAGES * 2 * TILE_BYTES;
constexpr int BARS_AT = WARPS * RING_BYTES, STATS_AT = BARS_AT + WARPS * STAGES * 8;
constexpr int BYTES = STATS_AT + WARPS * ROWS * 8 + 16 + 1024;
constexpr float BIAS = FXA_F16 ? 0.f : 24.f; /* taken off exponents, so that no sum of V overflows */
static_assert(FXA_D == FXA_DV && FXA_D <= 128 && !FXA_DROPOUT, "other problems go by the forward kernels");
static_assert(ROWS * FXA_D * 4 <= RING_BYTES, "O of a warp fits its ring");

FXA_INLINE u32 transpose8x8(u32 x)
{
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Where a CTA works. */
struct Part {
    int split, kv_h, b, first_row, rows, q_first, q_len, k_first, k_len;
    long long place; /* among (b, grid row) */
    ListRow row;
    int begin, end; /* of the list's tiles */

    FXA_INLINE Part(const FxaArgs &a)
        : split(blockIdx.x), kv_h(blockIdx.y % a.kv_heads), b(blockIdx.z), first_row(blockIdx.y / a.kv_heads * ROWS),
          q_first(q_span(a, b).first), q_len(q_length(a, b)), k_first(k_span(a, b).first), k_len(k_length(a, b)),
          place((long long)b * gridDim.y + blockIdx.y),
          row(a, b, kv_h, 0, (k_len + BN - 1) / BN, q_len < a.q_len, k_len % BN != 0)
    {
        const int share = (row.total + a.splits - 1) / a.splits;
        rows = min(ROWS, a.group * a.q_len - first_row);
        begin = min(split * share, row.total);
        end = min(begin + share, row.total);
    }
    FXA_INLINE int head(const FxaArgs &a, int r) const { return kv_h * a.group + (first_row + r) % a.group; }
    FXA_INLINE int query(const FxaArgs &a, int r) const { return (first_row + r) / a.group; }
};

struct Worker {
    const FxaMaps &maps;
    const FxaArgs &a;
    const Part &at;
    u32 ring, bars;
    int warp, lane;
    Program program[TILES][2];
    u32 q[TILES][FXA_D / 8];
    float unit, top[TILES][2], sum[TILES][2], o[FXA_D / 16][TILES][4];

    FXA_INLINE Worker(const FxaMaps &maps_, const FxaArgs &a_, const Part &at_, u32 base)
        : maps(maps_), a(a_), at(at_), warp(__shfl_sync(~0u, (int)threadIdx.x >> 5, 0)), lane(threadIdx.x & 31),
          unit(Program::unit(a_))
    {
        ring = base + warp * RING_BYTES;
        bars = base + BARS_AT + warp * STAGES * 8;
    }

    FXA_INLINE int row_of(int tile, int x) const { return tile * 8 + (lane & 3) * 2 + x; }

    /* Tile i, as copy `done` + i of this warp: buffers and phases go on where it goes over its keys again. */
    FXA_INLINE void load(int i, int done) const
    {
        if (at.begin + i >= at.end || !elected()) return;
        const int s = (done + i) % STAGES, n = at.row.tile(at.begin + i) * BN + warp * KEYS;
        const u32 to = ring + s * 2 * TILE_BYTES;
        barrier_expect(bars + 8 * s, 2 * TILE_BYTES);
        const u32 bar = bars + 8 * s;
        tma_load_keys<KEYS, FXA_D>(to, &maps.k, bar, a, at.k_first, n, at.kv_h, at.b, CACHE_FIRST_OUT);
        tma_load_keys<KEYS, FXA_D>(to + TILE_BYTES, &maps.v, bar, a, at.k_first, n, at.kv_h, at.b, CACHE_FIRST_OUT);
    }

    /* Barriers and first copies, then, while those are on their way, Q and the program's heads. */
    FXA_INLINE void start()
    {
        if (lane == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(bars + 8 * i, 1);
            barrier_init_done();
        }
        __syncwarp();
        for (int i = 0; i < STAGES; i++) load(i, 0);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int r = t * 8 + (lane >> 2);
            const bool inside = r < at.rows && at.query(a, r) < at.q_len;
            const u16 *from = rows_of(a.q, at.b, at.head(a, inside ? r : 0), at.q_first + at.query(a, inside ? r : 0));
#pragma unroll
            for (int k = 0; k < FXA_D / 8; k++) q[t][k] = inside ? load_pair(from, k * 8 + (lane & 3) * 2, a.d) : 0;
            if (a.turned)
#pragma unroll
                for (int k = 0; k < FXA_D / 8; k++) q[t][k] = turn_pair(a, q[t][k]);
#pragma unroll
            for (int x = 0; x < 2; x++)
                program[t][x].head(a, at.b, at.head(a, min(row_of(t, x), at.rows - 1)), at.q_len, at.k_len);
        }
    }

    FXA_INLINE void clear()
    {
#pragma unroll
        for (int t = 0; t < TILES; t++)
            for (int x = 0; x < 2; x++) {
                top[t][x] = NEG_INF;
                sum[t][x] = 0.f;
            }
#pragma unroll
        for (int d = 0; d < FXA_D / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++) o[d][t][0] = o[d][t][1] = o[d][t][2] = o[d][t][3] = 0.f;
    }

    FXA_INLINE void products(float (&s)[2][TILES][4], u32 keys) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int t = 0; t < TILES; t++) s[i][t][0] = s[i][t][1] = s[i][t][2] = s[i][t][3] = 0.f;
#pragma unroll
            for (int k = 0; k < FXA_D / 16; k++) {
                u32 rows[4];
                operand_a<KEYS>(rows, keys, i * 16, k, lane);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(s[i][t], rows, q[t][2 * k], q[t][2 * k + 1]);
            }
        }
    }

    template <bool MASKED> FXA_INLINE void score(float (&s)[2][TILES][4], int n)
    {
        const int k0 = n * BN + warp * KEYS + (lane >> 2);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int r = min(row_of(t, x), at.rows - 1), row = at.query(a, r);
                const PairLoads loads(a, at.b, at.head(a, r), at.q_len, at.k_len);
                const int keys = row < at.q_len ? at.k_len - k0 : 0;
                const int q_word = PROG_VECTOR ? __ldg(loads.q_words + row) : 0;
                if (PROG_VALUE || MASKED) program[t][x].tile(a, row, k0);
#pragma unroll
                for (int i = 0; i < 4; i++) {
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
    FXA_INLINE void softmax(float (&s)[2][TILES][4], float bias)
    {
        float fade[TILES][2];
        bool shrink = false;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float m = fmaxf(fmaxf(s[0][t][x], s[0][t][x + 2]), fmaxf(s[1][t][x], s[1][t][x + 2]));
#pragma unroll
                for (int i = 4; i < 32; i *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, i));
                m = fmaxf(m, top[t][x]);
                const float shift = finite_or_zero(m);
                fade[t][x] = exp2_fast((top[t][x] - shift) * unit);
                shrink |= m != top[t][x];
                top[t][x] = m;
                sum[t][x] *= fade[t][x];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    y = exp2_fast((y - shift) * unit - bias);
                    sum[t][x] += y;
                }
            }
        if (!__any_sync(~0u, shrink)) return;
#pragma unroll
        for (int d = 0; d < FXA_D / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int x = 0; x < 4; x++) o[d][t][x] *= fade[t][x & 1];
    }

    /* What follows the last key of the entry has weight 0 and may be anything (clear_rows). */
    FXA_INLINE void clear_values(u32 values, int n) const
    {
        const int keys = at.k_len - n * BN - warp * KEYS;
        if (keys >= KEYS || !loose_keys(a)) return;
        clear_rows<KEYS, FXA_D>(values, keys, lane, 32);
        __syncwarp();
    }

    FXA_INLINE void add_values(const float (&s)[2][TILES][4], u32 values)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 p[TILES][2];
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                p[t][0] = transpose8x8(pack16(s[i][t][0], s[i][t][1]));
                p[t][1] = transpose8x8(pack16(s[i][t][2], s[i][t][3]));
            }
#pragma unroll
            for (int d = 0; d < FXA_D / 16; d++) {
                u32 rows[4]; /* V transposed: its columns are the rows of the product */
                load_matrix_transposed(swizzled<KEYS>(values, i * 16 + (lane & 7) + 8 * (lane >> 4),
                                                      d * 2 + ((lane >> 3) & 1)), rows);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(o[d][t], rows, p[t][0], p[t][1]);
            }
        }
    }

    /* All keys of this warp. */
    FXA_INLINE void walk(int values, int done)
    {
        clear();
#pragma unroll 1
        for (int i = 0; at.begin + i < at.end; i++) {
            const u32 keys = ring + ((done + i) % STAGES) * 2 * TILE_BYTES;
            const int n = at.row.tile(at.begin + i);
            float s[2][TILES][4];
            barrier_wait(bars + 8 * ((done + i) % STAGES), ((done + i) / STAGES) & 1);
            products(s, keys);
            if (at.begin + i < at.row.partial)
                score<true>(s, n);
            else
                score<false>(s, n);
            softmax(s, values > VALUES_FINITE ? values_bias(values, FXA_F16) : BIAS);
            clear_values(keys + TILE_BYTES, n);
            if (values) {
                change_values(keys + TILE_BYTES, TILE_BYTES, values, lane, 32);
                async_fence(); /* the buffer is TMA's again after this */
                __syncwarp();
            }
            add_values(s, keys + TILE_BYTES);
            __syncwarp();
            load(i + STAGES, done);
        }
    }

    /* Bit by bit, in the order of loops: where O is to be +inf, -inf. */
    typedef u32 Marks[(FXA_D / 16 * TILES * 4 + 31) / 32];

    FXA_INLINE void take_marks(Marks &marks) const
    {
#pragma unroll
        for (int i = 0; i < FXA_D / 16 * TILES * 4; i++) {
            if (i % 32 == 0) marks[i / 32] = 0;
            marks[i / 32] |= (u32)(o[i / 4 / TILES][i / 4 % TILES][i % 4] > 0.f) << (i % 32);
        }
    }

    FXA_INLINE bool spoilt() const
    {
        float x = 0.f;
#pragma unroll
        for (int i = 0; i < FXA_D / 16 * TILES * 4; i++)
            x = __fmaf_rn(o[i / 4 / TILES][i / 4 % TILES][i % 4], 0.f, x);
        return __any_sync(~0u, x != x);
    }

    /* Once; where O is not finite, three times more. */
    FXA_INLINE void run()
    {
        Marks up = {}, down = {};
        int values = VALUES_AS_THEY_ARE, done = 0;
        start();
#pragma unroll 1
        for (;;) {
            walk(values, done);
            if (values ? values == VALUES_FINITE : !spoilt()) break;
            if (values == VALUES_DOWN) take_marks(down);
            if (values == VALUES_UP) take_marks(up);
            values = values ? values - 1 : VALUES_DOWN;
            done += at.end - at.begin;
            for (int i = 0; i < STAGES; i++) load(i, done);
        }
        if (values) put_marks(up, down);
    }

    FXA_INLINE void put_marks(const Marks &up, const Marks &down)
    {
#pragma unroll
        for (int i = 0; i < FXA_D / 16 * TILES * 4; i++) {
            const bool plus = up[i / 32] >> (i % 32) & 1, minus = down[i / 32] >> (i % 32) & 1;
            float &x = o[i / 4 / TILES][i / 4 % TILES][i % 4];
            if (plus || minus) x = plus && minus ? POS_INF - POS_INF : plus ? POS_INF : NEG_INF;
        }
    }

    /* O, maximum and sum of this warp to shared memory, O into its own ring. */
    FXA_INLINE void hand_in(float *out, float *stats) const
    {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float all = sum[t][x];
#pragma unroll
                for (int i = 4; i < 32; i *= 2) all += __shfl_xor_sync(~0u, all, i);
                if (lane < 4) {
                    stats[warp * 2 * ROWS + row_of(t, x)] = top[t][x];
                    stats[warp * 2 * ROWS + ROWS + row_of(t, x)] = all;
                }
#pragma unroll
                for (int d = 0; d < FXA_D / 16; d++) {
                    out[row_of(t, x) * FXA_D + d * 16 + (lane >> 2)] = o[d][t][x];
                    out[row_of(t, x) * FXA_D + d * 16 + (lane >> 2) + 8] = o[d][t][x + 2];
                }
            }
    }
};

/* Results of several workers for one row: weights of each, then the sum. Maxima are before the unit. */
struct Merge {
    float unit, top, sum;

    /* stat(i) gives {maximum, sum} of worker i */
    template <class F>
    FXA_INLINE Merge(const FxaArgs &a, int workers, F stat) : unit(Program::unit(a)), top(NEG_INF), sum(0.f)
    {
        for (int i = 0; i < workers; i++) top = fmaxf(top, stat(i).x);
        for (int i = 0; i < workers; i++) sum += weight(stat(i).x) * stat(i).y;
    }
    FXA_INLINE float weight(float worker_top) const { return exp2_fast((worker_top - finite_or_zero(top)) * unit); }
    static FXA_INLINE float share(float weight, float x) { return weight == 0.f ? 0.f : weight * x; }
};

FXA_INLINE void write_row(const FxaArgs &a, const Part &at, int r, int d, const Merge &m, Float2 o)
{
    const int h = at.head(a, r), q = at.query(a, r);
    const RowEnd end(a, h, finite_or_zero(m.top), m.unit, BIAS, m.sum);
    const bool inside = q < at.q_len;
    if (q_starts(a) && !inside) return;
    store_pair(rows_of(a.o, at.b, h, at.q_first + q), d, a.dv,
               inside && end.factor != 0.f ? pack16(o.x * end.factor, o.y * end.factor) : 0);
    if (d == 0) a.lse[at.b * a.lse_b + h * a.lse_h + (at.q_first + q) * a.lse_s] = inside ? end.lse : NEG_INF;
}

/* The warps of this CTA; to the result, or to the workspace when there are more splits. */
FXA_INLINE void merge_warps(const FxaArgs &a, const Part &at, const float *memory, const float *stats)
{
    for (int e = threadIdx.x; e < at.rows * (FXA_D / 2); e += THREADS) {
        const int r = e / (FXA_D / 2), d = e % (FXA_D / 2) * 2;
        const Merge m(a, WARPS,
                      [&](int w) { return Float2{stats[w * 2 * ROWS + r], stats[w * 2 * ROWS + ROWS + r]}; });
        Float2 o = {0.f, 0.f};
        for (int w = 0; w < WARPS; w++) {
            const float weight = m.weight(stats[w * 2 * ROWS + r]);
            const Float2 x = *(const Float2 *)(memory + w * (RING_BYTES / 4) + r * FXA_D + d);
            o.x += Merge::share(weight, x.x);
            o.y += Merge::share(weight, x.y);
        }
        if (a.splits == 1) {
            write_row(a, at, r, d, m, o);
        } else {
            const long long cta = at.place * a.splits + at.split;
            *(Float2 *)(a.partial + (cta * ROWS + r) * FXA_D + d) = o;
            if (d == 0) *(Float2 *)(a.partial_ml + (cta * ROWS + r) * 2) = Float2{m.top, m.sum};
        }
    }
}

/* By the last CTA of a (b, grid row): weights to shared memory, then a thread per two columns adds over the splits. */
FXA_INLINE void merge_splits(const FxaArgs &a, const Part &at, float *weights)
{
    const Float2 *stats = (const Float2 *)a.partial_ml + at.place * a.splits * ROWS;
    const float *from = a.partial + at.place * a.splits * ROWS * FXA_D;
    Float2 *merged = (Float2 *)weights;
    weights += 2 * ROWS;
    for (int r = threadIdx.x / 32; r < at.rows; r += WARPS) {
        const int lane = threadIdx.x & 31;
        float top = NEG_INF, sum = 0.f;
        for (int s = lane; s < a.splits; s += 32) top = fmaxf(top, stats[s * ROWS + r].x);
#pragma unroll
        for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
        for (int s = lane; s < a.splits; s += 32) {
            const Float2 x = stats[s * ROWS + r];
            weights[r * a.splits + s] = exp2_fast((x.x - finite_or_zero(top)) * Program::unit(a));
            sum += weights[r * a.splits + s] * x.y;
        }
#pragma unroll
        for (int i = 16; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
        if (lane == 0) merged[r] = Float2{top, sum};
    }
    __syncthreads();
    for (int e = threadIdx.x; e < at.rows * (FXA_D / 2); e += THREADS) {
        const int r = e / (FXA_D / 2), d = e % (FXA_D / 2) * 2;
        Float2 o = {0.f, 0.f};
#pragma unroll 8
        for (int s = 0; s < a.splits; s++) {
            const Float2 x = *(const Float2 *)(from + ((long long)s * ROWS + r) * FXA_D + d);
            o.x += Merge::share(weights[r * a.splits + s], x.x);
            o.y += Merge::share(weights[r * a.splits + s], x.y);
        }
        write_row(a, at, r, d, Merge(a, 1, [&](int) { return merged[r]; }), o);
    }
}

} // namespace

extern "C" __constant__ FxaShape fxa_decode_shape = {THREADS, BYTES, ROWS, BN, KEYS, 0, 0, 1};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_decode(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    float *start = (float *)(memory + (base - shared_address(memory))), *stats = start + STATS_AT / 4;
    const Part at(a);
    Worker worker(maps, a, at, base);
    worker.run();
    __syncwarp();
    worker.hand_in(start + worker.warp * (RING_BYTES / 4), stats);
    __syncthreads();
    merge_warps(a, at, start, stats);
    if (a.splits == 1) return;
    __shared__ int order;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) order = atomicAdd(a.redo + at.place, 1);
    __syncthreads();
    if (order != a.splits - 1) return;
    __threadfence();
    if (threadIdx.x == 0) a.redo[at.place] = 0;
    merge_splits(a, at, start);
}
