/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine of sm90/decode.cu, the split-KV decode kernel. At the end of each split (range of keys), O of a CTA's warps
 * is added up, and then added to the sum of the CTA's work item. The sum of a work item over all its splits is a part;
 * the CTA that stores the last part of a row group (ROWS query rows of one KV head) adds up all parts of the row group.
 * In {maximum, sum} of a row, the maximum is that of the scores before the multiplication by Program::unit(). A partial
 * result of weight 0 adds nothing, even if its O is NaN.
 */
#ifndef FXA_CUDA_SM90_DECODE_COMBINE_CUH
#define FXA_CUDA_SM90_DECODE_COMBINE_CUH

#include "sm80/mma.cuh"
#include "sm90/decode_shared.cuh"
#include "common/score.cuh"

namespace {

constexpr float BIAS = FXA_F16 ? 0.f : 24.f; /* subtracted from exponents of weights: no sum P V overflows */

FXA_INLINE float combine_weight(const FxaArgs &a, float top, float all)
{
    return exp2_fast((top - finite_or_zero(all)) * Program::unit(a));
}

/* A partial result: four neighbouring elements of a row of O, not normalized, and {maximum, sum} of the row, over a
 * part of the keys. */
struct PartialResult {
    Float2 stat; /* {maximum, sum} */
    Float4 o;
};

/* Returns weight * x, and 0 if weight = 0, even if x is NaN. The product is rounded before anything is added to it, so
 * that splits have the same sum whichever CTA adds them. */
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

FXA_INLINE PartialResult combine(const FxaArgs &a, const PartialResult &x, const PartialResult &y)
{
    const float top = fmaxf(x.stat.x, y.stat.x);
    const float p = combine_weight(a, x.stat.x, top), q = combine_weight(a, y.stat.x, top);
    return PartialResult{{top, __fmaf_rn(q, y.stat.y, p * x.stat.y)}, plus_weighted(weighted(p, x.o), q, y.o)};
}

/*
 * Adds up at most 2^levels partial results in a binary tree over their indices: results 0 and 1, 2 and 3, ... of a
 * level are combined to one result of the next level; a result without a partner moves up unchanged. So the sum of a
 * row group (query rows with the same keys) has the same bits if one CTA adds all its splits, and if several CTAs add
 * 2^i neighbouring splits each.
 */
template <int levels> struct SplitTree {
    PartialResult level[levels];
    int count;

    FXA_INLINE SplitTree() : count(0) {}
    FXA_INLINE void add(const FxaArgs &a, PartialResult x)
    {
        const int before = count++;
        bool carried = true;
#pragma unroll
        for (int i = 0; i < levels; i++) {
            if (!carried) continue;
            carried = before >> i & 1;
            if (carried)
                x = combine(a, level[i], x);
            else
                level[i] = x;
        }
        if (carried) level[0] = x; /* the tree is full: no further result may follow */
    }
    FXA_INLINE PartialResult all(const FxaArgs &a) const
    {
        PartialResult x = level[0];
        bool some = count & 1 || count == 1 << levels;
#pragma unroll
        for (int i = 1; i < levels; i++) {
            if (!(count >> i & 1)) continue;
            x = some ? combine(a, level[i], x) : level[i];
            some = true;
        }
        return x;
    }
};

/* Addresses of row r of a work item in O and LSE, computed before the last tile arrives. */
struct OutputRow {
    int h;
    bool inside; /* true = the row's query is below q_len */
    bool exists; /* true = O has this row. Unless packed, O also has rows past q_len, which get zeros */
    u64 o, lse;

