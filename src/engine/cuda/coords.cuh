/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a run only the device knows, or what is not what it seems: scalars that lie in memory (FxaScalars), and
 * coordinates of rows, keys, heads and entries that are part of a larger whole (FxaCoords). Nothing here touches
 * memory that is not given for it; what is read has no bounds to keep, because coordinates wrap and indices are guarded.
 */
#ifndef FXA_CUDA_COORDS_CUH
#define FXA_CUDA_COORDS_CUH

#include "device.cuh"

FXA_INLINE float run_scale(const FxaArgs &a)
{
    if (!a.scalars.scale) return a.scale;
    const double x = *a.scalars.scale;
    return (float)(x != x ? 1. / sqrt((double)a.d) : x);
}

FXA_INLINE float scalar_float(const FxaArgs &a, int i)
{
    return (float)__ldg(a.scalars.params + i);
}

/* Towards zero, and at the ends of 32 bits beyond them. */
FXA_INLINE int scalar_int(const FxaArgs &a, int i)
{
    const double x = __ldg(a.scalars.params + i);
    return x != x ? 0 : x <= -2147483648. ? -2147483647 - 1 : x >= 2147483647. ? 2147483647 : (int)x;
}

FXA_INLINE u32 run_seed(const FxaArgs &a, int word)
{
    return a.scalars.seed ? (u32)(*a.scalars.seed >> (32 * word)) : a.seed[word];
}

FXA_INLINE int added(int x, int y, const int *more)
{
    return (int)((u32)x + (u32)y + (u32)(more ? *more : 0));
}

FXA_INLINE int coord_b(const FxaArgs &a, int b)
{
    return added(b, a.coords.b, a.coords.b_add);
}

FXA_INLINE int coord_h(const FxaArgs &a, int h)
{
    return added(h, a.coords.h, a.coords.h_add);
}

/* What q and k of entry b are more than their rows; the lengths are those that the program sees. */
FXA_INLINE int shift_q(const FxaArgs &a, int b, int q_len, int k_len)
{
    const int entry = a.coords.positions ? a.coords.positions[b] : a.coords.align ? k_len - q_len : 0;
    return added(a.coords.q, entry, a.coords.q_add);
}

FXA_INLINE int shift_k(const FxaArgs &a)
{
    return added(0, a.coords.k, a.coords.k_add);
}

FXA_INLINE int seen_q_len(const FxaArgs &a, int q_len)
{
    return a.coords.q_len ? a.coords.q_len : q_len;
}

FXA_INLINE int seen_k_len(const FxaArgs &a, int k_len)
{
    return a.coords.k_len ? a.coords.k_len : k_len;
}

FXA_INLINE int seen_heads(const FxaArgs &a)
{
    return a.coords.heads ? a.coords.heads : a.heads;
}

#endif
