/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp of decode_sm90.cu that computes: S^T = K Q^T and O^T += V^T P^T of its keys of each tile with mma.sync, keys
 * as rows and query rows as columns. KEY_PARTS warps have keys of their own, ROW_PARTS query rows of their own.
 */
#ifndef FXA_CUDA_DECODE_WORKER_CUH
#define FXA_CUDA_DECODE_WORKER_CUH

#include "decode_merge.cuh"
#include "finite.cuh"
#include "pair_loads.cuh"

namespace {

struct Worker {
    const FxaArgs &a;
    const Part &at;
    int lane, key0, row0; /* its first key of a tile, its first row */
    Program program[TILES][2];
    u32 q[TILES][FXA_D / 8];
    float unit, top[TILES][2], sum[TILES][2], o[FXA_DV / 16][TILES][4];

    FXA_INLINE Worker(const FxaArgs &a_, const Part &at_, int warp)
        : a(a_), at(at_), lane(threadIdx.x & 31), key0(warp % KEY_PARTS * KEYS),
          row0(warp / KEY_PARTS * TILES * 8), unit(Program::unit(a_))
    {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int r = row0 + t * 8 + (lane >> 2);
            const bool inside = r < at.rows && at.query(a, r) < at.q_len;
            const int row = inside ? r : 0;
            const u16 *from = rows_of(a.q, at.b, at.q_head(a, row), at.q_first + at.query(a, row));
            load_row(q[t], from, inside);
            if (a.turned)
#pragma unroll
                for (int k = 0; k < FXA_D / 8; k++) q[t][k] = turn_pair(a, q[t][k]);
#pragma unroll
            for (int x = 0; x < 2; x++)
                program[t][x].head(a, at.b, at.q_head(a, min(row_of(t, x), at.rows - 1)), at.q_len, at.k_len);
        }
    }

    /* The elements of a row that are this lane's: in a few instructions where the row is as long as it may be. */
    FXA_INLINE void load_row(u32 (&x)[FXA_D / 8], const u16 *from, bool inside) const
    {
        const int c = (lane & 3) * 2;
#pragma unroll
        for (int k = 0; k < FXA_D / 8; k++) x[k] = 0;
        if (!inside) return;
        if (FXA_ALIGNED && a.d == FXA_D)
#pragma unroll
            for (int k = 0; k < FXA_D / 8; k++) x[k] = *(const u32 *)(from + k * 8 + c);
        else
#pragma unroll
            for (int k = 0; k < FXA_D / 8; k++) x[k] = load_pair(from, k * 8 + c, a.d);
    }

    FXA_INLINE int row_of(int tile, int x) const { return row0 + tile * 8 + (lane & 3) * 2 + x; }

    FXA_INLINE void clear()
    {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                top[t][x] = NEG_INF;
                sum[t][x] = 0.f;
            }
#pragma unroll
        for (int d = 0; d < FXA_DV / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++) o[d][t][0] = o[d][t][1] = o[d][t][2] = o[d][t][3] = 0.f;
    }

    FXA_INLINE void products(float (&s)[STEPS][TILES][4], u32 keys) const
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int t = 0; t < TILES; t++) s[i][t][0] = s[i][t][1] = s[i][t][2] = s[i][t][3] = 0.f;
#pragma unroll
            for (int k = 0; k < FXA_D / 16; k++) {
                u32 rows[4];
                operand_a<BN>(rows, keys, key0 + i * 16, k, lane);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(s[i][t], rows, q[t][2 * k], q[t][2 * k + 1]);
            }
        }
    }

    template <bool MASKED> FXA_INLINE void score(float (&s)[STEPS][TILES][4], int n)
    {
        const int k0 = n * BN + key0 + (lane >> 2);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int r = min(row_of(t, x), at.rows - 1), row = at.query(a, r);
                const PairLoads loads(a, at.b, at.q_head(a, r), at.q_len, at.k_len);
                const int keys = row < at.q_len ? at.k_len - k0 : 0;
                const int q_word = PROG_VECTOR ? __ldg(loads.q_words + row) : 0;
                if (PROG_VALUE || MASKED) program[t][x].tile(a, row, k0);
#pragma unroll
                for (int i = 0; i < 2 * STEPS; i++) {
                    const int c = i * 8;
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    const Pair pair = {row, k0 + c, 0, c, PROG_DIAGONAL ? __ldg(loads.diagonal + row - k0 - c) : 0.f,
                                       PROG_DENSE ? loads.dense_at(a, row, k0 + c) : 0.f, q_word,
                                       PROG_VECTOR ? __ldg(loads.k_words + k0 + c) : 0};
                    y = score_value<false>(program[t][x], a, y, pair);
                    if (MASKED && !((c < keys) & score_mask(program[t][x], a, pair))) y = NEG_INF;
                }
            }
    }

    /* Columns are query rows: their maxima and sums run over the lanes 4, 8, 16 apart. */
    FXA_INLINE void softmax(float (&s)[STEPS][TILES][4], float bias)
    {
        float fade[TILES][2];
        bool shrink = false;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float m = fmaxf(s[0][t][x], s[0][t][x + 2]);
#pragma unroll
                for (int i = 1; i < STEPS; i++) m = fmaxf(m, fmaxf(s[i][t][x], s[i][t][x + 2]));
#pragma unroll
                for (int i = 4; i < 32; i *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, i));
                m = fmaxf(m, top[t][x]);
                const float shift = finite_or_zero(m);
                fade[t][x] = exp2_fast((top[t][x] - shift) * unit);
                shrink |= m != top[t][x];
                top[t][x] = m;
                sum[t][x] *= fade[t][x];
