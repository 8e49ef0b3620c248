/* SPDX-License-Identifier: Apache-2.0
 *
 * Mainloop of a consumer warp of sm90/decode.cu, the split-KV decode kernel: S^T = K Q^T and O^T += V^T P^T with
 * mma.sync, for the warp's keys of each tile. Keys are the rows of the accumulators of S^T, query rows the columns. A
 * tile's keys are divided among KEY_WARPS warps and the query rows among ROW_WARPS warps: KEY_WARPS * ROW_WARPS warps
 * in all.
 */
#ifndef FXA_CUDA_SM90_DECODE_MAINLOOP_CUH
#define FXA_CUDA_SM90_DECODE_MAINLOOP_CUH

#include "sm90/decode_combine.cuh"
#include "common/nonfinite.cuh"
#include "common/operand_loads.cuh"

namespace {

/* A lane's elements of Q, as B operands of mma.sync. */
typedef u32 QueryRows[TILES][FXA_D / 8];

/* Loads a lane's elements of a row of Q, or zeros unless `inside`; in few instructions if the row has exactly FXA_D
 * aligned elements. */
FXA_INLINE void load_query(const FxaArgs &a, u32 (&x)[FXA_D / 8], const u16 *from, bool inside)
{
    const int c = (threadIdx.x & 3) * 2;
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

FXA_INLINE void load_queries(const FxaArgs &a, const DecodeWork &at, int warp, QueryRows &rows)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int r = (warp / KEY_WARPS * TILES + t) * 8 + (int)(threadIdx.x >> 2 & 7);
        const bool inside = r < at.rows && at.query(a, r) < at.q_len;
        const int row = inside ? r : 0;
        load_query(a, rows[t], rows_of(a.q, at.b, at.q_head(a, row), at.q_first + at.query(a, row)), inside);
    }
}

struct DecodeMainloop {
    const FxaArgs &a;
    const DecodeWork &at;
    int lane, key0, row0; /* key0: the warp's first key in a tile; row0: its first query row */
    Program program[TILES][2];
    QueryRows q;
    float unit, top[TILES][2], sum[TILES][2], o[FXA_DV / 16][TILES][4];

    FXA_INLINE DecodeMainloop(const FxaArgs &a_, const DecodeWork &at_, int warp, const QueryRows &rows)
        : a(a_), at(at_), lane(threadIdx.x & 31), key0(warp % KEY_WARPS * KEYS), row0(warp / KEY_WARPS * TILES * 8),
          unit(Program::unit(a_))
    {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int k = 0; k < FXA_D / 8; k++) q[t][k] = rows[t][k];
            if (a.turned)
#pragma unroll
                for (int k = 0; k < FXA_D / 8; k++) q[t][k] = negate_pair(a, q[t][k]);
#pragma unroll
            for (int x = 0; x < 2; x++)
                program[t][x].head(a, at.b, at.q_head(a, min(row_of(t, x), at.rows - 1)), at.q_len, at.k_len);
        }
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

    /* Computes S^T = K Q^T. With PRELOADS, two accumulators alternate, because a product waits for the previous one in
     * the same accumulator. */
    FXA_INLINE void multiply_keys(float (&s)[STEPS][TILES][4], u32 keys) const
    {
        constexpr int SUMS = PRELOADS ? 2 : 1, ROWS_OF = PRELOADS ? FXA_D / 16 : 1;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            float x[SUMS][TILES][4] = {};
            u32 rows[ROWS_OF][4];
#pragma unroll
            for (int k = 0; PRELOADS && k < FXA_D / 16; k++) operand_a<BN>(rows[k], keys, key0 + i * 16, k, lane);
#pragma unroll
            for (int k = 0; k < FXA_D / 16; k++) {
                if (!PRELOADS) operand_a<BN>(rows[0], keys, key0 + i * 16, k, lane);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(x[k % SUMS][t], rows[k % ROWS_OF], q[t][2 * k], q[t][2 * k + 1]);
            }
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int j = 0; j < 4; j++) s[i][t][j] = PRELOADS ? x[0][t][j] + x[SUMS - 1][t][j] : x[0][t][j];
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
                const OperandLoads loads(a, at.b, at.q_head(a, r), at.q_len, at.k_len);
                const int keys = row < at.q_len ? at.k_len - k0 : 0;
                const int q_word = PROG_OPERANDS ? __ldg(loads.q_words + row) : 0;
                if (PROG_VALUE || MASKED) program[t][x].tile(a, row, k0);
