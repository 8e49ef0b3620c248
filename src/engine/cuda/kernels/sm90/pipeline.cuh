/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines of the sm_90 kernels: rings of shared-memory buffers with mbarriers, tiles and rows copied by TMA, and the
 * start of warp-specialized kernels. Shared memory is addressed by 32-bit integers.
 */
#ifndef FXA_CUDA_SM90_PIPELINE_CUH
#define FXA_CUDA_SM90_PIPELINE_CUH

#include "sm90/ptx.cuh"
#include "common/varlen.cuh"

static_assert(!FXA_F32 && !FXA_OUT_F32 && !FXA_RETURN_ROW_MAX, "sm90 has no f32 operands, f32 results and row maxima");

constexpr u64 L2_EVICT_FIRST = 0x12F0000000000000ull;  /* L2 hint for data that is read once */
constexpr u64 L2_EVICT_NORMAL = 0x1000000000000000ull; /* L2 default priority */
constexpr u64 L2_EVICT_LAST = 0x14F0000000000000ull;   /* L2 hint for data that several CTAs read */

/*
 * A ring of `stages` buffers (pipeline stages) with two mbarriers each: full and empty. Step i of the producer and of
 * the consumers uses buffer i % stages. Both sides increment their step once per buffer and never reset it, so the
 * parities of the barriers stay in agreement.
 *
 *     barriers   full 0 | empty 0 | full 1 | empty 1 | ...     8 bytes each, from `at`
 *     producer   wait_empty(i), barrier_expect(full(i), bytes), TMA copies that complete full(i)
 *     consumer   wait_full(i), read, release(empty(i)) once per warp
 */
template <int stages> struct Ring {
    u32 at;

    static constexpr int bytes = FXA_SHAPE_BARRIER * stages;
    static_assert(FXA_SHAPE_BARRIER == 16 && stages > 0, "two barriers of 8 bytes per buffer");

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
    /* Waits until the consumers have released the buffer that the producer filled in step i. */
    FXA_INLINE void wait_consumed(u32 i) const { barrier_wait(empty(i), (i / stages) & 1); }
};

/* Releases a buffer to its producer: one arrival per warp, after all lanes of the warp have read. Every warp arrives,
 * because an arrival orders only the loads of its own warp. */
FXA_INLINE void release(u32 empty)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(empty);
}

/* ---- TMA copies -------------------------------------------------------------------------------------------------- */

/* Coordinates of a tile's first row in a tensor map {d, s, h, b}. Packed tensors have one batch entry; the rows
 * after a sequence belong to the next sequence, so a store has to stop at the end of the sequence. */
struct TmaRows {
    int s, h, b; /* coordinates in the tensor map */
    bool packed;

    FXA_INLINE TmaRows(const int *starts, int first, int s_, int h_, int b_)
        : s(first + s_), h(h_), b(starts ? 0 : b_), packed(starts != 0)
    {
    }
};

/* Loads a tile of `rows` rows with fxa_stored_columns(columns) columns, in boxes of 64 columns. */
template <int rows, int columns>
FXA_INLINE void tma_load_tile(u32 to, const FxaMap *map, u32 barrier, const TmaRows &at, u64 cache)
{
#pragma unroll
    for (int c = 0; c < columns; c += FXA_BOX_COLUMNS)
        tma_load(to + c * rows * 2, map, barrier, c, at.s, at.h, at.b, cache);
}

/* Loads a tile of K or V from key `row` of batch entry b: one box per 64 columns, and per page where K and V are
 * paged. Page sizes are multiples or divisors of the tile's rows, and multiples of 8 rows, the period of the
 * swizzle. A box has as many rows as the smaller of page and tile. */
template <int rows, int columns>
FXA_INLINE void tma_load_keys(u32 to, const FxaMap *map, u32 barrier, const FxaArgs &a, int first, int row, int h,
                              int b, u64 cache)
{
    const int box = FXA_PAGED ? min(a.page_size, rows) : rows;
    for (int r = 0; r < rows; r += box) {
        const KeyAddress at(a, b, first, row + r);
#pragma unroll
        for (int c = 0; c < columns; c += 64)
            tma_load(to + c * rows * 2 + r * 128, map, barrier, c, at.s, h, at.b, cache);
    }
}

/* Loads a query block of dO, and the delta of the block's rows, into the ring of dO, for the backward kernels. row:
 * first row of the block in the backward's workspace (padded_row()) */
template <int rows, class Shared>
FXA_INLINE void load_grad_o(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const TmaRows &at, long long row,
                            u32 step)
{
    const u32 full = sh.o_ring().full(step);
    sh.o_ring().wait_empty(step);
    barrier_expect(full, rows * DV_STORED * 2 + rows * 4);
    tma_load_tile<rows, FXA_DV>(sh.grad_o(step), &maps.grad_o, full, at, L2_EVICT_LAST);
    bulk_load(sh.delta(step), a.delta + row, rows * 4, full);
}

