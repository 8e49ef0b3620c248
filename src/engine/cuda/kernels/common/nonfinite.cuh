/* SPDX-License-Identifier: Apache-2.0
 *
 * A weight of exactly 0 contributes nothing, whatever V holds: but matrix units multiply it, and 0 times NaN or an
 * infinity is NaN. So a tile whose O is not finite is computed again with V changed in shared memory, three times:
 *
 *   VALUES_FINITE   elements that are not finite are 0: O is right where none of them has weight
 *   VALUES_POS_INF       1 where V is +inf or NaN, else 0: where the sum of weights is above 0, O is +inf, or NaN
 *   VALUES_NEG_INF     the same of -inf and NaN: O is -inf, and NaN where both are so
 *
 * The last two only where the first has found something. An O that is infinite because its sum was, of a large V, is
 * computed again by the first. All of it is outside the loops of finite problems. (simt/tiles.cuh has its own way.)
 */
#ifndef FXA_CUDA_COMMON_NONFINITE_CUH
#define FXA_CUDA_COMMON_NONFINITE_CUH

#include "common/fixed_max.cuh"
#include "common/storage.cuh"

enum { VALUES_UNCHANGED, VALUES_FINITE, VALUES_POS_INF, VALUES_NEG_INF };

/* What is taken off the exponents of a visit (common/fixed_max.cuh); f16: weights are rounded to it. */
FXA_INLINE float values_bias(int values, bool f16)
{
    return values == VALUES_FINITE ? fixed_max_bias(f16) : values > VALUES_FINITE ? fixed_max_mark_bias(f16) : 0.f;
}

enum { HALF_INF = FXA_F16 ? 0x7c00 : 0x7f80, HALF_ONE = FXA_F16 ? 0x3c00 : 0x3f80 };
enum { HALF_NAN = 0x7fff, HALF_SIGN = 0x8000 };

/* One element of 16 bits, in the low half. */
FXA_INLINE u32 changed_half(u32 x, int values)
{
    if ((x & HALF_INF) != HALF_INF) return values == VALUES_FINITE ? x : 0u;
    /* the infinity of the other sign, which becomes 0 */
    const u32 against = values == VALUES_POS_INF ? HALF_INF | HALF_SIGN : HALF_INF;
    return values == VALUES_FINITE || x == against ? 0u : HALF_ONE;
}

FXA_INLINE u32 changed_word(u32 x, int values)
{
    return changed_half(x & 0xffffu, values) | changed_half(x >> 16, values) << 16;
}

/* Bytes of a tile in shared memory, by `threads` threads; whether this one has changed something. */
FXA_INLINE bool change_values(u32 tile, int bytes, int values, int thread, int threads)
{
    bool changed = false;
#pragma unroll 1
    for (int i = thread * 4; i < bytes; i += threads * 4) {
        const u32 x = (u32)load_shared(tile + i), y = changed_word(x, values);
        store_shared(tile + i, (int)y);
        changed |= x != y;
    }
    return changed;
}

/* What an element of O becomes where a mark is above 0. `at` is read where VALUES_POS_INF wrote, by the same thread. */
FXA_INLINE void put_mark(Result *at, int values)
{
#if FXA_OUT_F32
    *at = values == VALUES_POS_INF ? POS_INF : *at == POS_INF ? POS_INF - POS_INF : NEG_INF;
#else
    *at = (Result)(values == VALUES_POS_INF ? HALF_INF : *at == HALF_INF ? HALF_NAN : HALF_INF | HALF_SIGN);
#endif
}

#endif