#pragma unroll
                for (int i = 0; i < 2 * STEPS; i++) {
                    const int c = i * 8;
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    const Pair pair = {row, k0 + c, 0, c, PROG_DIAGONAL ? __ldg(loads.diagonal + row - k0 - c) : 0.f,
                                       PROG_DENSE ? loads.dense_at(a, row, k0 + c) : 0.f, q_word,
                                       PROG_OPERANDS ? __ldg(loads.k_words + k0 + c) : 0};
                    y = score_value<false>(program[t][x], a, y, pair);
                    if (MASKED && !((c < keys) & score_mask(program[t][x], a, pair))) y = NEG_INF;
                }
            }
    }

    /* Updates maxima, sums and O by the online softmax and replaces s by the weights 2^((s - maximum) unit - bias).
     * Columns of the accumulators are query rows: their maxima are reduced over lanes 4, 8 and 16 apart. */
    FXA_INLINE void softmax(float (&s)[STEPS][TILES][4], float bias)
    {
        float rescale[TILES][2];
        bool grew = false;
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
                rescale[t][x] = exp2_fast((top[t][x] - shift) * unit);
                grew |= m != top[t][x];
                top[t][x] = m;
                sum[t][x] *= rescale[t][x];
#pragma unroll
                for (int i = 0; i < 2 * STEPS; i++) {
                    float &y = s[i >> 1][t][(i & 1) * 2 + x];
                    y = exp2_fast((y - shift) * unit - bias);
                    sum[t][x] += y;
                }
            }
        if (!__any_sync(~0u, grew)) return;
#pragma unroll
        for (int d = 0; d < FXA_DV / 16; d++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int x = 0; x < 4; x++) o[d][t][x] *= rescale[t][x & 1];
    }

    /* Sets the rows of V past the last key to 0 (clear_rows). Each warp clears the rows of its own keys. If several
     * warps (ROW_WARPS > 1) have the same keys, one of them clears the rows and all wait. */
    FXA_INLINE void clear_values(u32 values, int n) const
    {
        const int keys = at.k_len - n * BN;
        if (keys >= (ROW_WARPS > 1 ? BN : key0 + KEYS) || !has_rows_past_k_len(a)) return;
        if (row0 == 0) clear_rows<BN, FXA_DV>(values, max(keys, key0), lane, 32, key0 + KEYS);
        if (ROW_WARPS > 1)
            consumers_sync();
        else
            __syncwarp();
    }

    /* Loads a block of V transposed, as A operand of mma.sync: elements 16 d to 16 d + 15 of the head dim, of the
     * warp's keys 16 i to 16 i + 15. */
    FXA_INLINE void load_values(u32 (&rows)[4], u32 values, int i, int d) const
    {
        const int key = key0 + i * 16 + (lane & 7) + 8 * (lane >> 4);
        load_matrix_transposed(swizzled<BN>(values, key, d * 2 + ((lane >> 3) & 1)), rows);
    }

    typedef u32 Values[PRELOADS ? FXA_DV / 16 : 1][4];

    FXA_INLINE void preload_values(Values &rows, u32 values) const
    {
#pragma unroll
        for (int d = 0; PRELOADS && d < FXA_DV / 16; d++) load_values(rows[d], values, 0, d);
    }

    FXA_INLINE void multiply_values(const float (&s)[STEPS][TILES][4], u32 values, Values &rows)
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
                u32(&row)[4] = rows[PRELOADS ? d : 0];
                if (!PRELOADS) load_values(row, values, i, d);
