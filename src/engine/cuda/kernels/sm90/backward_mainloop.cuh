/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer warpgroup of the Hopper backward kernel: 64 keys, their dK and dV in registers, and half of dQ.
 */
#ifndef FXA_CUDA_SM90_BACKWARD_MAINLOOP_CUH
#define FXA_CUDA_SM90_BACKWARD_MAINLOOP_CUH

#include "sm90/backward_shared.cuh"
#include "common/dropout.cuh"

namespace {

struct Consumer {
    const FxaMaps &maps;
    const FxaArgs &a;
    Shared sh;
    Place at;
    Program program;
    int group, warp, lane, h;
    bool leader;
    u32 step;
    float unit;
    float dk[FXA_D / 2], dv[FXA_DV / 2];
    u32 k_rows[KV_HELD ? FXA_D / 4 : 1], v_rows[KV_HELD ? FXA_DV / 4 : 1];
    PairGradients captured;

    FXA_INLINE Consumer(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, const Place &at_, int group_)
        : maps(maps_), a(a_), sh(sh_), at(at_), group(group_), warp((threadIdx.x & 127) >> 5), lane(threadIdx.x & 31),
          leader((threadIdx.x & 127) == 0), step(0), unit(Program::unit(a_))
    {
#pragma unroll
        for (int i = 0; i < FXA_D / 2; i++) dk[i] = 0.f;
#pragma unroll
        for (int i = 0; i < FXA_DV / 2; i++) dv[i] = 0.f;
    }

    FXA_INLINE int first_key() const { return group * 64 + warp * 16 + (lane >> 2); } /* in the tile */

    /* What follows the last key or query in a tile that reaches past it counts for nothing (clear_rows). Keys are
     * cleared by both warpgroups together; queries by each for itself, while the other may write its zeros again. */
    FXA_INLINE void clear_keys() const
    {
        const int keys = at.k_len - at.n * BK, thread = group * 128 + (threadIdx.x & 127);
        if (keys >= BK || !loose_keys(a)) return;
        clear_rows<BK, FXA_D>(sh.k(), keys, thread, 256);
        clear_rows<BK, FXA_DV>(sh.v(), keys, thread, 256);
        named_sync(BAR_TURNED, 256);
    }

