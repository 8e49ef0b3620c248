/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropout: which pairs (q, k) are kept. Philox4x32-10 on the logical (b, h, q, k), as in src/base/philox.h, so that all
 * engines drop the same pairs. The counter is (k >> 2, q, h, b); a pair has word k & 3 and is kept if that word is not
 * below the threshold.
 *
 * One call of Philox serves four keys, which belong to several lanes. So groups of two or four lanes share calls: each
 * lane makes an equal part of the calls, and the lanes exchange the results, a bit per pair (q, k). Bit i of a result
 * belongs to accumulator i of a thread (sm90/ptx_wgmma.cuh; mma.sync has the same layout): 4 * (column / 8) + 2 * (row
 * / 8) + column % 2, 32 accumulators per word.
 */
#ifndef FXA_CUDA_COMMON_DROPOUT_CUH
#define FXA_CUDA_COMMON_DROPOUT_CUH

#include "common/varlen.cuh"

/* Returns four bits for query q and the keys k0 = 4 * four to k0 + 3: bit i is set if dropout keeps key k0 + i. */
FXA_INLINE u32 keep_four(const FxaArgs &a, int b, int h, int q, int four)
{
    u32 c0 = (u32)four, c1 = (u32)q, c2 = (u32)h, c3 = (u32)b, k0 = run_seed(a, 0), k1 = run_seed(a, 1);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const u32 threshold = a.drop_below;
    return (u32)(c0 >= threshold) | (u32)(c1 >= threshold) << 1 | (u32)(c2 >= threshold) << 2 |
           (u32)(c3 >= threshold) << 3;
}

/* Returns bit i of `kept`, true if dropout keeps the pair (q, k) of accumulator i; true without dropout. */
FXA_INLINE bool keeps(u32 kept, int i)
{
    return !FXA_DROPOUT || (kept >> (i & 31) & 1);
}

#if FXA_DROPOUT == 2
/* Returns 1 if dropout keeps the pair (q, k), 0 if not, for coordinates from tables (FXA_DROPOUT 2). Here a call of
 * Philox serves one pair only. */
FXA_INLINE u32 keep_by_coordinates(const FxaArgs &a, int b, int h, int q, int k)
{
    const int at_k = __ldg(a.place_k + min(k, a.k_len - 1));
    const int at_q = __ldg(a.place_q + (long long)b * a.q_len + min(q, a.q_len - 1));
    const u32 four = keep_four(a, __ldg(a.place_b + b), __ldg(a.place_h + h), at_q, (int)((u32)at_k >> 2));
    return four >> (at_k & 3) & 1;
}

FXA_INLINE u32 kept_of_row(const FxaArgs &a, int b, int h, int q, int k0)
{
    u32 all = 0;
#pragma unroll 1
    for (int i = 0; i < 32; i++)
        all |= keep_by_coordinates(a, b, h, q + (i & 2) * 4, k0 + (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1)) << i;
    return all;
}

FXA_INLINE u32 kept_of_column(const FxaArgs &a, int b, int h, int q0, int k)
{
    u32 all = 0;
#pragma unroll 1
    for (int i = 0; i < 32; i++)
        all |= keep_by_coordinates(a, b, h, q0 + (i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1), k + (i & 2) * 4) << i;
    return all;
}
#else
/* Returns a bit per accumulator of this thread: 1 = dropout keeps its (query, key). Rows of the accumulator tile are
 * queries. q: the thread's first query; k0: first of 64 keys, a multiple of 4. Two lanes share a call of Philox. */
FXA_INLINE u32 kept_of_row(const FxaArgs &a, int b, int h, int q, int k0)
{
    const int lane = threadIdx.x & 31, odd = lane & 1;
    u32 mine = 0, all = 0;
#pragma unroll 2 /* all iterations at once take too many registers */
    for (int j = 0; j < 8; j++)
        mine |= keep_four(a, b, h, q + 8 * odd, (k0 >> 2) + 2 * j + ((lane >> 1) & 1)) << (4 * j);
#pragma unroll
    for (int other = 0; other < 2; other++) {
        const u32 bits = __shfl_xor_sync(~0u, mine, other);
        all |= ((bits >> (2 * odd)) & 0x33333333u) << (2 * (odd ^ other));
    }
    return all;
}

/* Returns a bit per accumulator of this thread: 1 = dropout keeps its (query, key). Rows of the accumulator tile are
 * keys. k: the thread's first key; q0: first of the warp's 64 queries. The keys of a warp start at a multiple of 4.
 * Four lanes share a call of Philox. */
FXA_INLINE u32 kept_of_column(const FxaArgs &a, int b, int h, int q0, int k)
{
    const int lane = threadIdx.x & 31, own = (lane >> 2) & 3;
    u32 mine = 0, all = 0;
#pragma unroll 2 /* all iterations at once take too many registers */
    for (int j = 0; j < 8; j++)
        mine |= keep_four(a, b, h, q0 + 8 * j + (lane & 3) * 2 + (own & 1), (k + 8 * (own >> 1)) >> 2) << (4 * j);
#pragma unroll
    for (int other = 0; other < 4; other++) {
        const u32 bits = __shfl_xor_sync(~0u, mine, other << 2);
        all |= ((bits >> own) & 0x11111111u) << (own ^ other);
    }
    return all;
}

#endif

#endif
