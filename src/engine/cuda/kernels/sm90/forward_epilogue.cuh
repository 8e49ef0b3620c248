/* SPDX-License-Identifier: Apache-2.0
 *
 * Epilogue of a consumer warpgroup of the Hopper forward kernel: computes LSE of the warpgroup's 64 query rows, checks
 * if a row has to be recomputed (common/fixed_max.cuh, common/nonfinite.cuh), and stores O through shared memory.
 * sm90/forward_mainloop.cuh derives the mainloop from this struct.
 */
#ifndef FXA_CUDA_SM90_FORWARD_EPILOGUE_CUH
#define FXA_CUDA_SM90_FORWARD_EPILOGUE_CUH

#include "sm90/forward_shared.cuh"

namespace {

struct ForwardEpilogue : TileCoordinates {
    const FxaMaps &maps;
    const FxaArgs &a;
    ForwardShared sh;
    Program program;
    int group, warp, lane;
    int masked;               /* number of key tiles that run as masked steps */
    int total;                /* number of key tiles */
    u32 step, q_step;         /* current steps of the rings of K and V, and of Q (sm90/pipeline.cuh) */
    u32 stored;               /* step of the Q buffer from which O of the previous query tile was stored */
    u32 pending;              /* used with SKIPS_TILES: step of the V tile that P has not been multiplied by yet */
    bool storing;
    int q0; /* first query of this thread; its second query is q0 + 8 */
    u64 q_descriptor;
    float unit, row_max[2], row_sum[2], rescale[2]; /* unit: factor of scores; rescale: factor of O */
    float o[FXA_DV / 2];
    u32 p[BN / 4];

    FXA_INLINE ForwardEpilogue(const FxaMaps &maps_, const FxaArgs &a_, ForwardShared sh_, int group_)
        : maps(maps_), a(a_), sh(sh_), group(group_), warp((threadIdx.x & 127) >> 5), lane(find_lane()),
          step(MERGED_STEP ? ~0u : 0u), q_step(0), stored(0), storing(false), unit(Program::unit(a_))
    {
    }

    /* Returns the lane number. With few registers left, a shuffle hides the lane number from the compiler, which
     * otherwise recomputes it from threadIdx in every step (3.5 % of the time of a soft cap). In other kernels
     * registers suffice, and there is no shuffle, because its result would occupy a register that softcap_series()
     * needs. */
    static FXA_INLINE int find_lane()
    {
        const int lane = threadIdx.x & 31;
        return BOUNDED && SMALL ? __shfl_sync(~0u, lane, lane) : lane;
    }

    FXA_INLINE void release(u32 empty, bool condition = true) const
    {
        __syncwarp();
        if ((lane == 0) & condition) barrier_arrive(empty);
    }

    FXA_INLINE int row_in_tile() const { return group * 64 + warp * 16 + (lane >> 2); }

    /* Reads the coordinates of a query tile and computes the members of `program` for the tile, before the score
     * program runs. */
    FXA_INLINE void begin_tile(int m)
    {
        read_coordinates(sh.slot(q_step));
        q0 = m * BM + row_in_tile();
        program.head(a, b, h, q_len, k_len);
        masked = sh.slot(q_step).partial();
        total = sh.slot(q_step).total();
    }

    /* Returns the bias that is subtracted from exponents in addition to the maximum. The bits RECOMPUTE and MARK_* of
     * `tile` select it: for a pass that finds infinities of V, another recompute pass, or the first pass. */
    static FXA_INLINE float bias(int tile)
    {
        return tile & (MARK_POS_INF | MARK_NEG_INF) ? fixed_max_mark_bias(FXA_F16)
               : tile & RECOMPUTE                   ? fixed_max_bias(FXA_F16)
                                                    : 0.f;
    }

    static FXA_INLINE int values_of(int tile)
    {
        return tile & MARK_POS_INF ? VALUES_POS_INF : tile & MARK_NEG_INF ? VALUES_NEG_INF : VALUES_FINITE;
    }

    /* Returns true if row q0 + 8 r left the range in which a fixed maximum is correct (common/fixed_max.cuh). sum: the
     * row's sum of weights; was_fixed: the maximum was fixed before the last key tile */
    FXA_INLINE bool is_out_of_range(int r, float sum, bool was_fixed) const
    {
        /* True in two cases: scores may leave the range of exp2_by_fma(), which handles no infinity; or the soft
         * cap times log2(e) may overflow f32, in which case `unit` is 4 instead of 1 (codegen/host_values.c). */
        const bool overflows =
            (EMULATE_EXP2 || PROG_SOFTCAP_HAS_UNIT) && !(score_bound(a) < (EMULATE_EXP2 ? 126.f : 1e37f));
        const bool guessed = BOUNDED ? !(score_bound(a) < 64.f) : was_fixed && row_max[r] == NEG_INF;
        return is_fixed_max_wrong(FXA_F16, finite_or_zero(row_max[r]) * unit, sum, guessed, a.sink != 0) || overflows;
    }

    /* Flags the query tile for a recompute pass if a row of this warp is bad: is_out_of_range() is true for the row, or
     * O of the row is not finite. */
    FXA_INLINE void flag_recompute(int tile, const bool (&bad)[2]) const
    {
        bool any = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool row = (q0 + 8 * r < q_len) & bad[r];
            any |= row;
        }
        if (!__any_sync(~0u, any) || lane) return;
        *(volatile int *)(a.redo + tile) = (int)blockIdx.x + 1;
        store_shared(sh.recompute_flag(), 1);
    }

