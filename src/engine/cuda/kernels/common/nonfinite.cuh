/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-finite values of V. A weight of exactly 0 must contribute nothing to O, even if V is NaN, but tensor cores
 * multiply it, and 0 times NaN or infinity is NaN. So a query tile whose O is not finite is recomputed in up to three
 * passes, with elements of V replaced in shared memory:
 *
 *     VALUES_FINITE   V = 0 for non-finite elements: O is right if none of them has a weight above 0
 *     VALUES_POS_INF  V = 1 for +inf and NaN, else 0: O is set to +inf if the sum of weights is above 0
 *     VALUES_NEG_INF  V = 1 for -inf and NaN, else 0: O is set to -inf if the sum of weights is above 0, or
 *                     to NaN if it is so in both passes
 *
 * The last two passes run only if the first has replaced an element. An O that is infinite because of a large finite V
 * is corrected by the first pass. If O is finite, no pass runs. (simt/tiles.cuh skips weights of 0 instead.)
 */
#ifndef FXA_CUDA_COMMON_NONFINITE_CUH
#define FXA_CUDA_COMMON_NONFINITE_CUH

#include "common/fixed_max.cuh"
#include "common/storage.cuh"

enum { VALUES_UNCHANGED, VALUES_FINITE, VALUES_POS_INF, VALUES_NEG_INF };

/* Returns what the pass `values` (VALUES_FINITE or another) subtracts from the exponents of weights, which are f16 or
 * bf16 (common/fixed_max.cuh). */
FXA_INLINE float values_bias(int values, bool f16)
{
    return values == VALUES_FINITE ? fixed_max_bias(f16) : values > VALUES_FINITE ? fixed_max_mark_bias(f16) : 0.f;
}

enum { HALF_INF = FXA_F16 ? 0x7c00 : 0x7f80, HALF_ONE = FXA_F16 ? 0x3c00 : 0x3f80 };
enum { HALF_NAN = 0x7fff, HALF_SIGN = 0x8000 };

/* Returns by what the pass `values` replaces the 16-bit element of V in the low half of x. */
FXA_INLINE u32 changed_half(u32 x, int values)
{
    if ((x & HALF_INF) != HALF_INF) return values == VALUES_FINITE ? x : 0u;
    /* bits of the infinity that the pass `values` does not search for; an element with this infinity becomes 0 */
    const u32 against = values == VALUES_POS_INF ? HALF_INF | HALF_SIGN : HALF_INF;
    return values == VALUES_FINITE || x == against ? 0u : HALF_ONE;
}

FXA_INLINE u32 changed_word(u32 x, int values)
{
    return changed_half(x & 0xffffu, values) | changed_half(x >> 16, values) << 16;
}

/* Replaces elements of a tile of V in shared memory for the pass `values` (VALUES_FINITE or another); `threads` threads
 * share the tile. Returns true if this thread has changed an element. */
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

/* Stores +inf, -inf or NaN in an element of O in memory. Called for the elements whose sum of weights is above 0 in the
 * pass `values`. In the pass VALUES_NEG_INF, a thread reads what the same thread stored in the pass VALUES_POS_INF. */
FXA_INLINE void put_mark(Result *at, int values)
{
#if FXA_OUT_F32
    *at = values == VALUES_POS_INF ? POS_INF : *at == POS_INF ? POS_INF - POS_INF : NEG_INF;
#else
    *at = (Result)(values == VALUES_POS_INF ? HALF_INF : *at == HALF_INF ? HALF_NAN : HALF_INF | HALF_SIGN);
#endif
}

#endif
