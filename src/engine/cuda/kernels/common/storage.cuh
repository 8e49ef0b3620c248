/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of tensors in memory, of any storage type (FXA_F32: f32, otherwise 16 bits) and alignment, for kernels that
 * copy by plain loads. Eight neighbouring elements are one or two 16-byte accesses where address and strides allow it.
 */
#ifndef FXA_CUDA_COMMON_STORAGE_CUH
#define FXA_CUDA_COMMON_STORAGE_CUH

#include "common/varlen.cuh"

#if FXA_F32
typedef float Stored;
#else
typedef u16 Stored;
#endif

/* Returns x rounded to f32 with 24 bits, whose last bit is odd if the rounding was inexact. A second rounding, to fewer
 * bits, then gives the same result as a single rounding of x. */
FXA_INLINE float round_to_odd(double x)
{
    const float y = __double2float_rz(x);
    return (double)y == x ? y : __int_as_float(__float_as_int(y) | 1);
}

FXA_INLINE float from_stored(Stored x)
{
#if FXA_F32
    return x;
#else
    return unpack_low(x);
#endif
}

FXA_INLINE Stored to_stored(float x)
{
#if FXA_F32
    return x;
#else
    return (u16)pack16(x, 0.f);
#endif
}

FXA_INLINE Stored *row_of(const FxaView &t, int b, int h, long long s)
{
    return (Stored *)t.data + b * t.b + h * t.h + s * t.s;
}

/* Type of the elements of results (O, dQ, dK, dV): f32 with FXA_OUT_F32, otherwise the storage type. */
#if FXA_OUT_F32
typedef float Result;
FXA_INLINE Result to_result(float x)
{
    return x;
}
#else
typedef Stored Result;
FXA_INLINE Result to_result(float x)
{
    return to_stored(x);
}
#endif

FXA_INLINE Result *result_row(const FxaView &t, int b, int h, long long s)
{
    return (Result *)t.data + b * t.b + h * t.h + s * t.s;
}

FXA_INLINE bool aligned16(const void *p)
{
    return ((u64)p & 15) == 0;
}

/* Loads elements c to c + 7 of row s of (b, h); elements from `columns` (the head dim) on are 0. */
FXA_INLINE void load8(const FxaView &t, int b, int h, long long s, int c, int columns, float (&x)[8])
{
    const Stored *at = row_of(t, b, h, s) + c;
    if (c + 8 > columns || !aligned16(at)) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = c + i < columns ? from_stored(at[i]) : 0.f;
        return;
    }
#if FXA_F32
    const Float4 y = ((const Float4 *)at)[0], z = ((const Float4 *)at)[1];
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    x[4] = z.x, x[5] = z.y, x[6] = z.z, x[7] = z.w;
#else
    const Word4 y = *(const Word4 *)at;
    x[0] = unpack_low(y.x), x[1] = unpack_high(y.x), x[2] = unpack_low(y.y), x[3] = unpack_high(y.y);
    x[4] = unpack_low(y.z), x[5] = unpack_high(y.z), x[6] = unpack_low(y.w), x[7] = unpack_high(y.w);
#endif
}

/* Stores elements c to c + 7 of row s of (b, h), from words of two 16-bit elements. */
FXA_INLINE void store8(const FxaView &t, int b, int h, long long s, int c, int columns, const Word4 &x)
{
    u16 *at = (u16 *)row_of(t, b, h, s) + c;
    const u32 words[4] = {x.x, x.y, x.z, x.w};
    if (c + 8 <= columns && aligned16(at)) {
        *(Word4 *)at = x;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (c + i < columns) at[i] = (u16)(words[i / 2] >> (16 * (i % 2)));
    }
}

#endif
