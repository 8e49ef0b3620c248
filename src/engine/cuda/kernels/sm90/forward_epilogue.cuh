/* SPDX-License-Identifier: Apache-2.0
 *
 * What a consumer warpgroup of the Hopper forward kernel has of its 64 query rows, and their end: LSE, whether a row
 * must be visited again (common/fixed_max.cuh, common/nonfinite.cuh), O staged and stored. sm90/forward_mainloop.cuh is
 * what comes before it.
 */
#ifndef FXA_CUDA_SM90_FORWARD_EPILOGUE_CUH
#define FXA_CUDA_SM90_FORWARD_EPILOGUE_CUH

#include "sm90/forward_shared.cuh"

namespace {

struct ForwardRows : TileOwner {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    Program program;
    int group, warp, lane;
    int masked, total; /* tiles through the step for masks, all */
    u32 step, turn, stored; /* stored: turn whose Q buffer the last store of O still reads */
    u32 pending; /* PASSES: whose weights wait for their product with V, where steps with masks are */
    bool storing;
    int q0; /* this thread's first row */
    u64 q_operand;
    float unit, row_max[2], row_sum[2], fade[2]; /* fade: by what O shrinks when the maximum grows */
    float o[FXA_DV / 2];
    u32 p[BN / 4];

    FXA_INLINE ForwardRows(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, int group_)
        : maps(maps_), a(a_), sh(sh_), group(group_), warp((threadIdx.x & 127) >> 5), lane(find_lane()),
          step(JOINED ? ~0u : 0u), turn(0), stored(0), storing(false), unit(Program::unit(a_))
    {
    }

    /* With few registers left the lane is something that the compiler must keep: else it reads it off the thread's
     * number again in every step, between the products that the other warpgroups wait for (3.5 % of a soft cap). Where
     * it has some, that is one fewer for the chains of softcap_series(). */
    static FXA_INLINE int find_lane()
    {
        const int lane = threadIdx.x & 31;
        return BOUNDED && SMALL ? __shfl_sync(~0u, lane, lane) : lane;
    }

    FXA_INLINE void give_back(u32 empty, bool held = true) const
    {
        __syncwarp();
        if ((lane == 0) & held) barrier_arrive(empty);
    }

    FXA_INLINE int row_in_tile() const { return group * 64 + warp * 16 + (lane >> 2); }

    /* What has to be known of the rows before anything is asked of their pairs. */
    FXA_INLINE void begin_rows(int m)
    {
        own(sh.slot(turn));
        q0 = m * BM + row_in_tile();
        program.head(a, b, h, q_len, k_len);
        masked = sh.slot(turn).partial();
        total = sh.slot(turn).total();
    }

    /* What is taken off the exponents of a visit beside the maximum. */
    static FXA_INLINE float bias(int tile)
    {
        return tile & (UP | DOWN) ? fixed_max_mark_bias(FXA_F16) : tile & SAFE ? fixed_max_bias(FXA_F16) : 0.f;
    }

    static FXA_INLINE int values_of(int tile)
    {
        return tile & UP ? VALUES_POS_INF : tile & DOWN ? VALUES_NEG_INF : VALUES_FINITE;
    }

    /* Whether row half r left the range in which the frozen maximum is harmless (common/fixed_max.cuh). froze: it is
     * frozen. */
    FXA_INLINE bool left_range(int r, float sum, bool froze) const
    {
        /* exp2_by_fma knows no infinity; with a cap near the end of f32 the unit is not 1 (codegen/host_values.c) */
        const bool wild = (EMULATE || PROG_SOFTCAP_HAS_UNIT) && !(score_bound(a) < (EMULATE ? 126.f : 1e37f));
        const bool guessed = BOUNDED ? !(score_bound(a) < 64.f) : froze && row_max[r] == NEG_INF;
        return is_fixed_max_wrong(FXA_F16, finite_or_zero(row_max[r]) * unit, sum, guessed, a.sink != 0) || wild;
    }

    /* Flags the tile when a row of this warp left that range, or when its O is not finite. */
    FXA_INLINE void flag_redo(int tile, const bool (&bad)[2]) const
    {
        bool any = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool row = (q0 + 8 * r < q_len) & bad[r];
            any |= row;
        }
        if (!__any_sync(~0u, any) || lane) return;
        *(volatile int *)(a.redo + tile) = (int)blockIdx.x + 1;
        store_shared(sh.flag(), 1);
    }