/* ---- Rows of tiles ----------------------------------------------------------------------------------------------- */

/* Sets the rows from `from` to `end` - 1 of a tile to 0, by `threads` threads, and executes async_fence(); the
 * caller synchronizes these threads. Rows past a length may hold NaN, and 0 times NaN would make a product with
 * weight 0 NaN. */
template <int rows, int columns>
FXA_INLINE void clear_rows(u32 tile, int from, int thread, int threads, int end = rows)
{
    keep(tile); /* keeps parts of the address out of uniform registers in the caller's loops */
#pragma unroll 1
    for (int i = max(from, 0) * 8 + thread; i < end * 8; i += threads)
#pragma unroll
        for (int c = 0; c < columns; c += 64) store_shared_float4(tile + c * rows * 2 + i * 16, 0.f, 0.f, 0.f, 0.f);
    async_fence();
}

/* Multiplies 64 rows of an operand by -1, or by 0 if the scale is 0 (negate_pair), by the 128 threads of a warpgroup,
 * and executes async_fence(); the caller synchronizes the warpgroup. */
template <int tile_rows, int columns> FXA_INLINE void negate_rows(const FxaArgs &a, u32 rows)
{
#pragma unroll 1
    for (int c = 0; c < columns; c += 64) negate_tile(a, rows + c * tile_rows * 2, 64 * 128, threadIdx.x & 127, 128);
    async_fence();
}

/* Writes the accumulators of a warp's 16 rows, times `first` for rows 0 to 7 and `second` for rows 8 to 15, as 16-bit
 * elements into a swizzled tile at address `rows`. A factor of 0 writes zeros, even for NaN. nonfinite[0] (rows 0 to 7)
 * or nonfinite[1] (rows 8 to 15) becomes nonzero if this thread has written an infinity or a NaN. */
template <int tile_rows, int n>
FXA_INLINE void rows_to_shared(u32 rows, const float (&x)[n], float first, float second, u32 (&nonfinite)[2])
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < n / 8; i++) {
        u32 y[4]; /* two results per word: of the lane's two rows in columns 0..7, then in columns 8..15 */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float factor = j & 1 ? second : first;
            y[j] = factor == 0.f ? 0 : pack16(x[i * 8 + j * 2] * factor, x[i * 8 + j * 2 + 1] * factor);
            nonfinite[j & 1] = nan_if_nonfinite(nonfinite[j & 1], y[j]);
        }
        store_matrix(swizzled<tile_rows>(rows, lane & 15, i * 2 + (lane >> 4)), y[0], y[1], y[2], y[3]);
    }
}

template <int tile_rows, int n> FXA_INLINE void rows_to_shared(u32 rows, const float (&x)[n], float first, float second)
{
    u32 nonfinite[2] = {}; /* not used */
    rows_to_shared<tile_rows>(rows, x, first, second, nonfinite);
}

/* Stores the first `count` of 16 rows in shared memory to a packed tensor by plain stores. */
template <int tile_rows>
FXA_INLINE void store_partial_rows(const FxaView &t, const TmaRows &at, u32 from, int count, int columns, int lane)
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

/* Stores 16 rows from shared memory by one warp. Only the first `count` rows belong to the sequence. Lane 0 commits
 * the bulk group of the TMA store. */
template <int tile_rows, int columns>
FXA_INLINE void store_shared_rows(const FxaMap *map, const FxaView &t, const TmaRows &at, u32 from, int count, int d)
{
    const int lane = threadIdx.x & 31;
    async_fence();
    __syncwarp();
    if (at.packed && count < 16) {
        store_partial_rows<tile_rows>(t, at, from, count, d, lane);
    } else if (lane == 0) {
#pragma unroll
        for (int c = 0; c < columns; c += 64) tma_store(map, from + c * tile_rows * 2, c, at.s, at.h, at.b);
        bulk_commit();
    }
}

/* Prefetches the tensor maps and initializes the barriers of a backward kernel; called by one thread. */
template <class Shared> FXA_INLINE void prefetch_and_init(const FxaMaps &maps, const Shared &sh)
{
    tma_prefetch(&maps.k);
    tma_prefetch(&maps.v);
    tma_prefetch(&maps.q);
    tma_prefetch(&maps.grad_o);
    sh.init();
}

/* Runs a persistent kernel with one producer lane, in the first warpgroup, and consumers in the other warpgroups. few:
 * registers per thread of the producer's warpgroup; many: registers per thread of the consumers */
template <class Producer, class Mainloop, int few, int many, class Shared>
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
        Mainloop(maps, a, sh, group - 1).run();
    }
}

#endif