    FXA_INLINE OutputRow(const FxaArgs &a, const DecodeWork &at, int r) : h(at.q_head(a, r))
    {
        const int q = at.query(a, r);
        inside = q < at.q_len;
        exists = inside || !q_starts(a);
        o = (u64)rows_of(a.o, at.b, h, at.q_first + q);
        lse = (u64)(a.lse + (at.b * a.lse_b + h * a.lse_h + (at.q_first + q) * a.lse_s));
    }
    /* Makes the compiler compute both addresses here. */
    FXA_INLINE void find()
    {
        keep(o);
        keep(lse);
    }
};

/* Writes LSE and the elements d to d + 3 of a row of O, from the sum x over all keys. */
FXA_INLINE void write_row(const FxaArgs &a, const OutputRow &to, int d, const PartialResult &x)
{
    const SoftmaxEpilogue end(a, to.h, finite_or_zero(x.stat.x), Program::unit(a), BIAS, x.stat.y);
    if (!to.exists) return;
    const bool some = to.inside && end.factor != 0.f;
    store_pair((u16 *)to.o, d, a.dv, some ? pack16(x.o.x * end.factor, x.o.y * end.factor) : 0);
    store_pair((u16 *)to.o, d + 2, a.dv, some ? pack16(x.o.z * end.factor, x.o.w * end.factor) : 0);
    if (d == 0) *(float *)to.lse = to.inside ? end.lse : NEG_INF;
}

/* Returns the index of element d of row r in the O that the warps with key part `key_warp` write to shared memory. A
 * warp writes the rows r, r + 2, r + 4 and r + 6 at once; they are in different banks. */
FXA_INLINE int out_index(int key_warp, int r, int d)
{
    static_assert(FXA_DV % 32 == 0, "columns are exchanged within 32");
    return (key_warp * ROWS + r) * FXA_DV + (d ^ (r >> 1 & 3) << 3);
}

/* Returns the sum of the partial results of this CTA's warps, for the elements d to d + 3 of row r. */
FXA_INLINE PartialResult combine_warps(const FxaArgs &a, const float *out, const Float2 *stats, int r, int d)
{
    PartialResult all = {{NEG_INF, 0.f}, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll
    for (int w = 0; w < KEY_WARPS; w++) all.stat.x = fmaxf(all.stat.x, stats[w * ROWS + r].x);
#pragma unroll
    for (int w = 0; w < KEY_WARPS; w++) {
        const Float2 stat = stats[w * ROWS + r];
        const float weight = combine_weight(a, stat.x, all.stat.x);
        all.stat.y = __fmaf_rn(weight, stat.y, all.stat.y);
        all.o = plus_weighted(all.o, weight, *(const Float4 *)(out + out_index(w, r, d)));
    }
    return all;
}

/* Writes a partial result to O, or to the workspace if several work items compute the row group (set of query rows). */
FXA_INLINE void put_partial(const FxaArgs &a, const DecodeWork &at, const SplitIndex &index, int r, int d,
                            const PartialResult &x)
{
    if (index.parts == 1) return write_row(a, OutputRow(a, at, r), d, x);
    const long long row = (long long)(index.first_part + index.part) * ROWS + r;
    *(Float4 *)(a.partial + row * FXA_DV + d) = x.o;
    if (d == 0) *(Float2 *)(a.partial_ml + row * 2) = x.stat;
}

enum {
    RUN_LEVELS = 4,                     /* levels of the tree that adds the splits of a work item */
    COMBINE_LEVELS = 3,                 /* levels of the tree that adds sums of COMBINE_LOADS work items */
    COMBINE_LOADS = 1 << COMBINE_LEVELS /* results of work items that a thread loads at once */
};
static_assert(1 << RUN_LEVELS == FXA_DECODE_MAX_RUN, "a SplitTree has the splits of a work item");

/* Sum over the splits (parts of the keys) of a work item; add() is called at the end of each split. */
struct SplitSums {
    SplitTree<RUN_LEVELS> fold; /* KEEPS_SUMS: sums over the splits, for this thread's four elements of O */

    FXA_INLINE void add(const FxaArgs &a, const DecodeWork &at, const float *out, const Float2 *stats)
    {
        u32 thread = threadIdx.x;
        keep(thread); /* keeps addresses that depend on `thread` out of registers in the loop over tiles */
#pragma unroll 1
        for (int e = thread; e < at.rows * (FXA_DV / 4); e += CONSUMERS) {
            const int r = e / (FXA_DV / 4), d = e % (FXA_DV / 4) * 4;
            const PartialResult x = combine_warps(a, out, stats, r, d);
            if (!KEEPS_SUMS) {
                put_partial(a, at, at.index(a), r, d, x);
                continue;
            }
            fold.add(a, x);
            break;
        }
    }
    FXA_INLINE void put_shared(const FxaArgs &a, u32 base) const
    {
        const u32 to = base + threadIdx.x * 32;
        const PartialResult x = fold.all(a);
        store_shared_float4(to, x.o.x, x.o.y, x.o.z, x.o.w);
        store_shared_float4(to + 16, x.stat.x, x.stat.y, 0.f, 0.f);
    }
    /* Returns the row of this thread's four elements of O, for row groups (sets of query rows) that one work item
     * computes. */
    FXA_INLINE static int row(const DecodeWork &at)
    {
        return min((int)threadIdx.x / (FXA_DV / 4), at.rows - 1);
    }
    FXA_INLINE void write(const FxaArgs &a, const DecodeWork &at, const OutputRow &to) const
    {
        if ((int)threadIdx.x / (FXA_DV / 4) < at.rows) write_row(a, to, threadIdx.x % (FXA_DV / 4) * 4, fold.all(a));
    }
    FXA_INLINE void put(const FxaArgs &a, const DecodeWork &at, const SplitIndex &index) const
    {
        const int r = threadIdx.x / (FXA_DV / 4), d = threadIdx.x % (FXA_DV / 4) * 4;
        if (KEEPS_SUMS && r < at.rows) put_partial(a, at, index, r, d, fold.all(a));
    }
};

/* Returns the sum of the partial results x[0] to x[left - 1]; the others do not exist. Overwrites x. */
FXA_INLINE PartialResult combine_tree(const FxaArgs &a, PartialResult (&x)[COMBINE_LOADS], int left)
{
#pragma unroll
    for (int step = 1; step < COMBINE_LOADS; step *= 2)
#pragma unroll
        for (int i = 0; i + step < COMBINE_LOADS; i += 2 * step)
            if (i + step < left) x[i] = combine(a, x[i], x[i + step]);
    return x[0];
}

/* Adds up all parts (sums of work items) of a row group and writes O. */
FXA_INLINE void combine_partials(const FxaArgs &a, const DecodeWork &at, const SplitIndex &index)
{
    const long long first = (long long)index.first_part * ROWS;
#pragma unroll 1
    for (int e = threadIdx.x; e < at.rows * (FXA_DV / 4); e += CONSUMERS) {
        const int r = e / (FXA_DV / 4), d = e % (FXA_DV / 4) * 4;
        const Float2 *stat = (const Float2 *)a.partial_ml + first + r;
        const Float4 *o = (const Float4 *)(a.partial + (first + r) * FXA_DV + d);
        SplitTree<COMBINE_LEVELS> fold; /* each added result is the sum of COMBINE_LOADS work items */
#pragma unroll 1
        for (int left = index.parts; left > 0; left -= COMBINE_LOADS) {
            PartialResult x[COMBINE_LOADS];
#pragma unroll
            for (int i = 0; i < COMBINE_LOADS; i++) {
                const int s = i < left ? i * ROWS : 0;
                x[i] = PartialResult{stat[s], o[s * (FXA_DV / 4)]};
            }
            fold.add(a, combine_tree(a, x, left));
            stat += COMBINE_LOADS * ROWS;
            o += COMBINE_LOADS * ROWS * (FXA_DV / 4);
        }
        write_row(a, OutputRow(a, at, r), d, fold.all(a));
    }
}

/* Adds up the results of a cluster's CTAs and writes O. Each CTA has stored its result in its own shared memory, in
 * place of the key tiles; each CTA adds up some of the elements of O over all CTAs. */
FXA_INLINE void combine_cluster(const FxaArgs &a, u32 base)
{
    constexpr int CTA_QUADS = (QUADS + CLUSTER - 1) / CLUSTER;
    const DecodeWork at(a, blockIdx.x);
    const int e = (int)(blockIdx.x % CLUSTER) * CTA_QUADS + threadIdx.x, r = e / (FXA_DV / 4);
    const bool some = threadIdx.x < CTA_QUADS && r < at.rows;
    PartialResult x[COMBINE_LOADS];
    cluster_arrive<CLUSTER>();
    OutputRow to(a, at, some ? r : 0);
    to.find();
    cluster_wait<CLUSTER>();
    if (some) {
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            const u32 from = cluster_address(base + e * 32, i);
            const Float4 stat = load_cluster_float4(from + 16);
            x[i] = PartialResult{{stat.x, stat.y}, load_cluster_float4(from)};
        }
        x[0] = combine_tree(a, x, CLUSTER);
    }
    cluster_arrive<CLUSTER>(); /* this CTA has read the shared memory of the others */
    if (some) write_row(a, to, e % (FXA_DV / 4) * 4, x[0]);
    cluster_wait<CLUSTER>(); /* the others have read this CTA's shared memory, which its exit releases */
}

constexpr u64 PARTIAL_READY = 0xB5297A4D68E31DA5ull;

/*
 * Publishes a part (the sum of a work item) that this CTA has stored. Returns true if all parts of the row group are
 * stored, in which case this CTA combines them. Each part has a flag, which is PARTIAL_READY once the part is in memory
 * and any other value before, so that flags need no initialization. The CTA whose fence is last in the row group sees
 * all flags set; other CTAs may see them set too, and then write the same bits. A CTA that sees all flags set resets
 * them for the next run. All consumer threads call this function after their stores.
 */
FXA_INLINE bool publish_partial(const FxaArgs &a, const SplitIndex &index, int *all_ready)
{
    u64 *flags = (u64 *)a.redo + index.first_part;
    __threadfence();
    consumers_sync();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            *(volatile u64 *)(flags + index.part) = PARTIAL_READY;
            fence_in_order();
        }
        __syncwarp();
        bool all = true;
        for (int s = threadIdx.x; s < index.parts; s += 32) all &= load_flag(flags + s) == PARTIAL_READY;
        all = __all_sync(~0u, all);
        for (int s = threadIdx.x; all && s < index.parts; s += 32) *(volatile u64 *)(flags + s) = 0;
        if (threadIdx.x == 0) *all_ready = all;
    }
    consumers_sync();
    if (!*all_ready) return false;
    __threadfence();
    return true;
}

} // namespace

#endif
