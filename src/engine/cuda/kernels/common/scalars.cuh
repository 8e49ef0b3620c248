/* SPDX-License-Identifier: Apache-2.0
 *
 * Scale, params and seed of a run that are in device memory (FxaScalars), because the host does not have their values
 * when the run starts.
 */
#ifndef FXA_CUDA_COMMON_SCALARS_CUH
#define FXA_CUDA_COMMON_SCALARS_CUH

#include "common/swizzle.cuh"

FXA_INLINE float run_scale(const FxaArgs &a)
{
    if (!a.scalars.scale) return a.scale;
    const double x = *a.scalars.scale;
    return x != x ? 1.f / sqrtf((float)a.d) : (float)x;
}

FXA_INLINE float scalar_float(const FxaArgs &a, int i)
{
    return (float)__ldg(a.scalars.params + i);
}

/* Returns the int param with index i: its f64 value truncated towards zero, saturated to 32 bits, 0 for NaN. */
FXA_INLINE int scalar_int(const FxaArgs &a, int i)
{
    const double x = __ldg(a.scalars.params + i);
    return x != x ? 0 : x <= -2147483648. ? -2147483647 - 1 : x >= 2147483647. ? 2147483647 : (int)x;
}

FXA_INLINE u32 run_seed(const FxaArgs &a, int word)
{
    return a.scalars.seed ? (u32)(*a.scalars.seed >> (32 * word)) : a.seed[word];
}

#endif
