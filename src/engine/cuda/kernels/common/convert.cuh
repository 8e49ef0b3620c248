/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads and stores of tensor elements whose float type is known at run time alone (FXA_TYPE_F32 and others), for
 * kernels that copy between the caller's memory and the workspace (common/convert.cu, common/paged_grads.cu).
 */
#ifndef FXA_CUDA_COMMON_CONVERT_CUH
#define FXA_CUDA_COMMON_CONVERT_CUH

#include "common/storage.cuh"

namespace {

/* Converts an E4M3 element to f32. Exponent and fraction bits all set are NaN; there are no infinities. */
FXA_INLINE float from_e4m3(u32 x)
{
    const u32 sign = (x & 0x80) << 24, exponent = x >> 3 & 15, fraction = x & 7;
    if ((x & 0x7f) == 0x7f) return __int_as_float((int)(sign | 0x7fc00000u));
    const float y = exponent ? __int_as_float((int)((exponent + 120) << 23 | fraction << 20)) : fraction * 0x1p-9f;
    return __int_as_float((int)((u32)__float_as_int(y) | sign));
}

/* Returns x converted to an 8-bit float with `fraction` bits of fraction. Values beyond the largest number become the
 * largest number, as docs/numerics.md says. bias, smallest, largest: exponent bias, smallest normal and largest number
 * of the 8-bit type; last, nan: bits of the largest number and of NaN */
FXA_INLINE u8 to_byte(float x, int fraction, int bias, float smallest, float largest, u32 last, u32 nan)
{
    const u32 u = (u32)__float_as_int(x), sign = u >> 24 & 0x80, a = u & 0x7fffffff;
    const int cut = 23 - fraction;
    u32 code;
    if (a > 0x7f800000u)
        code = nan;
    else if (fabsf(x) >= largest)
        code = last;
    else if (fabsf(x) >= smallest)
        code = ((a + (1u << (cut - 1)) - 1 + (a >> cut & 1)) >> cut) - ((u32)(127 - bias) << fraction);
    else
        code = (u32)__float2int_rn(fabsf(x) / smallest * (float)(1 << fraction));
    return (u8)(sign | code);
}

FXA_INLINE double convert_load(const FxaConvertArray &t, long long at)
{
    switch (t.type) {
    case FXA_TYPE_F64: return ((const double *)t.data)[at];
    case FXA_TYPE_F32: return (double)((const float *)t.data)[at];
    case FXA_TYPE_F16: return (double)from_half(((const u16 *)t.data)[at]);
    case FXA_TYPE_BF16: return (double)__int_as_float((int)((u32)((const u16 *)t.data)[at] << 16));
    case FXA_TYPE_E4M3: return (double)from_e4m3(((const u8 *)t.data)[at]);
    default: return (double)from_half((u16)(((const u8 *)t.data)[at] << 8));
    }
}

FXA_INLINE void convert_store(const FxaConvertArray &t, long long at, double x)
{
    switch (t.type) {
    case FXA_TYPE_F64: ((double *)t.data)[at] = x; break;
    case FXA_TYPE_F32: ((float *)t.data)[at] = (float)x; break;
    case FXA_TYPE_F16: ((u16 *)t.data)[at] = to_half(round_to_odd(x)); break;
    case FXA_TYPE_BF16: ((u16 *)t.data)[at] = to_bfloat(round_to_odd(x)); break;
    case FXA_TYPE_E4M3: ((u8 *)t.data)[at] = to_byte(round_to_odd(x), 3, 7, 0x1p-6f, 448.f, 0x7e, 0x7f); break;
    default: ((u8 *)t.data)[at] = to_byte(round_to_odd(x), 2, 15, 0x1p-14f, 57344.f, 0x7b, 0x7e); break;
    }
}

FXA_INLINE long long convert_index(const FxaConvertArray &t, long long b, long long h, long long s, long long d)
{
    return b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d * t.stride[3];
}

} // namespace

#endif
