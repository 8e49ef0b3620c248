/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward for sm_80 and newer (mma.sync, cp.async): O and LSE of query tiles.
 *
 * Grid: (query tiles, heads, batch); packed: (q_total / BM + batch, heads, 1). A CTA of 4 warps has BM = 128 query rows
 * of one head, a warp 32; half of that with head dims above 128 or a dense tensor. Pipeline: K and V have one buffer
 * each; one is loaded while the other is computed on.
 *
 *     shared memory   | Q [BM, D] | K [BN, D] | V [BN, DV] |
 *     cp.async          V(j)            K(j+1)
 *     computation       S(j)            softmax(j)             O += P V(j)
 *
 * Mainloop: online softmax with the maximum updated in every step.
 * Epilogue: O and LSE from registers. A tile whose O is not finite is recomputed (common/nonfinite.cuh).
 */
#include "sm80/mma.cuh"
#include "common/dropout.cuh"
#include "common/nonfinite.cuh"
#include "common/operand_loads.cuh"
#include "common/tile_scheduler.cuh"
#include "common/score.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_forward_sm80(TRAITS);
constexpr int BM = TILE.launch.q_rows, BN = TILE.launch.k_rows, THREADS = TILE.launch.threads, WARPS = THREADS / 32;
/* Blocks of 16 query rows per warp: two blocks halve the loads of K and V from shared memory, if registers hold
 * them. */
constexpr int BLOCKS = BM / (16 * WARPS);
constexpr int Q_BYTES = BM * D_STORED * 2, K_BYTES = BN * D_STORED * 2, V_BYTES = BN * DV_STORED * 2;
constexpr int BYTES = Q_BYTES + K_BYTES + V_BYTES + 1024;
static_assert(BYTES == TILE.launch.shared_bytes, "common/tile_shape.h has another size");
static_assert(BLOCKS >= 1 && BM == 16 * WARPS * BLOCKS, "a warp has entire blocks of 16 rows");
static_assert(Q_BYTES % 1024 == 0 && K_BYTES % 1024 == 0, "swizzled tiles are aligned to 1024 bytes");
/* Largest |row maximum * unit|, an exponent of 2, whose rounding to f32 changes a weight by at most 2^-8 of the
 * weight. */
constexpr float LARGE = 65536.f;

struct Sm80Forward {
    const FxaArgs &a;
    u32 q_tile, k_tile, v_tile;
    int m, h, b, kv_h, thread, warp, lane, q_first, q_len, k_first, k_len;
    Program program;
    OperandLoads loads;
    float unit, row_max[BLOCKS][2], row_sum[BLOCKS][2], o[BLOCKS][FXA_DV / 8][4];

    FXA_INLINE Sm80Forward(const FxaArgs &a_, const QueryTile<BM> &at, u32 base)
        : a(a_), q_tile(base), k_tile(base + Q_BYTES), v_tile(base + Q_BYTES + K_BYTES), m(at.m), h(at.h), b(at.b),
          kv_h(at.h / a_.group), thread(threadIdx.x), warp(threadIdx.x >> 5), lane(threadIdx.x & 31),
          q_first(at.q.first), q_len(at.q.length), k_first(at.k.first), k_len(at.k.length),
          loads(a_, b, h, q_len, k_len), unit(Program::unit(a_))
    {
        program.head(a, b, h, q_len, k_len);
    }

    FXA_INLINE void clear()
    {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            row_max[i][0] = row_max[i][1] = NEG_INF;
            row_sum[i][0] = row_sum[i][1] = 0.f;
#pragma unroll
            for (int j = 0; j < FXA_DV / 8; j++) o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0.f;
        }
    }

    FXA_INLINE int first_row(int block) const { return m * BM + (warp * BLOCKS + block) * 16 + (lane >> 2); }

    FXA_INLINE void copy_keys(int n) const
    {
        copy_tile<BN, FXA_D, THREADS>(k_tile, KeyRows(a, a.k, b, kv_h, k_first, n * BN), k_len - n * BN, a.d, thread);
    }

    FXA_INLINE void products(float (&s)[BLOCKS][BN / 8][4]) const
    {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int j = 0; j < BN / 8; j++) s[i][j][0] = s[i][j][1] = s[i][j][2] = s[i][j][3] = 0.f;
