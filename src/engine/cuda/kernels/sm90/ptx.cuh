/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and barriers of sm_90: mbarriers, TMA loads and stores, bulk copies and reductions, named barriers, and the
 * exchange of registers between warpgroups. Shared memory is addressed by 32-bit integers. See common/ptx.cuh.
 */
#ifndef FXA_CUDA_SM90_PTX_CUH
#define FXA_CUDA_SM90_PTX_CUH

#include "common/ptx.cuh"

/* Returns true in one lane of the warp. All lanes call this function. */
FXA_INLINE bool elected()
{
    u32 x;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(x));
    return x;
}

/* ---- mbarriers --------------------------------------------------------------------------------------------------- */

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

/* ---- Clusters ---------------------------------------------------------------------------------------------------- */

/* First half of a cluster-wide barrier, release/acquire; cluster_wait() is the second half. Stores made before the
 * arrival are visible to every thread of the cluster after the wait. A thread's loads before its arrival are complete
 * when other threads see the arrival; stores between the two halves are not ordered by the barrier. */
template <int ctas> FXA_INLINE void cluster_arrive()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

template <int ctas> FXA_INLINE void cluster_wait()
{
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Returns the cluster-wide address of the shared memory of CTA `rank` that corresponds to address `at` in this CTA. */
FXA_INLINE u32 cluster_address(u32 at, u32 rank)
{
    u32 x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(rank));
    return x;
}

FXA_INLINE Float4 load_cluster_float4(u32 at)
{
    Float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

FXA_INLINE void tma_load(u32 to, const FxaMap *map, u32 barrier, int c, int s, int h, int b, u64 cache)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(map), "r"(barrier), "r"(c), "r"(s), "r"(h),
                 "r"(b), "l"(cache)
                 : "memory");
}

/* Prefetches a tensor map into the cache of TMA. */
FXA_INLINE void tma_prefetch(const FxaMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

FXA_INLINE void tma_store(const FxaMap *map, u32 from, int c, int s, int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(c), "r"(s), "r"(h), "r"(b)
                 : "memory");
}

/* Prefetches a box of a tensor map into the L2 cache. */
FXA_INLINE void tma_fetch(const FxaMap *map, int c, int s, int h, int b)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c), "r"(s),
                 "r"(h), "r"(b)
                 : "memory");
}

/* Returns an upper bound of the number of multiprocessors: their numbering may have gaps. */
FXA_INLINE u32 processors()
{
    u32 n;
    asm("mov.u32 %0, %%nsmid;" : "=r"(n));
    return n;
}

FXA_INLINE void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

FXA_INLINE void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

FXA_INLINE void bulk_store(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

FXA_INLINE void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most `pending` bulk groups of this thread still read shared memory. */
template <int pending> FXA_INLINE void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* Waits until all bulk stores of this thread are complete. */
FXA_INLINE void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Flags in global memory that order bulk copies of different CTAs. flag_now() reads a flag; flag_claim() replaces 0 by
 * `value` and returns the previous value; flag_set() stores `value`. If a writer waits for its bulk copies and then
 * sets a flag, these copies precede the bulk copies of a CTA that has read the flag. */
FXA_INLINE int flag_now(const int *at)
{
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\nfence.proxy.async.global;" : "=r"(x) : "l"(at) : "memory");
    return x;
}

/* Waits until the flag equals `value`, which a CTA that has already started will set. */
FXA_INLINE void flag_await(const int *at, int value)
{
    int x;
    do
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    while (x != value);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

FXA_INLINE int flag_claim(int *at, int value)
{
    int x;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, %2;\nfence.proxy.async.global;"
                 : "=r"(x)
                 : "l"(at), "r"(value)
                 : "memory");
    return x;
}

FXA_INLINE void flag_set(int *at, int value)
{
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/* Increments a counter that other threads read by count_now(). Called after the thread has waited for its bulk
 * copies. */
FXA_INLINE void count_up(unsigned *at)
{
    asm volatile("fence.proxy.async.global;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

/* Makes ordinary stores to shared memory visible to TMA and wgmma. Each writing thread calls this function before the
 * barrier that orders the stores and their readers. */
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

/* Returns `sum`, with NaN in each half in which x is not finite. Words hold two 16-bit elements of the storage type. */
FXA_INLINE u32 nan_if_nonfinite(u32 sum, u32 x)
{
#if FXA_F16
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
#endif
    return sum;
}

FXA_INLINE void store_matrix_transposed(u32 at, u32 r0, u32 r1, u32 r2, u32 r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

/* ---- Warps ------------------------------------------------------------------------------------------------------- */

FXA_INLINE void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

FXA_INLINE void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Named barrier for warps whose lanes arrive one by one, and for threads that arrive from different places in the code.
 * named_sync() and __syncthreads() require that all lanes of a warp arrive together. */
template <int id, int threads> FXA_INLINE void named_sync_apart()
{
    __syncwarp();
    asm volatile("barrier.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

/* Decreases the registers per thread of a warpgroup; registers_up() increases them. A launch allots 168 registers per
 * thread with 384 threads, and 128 with 512. The increases must not exceed the decreases, or registers_up() waits
 * forever. */
template <int registers> FXA_INLINE void registers_down()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> FXA_INLINE void registers_up()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

#endif
