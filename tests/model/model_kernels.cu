/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of test_model.c and test_model_copies.c. Each kernel needs one feature of a device, or makes one mistake with
 * threads or copies; kernels for numbers and matrices are in model_products.cu. These are CUDA kernels like those of
 * src/engine/cuda: correct ones are correct on a GPU too, where the tests can run them. Each takes a tensor map,
 * results, operands, a variant `way`, and a number.
 */
#include "sm80/ptx.cuh"
#include "sm90/ptx.cuh"

#define ARGUMENTS const __grid_constant__ FxaMap map, int *out, const int *in, int way, int n

FXA_INLINE int thread_number()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

FXA_INLINE u32 swapped(u32 at)
{
    return at ^ (at >> 7 & 7) << 4;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* Each thread of each CTA adds 1 to its own counter, if its coordinates are valid. */
extern "C" __global__ void fxa_grid(ARGUMENTS)
{
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const bool inside = threadIdx.x < blockDim.x && threadIdx.y < blockDim.y && threadIdx.z < blockDim.z;
    if (inside) atomicAdd(out + block * (blockDim.x * blockDim.y * blockDim.z) + thread_number(), 1);
}

/* Each CTA reads what its neighbour in the cluster has stored. way 1: the neighbour may have ended; 2: no cluster
 * barrier precedes the read. */
extern "C" __global__ void __cluster_dims__(4, 1, 1) fxa_near(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 at = shared_address(memory) + threadIdx.x * 16;
    const float x = blockIdx.x * 1000 + threadIdx.x;
    store_shared_float4(at, x, x + 1, x + 2, x + 3);
    if (way != 2) cluster_arrive<4>();
    if (way != 2) cluster_wait<4>();
    const Float4 y = load_cluster_float4(cluster_address(at, (blockIdx.x + 1) % 4));
    out[blockIdx.x * blockDim.x + threadIdx.x] = (int)y.w;
    if (way != 1) cluster_wait<4>();
}

/* Four kinds of shuffles, votes, minimum and maximum of a warp; shuffles of half a warp; the OR over the CTA. */
extern "C" __global__ void fxa_exchange(ARGUMENTS)
{
    const int t = threadIdx.x, lane = t & 31, x = in[t];
    int *to = out + t * 12;
    to[0] = __shfl_sync(~0u, x, (lane * 5 + 3) & 31);
    to[1] = __shfl_xor_sync(~0u, x, 9);
    to[2] = __shfl_up_sync(~0u, x, 3);
    to[3] = __shfl_down_sync(~0u, x, 7);
    to[4] = (int)__ballot_sync(~0u, x & 1);
    to[5] = __any_sync(~0u, x == 77) | __all_sync(~0u, x >= 0) << 1;
    to[6] = __reduce_min_sync(~0u, x);
    to[7] = __reduce_max_sync(~0u, x);
    to[8] = __syncthreads_or(x == 77);
    if (lane < 16)
        to[9] = __shfl_xor_sync(0xffffu, x, 1);
    else
        to[9] = __shfl_xor_sync(0xffff0000u, x, 2);
    __syncwarp();
    to[10] = elected();
    to[10] = (int)__ballot_sync(~0u, to[10]);
    to[11] = __popc((unsigned)x) + (__ffs(x) << 8) + (__clz(x) << 16);
}

/* Passes one number through dynamic and one through static shared memory to another thread. way 1: without a
 * barrier. */
extern "C" __global__ void fxa_mirror(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ int fixed[256];
    int *moving = (int *)memory;
    const int t = threadIdx.x, other = blockDim.x - 1 - t;
    if (n) out[2 * blockDim.x + t] = moving[t] + fixed[t]; /* reads memory that no thread has written */
    if (n) __syncthreads();
    moving[t] = in[t];
    fixed[t] = in[t] + 1000;
    if (way == 0) __syncthreads();
    out[t] = moving[other];
    out[blockDim.x + t] = fixed[other];
}

/* Relies on an order of lanes (way 0, 1), warps (2, 3), CTAs (4, 5) or copies (6, 7), ascending (way even) or
 * descending. */
extern "C" __global__ void fxa_orders(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 at = shared_address(memory);
    const int t = threadIdx.x, sign = way % 2 ? 1 : -1;
    if (way < 4) {
        const int other = t + sign * (way < 2 ? 1 : 32);
        store_shared(at + 4 * t, in[t]);
        out[t] = other >= 0 && other < blockDim.x ? load_shared(at + 4 * other) : 0;
    } else if (way < 6) {
        const int other = (int)blockIdx.x + sign;
        out[blockIdx.x] = in[blockIdx.x];
        out[gridDim.x + blockIdx.x] = other >= 0 && other < gridDim.x ? out[other] : 0;
    } else if (t == 0) {
        const int last = way % 2 ? 0 : 1; /* waits for copy `last` before reading the other one */
        for (int i = 0; i < 2; i++) barrier_init(at + 8 * i, 1), barrier_expect(at + 8 * i, 16);
        for (int i = 0; i < 2; i++) bulk_load(at + 64 + 16 * i, in + 4 * i, 16, at + 8 * i);
        barrier_wait(at + 8 * last, 0);
        out[0] = load_shared(at + 64 + 16 * (1 - last));
        barrier_wait(at + 8 * (1 - last), 0);
    }
}

/* Warp 0 passes n numbers to warp 1 with two named barriers. way 1: warp 0 does not wait until the buffer is free; 2:
 * the reader does not wait for the number. */
extern "C" __global__ void fxa_named(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 at = shared_address(memory) + (threadIdx.x & 31) * 4;
    if (threadIdx.x < 32) {
        for (int i = 0; i < n; i++) {
            if (way != 1) named_sync(2, 64);
            store_shared(at, in[i * 32 + threadIdx.x]);
            named_arrive(3, 64);
        }
    } else {
        for (int i = 0; i < n; i++) {
            if (way != 1) named_arrive(2, 64);
            if (way != 2) named_sync(3, 64);
            out[i * 32 + threadIdx.x - 32] = load_shared(at ^ 4);
            __syncwarp();
        }
    }
}

/* Atomic counters and sums that all threads add to. */
extern "C" __global__ void fxa_atomics(ARGUMENTS)
{
    const int t = threadIdx.x;
    const float four[4] = {1.f, 2.f, 3.f, 4.f};
    out[16 + atomicAdd(out, 1)] = t;
    atomicAdd((float *)out + 1, 0.5f);
    atomicAdd((unsigned long long *)out + 1, 1ull << 31);
    add4((float *)out + 4, four);
}

/* One warpgroup releases registers to two others. way 1: the others request more than it releases. */
extern "C" __global__ void __launch_bounds__(384, 1) fxa_registers(ARGUMENTS)
{
    if (threadIdx.x < 128) {
        registers_down<40>();
    } else {
        if (way == 0)
            registers_up<232>();
        else
            registers_up<240>();
    }
    out[threadIdx.x] = in[threadIdx.x];
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Starts two groups of copies of 16 bytes; the second copy reads only n bytes. way 0: waits for both; 1: reads the
 * second after waiting for the first only; 2: does not wait; 3: overwrites the destination meanwhile. */
extern "C" __global__ void fxa_copies(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 at = shared_address(memory) + threadIdx.x * 32;
    store_shared_words(at, 7, 7, 7, 7), store_shared_words(at + 16, 7, 7, 7, 7);
    copy_async(at, in + threadIdx.x * 8, 16);
    copy_commit();
    copy_async(at + 16, in + threadIdx.x * 8 + 4, n);
    copy_commit();
    if (way == 3) store_shared(at, 5);
    if (way == 0 || way == 3) copy_wait<0>();
    if (way == 1) copy_wait<1>();
    __syncwarp();
    for (int i = 0; i < 8; i++) out[threadIdx.x * 8 + i] = load_shared(at + 4 * i);
}

/* Loads a box of the tensor map into shared memory, and n bytes after the box, and writes both to `out` in the layout
 * of shared memory. way 1: does not wait for the copies. */
extern "C" __global__ void fxa_load(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 tile = shared_address(memory) + 1024, barrier = tile - 1024;
    const int bytes = in[0];
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_expect(barrier, bytes + n);
        tma_load(tile, &map, barrier, in[1], in[2], in[3], in[4], 0);
        bulk_load(tile + bytes, in + 8, n, barrier);
        if (way == 1) { /* the kernel must wait before its end */
            for (int i = 0; i < (bytes + n) / 4; i++) out[i] = load_shared(tile + 4 * i);
            barrier_wait(barrier, 0);
        }
    }
    if (way == 1) return;
    barrier_wait(barrier, 0);
    for (int i = threadIdx.x; i < (bytes + n) / 4; i += blockDim.x) out[i] = load_shared(tile + 4 * i);
}

/* Stores a box from shared memory and adds n bytes to `out`; then stores a second box once the first was read. way 1:
 * does not wait for that read. */
extern "C" __global__ void fxa_store(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 tile = shared_address(memory), sums = tile + in[0];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = threadIdx.x; i < in[0] / 2; i += blockDim.x)
            store_shared_half(swapped(tile + 2 * i), (u16)(1 + i + turn * 20000));
        for (int i = threadIdx.x; i < n / 4; i += blockDim.x) store_shared(sums + 4 * i, __float_as_int(1.f + i + turn));
        async_fence();
        __syncthreads();
        if (threadIdx.x == 0) {
            tma_store(&map, tile, in[1], in[2], in[3], in[4] + turn);
            bulk_add((float *)out, sums, n);
            bulk_commit();
            if (way == 0 || turn) bulk_wait_read<0>();
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) bulk_wait();
}

