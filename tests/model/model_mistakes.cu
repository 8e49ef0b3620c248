/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels with mistakes, for each of which test_model_mistakes.c expects a message (model_kernels.cu explains the
 * arguments). n: bytes of shared memory.
 */
#include "sm80/ptx.cuh"
#include "sm90/ptx.cuh"
#include "sm90/ptx_wgmma.cuh"

#define ARGUMENTS const __grid_constant__ FxaMap map, int *out, const int *in, int way, int n

/* Mistakes between two warps. */
extern "C" __global__ void fxa_mistake_threads(ARGUMENTS)
{
    const int t = threadIdx.x, lane = t & 31;
    if (way == 0) named_sync(1 + t / 32, 64); /* deadlock: the warps wait at different barriers */
    if (way == 1) out[t] = lane < 16 ? __shfl_sync(~0u, t, 0) : (int)__ballot_sync(~0u, t);
    if (way == 2) named_sync(1, t < 32 ? 64 : 96);
    if (way == 3) named_sync(1, 40);
    if (way == 4) named_sync(16, 64);
    if (way == 5 && lane == 0) named_sync(1, 32);
    if (way == 6 && lane) __syncwarp();
    if (way == 7) __syncwarp(0xfff0);
    if (way == 8) __syncwarp(lane < 16 ? 0xffffu : 0xffffffffu), named_sync(1, 64);
    if (way == 9) named_sync(1, 96);
    if (way == 10) registers_up<248>(), registers_up<256>();
    if (way == 11) registers_down<25>();
    if (way == 12 && t < 32) __syncthreads();
    if (way == 12 && t >= 32) named_sync(1, 64);
    if (way == 6 && !lane) named_sync(1, 64);
    if (way == 13) out[t] = -1, flag_claim(out + t, -1);
}

/* Mistakes of a launch that starts before the preceding one has ended. */
extern "C" __global__ void fxa_mistake_launches(ARGUMENTS)
{
    const int t = threadIdx.x;
    if (way == 0) out[t] = in[t];
    launch_next();
    if (way == 1 && t == 40) return;
    if (way != 2) launch_wait();
    if (way == 3) out[t] = in[t];
}

/* A kernel whose launch bounds are smaller than the test's launch. */
constexpr int BOUND_WARPS = 3;
extern "C" __global__ void __launch_bounds__(32 * (BOUND_WARPS + 0 * min(1, 2)), FXA_F16 ? 2 : 1)
fxa_mistake_bound(ARGUMENTS)
{
    launch_wait();
    out[threadIdx.x] = 1;
}

/* Accesses to misaligned or invalid addresses. */
extern "C" __global__ void fxa_mistake_places(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 at = shared_address(memory);
    u32 r[4];
    if (way == 0) store_shared(at + n, 1);
    if (way == 1) out[0] = (int)load_shared_float2(at + 4).x;
    if (way == 2) memory[n] = 1;
    if (way == 3) memory[-1] = 1;
    if (way == 4) copy_async(at + 8, in, 16);
    if (way == 5) copy_async(at, in + 1, 16);
    if (way == 6) load_matrix(at + 8, r);
    if (way == 7) out[0] = load_shared(0);
    if (way == 8) out[0] = (int)shared_address(out);
    if (way == 9) out[1 << 10] = 1;  /* `out` has 4096 bytes and ends at an inaccessible page */
    if (way == 10) out[0] = in[1 << 10];
    if (way == 11) out[-1] = 1;
    if (way == 12) out[n] = 1; /* in this variant `out` is a few bytes smaller */
    if (way == 13) memory[n + 2048] = 1;
    if (way == 14) out[0] = ((const volatile int *)0)[n]; /* volatile keeps clang from removing the read */
    if (way == 15) ((Float2 *)(out + 1))->x = 1.f;
    if (way == 16) out[0] = (int)r[n - 996];
}

