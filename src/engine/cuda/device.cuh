/* SPDX-License-Identifier: Apache-2.0
 *
 * What all kernels share: short names of types, 16-bit storage, a few instructions without a C spelling. NVRTC compiles
 * this without any header of the toolkit.
 *
 * Compile-time settings, by -D: FXA_D and FXA_DV (head dimensions to compute with, multiples of 32 up to 256; FXA_DV =
 * FXA_D by default; tensors may have fewer columns, a.d and a.dv), FXA_F16 (1: f16, 0: bf16), FXA_FAST_MATH (1: the
 * hardware's approximations), FXA_DROPOUT (1: pairs are dropped, 2: at moved coordinates), FXA_SPANS (1: entries have lengths of their own or
 * are packed; 0 ignores lens and starts), FXA_PAGED (1: K and V of the forward kernels lie in pages).
 */
#ifndef FXA_CUDA_DEVICE_CUH
#define FXA_CUDA_DEVICE_CUH

#include "kernel_args.cuh"

#ifndef FXA_DV
#define FXA_DV FXA_D
#endif

#ifndef FXA_FAST_MATH
#define FXA_FAST_MATH 0
#endif

#ifndef FXA_DROPOUT
#define FXA_DROPOUT 0
#endif

#ifndef FXA_OUT_F32
#define FXA_OUT_F32 0 /* 1: O and gradients are f32, whatever the operands are; not on Hopper */
#endif
#ifndef FXA_O_F32
#define FXA_O_F32 0 /* 1: the backward reads an O of f32, whatever the other operands are */
#endif
#ifndef FXA_WANT_MAX
#define FXA_WANT_MAX 0 /* 1: the largest new score of rows is written; not on Hopper */
#endif
#ifndef FXA_SPANS
#define FXA_SPANS 0
#endif

#ifndef FXA_PAGED
#define FXA_PAGED 0
#endif

#ifndef FXA_COUNT_REDO
#define FXA_COUNT_REDO 0
#endif

static_assert(FXA_D % 32 == 0 && FXA_D > 0 && FXA_D <= 256, "head dimension of Q and K");
static_assert(FXA_DV % 32 == 0 && FXA_DV > 0 && FXA_DV <= 256, "head dimension of V");

#define FXA_INLINE __device__ __forceinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(8) Int2 {
    int x, y;
};
struct alignas(8) Float2 {
    float x, y;
};
struct alignas(16) Float4 {
    float x, y, z, w;
};
struct alignas(16) Word4 {
    u32 x, y, z, w;
};

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
#define NEG_INF __int_as_float(0xff800000)
#define POS_INF __int_as_float(0x7f800000)

FXA_INLINE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* exp2 without the special function unit: 2^n by shifting, the fraction by a cubic; relative error below 2^-13. Of x
 * below 126; NaN gives a number above 2^120, which nobody takes for a sum. */
FXA_INLINE float exp2_by_fma(float x)
{
    constexpr float BIAS = 12582912.f; /* 1.5 * 2^23: adding it rounds down to an integer in the low bits */
    float r;
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-127.f));
    asm("add.rm.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(BIAS));
    const float f = x - (r - BIAS);
    const float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.07711909f, f, 0.22756439f), f, 0.69514614f), f, 1.f);
    return __int_as_float((__float_as_int(r) << 23) + __float_as_int(p));
}

FXA_INLINE float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

FXA_INLINE float load_shared_float(u32 at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
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

/* Two elements of storage times -1 or 0 (a.turned); nothing is rounded, and a NaN or an infinity times 0 is a NaN. */
FXA_INLINE u32 turn_pair(const FxaArgs &a, u32 x)
{
    const u32 by = a.turned == 2 ? 0 : FXA_F16 ? 0xBC00BC00u : 0xBF80BF80u, none = 0x80008000u;
    u32 y;
#if FXA_F16
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(by), "r"(none));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(by), "r"(none));
#endif
    return y;
}

/* The same of so many bytes of shared memory. */
FXA_INLINE void turn_words(const FxaArgs &a, u32 from, int bytes, int thread, int threads)
{
#pragma unroll 1
    for (int i = thread * 16; i < bytes; i += threads * 16) {
        const Word4 x = load_shared_words(from + i);
        store_shared_float4(from + i, __int_as_float(turn_pair(a, x.x)), __int_as_float(turn_pair(a, x.y)),
                            __int_as_float(turn_pair(a, x.z)), __int_as_float(turn_pair(a, x.w)));
    }
}

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

/*
 * Every 16-bit tile in shared memory is stored as blocks of 64 columns, each block `rows` rows of 128 bytes, in which
 * the 16-byte chunks are permuted by the row: what TMA writes with its 128-byte swizzle and what wgmma reads. Bases are
 * aligned to 1024 bytes. chunk counts groups of 8 columns from the tile's first column. So D columns take the room of
 * the next multiple of 64; what is past the tensor's columns holds zeros.
 */
constexpr int stored_columns(int d)
{
    return (d + 63) / 64 * 64;
}

constexpr int D_STORED = stored_columns(FXA_D), DV_STORED = stored_columns(FXA_DV);

template <int rows> FXA_INLINE u32 swizzled(u32 tile, int row, int chunk)
{
    return tile + (u32)((chunk >> 3) * (rows * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

/* Sum and maximum over the four lanes that share a row of an accumulator. */
FXA_INLINE float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

FXA_INLINE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

#endif
