/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward on Hopper for head dims above 128: dK and dV of one key tile. The accumulators of dK and dV do not fit into
 * the registers of one warpgroup, so one consumer warpgroup computes S^T, P and dV (WideScores), the other one dP^T, dS
 * and dK (WideGradients).
 *
 * Grid: a CTA per tile of BK keys, KV head and batch entry (common/backward_tile.cuh); 384 threads. Warps: one lane of
 * the first warpgroup is the producer; the other two warpgroups are consumers. Pipeline: K and V are loaded once; Q and
 * dO have rings of STAGES query blocks (shared memory: sm90/backward_wide_shared.cuh). WideScores passes P *
 * derivative, in 16 bits, and the bits of the (q, k) pairs that dropout keeps through a ring in shared memory, from
 * each thread to the thread of equal index in WideGradients. Epilogue: dK and dV leave through the buffers of K and V.
 *
 *     WideScores      S(j+1), dV(j) | P(j+1) to the exchange ring
 *     WideGradients   dP(j) | dS(j) | dK(j)
 *
 * dQ comes from sm90/dq.cu, so the backward is deterministic. Gradients of captured tensors are not supported.
 */
#include "sm90/backward_wide_shared.cuh"
#include "common/dropout.cuh"
#include "common/operand_loads.cuh"

namespace {

/* ---- Producer ---------------------------------------------------------------------------------------------------- */

FXA_INLINE void load_block(const FxaMaps &maps, const FxaArgs &a, const WideShared &sh, const WideTile &at, int h,
                           int m, bool partial, u32 step)
{
    const long long row = at.workspace_row(a, h) + m * BQ;
    const TmaRows rows(q_starts(a), at.q_first, m * BQ, h, at.b);
    const u32 full = sh.q_ring().full(step);
    sh.q_ring().wait_empty(step);
    put_word(sh.block_entry(step), m | (partial ? PARTIAL : 0));
    put_word(sh.block_entry(step) + 4, h);
    barrier_expect(full, Q_BYTES + BQ * 4);
    tma_load_tile<BQ, FXA_D>(sh.q(step), &maps.q, full, rows, L2_EVICT_LAST);
    bulk_load(sh.lse(step), a.lse2 + row, BQ * 4, full);
    load_grad_o<BQ>(maps, a, sh, rows, row, step);
}

FXA_INLINE void produce(const FxaMaps &maps, const FxaArgs &a, const WideShared &sh, const WideTile &at)
{
    const TmaRows rows(k_starts(a), at.k_first, at.n * BK, at.kv_h, at.b);
    u32 step = 0;
    barrier_expect(sh.kv_full(), K_BYTES + V_BYTES);
    tma_load_tile<BK, FXA_D>(sh.k(), &maps.k, sh.kv_full(), rows, L2_EVICT_LAST);
    tma_load_tile<BK, FXA_DV>(sh.v(), &maps.v, sh.kv_full(), rows, L2_EVICT_LAST);
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        for (int j = 0; j < row.total; j++, step++) load_block(maps, a, sh, at, h, row.tile(j), j < row.partial, step);
    }
}

/* ---- Consumers --------------------------------------------------------------------------------------------------- */

struct WideConsumer {
    const FxaMaps &maps;
    const FxaArgs &a;
    WideShared sh;
    WideTile at;
    int warp, lane;

    FXA_INLINE WideConsumer(const FxaMaps &maps_, const FxaArgs &a_, WideShared sh_, const WideTile &at_)
        : maps(maps_), a(a_), sh(sh_), at(at_), warp((threadIdx.x & 127) >> 5), lane(threadIdx.x & 31)
    {
    }

