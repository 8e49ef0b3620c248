/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of an item of decode_sm90.cu: what its warps have becomes one share, and who hands in the last share of a row
 * group adds all of them up. {maximum, sum} of rows are of scores before the unit; a weight of 0 contains what O is.
 */
#ifndef FXA_CUDA_DECODE_MERGE_CUH
#define FXA_CUDA_DECODE_MERGE_CUH

#include "ampere.cuh"
#include "decode_layout.cuh"
#include "score.cuh"

namespace {

constexpr float BIAS = FXA_F16 ? 0.f : 24.f; /* taken off exponents, so that no sum of V overflows */

FXA_INLINE void add_share(Float4 &o, float weight, const Float4 &x)
{
    if (weight == 0.f) return;
    o = Float4{o.x + weight * x.x, o.y + weight * x.y, o.z + weight * x.z, o.w + weight * x.w};
}

FXA_INLINE float share_weight(const FxaArgs &a, float top, float all)
{
    return exp2_fast((top - finite_or_zero(all)) * Program::unit(a));
}

/* Four columns of a row from d on. */
FXA_INLINE void write_row(const FxaArgs &a, const Part &at, int r, int d, const Float2 &stat, const Float4 &o)
{
    const int h = at.q_head(a, r), q = at.query(a, r);
    const RowEnd end(a, h, finite_or_zero(stat.x), Program::unit(a), BIAS, stat.y);
    const bool inside = q < at.q_len;
    if (q_starts(a) && !inside) return;
    u16 *to = rows_of(a.o, at.b, h, at.q_first + q);
    const bool some = inside && end.factor != 0.f;
    store_pair(to, d, a.dv, some ? pack16(o.x * end.factor, o.y * end.factor) : 0);
    store_pair(to, d + 2, a.dv, some ? pack16(o.z * end.factor, o.w * end.factor) : 0);
    if (d == 0) a.lse[at.b * a.lse_b + h * a.lse_h + (at.q_first + q) * a.lse_s] = inside ? end.lse : NEG_INF;
}

/* The warps of this CTA; to the result, or to the workspace when there are more splits. */
FXA_INLINE void merge_warps(const FxaArgs &a, const Part &at, const float *out, const Float2 *stats)
{
#pragma unroll 1
    for (int e = threadIdx.x; e < at.rows * (FXA_DV / 4); e += WORKERS) {
        const int r = e / (FXA_DV / 4), d = e % (FXA_DV / 4) * 4;
        Float2 all = {NEG_INF, 0.f};
        Float4 o = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int w = 0; w < KEY_PARTS; w++) all.x = fmaxf(all.x, stats[w * ROWS + r].x);
#pragma unroll
        for (int w = 0; w < KEY_PARTS; w++) {
            const float weight = share_weight(a, stats[w * ROWS + r].x, all.x);
            all.y += weight * stats[w * ROWS + r].y;
            add_share(o, weight, *(const Float4 *)(out + (w * ROWS + r) * FXA_DV + d));
        }
        if (a.splits == 1) {
            write_row(a, at, r, d, all, o);
        } else {
            *(Float4 *)(a.partial + (at.share(a) * ROWS + r) * FXA_DV + d) = o;
            if (d == 0) *(Float2 *)(a.partial_ml + (at.share(a) * ROWS + r) * 2) = all;
        }
    }
}

/* {maximum, sum} of all splits, and their weights in place of their maxima; shares: of split s and row r at
 * s * ROWS + r. */
FXA_INLINE void merge_stats(const FxaArgs &a, const Part &at, Float2 *shares, Float2 *merged)
{
    const int lane = threadIdx.x & 31;
    for (int r = threadIdx.x / 32; r < at.rows; r += WARPS) {
        float top = NEG_INF, sum = 0.f;
        for (int s = lane; s < a.splits; s += 32) top = fmaxf(top, shares[s * ROWS + r].x);
#pragma unroll
        for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
        for (int s = lane; s < a.splits; s += 32) {
            Float2 &x = shares[s * ROWS + r];
            x.x = share_weight(a, x.x, top);
            sum += x.x * x.y;
        }
#pragma unroll
        for (int i = 16; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
        if (lane == 0) merged[r] = Float2{top, sum};
    }
}

enum { MERGE_LOADS = 16 }; /* on the way at once */

/* All splits of a row group: weights in shared memory, then a thread per four columns adds. */
FXA_INLINE void merge_splits(const FxaArgs &a, const Part &at, Float2 *shares, Float2 *merged)
{
    const Float2 *stats = (const Float2 *)a.partial_ml + (long long)at.place * a.splits * ROWS;
    const Float4 *from = (const Float4 *)(a.partial + (long long)at.place * a.splits * ROWS * FXA_DV);
    for (int i = threadIdx.x; i < a.splits * ROWS; i += WORKERS)
        if (i % ROWS < at.rows) shares[i] = stats[i];
    workers_sync();
    merge_stats(a, at, shares, merged);
    workers_sync();
#pragma unroll 1
    for (int e = threadIdx.x; e < at.rows * (FXA_DV / 4); e += WORKERS) {
        const Float4 *next = from + e;
        const Float2 *share = shares + e / (FXA_DV / 4);
        Float4 o = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
        for (int left = a.splits; left > 0; left -= MERGE_LOADS) {
            Float4 x[MERGE_LOADS];
#pragma unroll
            for (int i = 0; i < MERGE_LOADS; i++) x[i] = next[(i < left ? i : 0) * (ROWS * FXA_DV / 4)];
#pragma unroll
            for (int i = 0; i < MERGE_LOADS; i++)
                if (i < left) add_share(o, share[i * ROWS].x, x[i]);
            next += MERGE_LOADS * (ROWS * FXA_DV / 4);
            share += MERGE_LOADS * ROWS;
        }
        write_row(a, at, e / (FXA_DV / 4), e % (FXA_DV / 4) * 4, merged[e / (FXA_DV / 4)], o);
    }
}

constexpr u64 HANDED_IN = 0xB5297A4D68E31DA5ull;

/*
 * Hands in a share, and says whether all are there. Every share has a flag, which is HANDED_IN once it is in memory and
 * anything else before that: so nobody has to set flags before a run. Of the CTAs of a row group the one whose fence is
 * the last sees all flags; others may too, and write the same bits. Who sees them takes them back for the next run. All
 * workers come here behind their stores.
 */
FXA_INLINE bool is_last(const FxaArgs &a, const Part &at, int *all_there)
{
    u64 *flags = (u64 *)a.redo + (long long)at.place * a.splits;
    __threadfence();
    workers_sync();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            *(volatile u64 *)(flags + at.split) = HANDED_IN;
            fence_in_order();
        }
        __syncwarp();
        bool all = true;
        for (int s = threadIdx.x; s < a.splits; s += 32) all &= load_flag(flags + s) == HANDED_IN;
        all = __all_sync(~0u, all);
        for (int s = threadIdx.x; all && s < a.splits; s += 32) *(volatile u64 *)(flags + s) = 0;
        if (threadIdx.x == 0) *all_there = all;
    }
    workers_sync();
    if (!*all_there) return false;
    __threadfence();
    return true;
}

} // namespace

#endif