#pragma unroll
                for (int t = 0; t < TILES; t++) mma(o[d][t], row, p[t][0], p[t][1]);
            }
        }
    }

    /* Replaces elements of V for a recomputation as `values` says (common/nonfinite.cuh), in the rows of this warp's
     * keys. If several warps (ROW_WARPS > 1) have the same keys, one of them replaces the elements, between two
     * barriers. */
    FXA_INLINE void replace_values(u32 tile, int values) const
    {
        if (ROW_WARPS > 1) consumers_sync();
        if (row0 == 0)
#pragma unroll
            for (int c = 0; c < FXA_DV; c += 64)
                change_values(tile + c * BN * 2 + key0 * 128, KEYS * 128, values, lane, 32);
        async_fence(); /* TMA overwrites the buffer next */
        __syncwarp();
        if (ROW_WARPS > 1) consumers_sync();
    }

    /* Runs the key tiles of a split (part of the keys), from step `step` of the ring on. values: how elements of V are
     * replaced (VALUES_FINITE and others, common/nonfinite.cuh); 0 = unchanged */
    FXA_INLINE void run_split(u32 base, u32 &step, int split, int values)
    {
        const Ring<STAGES> ring = {base + BARS_AT};
        const int end = at.begin(split + 1);
        clear();
#pragma unroll 1
        for (int i = at.begin(split); i < end; i++, step++) {
            const u32 keys = base + step % STAGES * STAGE_BYTES;
            float s[STEPS][TILES][4];
            Values rows;
            ring.wait_full(step);
            const int n = take_word(base + INDICES_AT + step % STAGES * 4);
            multiply_keys(s, keys);
            clear_values(keys + K_BYTES, n);
            if (values) replace_values(keys + K_BYTES, values);
            preload_values(rows, keys + K_BYTES);
            if (PRELOADS) release(ring.empty(step));
            if (i < at.row.partial)
                score<true>(s, n);
            else
                score<false>(s, n);
            softmax(s, values > VALUES_FINITE ? values_bias(values, FXA_F16) : BIAS);
            multiply_values(s, keys + K_BYTES, rows);
            if (!PRELOADS) release(ring.empty(step));
        }
    }

    FXA_INLINE bool has_nonfinite() const
    {
        float x[4] = {};
#pragma unroll
        for (int i = 0; i < FXA_DV / 16 * TILES * 4; i++)
            x[i % 4] = __fmaf_rn(o[i / 4 / TILES][i / 4 % TILES][i % 4], 0.f, x[i % 4]);
        const float all = x[0] + x[1] + (x[2] + x[3]);
        return __any_sync(~0u, all != all);
    }

    /* A bit per element of O of a lane, in the order of the loop of take_marks(); set if the element has to become +inf
     * (`up`) or -inf (`down`). */
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

    /* Writes O, maxima and sums of this warp to shared memory. Addresses are computed for 32 elements of the head dim;
     * the others are at constant offsets from these. */
    FXA_INLINE void partial_to_shared(float *out, Float2 *stats) const
    {
        u32 index = (row0 + (lane & 3) * 2) << 16 | lane >> 2;
        keep(index); /* keeps addresses that depend on `index` out of registers in the loop over tiles */
        const int key_warp = key0 / KEYS, first = index >> 16;
        float *to[4];
#pragma unroll
        for (int m = 0; m < 4; m++) to[m] = out + out_index(key_warp, first, m * 8 + (int)(index & 0xffff));
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                float all = sum[t][x];
#pragma unroll
                for (int i = 4; i < 32; i *= 2) all += __shfl_xor_sync(~0u, all, i);
                if (lane < 4) stats[key_warp * ROWS + first + t * 8 + x] = Float2{top[t][x], all};
#pragma unroll
                for (int i = 0; i < FXA_DV / 8; i++)
                    to[i % 4][i / 4 * 32 + (t * 8 + x) * FXA_DV] = o[i / 2][t][x + i % 2 * 2];
            }
    }
};

} // namespace

#endif