#pragma unroll
                for (int i = 0; i < 2 * STEPS; i++) {
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    y = exp2_fast((y - shift) * unit - bias);
                    sum[t][x] += y;
                }
            }
        if (!__any_sync(~0u, shrink)) return;
#pragma unroll
        for (int d = 0; d < FXA_DV / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int x = 0; x < 4; x++) o[d][t][x] *= fade[t][x & 1];
    }

    /* What follows the last key of the entry has weight 0 and may be anything (clear_rows). Each warp has its own keys;
     * where warps share them, one of them clears, and all wait. */
    FXA_INLINE void clear_values(u32 values, int n) const
    {
        const int keys = at.k_len - n * BN;
        if (keys >= (ROW_PARTS > 1 ? BN : key0 + KEYS) || !loose_keys(a)) return;
        if (row0 == 0) clear_rows<BN, FXA_DV>(values, max(keys, key0), lane, 32, key0 + KEYS);
        if (ROW_PARTS > 1)
            workers_sync();
        else
            __syncwarp();
    }

    FXA_INLINE void add_values(const float (&s)[STEPS][TILES][4], u32 values)
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 p[TILES][2];
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                p[t][0] = transpose8x8(pack16(s[i][t][0], s[i][t][1]));
                p[t][1] = transpose8x8(pack16(s[i][t][2], s[i][t][3]));
            }
#pragma unroll
            for (int d = 0; d < FXA_DV / 16; d++) {
                u32 rows[4]; /* V transposed: its columns are the rows of the product */
                load_matrix_transposed(swizzled<BN>(values, key0 + i * 16 + (lane & 7) + 8 * (lane >> 4),
                                                    d * 2 + ((lane >> 3) & 1)), rows);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(o[d][t], rows, p[t][0], p[t][1]);
            }
        }
    }

    /* The rows of this warp's keys, in every block of 64 columns. Warps that share them write the same, but what one
     * has changed another must not change again: a barrier on either side. */
    FXA_INLINE void change(u32 tile, int values) const
    {
        if (ROW_PARTS > 1) workers_sync();
        if (row0 == 0)
#pragma unroll
            for (int c = 0; c < FXA_DV; c += 64)
                change_values(tile + c * BN * 2 + key0 * 128, KEYS * 128, values, lane, 32);
        async_fence(); /* the buffer is TMA's again after this */
        __syncwarp();
        if (ROW_PARTS > 1) workers_sync();
    }

    /* The tiles of a piece, from step `step` of the ring on. */
    FXA_INLINE void walk(u32 base, u32 &step, int piece, int values)
    {
        const Ring<STAGES> ring = {base + BARS_AT};
        const int end = at.begin(piece + 1);
        clear();
#pragma unroll 1
        for (int i = at.begin(piece); i < end; i++, step++) {
            const u32 keys = base + step % STAGES * STAGE_BYTES;
            float s[STEPS][TILES][4];
            ring.wait_full(step);
            const int n = take_word(base + NUMBERS_AT + step % STAGES * 4);
            products(s, keys);
            if (i < at.row.partial)
                score<true>(s, n);
            else
                score<false>(s, n);
            softmax(s, values > VALUES_FINITE ? values_bias(values, FXA_F16) : BIAS);
            clear_values(keys + K_BYTES, n);
            if (values) change(keys + K_BYTES, values);
            add_values(s, keys + K_BYTES);
            give_back(ring.empty(step));
        }
    }

    FXA_INLINE bool is_spoilt() const
    {
        float x = 0.f;
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++)
            x = __fmaf_rn(o[i / 4 / TILES][i / 4 % TILES][i % 4], 0.f, x);
        return __any_sync(~0u, x != x);
    }

    /* Bit by bit, in the order of loops: where O is to be +inf, -inf. */
    typedef u32 Marks[(FXA_DV / 16 * TILES * 4 + 31) / 32];

    FXA_INLINE void take_marks(Marks &marks) const
    {
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++) {
            if (i % 32 == 0) marks[i / 32] = 0;
            marks[i / 32] |= (u32)(o[i / 4 / TILES][i / 4 % TILES][i % 4] > 0.f) << (i % 32);
        }
    }

    FXA_INLINE void put_marks(const Marks &up, const Marks &down)
    {
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++) {
            const bool plus = up[i / 32] >> (i % 32) & 1, minus = down[i / 32] >> (i % 32) & 1;
            float &x = o[i / 4 / TILES][i / 4 % TILES][i % 4];
            if (plus || minus) x = plus && minus ? POS_INF - POS_INF : plus ? POS_INF : NEG_INF;
        }
    }

    /* O, maximum and sum of this warp to shared memory. */
    FXA_INLINE void hand_in(float *out, Float2 *stats) const
    {
        u32 place = (row0 + (lane & 3) * 2) << 16 | lane >> 2;
        keep(place); /* else addresses take registers from the loop over tiles */
        const int part = key0 / KEYS, column = place & 0xffff;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int r = (int)(place >> 16) + t * 8 + x;
                float all = sum[t][x];
#pragma unroll
                for (int i = 4; i < 32; i *= 2) all += __shfl_xor_sync(~0u, all, i);
                if (lane < 4) stats[part * ROWS + r] = Float2{top[t][x], all};
#pragma unroll
                for (int d = 0; d < FXA_DV / 16; d++) {
                    out[out_place(part, r, d * 16 + column)] = o[d][t][x];
                    out[out_place(part, r, d * 16 + column + 8)] = o[d][t][x + 2];
                }
            }
    }
};

} // namespace

#endif