#pragma unroll
        for (int k = 0; k < FXA_D / 16; k++) {
            u32 rows[BLOCKS][4];
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) operand_a<BM>(rows[i], q_tile, (warp * BLOCKS + i) * 16, k, lane);
#pragma unroll
            for (int j = 0; j < BN / 16; j++) {
                u32 r[4];
                operand_b<BN>(r, k_tile, j * 16, k, lane);
#pragma unroll
                for (int i = 0; i < BLOCKS; i++) {
                    mma(s[i][2 * j], rows[i], r[0], r[1]);
                    mma(s[i][2 * j + 1], rows[i], r[2], r[3]);
                }
            }
        }
    }

    template <bool MASKED> FXA_INLINE void score(float (&s)[BN / 8][4], int block, int n)
    {
        constexpr bool OPERANDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int q0 = first_row(block), k0 = n * BN + (lane & 3) * 2;
        const int q_word[2] = {OPERANDS ? __ldg(loads.q_words + q0) : 0, OPERANDS ? __ldg(loads.q_words + q0 + 8) : 0};
        const int keys[2] = {q0 < q_len ? k_len - k0 : 0, q0 + 8 < q_len ? k_len - k0 : 0};
        if (PROG_VALUE || MASKED) program.tile(a, q0, k0);
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int x = 0; x < 4; x++) {
                const int c = j * 8 + (x & 1), r = x >> 1;
                const Pair pair = {q0 + 8 * r,
                                   k0 + c,
                                   8 * r,
                                   c,
                                   PROG_DIAGONAL ? __ldg(loads.diagonal + q0 - k0 + 8 * r - c) : 0.f,
                                   PROG_DENSE ? loads.dense_at(a, q0 + 8 * r, k0 + c) : 0.f,
                                   q_word[r],
                                   OPERANDS ? __ldg(loads.k_words + k0 + c) : 0};
                s[j][x] = score_value<false>(program, a, s[j][x], pair);
                if (MASKED && !((c < keys[r]) & score_mask(program, a, pair))) s[j][x] = NEG_INF;
            }
    }

    /* Turns scores into weights p in 16 bits, 0 for dropped pairs, and rescales O. */
    FXA_INLINE void softmax(float (&s)[BN / 8][4], u32 (&p)[BN / 8][2], int block, int n, int values)
    {
        const u32 kept = FXA_DROPOUT ? kept_of_row(a, b, h, first_row(block), n * BN) : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = row_max[block][r];
#pragma unroll
            for (int j = 0; j < BN / 8; j++) top = fmaxf(top, fmaxf(s[j][r * 2], s[j][r * 2 + 1]));
            top = quad_max(top);
            const float middle = finite_or_zero(top), rescale = exp2_fast((row_max[block][r] - middle) * unit);
            float shift = middle * unit;
            /* If |shift| is so large that its rounding would change weights, the maximum is subtracted before the
             * multiplication by `unit`. */
            if (__any_sync(~0u, !(fabsf(shift) < LARGE))) {
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
                    s[j][r * 2] -= middle;
                    s[j][r * 2 + 1] -= middle;
                }
                shift = 0.f;
            }
            shift += values_bias(values, FXA_F16);
            float sum = row_sum[block][r] * rescale;
            row_max[block][r] = top;
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
                const float x = exp2_fast(s[j][r * 2] * unit - shift), y = exp2_fast(s[j][r * 2 + 1] * unit - shift);
                sum += x + y;
                const int bit = j * 4 + r * 2;
                p[j][r] = pack16(keeps(kept, bit) ? x : 0.f, keeps(kept, bit + 1) ? y : 0.f);
            }
            row_sum[block][r] = sum;