/* Passes blocks of 64 bytes through a ring buffer of two: one thread loads, a warp reads. way 1: the loader does not
 * wait for an empty slot; 2: readers wait for the wrong phase. */
extern "C" __global__ void fxa_ring(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 data = shared_address(memory), full = data + 512, empty = full + 16;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 16);
    __syncthreads();
    if (threadIdx.x == 32) {
        for (int i = 0; i < n; i++) {
            const u32 place = i % 2;
            if (way != 1) barrier_wait(empty + 8 * place, (i / 2 & 1) ^ 1);
            barrier_expect(full + 8 * place, 64);
            bulk_load(data + 64 * place, in + 16 * i, 64, full + 8 * place);
        }
        if (way) /* the kernel must wait for all loads before its end */
            for (int i = max(0, n - 2); i < n; i++) barrier_wait(full + 8 * (i % 2), i / 2 & 1);
    } else if (threadIdx.x < 16) {
        for (int i = 0; i < n; i++) {
            const u32 place = i % 2;
            if (way == 2)
                barrier_wait(full + 8 * place, (i / 2 & 1) ^ 1);
            else
                barrier_wait(full + 8 * place, i / 2 & 1);
            out[16 * i + threadIdx.x] = load_shared(data + 64 * place + 4 * threadIdx.x);
            if (way != 1) barrier_arrive(empty + 8 * place);
        }
    }
}
