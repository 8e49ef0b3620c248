/* SPDX-License-Identifier: Apache-2.0
 *
 * The ends of a piece and of an item of sm90/decode.cu: what its warps have of a piece is added up, the pieces of an
 * item become one share, and who hands in the last share of a row group adds all of them up. {maximum, sum} of rows are
 * of scores before the unit; a weight of 0 contains what O is.
 */
#ifndef FXA_CUDA_SM90_DECODE_COMBINE_CUH
#define FXA_CUDA_SM90_DECODE_COMBINE_CUH

#include "sm80/mma.cuh"
#include "sm90/decode_shared.cuh"
#include "common/score.cuh"

namespace {

constexpr float BIAS = FXA_F16 ? 0.f : 24.f; /* taken off exponents, so that no sum of V overflows */

FXA_INLINE float share_weight(const FxaArgs &a, float top, float all)
{
    return exp2_fast((top - finite_or_zero(all)) * Program::unit(a));
}

/* Four columns of a row over some keys. */
struct Share {
    Float2 stat; /* {maximum, sum} */
    Float4 o;
};

/* A weight of 0 contains what x is. One rounding each, wherever this is compiled: pieces have one sum whoever adds. */
FXA_INLINE Float4 weighted(float weight, const Float4 &x)
{
    if (weight == 0.f) return Float4{0.f, 0.f, 0.f, 0.f};
    return Float4{weight * x.x, weight * x.y, weight * x.z, weight * x.w};
}

FXA_INLINE Float4 plus_weighted(const Float4 &o, float weight, const Float4 &x)
{
    if (weight == 0.f) return o;
    return Float4{__fmaf_rn(weight, x.x, o.x), __fmaf_rn(weight, x.y, o.y), __fmaf_rn(weight, x.z, o.z),
                  __fmaf_rn(weight, x.w, o.w)};
}

FXA_INLINE Share both(const FxaArgs &a, const Share &x, const Share &y)
{
    const float top = fmaxf(x.stat.x, y.stat.x);
    const float p = share_weight(a, x.stat.x, top), q = share_weight(a, y.stat.x, top);
    return Share{{top, __fmaf_rn(q, y.stat.y, p * x.stat.y)}, plus_weighted(weighted(p, x.o), q, y.o)};
}

/*
 * Adds shares up by a tree over their numbers, in which a share without a partner stays as it is: shares 0 and 1, 2 and
 * 3, ... of a level are one of the next. So the sum over a row group has the same bits whether a CTA has all of its
 * pieces or 2^i neighbours of them. At most 2^levels shares.
 */
template <int levels> struct Fold {
    Share level[levels];
    int count;

    FXA_INLINE Fold() : count(0) {}
    FXA_INLINE void add(const FxaArgs &a, Share x)
    {
        const int before = count++;
        bool carried = true;
#pragma unroll
        for (int i = 0; i < levels; i++) {
            if (!carried) continue;
            carried = before >> i & 1;
            if (carried)
                x = both(a, level[i], x);
            else
                level[i] = x;
        }
        if (carried) level[0] = x; /* all there can be */
    }
    FXA_INLINE Share all(const FxaArgs &a) const
    {
        Share x = level[0];
        bool some = count & 1 || count == 1 << levels;
#pragma unroll
        for (int i = 1; i < levels; i++) {
            if (!(count >> i & 1)) continue;
            x = some ? both(a, level[i], x) : level[i];
            some = true;
        }
        return x;
    }
};

/* Where a row of O goes, found out while there is time for it: when the last tile is there nothing else is to do. */
struct RowPlace {
    int h;
    bool inside, there; /* rows past a length are there, and 0, where lengths are not those of memory */
    u64 o, lse;

