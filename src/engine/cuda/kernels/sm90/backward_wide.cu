/* SPDX-License-Identifier: Apache-2.0
 *
 * dK and dV on Hopper for head dimensions above 128, whose accumulators do not fit beside each other: a CTA owns 64
 * keys, one consumer warpgroup computes S^T, P and dV (WideScores), the other dP^T, dS and dK (WideGradients). What the
 * second needs of P goes from thread to the same thread of the other warpgroup through shared memory, in 16 bits: P
 * times the slope. dQ comes from sm90/dq.cu, so the backward is bit-stable.
 *
 * Gradients of captured tensors are not computed here. Launch: see common/backward_tile.cuh.
 */
#include "sm90/backward_wide_shared.cuh"
#include "common/dropout.cuh"
#include "common/operand_loads.cuh"

namespace {

/* ---- Copies ----------------------------------------------------------------------------------------------------- */

FXA_INLINE void copy_block(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const Place &at, int h, int m,
                           bool partial, u32 step)
{
    const long long row = at.workspace_row(a, h) + m * BQ;
    const Rows rows(q_starts(a), at.q_first, m * BQ, h, at.b);
    const u32 full = sh.q_ring().full(step);
    sh.q_ring().wait_empty(step);
    put_word(sh.number(step), m | (partial ? PARTIAL : 0));
    put_word(sh.number(step) + 4, h);
    barrier_expect(full, Q_BYTES + BQ * 4);
    tma_load_tile<BQ, FXA_D>(sh.q(step), &maps.q, full, rows, CACHE_KEEP);
    bulk_load(sh.lse(step), a.lse2 + row, BQ * 4, full);
    load_grad_o<BQ>(maps, a, sh, rows, row, step);
}

FXA_INLINE void copy_all(const FxaMaps &maps, const FxaArgs &a, const Shared &sh, const Place &at)
{
    const Rows rows(k_starts(a), at.k_first, at.n * BK, at.kv_h, at.b);
    u32 step = 0;
    barrier_expect(sh.kv_full(), K_BYTES + V_BYTES);
    tma_load_tile<BK, FXA_D>(sh.k(), &maps.k, sh.kv_full(), rows, CACHE_KEEP);
    tma_load_tile<BK, FXA_DV>(sh.v(), &maps.v, sh.kv_full(), rows, CACHE_KEEP);
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        for (int j = 0; j < row.total; j++, step++)
            copy_block(maps, a, sh, at, h, row.tile(j), j < row.partial, step);
    }
}

/* ---- What both warpgroups have ---------------------------------------------------------------------------------- */

struct Worker {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    Place at;
    int warp, lane;

    FXA_INLINE Worker(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, const Place &at_)
        : maps(maps_), a(a_), sh(sh_), at(at_), warp((threadIdx.x & 127) >> 5), lane(threadIdx.x & 31)
    {
    }