    /* What a visit for infinities has found, 16 staged rows, goes into O, which the visits before it have stored. */
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
        async_fence(); /* Q comes where they were staged */
    }

    FXA_INLINE void store_lse(const float (&lse)[2]) const
    {
        float *to = a.lse + b * a.lse_b + h * a.lse_h + (q_first + q0) * a.lse_s;
        const int end = q_starts(a) ? q_len : a.q_len;
        if ((lane & 3) == 0 && q0 < end) to[0] = q0 < q_len ? lse[0] : NEG_INF;
        if ((lane & 3) == 0 && q0 + 8 < end) to[8 * a.lse_s] = q0 + 8 < q_len ? lse[1] : NEG_INF;
    }

    /* LSE of the rows and what their O is multiplied by where there is no sink, in a first visit: SoftmaxEpilogue for
     * both at once and without a branch, so that all of it is done while the last product runs. A reciprocal that is
     * mended once is as good as a quotient here: sums that have none leave their range. */
    FXA_INLINE void end_rows_plain(const float (&sum)[2], float (&factor)[2]) const
    {
        float lse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float one = reciprocal_free(sum[r]), mended = __fmaf_rn(one, __fmaf_rn(-sum[r], one, 1.f), one);
            const float top = finite_or_zero(row_max[r]) * unit;
            const bool any = sum[r] != 0.f;
            factor[r] = any & (q0 + 8 * r < q_len) ? mended * (FXA_DROPOUT ? a.keep_inverse : 1.f) : 0.f;
            lse[r] = any ? (top + log2_fast(sum[r])) * LN2 : NEG_INF;
        }
        store_lse(lse);
    }

    /* With a sink, or in a safe visit: both rows by one copy of what SoftmaxEpilogue takes, a tenth of a forward's
     * code. */
    FXA_INLINE void end_rows_any(int tile, const float (&sum)[2], float (&factor)[2]) const
    {
        float lse[2];
#pragma unroll 1
        for (int r = 0; r < 2; r++) {
            const SoftmaxEpilogue end(a, h, finite_or_zero(r ? row_max[1] : row_max[0]), unit, bias(tile),
                                      r ? sum[1] : sum[0]);
            factor[0] = factor[1];
            factor[1] = q0 + 8 * r < q_len ? end.factor : 0.f;
            if (tile & (UP | DOWN)) factor[1] = end.factor > 0.f ? 1.f : 0.f; /* one of NaN, or of its sink, stays so */
            lse[0] = lse[1];
            lse[1] = end.lse;
        }
        if (!(tile & (UP | DOWN))) store_lse(lse);
    }

    /* LSE of the rows, what their O is multiplied by, and whether they left their range: all but O itself. */
    FXA_INLINE void end_rows(int tile, float (&factor)[2], bool (&bad)[2]) const
    {
        const float sum[2] = {quad_sum(row_sum[0]), quad_sum(row_sum[1])};
        const bool froze = sh.slot(turn).total() > sh.slot(turn).partial();
        u32 left = (left_range(0, sum[0], froze) ? 1 : 0) | (left_range(1, sum[1], froze) ? 2 : 0);
        keep(left); /* here, not behind the product */
        bad[0] = left & 1;
        bad[1] = left & 2;
        if ((tile & SAFE) || a.sink)
            end_rows_any(tile, sum, factor);
        else
            end_rows_plain(sum, factor);
    }

    /* Stages O in the Q buffer and stores it, each warp its own 16 rows; a tile to be visited again is flagged. */
    FXA_INLINE void store_rows(int tile, int m, const float (&factor)[2], bool (&bad)[2])
    {
        const int row = m * BM + group * 64 + warp * 16; /* of the warp */
        const u32 rows = sh.q(turn) + (group * 64 + warp * 16) * 128;
        storing = true;
        stored = turn;
        if (tile & SAFE) { /* what the visits before this one have stored has to be there first */
            if (lane == 0) bulk_wait();
            __syncwarp();
        }
        u32 spoilt[2] = {};
        stage_rows<BM>(rows, o, factor[0], factor[1], spoilt);
        bad[0] |= spoilt[0] != 0;
        bad[1] |= spoilt[1] != 0;
        if (tile & (UP | DOWN))
            put_marks(tile, rows, row);
        else
            store_staged<BM, FXA_DV>(&maps.o, a.o, Rows(q_starts(a), q_first, row, h, b), rows, q_len - row, a.dv);
        if (!(tile & SAFE)) flag_redo(tile, bad);
    }
};

} // namespace

#endif
