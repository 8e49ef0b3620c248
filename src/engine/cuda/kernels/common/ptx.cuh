/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions without a C spelling that all devices from sm_80 on have. Only files ptx*.cuh contain inline assembly,
 * and they contain nothing else, because tests replace these files by the GPU emulator (tests/model) to run the kernels
 * on the host.
 */
#ifndef FXA_CUDA_COMMON_PTX_CUH
#define FXA_CUDA_COMMON_PTX_CUH

#include "common/types.cuh"

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

FXA_INLINE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FXA_INLINE float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FXA_INLINE float tanh_fast(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns an approximate 1 / x. The assembly is volatile, so that the compiler leaves it under the caller's
 * condition. */
FXA_INLINE float reciprocal_fast(float x)
{
    float y;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns an approximate 1 / x, like reciprocal_fast(); the compiler may move the instruction out of conditions. */
FXA_INLINE float reciprocal_free(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns the larger of x and y, or NaN if one of them is NaN. */
FXA_INLINE float max_or_nan(float x, float y)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}

FXA_INLINE float add_down(float x, float y)
{
    float z;
    asm("add.rm.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* ---- Elements of 16 bits ----------------------------------------------------------------------------------------- */

FXA_INLINE float from_half(u16 word)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(word));
    return x;
}

FXA_INLINE u16 to_half(float x)
{
    u16 word;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(word) : "f"(x));
    return word;
}

FXA_INLINE u16 to_bfloat(float x)
{
    u16 word;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(word) : "f"(x));
    return word;
}

/* Returns two floats as 16-bit elements of the storage type in a word, the first one in the low half. */
FXA_INLINE u32 pack16(float low, float high)
{
    u32 y;
#if FXA_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#endif
    return y;
}

FXA_INLINE float unpack_low(u32 x)
{
#if FXA_F16
    float y;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(y) : "r"(x));
    return y;
#else
    return __int_as_float((int)(x << 16));
#endif
}

FXA_INLINE float unpack_high(u32 x)
{
#if FXA_F16
    float y;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(y) : "r"(x));
    return y;
#else
    return __int_as_float((int)(x & 0xffff0000u));
#endif
}

/* Returns x * y + z for two 16-bit elements of the storage type in each word. */
FXA_INLINE u32 fma_pair(u32 x, u32 y, u32 z)
{
    u32 w;
#if FXA_F16
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(x), "r"(y), "r"(z));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(x), "r"(y), "r"(z));
#endif
    return w;
}

/* ---- Shared memory, at 32-bit addresses -------------------------------------------------------------------------- */

FXA_INLINE u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

FXA_INLINE void store_shared(u32 at, int x)
{
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

FXA_INLINE int load_shared(u32 at)
{
    int x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

/* Stores a word in shared memory for other threads, which load it by take_word(). The barriers of a ring
 * (sm90/pipeline.cuh) order the store and the loads. Racecheck of compute-sanitizer does not see all of these barriers,
 * so its reports are filtered by these two function names (tests/device/python/sanitizer.py). */
FXA_INLINE void put_word(u32 at, int x)
{
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

FXA_INLINE int take_word(u32 at)
{
    int x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

FXA_INLINE float load_shared_float(u32 at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}

FXA_INLINE void store_shared_half(u32 at, u16 x)
{
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
}

FXA_INLINE u32 load_shared_half(u32 at)
{
    u16 x;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
    return x;
}

FXA_INLINE Float2 load_shared_float2(u32 at)
{
    Float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}

FXA_INLINE void store_shared_float4(u32 at, float x, float y, float z, float w)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

FXA_INLINE void store_shared_words(u32 at, u32 x, u32 y, u32 z, u32 w)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

FXA_INLINE Word4 load_shared_words(u32 at)
{
    Word4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

/* ---- Warps and memory ------------------------------------------------------------------------------------------- */

/* Loads four 8x8 matrices of 16-bit elements from shared memory; lane l passes the address of row l % 8 of matrix l
 * / 8. */
FXA_INLINE void load_matrix(u32 at, u32 (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

FXA_INLINE void load_matrix_transposed(u32 at, u32 (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Transposes an 8x8 matrix of 16-bit elements; each lane has two neighbouring elements of a row. */
FXA_INLINE u32 transpose8x8(u32 x)
{
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

FXA_INLINE void add4(float *to, const float (&x)[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; i++) atomicAdd(to + i, x[i]);
#endif
}

/* Loads a flag from global memory that other CTAs may set at any time, and that may be uninitialized. */
FXA_INLINE u64 load_flag(const u64 *at)
{
    u64 x;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
    return x;
}

/* Prefetches a line of 128 bytes into the L2 cache. */
FXA_INLINE void prefetch_l2(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Returns the counter that count_up() increments. Writes that a thread made before its count_up() are visible after
 * this load. */
FXA_INLINE unsigned count_now(const unsigned *at)
{
    unsigned x;
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
#else
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    __threadfence();
#endif
    return x;
}

FXA_INLINE void count_pause()
{
#if __CUDA_ARCH__ >= 700
    __nanosleep(100);
#endif
}

/* Increments a counter modulo last + 1 and returns its previous value. The assembly is volatile, because compilers
 * combine an atomicAdd of a warp's lanes and wait for its result at once; this function's result is waited for at its
 * first use. */
FXA_INLINE u32 count_around(unsigned *at, u32 last)
{
    u32 x;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(x) : "l"(at), "r"(last) : "memory");
    return x;
}

/* Orders the stores before the fence and the loads after it sequentially among all threads of the device. */
FXA_INLINE void fence_in_order()
{
    asm volatile("fence.sc.gpu;" ::: "memory");
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* Allows the next launch of the run to start while this one still works (programmatic dependent launch,
 * fxa__cuda_launch). It starts once all CTAs of this launch have called launch_next(). Every kernel calls launch_next()
 * and launch_wait(). */
FXA_INLINE void launch_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the previous launch of the run, and so all earlier ones, have ended and their writes are visible. Every
 * thread calls launch_wait() before it ends, so that a wait for this launch includes all launches before it. */
FXA_INLINE void launch_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- Limits to what the compiler may reorder or simplify --------------------------------------------------------- */

FXA_INLINE void keep_order()
{
    asm volatile("" ::: "memory");
}

FXA_INLINE void keep(u32 &x)
{
    asm volatile("" : "+r"(x));
}

FXA_INLINE void keep(u64 &x)
{
    asm volatile("" : "+l"(x));
}

#endif