/* Mistakes with copies and mbarriers. */
extern "C" __global__ void fxa_mistake_copies(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 barrier = shared_address(memory), at = barrier + 1024;
    if (threadIdx.x) return;
    if (way == 0) barrier_wait(barrier, 0);
    if (way == 1) barrier_arrive(barrier);
    barrier_init(barrier, 1);
    if (way == 2) barrier_wait(barrier, 0);
    if (way == 3) barrier_expect(barrier, 64), barrier_arrive(barrier);
    if (way == 4) bulk_load(at, in, 24, barrier);
    if (way == 5) bulk_load(at, in + 1, 16, barrier);
    if (way == 6) barrier_expect(barrier, 64), bulk_load(at, in, 64, barrier); /* nobody waits */
    if (way == 7) tma_store(&map, at, 0, 0, 0, 0), bulk_commit();
    if (way == 8) store_shared(at, 1), tma_store(&map, at, 0, 0, 0, 0), bulk_commit(), bulk_wait();
    if (way == 9) store_shared(at, 1), bulk_add((float *)out, at, 16), bulk_commit(), bulk_wait();
    if (way == 10) store_shared(at, 1), barrier_expect(barrier, 64), bulk_load(at, in, 64, barrier);
    if (way == 11) async_fence(), store_shared(at, 1), bulk_add((float *)out, at, 16), bulk_commit(), bulk_wait();
    if (way == 12) tma_store(&map, at, 0, 0, 0, 0), bulk_wait(); /* without a commit */
    if (way == 13) tma_store(&map, at + 64, 0, 0, 0, 0), bulk_commit(), bulk_wait();
    if (way == 14) barrier_init(barrier + 4, 1);
    if (way == 15) bulk_load(at, in, 64, barrier + 16);
    if (way == 16) barrier_expect(barrier, 128), bulk_load(at, in, 64, barrier), barrier_wait(barrier, 0);
    if (way == 17) barrier_expect(barrier, 1 << 20);
    if (way == 18) barrier_init(barrier, 0);
    if (way == 19) tma_store(&map, at + n, 0, 0, 0, 0);
    if (way == 20) tma_load(at, &map, barrier, -5, 0, 0, 0, 0);
    if (way == 21) tma_load(at, &map, barrier, 4, 0, 0, 0, 0);
}

/* Mistakes with products of a warpgroup, and with a warp that calls wgmma alone. */
extern "C" __global__ void fxa_mistake_products(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 at = shared_address(memory);
    const u64 b = (way == 2 ? 0ull : 1ull << 62) | 64ull << 32 | 1ull << 16 | (at >> 4);
    float d[16];
    u32 a[4] = {0, 0, 0, 0};
    if (way == 3) store_shared(at + threadIdx.x * 4, 0); /* without a fence */
    if (way == 5) store_shared(at + threadIdx.x * 4, 0), async_fence();
    __syncthreads();
    if (way != 4 || threadIdx.x < 64) wgmma<0, 1>(d, a, 0, way == 6 ? b + (n >> 4) : b, 0);
    if (way != 1) wgmma_commit();
    if (way != 0) wgmma_wait<0>();
    out[threadIdx.x] = 1;
}

/* Reads of device memory that was never written, in `out` and in the tensor. Ways 6, 8, 9 and 10 are correct. */
extern "C" __global__ void fxa_mistake_unwritten(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 barrier = shared_address(memory), at = barrier + 1024;
    if (threadIdx.x) return;
    barrier_init(barrier, 1);
    if (way == 0) out[1] = out[0];
    if (way == 1) out[0] = 1, *(Float2 *)(out + 4) = *(const Float2 *)out;
    if (way == 2) atomicAdd(out, 1);
    if (way == 3) copy_async(at, out, 4);
    if (way == 4) barrier_expect(barrier, 64), bulk_load(at, out, 64, barrier), barrier_wait(barrier, 0);
    if (way == 5) bulk_add((float *)out, at, 16), bulk_commit(), bulk_wait();
    if (way == 6) out[0] = in[(n >> 2) - 1], out[1] = out[0], atomicAdd(out, 1), copy_async(at, out + 4, 0);
    if (way == 7) out[0] = **(const int *const *)&map; /* the map begins with the address of its tensor */
    if (way == 8) tma_store(&map, at, 0, 0, 0, 0), bulk_commit(), bulk_wait(), out[0] = **(const int *const *)&map;
    if (way == 9) barrier_expect(barrier, n), tma_load(at, &map, barrier, 0, 0, 0, 0, 0), barrier_wait(barrier, 0);
    if (way == 10) bulk_store((float *)out, at, 16), bulk_commit(), bulk_wait(), out[4] = out[3];
    if (way == 11) bulk_store((float *)out, at, 16), bulk_commit(), out[4] = out[5];
}
