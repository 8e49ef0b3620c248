/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of sm_90 do with its copies and barriers: rings of buffers, tiles and rows by TMA, the two halves of
 * a persistent kernel. Addresses of shared memory are 32 bits.
 */
#ifndef FXA_CUDA_SM90_PIPELINE_CUH
#define FXA_CUDA_SM90_PIPELINE_CUH

#include "sm90/ptx.cuh"
#include "common/varlen.cuh"

constexpr u64 CACHE_FIRST_OUT = 0x12F0000000000000ull; /* L2: read once */
constexpr u64 CACHE_PLAIN = 0x1000000000000000ull; /* L2: as without a hint */
constexpr u64 CACHE_KEEP = 0x14F0000000000000ull; /* L2: other tiles read it too */

/*
 * A ring of `stages` buffers with a barrier that says full and one that says empty for each. Step i of the producer and
 * of the consumers uses buffer i % stages; both count on without a break, so phases never get out of step.
 */
template <int stages> struct Ring {
    u32 at;

    static constexpr int bytes = 16 * stages;

    FXA_INLINE u32 full(u32 i) const { return at + 16 * (i % stages); }
    FXA_INLINE u32 empty(u32 i) const { return at + 16 * (i % stages) + 8; }
    FXA_INLINE void init(u32 consumers, u32 producers = 1) const
    {
        for (int i = 0; i < stages; i++) {
            barrier_init(full(i), producers);
            barrier_init(empty(i), consumers);
        }
    }
    FXA_INLINE void wait_full(u32 i) const { barrier_wait(full(i), (i / stages) & 1); }
    FXA_INLINE void wait_empty(u32 i) const { barrier_wait(empty(i), ((i / stages) & 1) ^ 1); }
    /* Waits until step i, which was produced, is consumed. */
    FXA_INLINE void wait_consumed(u32 i) const { barrier_wait(empty(i), (i / stages) & 1); }
};

/* A buffer back to its producer, once per warp, when all lanes of it have read: what a warpgroup's other warps still
 * read by ordinary loads is ordered by their own arrival alone. */
FXA_INLINE void give_back(u32 empty)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(empty);
}

/* ---- Copies ----------------------------------------------------------------------------------------------------- */

/* Where a tile's rows lie: the coordinates of its first one. Packed tensors have one entry, and rows that follow the
 * tile's own belong to somebody else. */
struct Rows {
    int s, h, b; /* of the tensor map */
    bool packed;

    FXA_INLINE Rows(const int *starts, int first, int s_, int h_, int b_)
        : s(first + s_), h(h_), b(starts ? 0 : b_), packed(starts != 0)
    {
    }
};

/* All blocks of 64 columns of a tile of so many rows: stored_columns(columns) columns. */
template <int rows, int columns>
FXA_INLINE void tma_load_tile(u32 to, const FxaMap *map, u32 barrier, const Rows &at, u64 cache)
{
#pragma unroll
    for (int c = 0; c < columns; c += 64) tma_load(to + c * rows * 2, map, barrier, c, at.s, at.h, at.b, cache);
}

/* A tile of K or V from key `row` of entry b on: one box, or one for each page that it touches. Pages are multiples or
 * divisors of the tile, and of 8 rows, after which the swizzle repeats; boxes have the rows of the smaller one. */
template <int rows, int columns>
FXA_INLINE void tma_load_keys(u32 to, const FxaMap *map, u32 barrier, const FxaArgs &a, int first, int row, int h,
                              int b, u64 cache)
{
    const int box = FXA_PAGED ? min(a.page_size, rows) : rows;
    for (int r = 0; r < rows; r += box) {
        const KeyPlace at(a, b, first, row + r);
#pragma unroll
        for (int c = 0; c < columns; c += 64)
            tma_load(to + c * rows * 2 + r * 128, map, barrier, c, at.s, h, at.b, cache);
    }
}

/* A block of dO and its rows' delta into their ring, for the backward kernels. row: of the padded workspace. */
template <int rows, class Shared>
FXA_INLINE void load_grad_o(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const Rows &at, long long row,
                            u32 step)
{
    const u32 full = sh.o_ring().full(step);
    sh.o_ring().wait_empty(step);
    barrier_expect(full, rows * DV_STORED * 2 + rows * 4);
    tma_load_tile<rows, FXA_DV>(sh.grad_o(step), &maps.grad_o, full, at, CACHE_KEEP);
    bulk_load(sh.delta(step), a.delta + row, rows * 4, full);
}

/* ---- Rows in and out -------------------------------------------------------------------------------------------- */

/* Sets the rows from `from` to `end` to 0, by `threads` threads; async_fence is done, a barrier of them is not. Rows
 * past a length hold what the caller left there, and 0 times NaN would spoil a product in which they have weight 0. */