    template <bool MASKED> FXA_INLINE void clear_queries(int m) const
    {
        const int queries = at.q_len - m * BQ;
        if (!MASKED || queries >= BQ || !loose_queries(a)) return;
        sh.o_ring().wait_full(step);
        clear_rows<BQ, FXA_D>(sh.q(step), queries, threadIdx.x & 127, 128);
        clear_rows<BQ, FXA_DV>(sh.grad_o(step), queries, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    /* This warp's rows of a tile as a left operand, a[4 * k ..] for k-step k. */
    template <int words> FXA_INLINE void hold_rows(u32 (&rows)[words], u32 tile) const
    {
#pragma unroll
        for (int k = 0; k < words / 4; k++) {
            u32 r[4];
            load_matrix(swizzled<BK>(tile, group * 64 + warp * 16 + (lane & 15), 2 * k + (lane >> 4)), r);
#pragma unroll
            for (int x = 0; x < 4; x++) rows[4 * k + x] = r[x];
        }
    }

    /* Where lane l of a transposed 16 x 16 access of queries 16 j.. and this warp's keys begins, in a [q][k] tile. */
    FXA_INLINE u32 transposed(u32 tile, int j) const
    {
        const int q = j * 16 + ((lane >> 4) << 3) + (lane & 7), chunk = warp * 2 + ((lane >> 3) & 1);
        return swizzled<BQ>(tile + group * BQ * 128, q, chunk);
    }

    FXA_INLINE void load_dense(u32 (&words)[BQ / 4]) const
    {
#pragma unroll
        for (int j = 0; j < BQ / 16; j++) {
            u32 r[4];
            load_matrix_transposed(transposed(sh.dense(step), j), r);
#pragma unroll
            for (int x = 0; x < 4; x++) words[4 * j + x] = r[x];
        }
    }

    /* Entry 2 * (query / 8 - r + 1) + query % 2 belongs to key half r. */
    FXA_INLINE void load_diagonal(float (&entries)[BQ / 4 + 2], int q0, int k0) const
    {
        const FxaDiagonal &d = a.diagonal;
        const float *row = d.data + at.b * d.b + h * d.h + d.zero + q0 - k0;
#pragma unroll
        for (int i = 0; i < BQ / 4 + 2; i++) entries[i] = __ldg(row + 8 * (i >> 1) - 8 + (i & 1));
    }

    /* S to P in 16 bits for dV, without the pairs that are dropped; s itself becomes P times the slope. SCORED: what is
     * captured gets its gradients here, where the score still is; else nobody reads dp. */
    template <bool MASKED>
    FXA_INLINE void probabilities(float (&s)[BQ / 2], const float (&dp)[BQ / 2], u32 (&p)[BQ / 4], int m,
                                  const u32 (&dense)[BQ / 4], const float (&strip)[BQ / 4 + 2], u32 kept)
    {
        constexpr bool WORDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + first_key();
        const u32 lse = sh.lse(step) + (lane & 3) * 8;
        int k_word[2] = {};
        if (WORDS) {
            k_word[0] = load_shared(sh.k_words(step) + first_key() * 4);
            k_word[1] = load_shared(sh.k_words(step) + first_key() * 4 + 32);
        }
        const int queries[2] = {k0 < at.k_len ? at.q_len - q0 : 0, k0 + 8 < at.k_len ? at.q_len - q0 : 0};
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 l = load_shared_float2(lse + j * 32);
            const Float2 d = SCORED ? load_shared_float2(sh.delta(step) + (lane & 3) * 8 + j * 32) : Float2{};
            float weight[2][2];
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int c = j * 8 + x;
                const int q_word = WORDS ? load_shared(sh.q_words(step) + (lane & 3) * 8 + c * 4) : 0;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = j * 4 + r * 2 + x;
                    const u32 word = dense[j * 2 + r];
                    const Pair pair = {q0 + c, k0 + 8 * r, c, 8 * r, strip[2 * (j - r + 1) + x],
                                       x ? unpack_high(word) : unpack_low(word), q_word, k_word[r]};
                    float slope;
                    const float value = score_value<!SCORED>(program, a, s[i], pair, slope);
                    float w = exp2_fast(__fmaf_rn(value, unit, -(x ? l.y : l.x)));
                    if (MASKED && !((c < queries[r]) & score_mask(program, a, pair))) w = slope = 0.f;
                    weight[r][x] = keeps(kept, i) ? w : 0.f;
                    if (SCORED) {
                        const float grad = !FXA_DROPOUT ? dp[i] : keeps(kept, i) ? dp[i] * a.keep_inverse : 0.f;
                        captured.add(program, a, at.b, h, s[i], pair, w == 0.f ? 0.f : w * (grad - (x ? d.y : d.x)));
                    }
                    s[i] = PROG_DERIVATIVE ? times_derivative(w, slope) : w;
                }
            }
            p[j * 2] = pack16(weight[0][0], weight[0][1]);
            p[j * 2 + 1] = pack16(weight[1][0], weight[1][1]);
        }
    }

    /* Gradients of what is captured, of dS of pair i of the thread. */
    FXA_INLINE void collect(int q0, int k0, int i, float ds)
    {
        const int q = (i >> 2) * 8 + (i & 1), k = (i & 2) * 4;
        captured.add(program, a, at.b, h, 0.f, Pair{q0 + q, k0 + k, q, k}, ds);
    }

