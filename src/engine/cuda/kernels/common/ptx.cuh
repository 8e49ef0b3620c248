/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions without a C spelling that all devices from sm_80 on have. Inline assembly stands in ptx*.cuh alone, and
 * nothing else does there: tests replace these files by a model of the instructions, and run the kernels on the host
 * (tests/model).
 */
#ifndef FXA_CUDA_COMMON_PTX_CUH
#define FXA_CUDA_COMMON_PTX_CUH

#include "common/types.cuh"

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

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

/* Volatile: it stays under the condition that it is written under. */
FXA_INLINE float reciprocal_fast(float x)
{
    float y;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The same where the compiler may have it wherever it likes. */
FXA_INLINE float reciprocal_free(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger one, or NaN if one of them is. */
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

/* ---- 16 bits ---------------------------------------------------------------------------------------------------- */

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

/* Two floats as a word of storage, the first in the low half. */
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

/* Two elements of storage: x * y + z. */
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

/* ---- Shared memory by 32-bit address ---------------------------------------------------------------------------- */

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

/* A word that one thread leaves for others, which barriers of a ring order both ways. Racecheck of compute-sanitizer
 * does not see it everywhere, so such words are known by these names (tests/device/python/sanitizer.py). */
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

FXA_INLINE void or_shared(u32 at, u32 bits)
{
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
}

/* ---- Warps and memory ------------------------------------------------------------------------------------------- */

/* Four 8x8 matrices of 16-bit words between registers and shared memory; lane l gives the row address of row l % 8 of
 * matrix l / 8. */
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

/* An 8x8 matrix of 16-bit words, two of a row in each lane, transposed. */
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

/* A word of global memory that others may write at any time, and that may hold anything before. */
FXA_INLINE u64 load_flag(const u64 *at)
{
    u64 x;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
    return x;
}

/* A line of 128 bytes on its way to the L2 cache. */
FXA_INLINE void prefetch_l2(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* How often something was said by count_up(); what those have done before they said it is there for who has seen it. */
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

/* Counts from 0 to `last` and on with 0. Nothing waits for the answer before somebody looks at it: of an addition
 * compilers make one for all lanes of a warp, whose answer they wait for at once. */
FXA_INLINE u32 count_around(unsigned *at, u32 last)
{
    u32 x;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(x) : "l"(at), "r"(last) : "memory");
    return x;
}

/* Stores before it and loads behind it, of all threads of the device, in one order. */
FXA_INLINE void fence_in_order()
{
    asm volatile("fence.sc.gpu;" ::: "memory");
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* A launch may begin while the one before it in the run still works (fxa__cuda_launch), and both of these stand in
 * every kernel. The next one may begin once all CTAs of this one have come here. */
FXA_INLINE void launch_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Until the launch before, and so all that are before it, have ended and what they wrote is there. Every thread comes
 * here before it ends: who waits for this launch then has waited for those before it too. */
FXA_INLINE void launch_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- What the compiler must not move or see through ------------------------------------------------------------- */

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