    /* Sets the rows of a Q or dO tile past the last query to 0 (clear_rows), by one warpgroup that reads the tile. */
    template <int columns> FXA_INLINE void clear_queries(u32 tile, int m, int group) const
    {
        const int queries = at.q_len - m * BQ;
        if (queries >= BQ || !has_rows_past_q_len(a)) return;
        clear_rows<BQ, columns>(tile, queries, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    /* Stores dK or dV of the tile's 64 keys through the buffer of K or V. Accumulators of rows past the last key may be
     * undefined. */
    template <int columns, int n>
    FXA_INLINE void store_gradient(const FxaMap *map, const FxaView &t, u32 tile, const float (&x)[n], float scale,
                                   int d) const
    {
        const int first = at.n * BK + warp * 16, k = first + (lane >> 2);
        release(sh.kv_read());
        barrier_wait(sh.kv_read(), 0);
        rows_to_shared<BK>(tile + warp * 16 * 128, x, k < at.k_len ? scale : 0.f, k + 8 < at.k_len ? scale : 0.f);
        store_shared_rows<BK, columns>(map, t, TmaRows(k_starts(a), at.k_first, first, at.kv_h, at.b),
                                       tile + warp * 16 * 128, at.k_len - first, d);
        if (lane == 0) bulk_wait();
    }
};

/* ---- S, P, dV ---------------------------------------------------------------------------------------------------- */

struct WideScores : WideConsumer {
    Program program;
    float unit, dv[FXA_DV / 2];
    u32 p[BQ / 4];
    int h, last; /* last: query block whose P has not been multiplied by dO yet */

    FXA_INLINE WideScores(const FxaMaps &maps_, const FxaArgs &a_, WideShared sh_, const WideTile &at_)
        : WideConsumer(maps_, a_, sh_, at_), unit(Program::unit(a_)), h(-1), last(0)
    {
#pragma unroll
        for (int i = 0; i < FXA_DV / 2; i++) dv[i] = 0.f;
    }

    /* Replaces the scores s by P; writes P * derivative, in 16 bits, to `weights`. */
    template <bool MASKED> FXA_INLINE void probabilities(float (&s)[BQ / 2], u32 (&weights)[BQ / 4], int m, u32 step)
    {
        constexpr bool OPERANDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + warp * 16 + (lane >> 2);
        const OperandLoads loads(a, at.b, h, at.q_len, at.k_len);
        const int k_word[2] = {OPERANDS ? __ldg(loads.k_words + k0) : 0, OPERANDS ? __ldg(loads.k_words + k0 + 8) : 0};
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
                    const int c = j * 8 + x, i = fragment(2 * j + x, r);
                    const Pair pair = {q0 + c,
                                       k0 + 8 * r,
                                       c,
                                       8 * r,
                                       PROG_DIAGONAL ? __ldg(loads.diagonal + q0 - k0 + c - 8 * r) : 0.f,
                                       PROG_DENSE ? loads.dense_at(a, q0 + c, k0 + 8 * r) : 0.f,
                                       OPERANDS ? __ldg(loads.q_words + q0 + c) : 0,
                                       k_word[r]};
                    float derivative;
                    const float value = score_value<true>(program, a, s[i], pair, derivative);
                    float w = exp2_fast(__fmaf_rn(value, unit, -(x ? lse.y : lse.x)));
                    if (MASKED && !((c < queries[r]) & score_mask(program, a, pair))) w = derivative = 0.f;
                    product[x] = times_derivative(w, derivative);
                    s[i] = w;
                }
                weights[j * 2 + r] = pack16(product[0], product[1]);
            }
        }
    }

    /* Passes `weights` (P * derivative) and the bits of the (q, k) pairs that dropout keeps to the other warpgroup,
     * through the exchange ring. */
    FXA_INLINE void put_weights(const u32 (&weights)[BQ / 4], u32 step, u32 kept) const
    {
        const u32 at_ = sh.exchange(step) + (threadIdx.x & 127) * 16;
        sh.exchange_ring().wait_empty(step);
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_shared_words(at_ + i * 2048, weights[4 * i], weights[4 * i + 1], weights[4 * i + 2],
                               weights[4 * i + 3]);
        if (FXA_DROPOUT) store_shared(sh.exchange(step) + 8192 + (threadIdx.x & 127) * 4, (int)kept);
        barrier_arrive(sh.exchange_ring().full(step));
    }

    /* Sets the rows of dO past the last query to 0 before all products, because a barrier between two products would
     * serialize them. */
    FXA_INLINE void clear_grad_o(u32 step) const
    {
        if (!has_rows_past_q_len(a)) return;
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
        release(sh.o_ring().empty(step));
    }

    /* Computes S of this step together with dV += P^T dO of the previous step. */
    template <bool FIRST> FXA_INLINE void block_step(u32 step)
    {
        float s[BQ / 2];
        u32 weights[BQ / 4];
        sh.q_ring().wait_full(step);
        const int entry = take_word(sh.block_entry(step)), m = entry & ~PARTIAL,
                  head = take_word(sh.block_entry(step) + 4);
        if (!FIRST) clear_grad_o(step - 1);
        issue_rows<FXA_D, BK, BQ>(s, sh.k(), sh.q(step));
        if (!FIRST) issue_dv(step - 1);
        if (head != h) program.head(a, at.b, head, at.q_len, at.k_len);
        h = head;
        const int k0 = at.n * BK + warp * 16 + (lane >> 2);
        const u32 kept = FXA_DROPOUT ? kept_of_column(a, at.b, h, m * BQ, k0) : 0;
        wgmma_wait<FIRST ? 0 : 1>();
        settle(s);
        if (entry & PARTIAL)
            probabilities<true>(s, weights, m, step);
        else
            probabilities<false>(s, weights, m, step);
        release(sh.q_ring().empty(step));
        if (!FIRST) finish_dv(step - 1);
        last = m;
#pragma unroll
        for (int i = 0; i < BQ / 4; i++) /* the product dV of the previous block has read p */
            p[i] = pack16(keeps(kept, 2 * i) ? s[2 * i] : 0.f, keeps(kept, 2 * i + 1) ? s[2 * i + 1] : 0.f);
        put_weights(weights, step, kept);
    }

    FXA_INLINE void run()
    {
        const u32 blocks = (u32)at.blocks(a);
        barrier_wait(sh.kv_full(), 0);
        if (a.turned) {
            negate_rows<BK, FXA_D>(a, sh.k());
            named_sync(BAR_CLEAR, 128);
        }
        if (blocks) {
            block_step<true>(0);
#pragma unroll 1
            for (u32 step = 1; step < blocks; step++) block_step<false>(step);
            clear_grad_o(blocks - 1);
            issue_dv(blocks - 1);
            finish_dv(blocks - 1);
        }
        store_gradient<FXA_DV>(&maps.grad_v, a.grad_v, sh.v(), dv, FXA_DROPOUT ? a.keep_inverse : 1.f, a.dv);
    }
};