    /* dS = P slope (dP - delta), in 16 bits; dP of dropped pairs is 0, of the others larger by keep_inverse. */
    FXA_INLINE void score_gradients(const float (&s)[BQ / 2], float (&dp)[BQ / 2], u32 (&ds)[BQ / 4], int m, u32 kept)
    {
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + first_key();
        if (FXA_DROPOUT) {
#pragma unroll
            for (int i = 0; i < BQ / 2; i++) dp[i] = keeps(kept, i) ? dp[i] * a.keep_inverse : 0.f;
        }
        const u32 delta = sh.delta(step) + (lane & 3) * 8;
        constexpr bool COLLECTED = !SCORED && (PROG_GRAD_SUMS || PROG_GRAD_SCATTER);
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 d = load_shared_float2(delta + j * 32);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = j * 4 + r * 2;
                float x = times_rest(s[i], dp[i] - d.x), y = times_rest(s[i + 1], dp[i + 1] - d.y);
                if (COLLECTED) { /* where there is no weight there is no gradient, whatever dP is */
                    x = s[i] == 0.f ? 0.f : x;
                    y = s[i + 1] == 0.f ? 0.f : y;
                }
                ds[j * 2 + r] = pack16(x, y);
                if (PROG_GRAD_SCATTER) { /* only then: dp that is written takes registers that products need */
                    dp[i] = x;
                    dp[i + 1] = y;
                } else if (COLLECTED) {
                    collect(q0, k0, i, x);
                    collect(q0, k0, i + 1, y);
                }
            }
        }
        /* With a text for every pair these took a compiler 6 to 9 seconds, and more registers. */
        if (COLLECTED && PROG_GRAD_SCATTER)
            in_batches<4>(dp, [&](int first, float (&x)[4]) {
#pragma unroll
                for (int i = 0; i < 4; i++) collect(q0, k0, first + i, x[i]);
            });
    }

    FXA_INLINE void stage_ds(const u32 (&ds)[BQ / 4]) const
    {
        if (PROG_GRAD_DIAGONAL) sh.ds_ring().wait_empty(step);
        const u32 first = transposed(sh.ds(step), 0);
#pragma unroll
        for (int j = 0; j < BQ / 16; j++) { /* 128 queries have no register for the first address */
            const u32 to = BQ == 64 ? first + j * 16 * 128 : transposed(sh.ds(step), j);
            store_matrix_transposed(to, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
        }
    }

    /* After both warpgroups have staged dS: to those that read it beside dQ. */
    FXA_INLINE void publish_ds(int m) const
    {
        async_fence();
        if (PASSES)
            named_sync_apart<BAR_DS, 256>(); /* one of them may come from pass_over() */
        else
            named_sync(BAR_DS, 256);
        if (PROG_GRAD_DIAGONAL && threadIdx.x == 128) barrier_arrive(sh.ds_ring().full(step));
#if PROG_GRAD_DENSE
        if (leader) {
            tma_store(&maps.grad_dense, sh.ds(step) + group * BQ * 128, at.n * BK + group * 64, m * BQ, h, at.b);
            bulk_commit();
            bulk_wait_read<1>(); /* the other buffer may be written once the next barrier is passed */
        }
#endif
    }

    /* This warpgroup's share of dQ = dS K. */
    FXA_INLINE void issue_dq(float (&dq)[DQ_COLUMNS / 2]) const
    {
        const u64 rows = k_major(sh.ds(step) + (BQ == 128 ? group * 64 * 128 : 0));
        const u32 half = FXA_D > 64 ? group * BK * 128 : group * DQ_COLUMNS * 2;
        const u64 columns = n_major<BK>(sh.k() + (BQ == 128 ? 0 : half));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++) wgmma<1, 1>(dq, rows + k_step<BQ>(k), columns + n_step(k), k > 0);
        wgmma_commit();
    }

    FXA_INLINE void hand_over_dq(const float (&dq)[DQ_COLUMNS / 2]) const
    {
        named_sync(BAR_DQ_EMPTY + group, 160);
#pragma unroll
        for (int i = 0; i < DQ_COLUMNS / 8; i++)
            store_shared_float4(sh.dq(group) + (i * 128 + (threadIdx.x & 127)) * 16, dq[4 * i], dq[4 * i + 1],
                                dq[4 * i + 2], dq[4 * i + 3]);
        async_fence();
        named_arrive(bar_dq_full(step, group), 160);
    }

    template <bool MASKED> FXA_INLINE void visit()
    {
        float s[BQ / 2], dp[BQ / 2], strip[BQ / 4 + 2] = {};
        u32 p[BQ / 4], ds[BQ / 4], dense[BQ / 4] = {};
        sh.q_ring().wait_full(step);
        const int item = take_word(sh.number(step)), m = MASKED ? block_of(item) : item;
        clear_queries<MASKED>(m);
        if (KV_HELD)
            issue_held<FXA_D, BQ>(s, k_rows, sh.q(step));
        else
            issue_rows<FXA_D, BK, BQ, steps_of(FXA_D, PLAIN)>(s, sh.k() + group * 64 * 128, sh.q(step));
        sh.o_ring().wait_full(step);
        if (KV_HELD)
            issue_held<FXA_DV, BQ>(dp, v_rows, sh.grad_o(step));
        else
            issue_rows<FXA_DV, BK, BQ, steps_of(FXA_DV, PLAIN)>(dp, sh.v() + group * 64 * 128, sh.grad_o(step));
        const int q0 = m * BQ + (lane & 3) * 2, k0 = at.n * BK + first_key();
        if (PROG_DENSE) load_dense(dense);
        if (PROG_DIAGONAL) load_diagonal(strip, q0, k0);
        if (PAIRS_READ_PROGRAM || MASKED) program.tile(a, q0, k0);
        const u32 kept = FXA_DROPOUT ? kept_of_column(a, at.b, h, m * BQ, k0) : 0;
        wgmma_wait<SCORED ? 0 : 1>();
        settle(s);
        if (SCORED)
            settle(dp);
        else
            softcap_all(program, a, s, !MASKED || (k0 + 8 < at.k_len && (m + 1) * BQ <= at.q_len));
        probabilities<MASKED>(s, dp, p, m, dense, strip, kept);
        wgmma_wait<0>();
        settle(dp);
        score_gradients(s, dp, ds, m, kept);
        if (WITH_DS) stage_ds(ds);
        issue_sum<BQ, steps_of(BQ, PLAIN)>(dv, p, sh.grad_o(step));
        if (WITH_DS) publish_ds(m);
        finish_visit(p, ds);
        step++;
    }

    /* A block that attends to none of this warpgroup's keys: its dS is 0, and all there is to do is half of dQ. */
    FXA_INLINE void pass_over()
    {
        const u32 ds[BQ / 4] = {};
        float dq[DQ_COLUMNS / 2];
        const int m = block_of(take_word(sh.number(step)));
        sh.o_ring().wait_full(step);
        give_back(sh.o_ring().empty(step));
        stage_ds(ds);
        publish_ds(m);
        issue_dq(dq);
        wgmma_wait<0>();
        settle(dq);
        hand_over_dq(dq);
        give_back(sh.q_ring().empty(step));
        step++;
    }

    FXA_INLINE bool passes() const
    {
        sh.q_ring().wait_full(step);
        return take_word(sh.number(step)) & FXA_CUDA_SKIP << group;
    }

    /* The products that follow dV: dQ and dK, and what they set free. */
    FXA_INLINE void finish_visit(u32 (&p)[BQ / 4], u32 (&ds)[BQ / 4])
    {
#if FXA_SEPARATE_DQ
        issue_sum<BQ, steps_of(BQ, PLAIN)>(dk, ds, sh.q(step));
        wgmma_wait<1>();
        settle(dv);
        settle(p);
        give_back(sh.o_ring().empty(step));
        if (PROG_GRAD_DENSE) named_sync(BAR_DENSE + group, 128);
#else
        float dq[DQ_COLUMNS / 2];
        issue_dq(dq);
        wgmma_wait<1>();
        settle(dv);
        settle(p);
        give_back(sh.o_ring().empty(step));
        issue_sum<BQ, steps_of(BQ, PLAIN)>(dk, ds, sh.q(step));
        wgmma_wait<1>();
        settle(dq);
        hand_over_dq(dq);
#endif
        wgmma_wait<0>();
        settle(dk);
        settle(ds);
        give_back(sh.q_ring().empty(step));
    }

    /* dK and dV through the buffers of K and V, each warp its own 16 rows. */
    FXA_INLINE void store_gradients() const
    {
        const int row = group * 64 + warp * 16, keys = at.k_len - at.n * BK - row;
        const Rows rows(k_starts(a), at.k_first, at.n * BK + row, at.kv_h, at.b);
        const float scale = run_scale(a), scale_v = FXA_DROPOUT ? a.keep_inverse : 1.f;
        named_sync(BAR_END, 256);
        stage_rows<BK>(sh.v() + row * 128, dv, scale_v, scale_v);
        store_staged<BK, FXA_DV>(&maps.grad_v, a.grad_v, rows, sh.v() + row * 128, keys, a.dv);
        stage_rows<BK>(sh.k() + row * 128, dk, scale, scale);
        store_staged<BK, FXA_D>(&maps.grad_k, a.grad_k, rows, sh.k() + row * 128, keys, a.d);
        if (lane == 0) bulk_wait();
    }

    FXA_INLINE void run()
    {
        if (WITH_DQ && warp == 0) named_arrive(BAR_DQ_EMPTY + group, 160);
        barrier_wait(sh.kv_full(), 0);
        clear_keys();
        if (a.turned) { /* dQ reads all of them */
            turn_rows<BK, FXA_D>(a, sh.k() + group * 64 * 128);
            named_sync(BAR_TURNED, 256);
        }
        if (KV_HELD) {
            hold_rows(k_rows, sh.k());
            hold_rows(v_rows, sh.v());
        }
        for (int g = 0; g < a.group; g++) {
            h = at.first_head(a) + g;
            const ListRow row = at.row(a, h);
            program.head(a, at.b, h, at.q_len, at.k_len);
            captured.clear();
            int j = 0;
#pragma unroll 1
            for (; j < row.partial; j++) {
                if (PASSES && passes())
                    pass_over();
                else
                    visit<true>();
            }
#pragma unroll 1
            for (; j < row.total; j++) visit<false>();
            captured.store(a, at.b, h, at.n * 8 + group * 4 + warp);
        }
        store_gradients();
    }
};

} // namespace

#endif