    /* Queries past the last one of the entry count for nothing (clear_rows); for each warpgroup itself. */
    template <int columns> FXA_INLINE void clear_queries(u32 tile, int m, int group) const
    {
        const int queries = at.q_len - m * BQ;
        if (queries >= BQ || !loose_queries(a)) return;
        clear_rows<BQ, columns>(tile, queries, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    /* The gradient of the tile's 64 rows through the buffer of K or V. Rows past the last key may hold anything. */
    template <int columns, int n>
    FXA_INLINE void store_gradient(const FxaMap *map, const FxaView &t, u32 tile, const float (&x)[n], float scale,
                                   int d) const
    {
        const int first = at.n * BK + warp * 16, k = first + (lane >> 2);
        give_back(sh.kv_read());
        barrier_wait(sh.kv_read(), 0);
        stage_rows<BK>(tile + warp * 16 * 128, x, k < at.k_len ? scale : 0.f, k + 8 < at.k_len ? scale : 0.f);
        store_staged<BK, columns>(map, t, Rows(k_starts(a), at.k_first, first, at.kv_h, at.b), tile + warp * 16 * 128,
                                  at.k_len - first, d);
        if (lane == 0) bulk_wait();
    }
};

/* ---- S, P, dV --------------------------------------------------------------------------------------------------- */

struct WideScores : Worker {
    Program program;
    float unit, dv[FXA_DV / 2];
    u32 p[BQ / 4];
    int h, last; /* last: block whose P waits for its product */

    FXA_INLINE WideScores(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, const Place &at_)
        : Worker(maps_, a_, sh_, at_), unit(Program::unit(a_)), h(-1), last(0)
    {
#pragma unroll
        for (int i = 0; i < FXA_DV / 2; i++) dv[i] = 0.f;
    }

    /* S to P; P times the slope, in 16 bits, to `steep`. */
    template <bool MASKED> FXA_INLINE void probabilities(float (&s)[BQ / 2], u32 (&steep)[BQ / 4], int m, u32 step)
    {
        constexpr bool WORDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + warp * 16 + (lane >> 2);
        const OperandLoads loads(a, at.b, h, at.q_len, at.k_len);
        const int k_word[2] = {WORDS ? __ldg(loads.k_words + k0) : 0, WORDS ? __ldg(loads.k_words + k0 + 8) : 0};
        const int queries[2] = {k0 < at.k_len ? at.q_len - q0 : 0, k0 + 8 < at.k_len ? at.q_len - q0 : 0};
        if (PAIRS_READ_PROGRAM || MASKED) program.tile(a, q0, k0);
        softcap_all(program, a, s, !MASKED || (k0 + 8 < at.k_len && (m + 1) * BQ <= at.q_len));
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 lse = load_shared_float2(sh.lse(step) + (lane & 3) * 8 + j * 32);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float product[2];
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const int c = j * 8 + x, i = j * 4 + r * 2 + x;
                    const Pair pair = {q0 + c, k0 + 8 * r, c, 8 * r,
                                       PROG_DIAGONAL ? __ldg(loads.diagonal + q0 - k0 + c - 8 * r) : 0.f,
                                       PROG_DENSE ? loads.dense_at(a, q0 + c, k0 + 8 * r) : 0.f,
                                       WORDS ? __ldg(loads.q_words + q0 + c) : 0, k_word[r]};
                    float slope;
                    const float value = score_value<true>(program, a, s[i], pair, slope);
                    float w = exp2_fast(__fmaf_rn(value, unit, -(x ? lse.y : lse.x)));
                    if (MASKED && !((c < queries[r]) & score_mask(program, a, pair))) w = slope = 0.f;
                    product[x] = times_derivative(w, slope);
                    s[i] = w;
                }
                steep[j * 2 + r] = pack16(product[0], product[1]);
            }
        }
    }

    /* To the other warpgroup: what dP is multiplied by, and which pairs are kept. */
    FXA_INLINE void hand_over(const u32 (&steep)[BQ / 4], u32 step, u32 kept) const
    {
        const u32 at_ = sh.exchange(step) + (threadIdx.x & 127) * 16;
        sh.x_ring().wait_empty(step);
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_shared_words(at_ + i * 2048, steep[4 * i], steep[4 * i + 1], steep[4 * i + 2], steep[4 * i + 3]);
        if (FXA_DROPOUT) store_shared(sh.exchange(step) + 8192 + (threadIdx.x & 127) * 4, (int)kept);
        barrier_arrive(sh.x_ring().full(step));
    }

    /* Before any product: a barrier between two of them would serialise them. */
    FXA_INLINE void clear_grad_o(u32 step) const
    {
        if (!loose_queries(a)) return;
        sh.o_ring().wait_full(step);
        clear_queries<FXA_DV>(sh.grad_o(step), last, 0);
    }

    FXA_INLINE void issue_dv(u32 step)
    {
        sh.o_ring().wait_full(step);
        issue_sum<BQ>(dv, p, sh.grad_o(step));
    }

    FXA_INLINE void finish_dv(u32 step)
    {
        wgmma_wait<0>();
        settle(dv);
        settle(p);
        give_back(sh.o_ring().empty(step));
    }

    /* S of this step beside dV of the last one. */
    template <bool FIRST> FXA_INLINE void visit(u32 step)
    {
        float s[BQ / 2];
        u32 steep[BQ / 4];
        sh.q_ring().wait_full(step);
        const int number = take_word(sh.number(step)), m = number & ~PARTIAL, head = take_word(sh.number(step) + 4);
        if (!FIRST) clear_grad_o(step - 1);
        issue_rows<FXA_D, BK, BQ>(s, sh.k(), sh.q(step));
        if (!FIRST) issue_dv(step - 1);
        if (head != h) program.head(a, at.b, head, at.q_len, at.k_len);
        h = head;
        const int k0 = at.n * BK + warp * 16 + (lane >> 2);
        const u32 kept = FXA_DROPOUT ? kept_of_column(a, at.b, h, m * BQ, k0) : 0;
        wgmma_wait<FIRST ? 0 : 1>();
        settle(s);
        if (number & PARTIAL)
            probabilities<true>(s, steep, m, step);
        else
            probabilities<false>(s, steep, m, step);
        give_back(sh.q_ring().empty(step));
        if (!FIRST) finish_dv(step - 1);
        last = m;
#pragma unroll
        for (int i = 0; i < BQ / 4; i++) /* only now: the last product read p */
            p[i] = pack16(keeps(kept, 2 * i) ? s[2 * i] : 0.f, keeps(kept, 2 * i + 1) ? s[2 * i + 1] : 0.f);
        hand_over(steep, step, kept);
    }

    FXA_INLINE void run()
    {
        const u32 blocks = (u32)at.blocks(a);
        barrier_wait(sh.kv_full(), 0);
        if (a.turned) {
            turn_rows<BK, FXA_D>(a, sh.k());
            named_sync(BAR_CLEAR, 128);
        }
        if (blocks) {
            visit<true>(0);
#pragma unroll 1
            for (u32 step = 1; step < blocks; step++) visit<false>(step);
            clear_grad_o(blocks - 1);
            issue_dv(blocks - 1);
            finish_dv(blocks - 1);
        }
        store_gradient<FXA_DV>(&maps.grad_v, a.grad_v, sh.v(), dv, FXA_DROPOUT ? a.keep_inverse : 1.f, a.dv);
    }
};

