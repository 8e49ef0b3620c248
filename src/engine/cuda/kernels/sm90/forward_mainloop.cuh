/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer warpgroup of the Hopper forward kernel: scores, online softmax and products with V of 64 query rows, whose
 * end is in sm90/forward_epilogue.cuh. It computes S of tile j + 1 while its product P V of tile j runs, so that tensor
 * cores work during the softmax.
 */
#ifndef FXA_CUDA_SM90_FORWARD_MAINLOOP_CUH
#define FXA_CUDA_SM90_FORWARD_MAINLOOP_CUH

#include "common/dropout.cuh"
#include "sm90/forward_epilogue.cuh"

namespace {

struct Consumer : ForwardRows {
    FXA_INLINE Consumer(const FxaMaps &maps_, const FxaArgs &a_, Shared sh_, int group_)
        : ForwardRows(maps_, a_, sh_, group_)
    {
    }

    FXA_INLINE void issue_s(float (&s)[BN / 2]) const
    {
        constexpr int N = steps_of(FXA_D, true);
        const u64 k_operand = k_major(sh.k(step));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < FXA_D / 16; k += N)
            wgmma<0, N>(s, q_operand + k_step<BM>(k), k_operand + k_step<BN>(k), k > 0);
        wgmma_commit();
    }

    /* What the program reads per pair from shared memory: words of the dense tile, entries of the strip. */
    FXA_INLINE void load_dense(u32 (&words)[BN / 4]) const
    {
        const u32 at = sh.dense(step) + row_in_tile() * 128 + (lane & 3) * 4;
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            words[i] = (u32)load_shared(at + (i >> 4) * BM * 128 + (i & 1) * 1024 +
                                        ((((i >> 1) & 7) ^ (lane >> 2)) << 4));
    }

    /* Entry 2 * (column / 8 - r + 1) + column % 2 belongs to row half r: equal distances are loaded once. */
    FXA_INLINE void load_strip(float (&entries)[BN / 4 + 2]) const
    {
        const u32 at = sh.strip(step) + (BN - 1 + row_in_tile() - (lane & 3) * 2) * 4;
#pragma unroll
        for (int i = 0; i < BN / 4 + 2; i++) entries[i] = load_shared_float(at + 4 * (8 - 8 * (i >> 1) - (i & 1)));
    }