template <int rows, int columns>
FXA_INLINE void clear_rows(u32 tile, int from, int thread, int threads, int end = rows)
{
    keep(tile); /* else its parts take uniform registers from the loops around it */
#pragma unroll 1
    for (int i = max(from, 0) * 8 + thread; i < end * 8; i += threads)
#pragma unroll
        for (int c = 0; c < columns; c += 64) store_shared_float4(tile + c * rows * 2 + i * 16, 0.f, 0.f, 0.f, 0.f);
    async_fence();
}

/* 64 rows of an operand, where its products are turned, by the 128 threads of a warpgroup. async_fence is done, a
 * barrier is not. */
template <int tile_rows, int columns> FXA_INLINE void turn_rows(const FxaArgs &a, u32 rows)
{
#pragma unroll 1
    for (int c = 0; c < columns; c += 64) negate_tile(a, rows + c * tile_rows * 2, 64 * 128, threadIdx.x & 127, 128);
    async_fence();
}

/* Accumulators of a warp's 16 rows times a factor for each half, in 16 bits, into a swizzled tile at the first of its
 * rows. Factor 0 gives zeros whatever the accumulators hold. spoilt: not 0 for a half of which this thread has staged
 * something that is not finite. */
template <int tile_rows, int n>
FXA_INLINE void stage_rows(u32 rows, const float (&x)[n], float first, float second, u32 (&spoilt)[2])
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < n / 8; i++) {
        u32 y[4]; /* rows r and r + 8 of columns 0..7, then of columns 8..15 */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float factor = j & 1 ? second : first;
            y[j] = factor == 0.f ? 0 : pack16(x[i * 8 + j * 2] * factor, x[i * 8 + j * 2 + 1] * factor);
            spoilt[j & 1] = spoil(spoilt[j & 1], y[j]);
        }
        store_matrix(swizzled<tile_rows>(rows, lane & 15, i * 2 + (lane >> 4)), y[0], y[1], y[2], y[3]);
    }
}

template <int tile_rows, int n> FXA_INLINE void stage_rows(u32 rows, const float (&x)[n], float first, float second)
{
    u32 spoilt[2] = {}; /* nobody asks */
    stage_rows<tile_rows>(rows, x, first, second, spoilt);
}

/* The first `count` of 16 staged rows of a packed tensor, by plain stores. */
template <int tile_rows>
FXA_INLINE void store_some(const FxaView &t, const Rows &at, u32 from, int count, int columns, int lane)
{
    const int chunks = (columns + 7) / 8;
#pragma unroll 1
    for (int i = lane; i < count * chunks; i += 32) {
        const int r = i / chunks, c = i - r * chunks;
        u16 *to = (u16 *)t.data + at.h * t.h + (long long)(at.s + r) * t.s + c * 8;
        const u32 place = swizzled<tile_rows>(from, r, c);
#pragma unroll 1
        for (int x = 0; x < min(8, columns - c * 8); x++) to[x] = (u16)load_shared_half(place + 2 * x);
    }
}

/* Stores 16 staged rows from one warp, of which `count` belong to the entry. The copy is committed by lane 0. */
template <int tile_rows, int columns>
FXA_INLINE void store_staged(const FxaMap *map, const FxaView &t, const Rows &at, u32 from, int count, int d)
{
    const int lane = threadIdx.x & 31;
    async_fence();
    __syncwarp();
    if (at.packed && count < 16) {
        store_some<tile_rows>(t, at, from, count, d, lane);
    } else if (lane == 0) {
#pragma unroll
        for (int c = 0; c < columns; c += 64) tma_store(map, from + c * tile_rows * 2, c, at.s, at.h, at.b);
        bulk_commit();
    }
}

/* What one thread of a backward kernel does at first. */
template <class Shared> FXA_INLINE void begin(const FxaMaps &maps, const Shared &sh)
{
    tma_prefetch(&maps.k);
    tma_prefetch(&maps.v);
    tma_prefetch(&maps.q);
    tma_prefetch(&maps.grad_o);
    sh.init();
}

/* The two halves of a persistent kernel: one lane of the first warpgroup produces, the other warpgroups consume, with
 * the registers that each of them keeps. */
template <class Producer, class Consumer, int few, int many, class Shared>
FXA_INLINE void produce_and_consume(const FxaMaps &maps, const FxaArgs &a, const u8 *memory)
{
    const Shared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) {
        tma_prefetch(&maps.q);
        tma_prefetch(&maps.k);
        tma_prefetch(&maps.v);
        sh.init();
    }
    launch_begin();
    __syncthreads();
    if (group == 0) {
        registers_down<few>();
        if (__shfl_sync(~0u, (int)threadIdx.x >> 5, 0) == 0 && elected()) Producer{maps, a, sh, 0, 0}.run();
    } else {
        registers_up<many>();
        Consumer(maps, a, sh, group - 1).run();
    }
}

#endif
