/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and barriers of sm_90: mbarriers, TMA loads and stores, bulk copies and reductions, named barriers, registers
 * moved between warpgroups. Addresses of shared memory are 32 bits.
 */
#ifndef FXA_CUDA_HOPPER_CUH
#define FXA_CUDA_HOPPER_CUH

#include "spans.cuh"

constexpr u64 CACHE_FIRST_OUT = 0x12F0000000000000ull; /* L2: read once */
constexpr u64 CACHE_KEEP = 0x14F0000000000000ull; /* L2: other tiles read it too */

FXA_INLINE bool elected()
{
    u32 x;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(x));
    return x;
}

/* ---- mbarriers -------------------------------------------------------------------------------------------------- */

FXA_INLINE void barrier_init(u32 at, u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

FXA_INLINE void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

FXA_INLINE void barrier_expect(u32 at, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

FXA_INLINE void barrier_arrive(u32 at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

FXA_INLINE void barrier_wait(u32 at, u32 parity)
{
    asm volatile("{\n.reg .pred p;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done_%=;\n"
                 "bra wait_%=;\ndone_%=:\n}" ::"r"(at), "r"(parity)
                 : "memory");
}

FXA_INLINE bool barrier_test(u32 at, u32 parity)
{
    u32 x;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(x)
                 : "r"(at), "r"(parity)
                 : "memory");
    return x;
}

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

FXA_INLINE void tma_load(u32 to, const FxaMap *map, u32 barrier, int c, int s, int h, int b, u64 cache)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(map), "r"(barrier), "r"(c), "r"(s), "r"(h),
                 "r"(b), "l"(cache)
                 : "memory");
}

/* A map on its way to where copies look for it. */
FXA_INLINE void tma_prefetch(const FxaMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

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

FXA_INLINE void tma_store(const FxaMap *map, u32 from, int c, int s, int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(c), "r"(s), "r"(h), "r"(b)
                 : "memory");
}

FXA_INLINE void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
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

FXA_INLINE void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

FXA_INLINE void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until at most `pending` groups of this thread still read shared memory. */
template <int pending> FXA_INLINE void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* Until everything this thread stored has arrived. */
FXA_INLINE void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Makes ordinary stores to shared memory visible to TMA and wgmma; in each writing thread, before the barrier. */
FXA_INLINE void async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

FXA_INLINE void store_matrix(u32 at, u32 r0, u32 r1, u32 r2, u32 r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

FXA_INLINE void store_matrix_transposed(u32 at, u32 r0, u32 r1, u32 r2, u32 r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

/* ---- Rows in and out -------------------------------------------------------------------------------------------- */

/* Sets the rows from `from` on to 0, by `threads` threads; async_fence is done, a barrier of them is not. Rows past a
 * length hold what the caller left there, and 0 times NaN would spoil a product in which they have weight 0. */
template <int rows, int columns> FXA_INLINE void clear_rows(u32 tile, int from, int thread, int threads)
{
    asm volatile("" : "+r"(tile)); /* else its parts take uniform registers from the loops around it */
#pragma unroll 1
    for (int i = max(from, 0) * 8 + thread; i < rows * 8; i += threads)
#pragma unroll
        for (int c = 0; c < columns; c += 64) store_shared_float4(tile + c * rows * 2 + i * 16, 0.f, 0.f, 0.f, 0.f);
    async_fence();
}

/* 64 rows of an operand, where its products are turned, by the 128 threads of a warpgroup. async_fence is done, a barrier
 * is not. */
template <int tile_rows, int columns> FXA_INLINE void turn_rows(const FxaArgs &a, u32 rows)
{
#pragma unroll 1
    for (int c = 0; c < columns; c += 64) turn_words(a, rows + c * tile_rows * 2, 64 * 128, threadIdx.x & 127, 128);
    async_fence();
}

/* Accumulators of a warp's 16 rows times a factor for each half, in 16 bits, into a swizzled tile at the first of its
 * rows. Factor 0 gives zeros whatever the accumulators hold. */
template <int tile_rows, int n> FXA_INLINE void stage_rows(u32 rows, const float (&x)[n], float first, float second)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < n / 8; i++) {
        u32 y[4]; /* rows r and r + 8 of columns 0..7, then of columns 8..15 */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float factor = j & 1 ? second : first;
            y[j] = factor == 0.f ? 0 : pack16(x[i * 8 + j * 2] * factor, x[i * 8 + j * 2 + 1] * factor);
        }
        store_matrix(swizzled<tile_rows>(rows, lane & 15, i * 2 + (lane >> 4)), y[0], y[1], y[2], y[3]);
    }
}

/* The first `count` of 16 staged rows of a packed tensor, by plain stores. */
template <int tile_rows>
FXA_INLINE void store_some(const FxaView &t, const Rows &at, u32 from, int count, int columns, int lane)
{
    const int chunks = (columns + 7) / 8;
    for (int i = lane; i < count * chunks; i += 32) {
        const int r = i / chunks, c = i - r * chunks;
        u16 *to = (u16 *)t.data + at.h * t.h + (long long)(at.s + r) * t.s + c * 8;
        const u32 place = swizzled<tile_rows>(from, r, c);
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

/* ---- Warps ------------------------------------------------------------------------------------------------------ */

FXA_INLINE void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

FXA_INLINE void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The registers that a warpgroup gives up or takes. The launch has 168 per thread with 384 threads and 128 with 512:
 * what is given up is all there is to take, or the taking waits forever. */
template <int registers> FXA_INLINE void registers_down()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> FXA_INLINE void registers_up()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* The two halves of a persistent kernel: one lane of the first warpgroup produces, the other warpgroups consume, with
 * the registers that each of them keeps. */
template <class Producer, class Consumer, int few, int many, class Shared>
FXA_INLINE void produce_and_consume(const FxaMaps &maps, const FxaArgs &a, const u8 *memory)
{
    const Shared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) sh.init();
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