    /* New scores of a tile (PASS_SCORES), or what is asked of its pairs, which comes after them. */
    template <int PASS> FXA_INLINE void score_pairs(float (&s)[BN / 2], int n)
    {
        const int k0 = n * BN + (lane & 3) * 2;
        u32 dense[BN / 4] = {};
        float strip[BN / 4 + 2] = {};
        int q_word[2] = {};
        constexpr bool MASK_READS = PROG_UNIFORM_OPERANDS ? PASS == PASS_MASK : PASS != PASS_SCORES;
        constexpr bool WORDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASK_READS);
        if (PROG_DENSE && !PASS) load_dense(dense);
        if (PROG_DIAGONAL && !PASS) load_strip(strip);
        if (WORDS) {
            q_word[0] = load_shared(sh.q_words(turn) + row_in_tile() * 4);
            q_word[1] = load_shared(sh.q_words(turn) + row_in_tile() * 4 + 32);
        }
        program.tile(a, q0, k0);
#pragma unroll
        for (int j = 0; j < BN / 4; j++) {
            const int c = (j >> 1) * 8 + (j & 1);
            const int k_word = WORDS ? load_shared(sh.k_words(step) + (lane & 3) * 8 + c * 4) : 0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = (j >> 1) * 4 + r * 2 + (j & 1);
                const u32 word = dense[(j >> 1) * 2 + r];
                const Pair pair = {q0 + 8 * r, k0 + c, 8 * r, c, strip[2 * ((j >> 1) - r + 1) + (j & 1)],
                                   (j & 1) ? unpack_high(word) : unpack_low(word), q_word[r], k_word};
                if (PASS == PASS_SCORES) s[i] = score_value<true>(program, a, s[i], pair);
                if (PASS == PASS_MASK && !score_mask(program, a, pair)) s[i] = NEG_INF;
                if (PASS == PASS_UNIFORM_MASK && !score_uniform_mask(program, a, pair)) s[i] = NEG_INF;
            }
        }
    }

    /* Whether all keys of a tile have the word of the warp's queries, which makes the mask shorter. Asked while the
     * products run. */
    FXA_INLINE bool same_words(int n, bool whole) const
    {
        if (!PROG_UNIFORM_OPERANDS || whole || (n + 1) * BN > k_len) return false;
        const Word4 k = load_shared_words(sh.k_words(step) + lane * 16 % (BN * 4));
        const u32 x = load_shared(sh.q_words(turn) + row_in_tile() * 4), one = __shfl_sync(~0u, x, 0);
        const u32 y = load_shared(sh.q_words(turn) + row_in_tile() * 4 + 32);
        return __all_sync(~0u, x == one && y == one && k.x == one && k.y == one && k.z == one && k.w == one);
    }

    /* Keys past the last one. Apart from the mask, which is then there once: few tiles have any. */
    FXA_INLINE void cut_keys(float (&s)[BN / 2], int keys) const
    {
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            if ((i >> 2) * 8 + (i & 1) >= keys - (lane & 3) * 2) s[i] = NEG_INF;
    }

    /* Raw products to new scores; pairs that are not attended to -inf. Rows past q_len hold anything until finish().
     * whole: nothing is asked of the tile's pairs though the step is one for masks. That costs a third of the softmax,
     * and where a query tile has two or three key tiles one of them is often so. same: what same_words() says. */
    template <bool MASKED> FXA_INLINE void score(float (&s)[BN / 2], int n, bool whole, bool same)
    {
        softcap_all(program, a, s, !MASKED || (q0 + 8 < q_len && (n + 1) * BN <= k_len));
        if (PROG_VALUE) score_pairs<PASS_SCORES>(s, n);
        if (!MASKED || whole) return;
        const int keys = k_len - n * BN;
        if (PROG_UNIFORM_OPERANDS && same)
            score_pairs<PASS_UNIFORM_MASK>(s, n);
        else if (PROG_MASK)
            score_pairs<PASS_MASK>(s, n);
        if (keys < BN) cut_keys(s, keys);
    }

    /* The values of a tile that reaches past the last key, before their product: rows that follow it count for nothing,
     * and where lengths differ between entries TMA does not know it. All warpgroups clear them, each for itself. */
    template <bool MASKED> FXA_INLINE void clear_values(int n) const
    {
        const int keys = k_len - n * BN;
        if (!MASKED || keys >= BN || !loose_keys(a)) return;
        sh.v_ring().wait_full(step);
        clear_rows<BN, FXA_DV>(sh.v(step), keys, threadIdx.x & 127, 128);
        named_sync(BAR_CLEAR + group, 128);
    }

    /* New row maxima. True when O must shrink by fade: only when a maximum grew by more than it may lag. */
    template <bool FIRST> FXA_INLINE bool raise_max(const float (&s)[BN / 2])
    {
        float top[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = FIRST ? s[r * 2] : row_max[r];
#pragma unroll
            for (int i = 0; i < BN / 4; i++) x = fmaxf(x, s[(i >> 1) * 4 + r * 2 + (i & 1)]);
            top[r] = quad_max(x);
        }
        if (FIRST) {
            row_max[0] = top[0];
            row_max[1] = top[1];
            return false;
        }
        if (!__any_sync(~0u, (top[0] - row_max[0]) * unit > fixed_max_threshold(FXA_F16) ||
                                (top[1] - row_max[1]) * unit > fixed_max_threshold(FXA_F16))) return false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            fade[r] = exp2_fast((row_max[r] - finite_or_zero(top[r])) * unit);
            row_sum[r] *= fade[r];
            row_max[r] = top[r];
        }
        return true;
    }

    /* In a safe visit: off the maximum, and off the bias too where all that follows then is exp2. With a unit that may
     * be no 1 in this visit alone (left_range), times that. */
    FXA_INLINE void take_maximum(float (&s)[BN / 2], float off) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < BN / 4; i++) {
                float &x = s[(i >> 1) * 4 + r * 2 + (i & 1)];
                x = (x - finite_or_zero(row_max[r])) * (PROG_SOFTCAP_HAS_UNIT ? unit : 1.f) - off;
            }
    }

    /* ZERO: row_max is 0; so it is where JOINED but in safe visits. */
    template <bool FIRST, bool ZERO> FXA_INLINE void exponentiate(float (&s)[BN / 2], int tile)
    {
        constexpr bool BARE = ZERO || (JOINED && PROG_SOFTCAP_HAS_UNIT);
        if (!ZERO && (tile & SAFE)) take_maximum(s, BARE ? bias(tile) : 0.f);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float shift = BARE          ? 0.f
                                : tile & SAFE ? bias(tile)
                                              : finite_or_zero(row_max[r]) * unit;
            float sum = FIRST ? 0.f : row_sum[r];
#pragma unroll
            for (int i = 0; i < BN / 4; i++) {
                const int x = (i >> 1) * 4 + r * 2 + (i & 1);
                const float y = PROG_SOFTCAP_HAS_UNIT ? (BARE ? s[x] : s[x] - shift)
                                : BARE        ? s[x] * unit
                                              : __fmaf_rn(s[x], unit, -shift);
                s[x] = EMULATE && ZERO && (i & 1) ? exp2_by_fma(y) : exp2_fast(y);
                sum += s[x];
            }
            row_sum[r] = sum;
        }
    }

    /* Dropped pairs count in the sum, not in O. */
    FXA_INLINE void drop(float (&s)[BN / 2], int n) const
    {
#if FXA_DROPOUT
#pragma unroll
        for (int half = 0; half < BN / 64; half++) {
            const u32 kept = kept_of_row(a, b, h, q0, n * BN + half * 64);
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!keeps(kept, i)) s[half * 32 + i] = 0.f;
        }