    FXA_INLINE RowPlace(const FxaArgs &a, const Part &at, int r) : h(at.q_head(a, r))
    {
        const int q = at.query(a, r);
        inside = q < at.q_len;
        there = inside || !q_starts(a);
        o = (u64)rows_of(a.o, at.b, h, at.q_first + q);
        lse = (u64)(a.lse + (at.b * a.lse_b + h * a.lse_h + (at.q_first + q) * a.lse_s));
    }
    FXA_INLINE void find()
    {
        keep(o);
        keep(lse);
    }
};

/* Four columns of a row from d on. */
FXA_INLINE void write_row(const FxaArgs &a, const RowPlace &to, int d, const Share &x)
{
    const SoftmaxEpilogue end(a, to.h, finite_or_zero(x.stat.x), Program::unit(a), BIAS, x.stat.y);
    if (!to.there) return;
    const bool some = to.inside && end.factor != 0.f;
    store_pair((u16 *)to.o, d, a.dv, some ? pack16(x.o.x * end.factor, x.o.y * end.factor) : 0);
    store_pair((u16 *)to.o, d + 2, a.dv, some ? pack16(x.o.z * end.factor, x.o.w * end.factor) : 0);
    if (d == 0) *(float *)to.lse = to.inside ? end.lse : NEG_INF;
}

/* Where column d of row r of a warp's O is: rows 2, 4, 6 apart, which a warp writes at once, in banks of their own. */
FXA_INLINE int out_place(int part, int r, int d)
{
    static_assert(FXA_DV % 32 == 0, "columns are exchanged within 32");
    return (part * ROWS + r) * FXA_DV + (d ^ (r >> 1 & 3) << 3);
}

/* The warps of this CTA. */
FXA_INLINE Share warps_share(const FxaArgs &a, const float *out, const Float2 *stats, int r, int d)
{
    Share all = {{NEG_INF, 0.f}, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll
    for (int w = 0; w < KEY_PARTS; w++) all.stat.x = fmaxf(all.stat.x, stats[w * ROWS + r].x);
#pragma unroll
    for (int w = 0; w < KEY_PARTS; w++) {
        const Float2 stat = stats[w * ROWS + r];
        const float weight = share_weight(a, stat.x, all.stat.x);
        all.stat.y = __fmaf_rn(weight, stat.y, all.stat.y);
        all.o = plus_weighted(all.o, weight, *(const Float4 *)(out + out_place(w, r, d)));
    }
    return all;
}

/* To the result, or to the workspace when the row group has more shares. */
FXA_INLINE void put_share(const FxaArgs &a, const Part &at, const Place &place, int r, int d, const Share &x)
{
    if (place.shares == 1) return write_row(a, RowPlace(a, at, r), d, x);
    const long long row = (long long)(place.first_share + place.share) * ROWS + r;
    *(Float4 *)(a.partial + row * FXA_DV + d) = x.o;
    if (d == 0) *(Float2 *)(a.partial_ml + row * 2) = x.stat;
}

enum { RUN_LEVELS = 4, MERGE_LEVELS = 3, MERGE_LOADS = 1 << MERGE_LEVELS }; /* loads: on the way at once */

/* The pieces of an item, added up at the end of each. */
struct Sums {
    Fold<RUN_LEVELS> fold; /* FOLDS: of quad threadIdx.x of O */

    FXA_INLINE void add(const FxaArgs &a, const Part &at, const float *out, const Float2 *stats)
    {
        u32 thread = threadIdx.x;
        keep(thread); /* else addresses take registers from the loop over tiles */
#pragma unroll 1
        for (int e = thread; e < at.rows * (FXA_DV / 4); e += WORKERS) {
            const int r = e / (FXA_DV / 4), d = e % (FXA_DV / 4) * 4;
            const Share x = warps_share(a, out, stats, r, d);
            if (!FOLDS) {
                put_share(a, at, at.place(a), r, d, x);
                continue;
            }
            fold.add(a, x);
            break;
        }
    }
    FXA_INLINE void put_near(const FxaArgs &a, u32 base) const
    {
        const u32 to = base + threadIdx.x * 32;
        const Share x = fold.all(a);
        store_shared_float4(to, x.o.x, x.o.y, x.o.z, x.o.w);
        store_shared_float4(to + 16, x.stat.x, x.stat.y, 0.f, 0.f);
    }
    /* The quad of this thread, of items that are all of their row groups. */
    FXA_INLINE static int row(const Part &at) { return min((int)threadIdx.x / (FXA_DV / 4), at.rows - 1); }
    FXA_INLINE void write(const FxaArgs &a, const Part &at, const RowPlace &to) const
    {
        if ((int)threadIdx.x / (FXA_DV / 4) < at.rows) write_row(a, to, threadIdx.x % (FXA_DV / 4) * 4, fold.all(a));
    }
    FXA_INLINE void put(const FxaArgs &a, const Part &at, const Place &place) const
    {
        const int r = threadIdx.x / (FXA_DV / 4), d = threadIdx.x % (FXA_DV / 4) * 4;
        if (FOLDS && r < at.rows) put_share(a, at, place, r, d, fold.all(a));
    }
};

/* Shares of a row group from the first of x on, of which `left` are there. */
FXA_INLINE Share tree_of(const FxaArgs &a, Share (&x)[MERGE_LOADS], int left)
{
#pragma unroll
    for (int step = 1; step < MERGE_LOADS; step *= 2)
#pragma unroll
        for (int i = 0; i + step < MERGE_LOADS; i += 2 * step)
            if (i + step < left) x[i] = both(a, x[i], x[i + step]);
    return x[0];
}

/* All shares of a row group. */
FXA_INLINE void merge_shares(const FxaArgs &a, const Part &at, const Place &place)
{
    const long long first = (long long)place.first_share * ROWS;
#pragma unroll 1
    for (int e = threadIdx.x; e < at.rows * (FXA_DV / 4); e += WORKERS) {
        const int r = e / (FXA_DV / 4), d = e % (FXA_DV / 4) * 4;
        const Float2 *stat = (const Float2 *)a.partial_ml + first + r;
        const Float4 *o = (const Float4 *)(a.partial + (first + r) * FXA_DV + d);
        Fold<MERGE_LEVELS> fold; /* of MERGE_LOADS shares each */
#pragma unroll 1
        for (int left = place.shares; left > 0; left -= MERGE_LOADS) {
            Share x[MERGE_LOADS];
#pragma unroll
            for (int i = 0; i < MERGE_LOADS; i++) {
                const int s = i < left ? i * ROWS : 0;
                x[i] = Share{stat[s], o[s * (FXA_DV / 4)]};
            }
            fold.add(a, tree_of(a, x, left));
            stat += MERGE_LOADS * ROWS;
            o += MERGE_LOADS * ROWS * (FXA_DV / 4);
        }
        write_row(a, RowPlace(a, at, r), d, fold.all(a));
    }
}

/* Shares of a cluster's CTAs, each in shared memory of its own where tiles were. Each CTA adds up some of the quads. */
FXA_INLINE void merge_cluster(const FxaArgs &a, u32 base)
{
    constexpr int SOME = (QUADS + CLUSTER - 1) / CLUSTER;
    const Part at(a, blockIdx.x);
    const int e = (int)(blockIdx.x % CLUSTER) * SOME + threadIdx.x, r = e / (FXA_DV / 4);
    const bool some = threadIdx.x < SOME && r < at.rows;
    Share x[MERGE_LOADS];
    cluster_arrive<CLUSTER>();
    RowPlace to(a, at, some ? r : 0);
    to.find();
    cluster_wait<CLUSTER>();
    if (some) {
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            const u32 from = cluster_address(base + e * 32, i);
            const Float4 stat = load_cluster_float4(from + 16);
            x[i] = Share{{stat.x, stat.y}, load_cluster_float4(from)};
        }
        x[0] = tree_of(a, x, CLUSTER);
    }
    cluster_arrive<CLUSTER>(); /* all that is read is there */
    if (some) write_row(a, to, e % (FXA_DV / 4) * 4, x[0]);
    cluster_wait<CLUSTER>(); /* who ends takes its shared memory along */
}

constexpr u64 HANDED_IN = 0xB5297A4D68E31DA5ull;

/*
 * Hands in a share, and says whether all are there. Every share has a flag, which is HANDED_IN once it is in memory and
 * anything else before that: so nobody has to set flags before a run. Of the CTAs of a row group the one whose fence is
 * the last sees all flags; others may too, and write the same bits. Who sees them takes them back for the next run. All
 * workers come here behind their stores.
 */
FXA_INLINE bool is_last(const FxaArgs &a, const Place &place, int *all_there)
{
    u64 *flags = (u64 *)a.redo + place.first_share;
    __threadfence();
    workers_sync();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            *(volatile u64 *)(flags + place.share) = HANDED_IN;
            fence_in_order();
        }
        __syncwarp();
        bool all = true;
        for (int s = threadIdx.x; s < place.shares; s += 32) all &= load_flag(flags + s) == HANDED_IN;
        all = __all_sync(~0u, all);
        for (int s = threadIdx.x; all && s < place.shares; s += 32) *(volatile u64 *)(flags + s) = 0;
        if (threadIdx.x == 0) *all_there = all;
    }
    workers_sync();
    if (!*all_there) return false;
    __threadfence();
    return true;
}

} // namespace

#endif