/* ---- dP, dS, dK -------------------------------------------------------------------------------------------------- */

struct WideGradients : WideConsumer {
    float dk[FXA_D / 2];

    FXA_INLINE WideGradients(const FxaMaps &maps_, const FxaArgs &a_, WideShared sh_, const WideTile &at_)
        : WideConsumer(maps_, a_, sh_, at_)
    {
#pragma unroll
        for (int i = 0; i < FXA_D / 2; i++) dk[i] = 0.f;
    }

    FXA_INLINE u32 take_weights(u32 (&p)[BQ / 4], u32 step) const
    {
        const u32 at_ = sh.exchange(step) + (threadIdx.x & 127) * 16;
        sh.exchange_ring().wait_full(step);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Word4 x = load_shared_words(at_ + i * 2048);
            p[4 * i] = x.x;
            p[4 * i + 1] = x.y;
            p[4 * i + 2] = x.z;
            p[4 * i + 3] = x.w;
        }
        const u32 kept = FXA_DROPOUT ? (u32)load_shared(sh.exchange(step) + 8192 + (threadIdx.x & 127) * 4) : 0;
        barrier_arrive(sh.exchange_ring().empty(step));
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
                const int i = fragment(2 * j, r);
#pragma unroll
                for (int x = 0; x < 2; x++)
                    if (FXA_DROPOUT) dp[i + x] = keeps(kept, i + x) ? dp[i + x] * a.keep_inverse : 0.f;
                ds[j * 2 + r] = pack16(times_rest(unpack_low(p[j * 2 + r]), dp[i] - delta.x),
                                       times_rest(unpack_high(p[j * 2 + r]), dp[i + 1] - delta.y));
            }
        }
    }

    FXA_INLINE void block_step(u32 step)
    {
        float dp[BQ / 2];
        u32 p[BQ / 4], ds[BQ / 4];
        sh.q_ring().wait_full(step);
        sh.o_ring().wait_full(step);
        const int m = take_word(sh.block_entry(step)) & ~PARTIAL;
        clear_queries<FXA_DV>(sh.grad_o(step), m, 1);
        clear_queries<FXA_D>(sh.q(step), m, 1);
        issue_rows<FXA_DV, BK, BQ>(dp, sh.v(), sh.grad_o(step));
        const u32 kept = take_weights(p, step);
        wgmma_wait<0>();
        settle(dp);
        score_gradients(dp, p, ds, step, kept);
        issue_sum<BQ>(dk, ds, sh.q(step));
        wgmma_wait<0>();
        settle(dk);
        settle(ds);
        release(sh.o_ring().empty(step));
        release(sh.q_ring().empty(step));
    }

    FXA_INLINE void run()
    {
        const u32 blocks = (u32)at.blocks(a);
        barrier_wait(sh.kv_full(), 0);
#pragma unroll 1
        for (u32 step = 0; step < blocks; step++) block_step(step);
        store_gradient<FXA_D>(&maps.grad_k, a.grad_k, sh.k(), dk, run_scale(a), a.d);
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_backward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fxa_backward(const __grid_constant__ FxaMaps maps, const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    const WideShared sh = {(shared_address(memory) + 1023) & ~1023u};
    const int group = __shfl_sync(~0u, (int)threadIdx.x >> 7, 0);
    if (threadIdx.x == 0) prefetch_and_init(maps, sh);
    launch_begin();
    const WideTile at(a);
    if (at.outside(a)) return;
    __syncthreads();
    if (group == 0) {
        registers_down<40>();
        if (__shfl_sync(~0u, (int)threadIdx.x >> 5, 0) == 0 && elected()) produce(maps, a, sh, at);
    } else {
        registers_up<232>();
        if (group == 1)
            WideScores(maps, a, sh, at).run();
        else
            WideGradients(maps, a, sh, at).run();
    }
}