#endif
    }

    /* V of a second visit, all warpgroups together, before any of them multiplies it. */
    FXA_INLINE void contain_values(int tile) const
    {
        if (!(tile & SAFE)) return;
        sh.v_ring().wait_full(step);
        if (change_values(sh.v(step), V_BYTES, values_of(tile), (int)threadIdx.x - 128, 128 * GROUPS) &&
            values_of(tile) == VALUES_FINITE)
            store_shared(sh.found(), 1);
        async_fence();
        named_sync(BAR_VALUES, 128 * GROUPS);
    }

    FXA_INLINE void pack(const float (&s)[BN / 2])
    {
#pragma unroll
        for (int i = 0; i < BN / 4; i++) p[i] = pack16(s[2 * i], s[2 * i + 1]);
    }

    FXA_INLINE void give_back_dense() const
    {
        if (PROG_DENSE) give_back(sh.dense_ring().empty(step));
    }

    /* The Q buffer of a finished tile goes back once its store has read it. */
    FXA_INLINE void give_back_q()
    {
        if (!storing) return;
        __syncwarp();
        if (lane == 0) {
            bulk_wait_read<0>();
            barrier_arrive(sh.q_ring().empty(stored));
        }
        storing = false;
    }

    /* Tile 0 of the list: always masked. Under its product all that is asked before the product's end. */
    FXA_INLINE void first_step(int tile)
    {
        float s[BN / 2];
        sh.k_ring().wait_full(step);
        const int number = take_word(sh.number(step)), n = number & FXA_CUDA_SKIP - 1;
        const bool whole = number & FXA_CUDA_FULL << group;
        issue_s(s);
        begin_rows(sh.slot(turn).m());
        const bool same = same_words(n, whole);
        give_back_q();
        if (PROG_DENSE) sh.dense_ring().wait_full(step);
#pragma unroll
        for (int i = 0; i < FXA_DV / 2; i++) o[i] = 0.f;
        wgmma_wait<0>();
        settle(s);
        give_back(sh.k_ring().empty(step));
        score<true>(s, n, whole, same);
        give_back_dense();
        raise_max<true>(s);
        exponentiate<true, false>(s, tile);
        drop(s, n);
        pack(s);
        clear_values<true>(n);
        contain_values(tile);
    }

    /* S of the next tile beside P V of this one, then the softmax of the next one under P V. first: where JOINED, there
     * is no P V yet. */
    template <bool MASKED, bool FIXED_MAX> FXA_INLINE void next_step(int tile, bool first = false)
    {
        float s[BN / 2];
        const u32 v_step = PASSES && MASKED ? pending : step;
        step++;
        sh.k_ring().wait_full(step);
        const int number = MASKED || PROG_VALUE || FXA_DROPOUT ? take_word(sh.number(step)) : 0;
        const int n = number & FXA_CUDA_SKIP - 1;
        const bool whole = number & FXA_CUDA_FULL << group;
        bool same;
        if (PING_PONG && !MASKED) named_sync(BAR_PING_PONG + group, 256);
        issue_s(s);
        if (first) {
            give_back_q();
            if (PROG_DENSE) sh.dense_ring().wait_full(step);
#pragma unroll
            for (int i = 0; i < FXA_DV / 2; i++) o[i] = 0.f;
            same = MASKED && same_words(n, whole);
            wgmma_wait<0>();
        } else {
            sh.v_ring().wait_full(v_step);
            issue_sum<BN, 4>(o, p, sh.v(v_step));
            if (PING_PONG && !MASKED) named_arrive(BAR_PING_PONG + (group + 1 == GROUPS ? 0 : group + 1), 256);
            if (PROG_DENSE) sh.dense_ring().wait_full(step);
            same = MASKED && same_words(n, whole);
            wgmma_wait<1>();
        }
        settle(s);
        give_back(sh.k_ring().empty(step));
        score<MASKED>(s, n, whole, same);
        give_back_dense();
        const bool shrink = FIXED_MAX || (JOINED && !(tile & SAFE)) ? false : raise_max<false>(s);
        exponentiate<false, FIXED_MAX && BOUNDED>(s, tile);
        drop(s, n);
        wgmma_wait<0>();
        settle(o);
        settle(p);
        give_back(sh.v_ring().empty(v_step), !first);
        pack(s);
        if (shrink) {
#pragma unroll
            for (int i = 0; i < FXA_DV / 2; i++) o[i] *= fade[(i >> 1) & 1];
        }
        clear_values<MASKED>(n);
        contain_values(tile);
        if (PASSES && MASKED) pending = step;
    }

    /* Whether the next tile is none of this warpgroup's: then its buffers go back as they come. */
    FXA_INLINE bool passes_over()
    {
        sh.k_ring().wait_full(step + 1);
        if (!(take_word(sh.number(step + 1)) & FXA_CUDA_SKIP << group)) return false;
        step++;
        give_back(sh.k_ring().empty(step));
        sh.v_ring().wait_full(step);
        give_back(sh.v_ring().empty(step));
        return true;
    }

    /* The last product; under it all of the rows' end that does not wait for it. */
    FXA_INLINE void finish(int tile, int m)
    {
        float factor[2];
        bool bad[2];
        const u32 v_step = PASSES ? pending : step;
        sh.v_ring().wait_full(v_step);
        issue_sum<BN, 4>(o, p, sh.v(v_step));
        end_rows(tile, factor, bad);
        wgmma_wait<0>();
        settle(o);
        settle(p);
        give_back(sh.v_ring().empty(v_step));
        if (!JOINED) step++;
        store_rows(tile, m, factor, bad);
    }

    /* JOINED: the first tile, and all that are masked. */
    FXA_INLINE void walk_joined(int tile)
    {
        row_max[0] = row_max[1] = tile & SAFE ? NEG_INF : 0.f;
        row_sum[0] = row_sum[1] = 0.f;
#pragma unroll 1
        for (int j = 0; j < masked; j++)
            if (!PASSES || j == 0 || !passes_over()) next_step<true, false>(tile, j == 0);
    }

    /* The producer says how many tiles are masked, in a safe visit all of them. How the loops are written matters:
     * joined by conditions, they made the compiler keep `step` in ordinary registers, and the inner loop grew by a
     * fifth in moves of descriptors (R2UR in its SASS); so it did with two loops for a bounded program, and with a
     * `step` that grows by a condition: that is why it begins one earlier where JOINED. */
    FXA_INLINE void walk(int tile)
    {
        int j = 1;
        if (JOINED) {
            walk_joined(tile);
            j = masked;
        } else {
            first_step(tile);
            pending = step;
#pragma unroll 1
            for (; j < masked; j++)
                if (!PASSES || !passes_over()) next_step<true, false>(tile);
        }
#pragma unroll 1
        for (; j < total; j++) next_step<false, true>(0);
        if (PASSES && masked < total) pending = step;
    }

    FXA_INLINE void run()
    {
        if (PING_PONG && group == 0) named_arrive(BAR_PING_PONG, 256);
        for (;; turn++) {
            const Ring<Q_BUFFERS> ring = sh.q_ring();
            const bool there = __all_sync(~0u, barrier_test(ring.full(turn), (turn / Q_BUFFERS) & 1));
            if (Q_BUFFERS == 1 || !there) {
                give_back_q();
                ring.wait_full(turn);
            }
            const TileSlot slot = sh.slot(turn);
            const int tile = slot.tile(), m = slot.m();
            if (tile < 0) break;
            q_operand = k_major(sh.q(turn) + group * 64 * 128);
            if (a.turned) {
                turn_rows<BM, FXA_D>(a, sh.q(turn) + group * 64 * 128);
                named_sync(BAR_CLEAR + group, 128);
            }
            if (JOINED) begin_rows(m); /* m read again in it cost soft caps 3 to 7 %: see find_lane() */
            walk(tile);
            finish(tile, m);
        }
    }
};

} // namespace

#endif