/* ---- dP, dS, dK ------------------------------------------------------------------------------------------------- */

struct WideGradients : Worker {
    float dk[FXA_D / 2];

    FXA_INLINE WideGradients(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, const Place &at_)
        : Worker(maps_, a_, sh_, at_)
    {
#pragma unroll
        for (int i = 0; i < FXA_D / 2; i++) dk[i] = 0.f;
    }

    FXA_INLINE u32 take_over(u32 (&p)[BQ / 4], u32 step) const
    {
        const u32 at_ = sh.exchange(step) + (threadIdx.x & 127) * 16;
        sh.x_ring().wait_full(step);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Word4 x = load_shared_words(at_ + i * 2048);
            p[4 * i] = x.x;
            p[4 * i + 1] = x.y;
            p[4 * i + 2] = x.z;
            p[4 * i + 3] = x.w;
        }
        const u32 kept = FXA_DROPOUT ? (u32)load_shared(sh.exchange(step) + 8192 + (threadIdx.x & 127) * 4) : 0;
        barrier_arrive(sh.x_ring().empty(step));
        return kept;
    }

    FXA_INLINE void score_gradients(float (&dp)[BQ / 2], const u32 (&p)[BQ / 4], u32 (&ds)[BQ / 4], u32 step,
                                    u32 kept) const
    {
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 delta = load_shared_float2(sh.delta(step) + (lane & 3) * 8 + j * 32);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = j * 4 + r * 2;
#pragma unroll
                for (int x = 0; x < 2; x++)
                    if (FXA_DROPOUT) dp[i + x] = keeps(kept, i + x) ? dp[i + x] * a.keep_inverse : 0.f;
                ds[j * 2 + r] = pack16(times_rest(unpack_low(p[j * 2 + r]), dp[i] - delta.x),
                                       times_rest(unpack_high(p[j * 2 + r]), dp[i + 1] - delta.y));
            }
        }
    }

    FXA_INLINE void visit(u32 step)
    {
        float dp[BQ / 2];
        u32 p[BQ / 4], ds[BQ / 4];
        sh.q_ring().wait_full(step);
        sh.o_ring().wait_full(step);
        const int m = take_word(sh.number(step)) & ~PARTIAL;
        clear_queries<FXA_DV>(sh.grad_o(step), m, 1);
        clear_queries<FXA_D>(sh.q(step), m, 1);
        issue_rows<FXA_DV, BK, BQ>(dp, sh.v(), sh.grad_o(step));
        const u32 kept = take_over(p, step);
        wgmma_wait<0>();
        settle(dp);
        score_gradients(dp, p, ds, step, kept);
        issue_sum<BQ>(dk, ds, sh.q(step));
        wgmma_wait<0>();
        settle(dk);
        settle(ds);
        give_back(sh.o_ring().empty(step));
        give_back(sh.q_ring().empty(step));
    }

    FXA_INLINE void run()
    {
        const u32 blocks = (u32)at.blocks(a);
        barrier_wait(sh.kv_full(), 0);
#pragma unroll 1
        for (u32 step = 0; step < blocks; step++) visit(step);
        store_gradient<FXA_D>(&maps.grad_k, a.grad_k, sh.k(), dk, run_scale(a), a.d);
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_backward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_backward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const Shared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) begin(maps, sh);
    launch_begin();
    const Place at(a);
    if (at.outside(a)) return;
    __syncthreads();
    if (group == 0) {
        registers_down<40>();
        if (__shfl_sync(~0u, (int)threadIdx.x >> 5, 0) == 0 && elected()) copy_all(maps, a, sh, at);
    } else {
        registers_up<232>();
        if (group == 1)
            WideScores(maps, a, sh, at).run();
        else
            WideGradients(maps, a, sh, at).run();
    }
}