    /* After a pass that finds infinities of V, `rows`, the warp's 16 rows in shared memory, has for each element of O
     * the sum of the weights of these infinities. Where the sum is not 0, put_mark() writes an infinity or NaN to O in
     * memory. */
    FXA_INLINE void put_marks(int tile, u32 rows, int row) const
    {
        const int count = min(q_len - row, 16);
        __syncwarp();
#pragma unroll 1
        for (int r = 0; r < count; r++) {
            Result *to = row_of(a.o, b, h, q_first + row + r);
#pragma unroll 1
            for (int c = lane; c < a.dv; c += 32)
                if (load_shared_half(swizzled<BM>(rows, r, c >> 3) + (c & 7) * 2)) put_mark(to + c, values_of(tile));
        }
        async_fence(); /* before TMA writes the next Q tile over these rows */
    }

    FXA_INLINE void store_lse(const float (&lse)[2]) const
    {
        float *to = a.lse + b * a.lse_b + h * a.lse_h + (q_first + q0) * a.lse_s;
        const int end = q_starts(a) ? q_len : a.q_len;
        if ((lane & 3) == 0 && q0 < end) to[0] = q0 < q_len ? lse[0] : NEG_INF;
        if ((lane & 3) == 0 && q0 + 8 < end) to[8 * a.lse_s] = q0 + 8 < q_len ? lse[1] : NEG_INF;
    }

    /* Computes LSE of this thread's two rows and the factor of their O, without a sink and outside of recompute passes.
     * The operations are those of SoftmaxEpilogue for both rows at once, without a branch, while the last product runs.
     * A reciprocal with one Newton step is as exact as a division for all sums that is_out_of_range() accepts. */
    FXA_INLINE void row_factors_plain(const float (&sum)[2], float (&factor)[2]) const
    {
        float lse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float estimate = reciprocal_free(sum[r]),
                        refined = __fmaf_rn(estimate, __fmaf_rn(-sum[r], estimate, 1.f), estimate);
            const float top = finite_or_zero(row_max[r]) * unit;
            const bool any = sum[r] != 0.f;
            factor[r] = any & (q0 + 8 * r < q_len) ? refined * (FXA_DROPOUT ? a.keep_inverse : 1.f) : 0.f;
            lse[r] = any ? (top + log2_fast(sum[r])) * LN2 : NEG_INF;
        }
        store_lse(lse);
    }

    /* Computes LSE of this thread's two rows and the factor of their O, with a sink or in a recompute pass. The loop
     * over the two rows is not unrolled, because SoftmaxEpilogue is a tenth of the code of a forward kernel. */
    FXA_INLINE void row_factors_any(int tile, const float (&sum)[2], float (&factor)[2]) const
    {
        float lse[2];
#pragma unroll 1
        for (int r = 0; r < 2; r++) {
            const SoftmaxEpilogue end(a, h, finite_or_zero(r ? row_max[1] : row_max[0]), unit, bias(tile),
                                      r ? sum[1] : sum[0]);
            factor[0] = factor[1];
            factor[1] = q0 + 8 * r < q_len ? end.factor : 0.f;
            /* A NaN factor (from the sum or the sink) becomes 0, so that put_marks() leaves the NaN that an earlier
             * pass has stored in O. */
            if (tile & (MARK_POS_INF | MARK_NEG_INF)) factor[1] = end.factor > 0.f ? 1.f : 0.f;
            lse[0] = lse[1];
            lse[1] = end.lse;
        }
        if (!(tile & (MARK_POS_INF | MARK_NEG_INF))) store_lse(lse);
    }

    /* Computes for this thread's two rows all results except O: LSE, the factor of O, and `bad`: true =
     * is_out_of_range() for the row. */
    FXA_INLINE void row_factors(int tile, float (&factor)[2], bool (&bad)[2]) const
    {
        const float sum[2] = {quad_sum(row_sum[0]), quad_sum(row_sum[1])};
        const bool was_fixed = sh.slot(q_step).total() > sh.slot(q_step).partial();
        u32 out_of_range =
            (is_out_of_range(0, sum[0], was_fixed) ? 1 : 0) | (is_out_of_range(1, sum[1], was_fixed) ? 2 : 0);
        keep(out_of_range); /* makes the compiler compute out_of_range here, while the product runs */
        bad[0] = out_of_range & 1;
        bad[1] = out_of_range & 2;
        if ((tile & RECOMPUTE) || a.sink)
            row_factors_any(tile, sum, factor);
        else
            row_factors_plain(sum, factor);
    }

    /* Writes O to the Q buffer and stores it from there to memory, each warp its own 16 rows. Flags a query tile that
     * has to be recomputed. */
    FXA_INLINE void store_rows(int tile, int m, const float (&factor)[2], bool (&bad)[2])
    {
        const int row = m * BM + group * 64 + warp * 16; /* first row of the warp */
        const u32 rows = sh.q(q_step) + (group * 64 + warp * 16) * 128;
        storing = true;
        stored = q_step;
        if (tile & RECOMPUTE) { /* the stores of earlier passes must have arrived */
            if (lane == 0) bulk_wait();
            __syncwarp();
        }
        u32 nonfinite[2] = {};
        rows_to_shared<BM>(rows, o, factor[0], factor[1], nonfinite);
        bad[0] |= nonfinite[0] != 0;
        bad[1] |= nonfinite[1] != 0;
        if (tile & (MARK_POS_INF | MARK_NEG_INF))
            put_marks(tile, rows, row);
        else
            store_shared_rows<BM, FXA_DV>(&maps.o, a.o, TmaRows(q_starts(a), q_first, row, h, b), rows, q_len - row,
                                          a.dv);
        if (!(tile & RECOMPUTE)) flag_recompute(tile, bad);
    }
};

} // namespace

#endif