#pragma unroll
            for (int j = 0; j < FXA_DV / 8; j++) {
                o[block][j][r * 2] *= rescale;
                o[block][j][r * 2 + 1] *= rescale;
            }
        }
    }

    FXA_INLINE void add_values(const u32 (&p)[BLOCKS][BN / 8][2])
    {
#pragma unroll
        for (int k = 0; k < BN / 16; k++)
#pragma unroll
            for (int j = 0; j < FXA_DV / 16; j++) {
                u32 r[4];
                operand_b_transposed<BN>(r, v_tile, k, j * 2, lane);
#pragma unroll
                for (int i = 0; i < BLOCKS; i++) {
                    const u32 rows[4] = {p[i][2 * k][0], p[i][2 * k][1], p[i][2 * k + 1][0], p[i][2 * k + 1][1]};
                    mma(o[i][2 * j], rows, r[0], r[1]);
                    mma(o[i][2 * j + 1], rows, r[2], r[3]);
                }
            }
    }

    FXA_INLINE bool key_step(int n, int next, int values, bool masked)
    {
        bool changed = false;
        float s[BLOCKS][BN / 8][4];
        u32 p[BLOCKS][BN / 8][2];
        copy_wait<0>();
        __syncthreads();
        copy_tile<BN, FXA_DV, THREADS>(v_tile, KeyRows(a, a.v, b, kv_h, k_first, n * BN), k_len - n * BN, a.dv, thread);
        copy_commit();
        products(s);
        __syncthreads();
        if (next >= 0) copy_keys(next);
        copy_commit();
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            if (masked)
                score<true>(s[i], i, n);
            else
                score<false>(s[i], i, n);
            softmax(s[i], p[i], i, n, values);
        }
        copy_wait<1>();
        __syncthreads();
        if (values) {
            changed = change_values(v_tile, V_BYTES, values, thread, THREADS);
            __syncthreads();
        }
        add_values(p);
        return changed;
    }

    FXA_INLINE void store(float bias) const
    {
        const int limit = q_starts(a) ? q_len : a.q_len;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int q = first_row(i) + 8 * r;
                const float sum = quad_sum(row_sum[i][r]);
                const SoftmaxEpilogue end(a, h, finite_or_zero(row_max[i][r]), unit, bias, sum);
                const float factor = q < q_len ? end.factor : 0.f;
                if (q >= limit) continue;
                if ((lane & 3) == 0)
                    a.lse[b * a.lse_b + h * a.lse_h + (q_first + q) * a.lse_s] = q < q_len ? end.lse : NEG_INF;
#if FXA_RETURN_ROW_MAX
                if ((lane & 3) == 0)
                    a.row_max[b * a.max_b + h * a.max_h + (q_first + q) * a.max_s] =
                        q < q_len ? row_maximum_of(row_max[i][r], sum, unit) : NEG_INF;
#endif
#pragma unroll
                for (int j = 0; j < FXA_DV / 8; j++)
                    store_results(a.o, b, h, q_first + q, j * 8 + (lane & 3) * 2, a.dv,
                                  factor == 0.f ? 0.f : o[i][j][r * 2] * factor,
                                  factor == 0.f ? 0.f : o[i][j][r * 2 + 1] * factor);
            }
    }

    /* Runs the key tiles of `row`, a row of the tile list. values: how elements of V are replaced (VALUES_FINITE and
     * others, common/nonfinite.cuh). Returns true if this thread has replaced an element of V. */
    FXA_INLINE bool run_tiles(const ListRow &row, int values)
    {
        bool changed = false;
        int n = row.first, j = 0;
        clear();
        if (row.total) copy_keys(n);
        copy_commit();
        if (a.turned && !values) { /* Q stays negated in shared memory for the later passes */
            copy_wait<0>();
            __syncthreads();
            negate_tile(a, q_tile, Q_BYTES, thread, THREADS);
        }
#pragma unroll 1
        for (; j < row.total; j++) {
            const int next = j + 1 < row.total ? row.tile(j + 1) : -1;
            changed |= key_step(n, next, values, j < row.partial);
            n = next;
        }
        copy_wait<0>();
        return changed;
    }

    /* Returns true if O of an existing row of this thread is not finite. */
    FXA_INLINE bool has_nonfinite() const
    {
        bool bad = false;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            float x[2] = {0.f, 0.f};
#pragma unroll
            for (int j = 0; j < FXA_DV / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) x[c >> 1] = __fmaf_rn(o[i][j][c], 0.f, x[c >> 1]);
            bad |= (x[0] != x[0] && first_row(i) < q_len) || (x[1] != x[1] && first_row(i) + 8 < q_len);
        }
        return bad;
    }

    FXA_INLINE void put_marks(int values)
    {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            Result *to[2];
            bool attended[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float top = finite_or_zero(row_max[i][r]), sum = quad_sum(row_sum[i][r]);
                const SoftmaxEpilogue end(a, h, top, unit, values_bias(values, FXA_F16), sum);
                /* put_mark() skips a row whose factor of O is NaN (from a NaN in the sum or the sink): its O stays
                 * NaN */
                attended[r] = first_row(i) + 8 * r < q_len && end.factor > 0.f;
                to[r] = result_row(a.o, b, h, q_first + first_row(i) + 8 * r);
            }
            in_batches<4>((float(&)[FXA_DV / 2])o[i], [&](int first, float (&x)[4]) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int c = first * 2 + (lane & 3) * 2 + (e & 1);
                    if (x[e] > 0.f && attended[e >> 1] && c < a.dv) put_mark(to[e >> 1] + c, values);
                }
            });
        }
    }

    FXA_INLINE void run()
    {
        const ListRow row(a, b, h, m, (k_len + BN - 1) / BN, (m + 1) * BM > q_len, k_len % BN != 0);
        copy_tile<BM, FXA_D, THREADS>(q_tile, TileRows(a.q, b, h, q_first + m * BM), q_len - m * BM, a.d, thread);
#pragma unroll 1
        for (int values = VALUES_UNCHANGED; values <= VALUES_NEG_INF; values++) {
            const bool changed = run_tiles(row, values);
            if (values <= VALUES_FINITE)
                store(values_bias(values, FXA_F16));
            else
                put_marks(values);
            const bool again = values == VALUES_UNCHANGED ? has_nonfinite() : changed || values == VALUES_POS_INF;
            if (!__syncthreads_or(again)) break;
        }
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_forward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS) fxa_forward(const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    launch_begin();
    const QueryTile<BM> at(a);
    if (!at.outside(a)) Sm80Forward(a, at, (shared_address(memory) + 1023) & ~1023u).run();
}
