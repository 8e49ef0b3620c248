/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward for sm_80 and newer: a CTA owns a tile of keys of one KV head and walks the query blocks of its list, for
 * every query head of the group in turn. Scores are computed transposed, a warp has 16 keys; P and dS feed dV and dK
 * from registers, dS goes through shared memory for dQ, which is added into the f32 sum of backward_ends.cu by atomics,
 * in the layout of the Hopper kernel. Gradients of captured tensors leave element by element.
 * Tiles shrink where shared memory is small. Launch: grid (key tiles, KV heads, batch).
 */
#include "ampere.cuh"
#include "score.cuh"

namespace {

#if __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int SHARED_LIMIT = 163 * 1024;
#else
constexpr int SHARED_LIMIT = 99 * 1024; /* sm_86, sm_89, sm_120 */
#endif
constexpr int BQ = 64, BK = FXA_D <= 64 || SHARED_LIMIT > 128 * 1024 ? 128 : 64;
constexpr int WARPS = BK / 16, THREADS = 32 * WARPS;
constexpr int HALF = FXA_D / 2; /* columns of dQ that a warp computes at a time */
constexpr int K_BYTES = BK * FXA_D * 2, Q_BYTES = BQ * FXA_D * 2, DS_BYTES = BQ * BK * 2;
constexpr int BYTES = 2 * K_BYTES + 2 * Q_BYTES + DS_BYTES + 1024;
static_assert(FXA_D == FXA_DV && BYTES <= SHARED_LIMIT, "one head dimension that fits");

template <int n> FXA_INLINE void clear(float (&x)[n][4])
{
#pragma unroll
    for (int i = 0; i < n; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.f;
}

FXA_INLINE void add4(float *to, const float (&x)[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; i++) atomicAdd(to + i, x[i]);
#endif
}

struct Tile {
    const FxaArgs &a;
    u32 k_tile, v_tile, q_tile, o_tile, ds_tile;
    int n, kv_h, b, h, thread, warp, lane, q_len, k_len, k0;
    long long padded; /* row of the padded workspace */
    Program program;
    float unit, dk[FXA_D / 8][4], dv[FXA_D / 8][4];

    FXA_INLINE Tile(const FxaArgs &a_, u32 base)
        : a(a_), k_tile(base), v_tile(base + K_BYTES), q_tile(base + 2 * K_BYTES), o_tile(q_tile + Q_BYTES),
          ds_tile(o_tile + Q_BYTES), n(blockIdx.x), kv_h(blockIdx.y), b(blockIdx.z), thread(threadIdx.x),
          warp(threadIdx.x >> 5), lane(threadIdx.x & 31), q_len(q_length(a_, b)), k_len(k_length(a_, b)),
          k0(n * BK + warp * 16 + (lane >> 2)), unit(Program::unit(a_))
    {
        clear(dk);
        clear(dv);
    }

    /* Scores and dP of this warp's 16 keys and the block's 64 queries. */
    FXA_INLINE void products(float (&s)[BQ / 8][4], float (&dp)[BQ / 8][4]) const
    {
        clear(s);
        clear(dp);
#pragma unroll
        for (int k = 0; k < FXA_D / 16; k++) {
            u32 keys[4], values[4], r[4];
            operand_a<BK>(keys, k_tile, warp * 16, k, lane);
            operand_a<BK>(values, v_tile, warp * 16, k, lane);
#pragma unroll
            for (int j = 0; j < BQ / 16; j++) {
                operand_b<BQ>(r, q_tile, j * 16, k, lane);
                mma(s[2 * j], keys, r[0], r[1]);
                mma(s[2 * j + 1], keys, r[2], r[3]);
                operand_b<BQ>(r, o_tile, j * 16, k, lane);
                mma(dp[2 * j], values, r[0], r[1]);
                mma(dp[2 * j + 1], values, r[2], r[3]);
            }
        }
    }

    /* Gradients of what the program captured, for one pair. */
    FXA_INLINE void captured(int q, int k, float ds) const
    {
#if PROG_GRAD_DENSE
        u16 *row = (u16 *)a.grad_dense.data + b * a.grad_dense.b + h * a.grad_dense.h + q * a.grad_dense.s;
        if (q < q_len && k < k_len) row[k] = (u16)pack16(ds, 0.f);
#endif
#if PROG_GRAD_DIAGONAL
        const FxaDiagonalGrad &g = a.grad_diagonal;
        const int at = q - k + g.zero + n * g.zero_step;
        if (q < q_len && k < k_len && (unsigned)at < (unsigned)g.size)
            atomicAdd(g.data + b * g.b + h * g.h + n * g.n + at, ds);
#endif
    }

    /* P and dS in 16 bits, as operands of dV and dK. */
    template <bool MASKED>
    FXA_INLINE void gradients(float (&s)[BQ / 8][4], float (&dp)[BQ / 8][4], u32 (&p)[BQ / 8][2], u32 (&ds)[BQ / 8][2],
                              int m)
    {
        constexpr bool WORDS = PROG_VECTOR == 2 || (PROG_VECTOR && MASKED);
        const int q0 = m * BQ + (lane & 3) * 2;
        const PairLoads loads(a, b, h, q_len, k_len);
        const int k_word[2] = {WORDS ? __ldg(loads.k_words + k0) : 0, WORDS ? __ldg(loads.k_words + k0 + 8) : 0};
        const int queries[2] = {k0 < k_len ? q_len - q0 : 0, k0 + 8 < k_len ? q_len - q0 : 0};
        if (PROG_VALUE || MASKED) program.tile(a, q0, k0);
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            const Float2 lse = *(const Float2 *)(a.lse2 + padded + q0 + j * 8);
            const Float2 delta = *(const Float2 *)(a.delta + padded + q0 + j * 8);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float w[2], g[2];
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const int c = j * 8 + x;
                    float slope;
                    const Pair pair = {q0 + c, k0 + 8 * r, c, 8 * r,
                                       PROG_DIAGONAL ? __ldg(loads.diagonal + q0 - k0 + c - 8 * r) : 0.f,
                                       PROG_DENSE ? loads.dense_at(a, q0 + c, k0 + 8 * r) : 0.f,
                                       WORDS ? __ldg(loads.q_words + q0 + c) : 0, k_word[r]};
                    const float value = score_value(program, a, s[j][r * 2 + x], pair, slope);
                    w[x] = exp2_fast(__fmaf_rn(value, unit, -(x ? lse.y : lse.x)));
                    if (MASKED && !(c < queries[r] && score_mask(program, a, pair))) w[x] = 0.f;
                    g[x] = w[x] * (dp[j][r * 2 + x] - (x ? delta.y : delta.x));
                    captured(q0 + c, k0 + 8 * r, g[x]);
                    if (PROG_SLOPE) g[x] *= slope;
                }
                p[j][r] = pack16(w[0], w[1]);
                ds[j][r] = pack16(g[0], g[1]);
            }
        }
    }

    /* dS as [q][k]: the registers hold its transpose. */
    FXA_INLINE void stage(const u32 (&ds)[BQ / 8][2]) const
    {
#pragma unroll
        for (int j = 0; j < BQ / 8; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int key = warp * 16 + r * 8 + (lane >> 2), q = j * 8 + (lane & 3) * 2;
                const u32 at = swizzled<BQ>(ds_tile, q, key >> 3) + (key & 7) * 2;
                const u32 below = swizzled<BQ>(ds_tile, q + 1, key >> 3) + (key & 7) * 2;
                asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"((u16)ds[j][r]) : "memory");
                asm volatile("st.shared.b16 [%0], %1;" ::"r"(below), "h"((u16)(ds[j][r] >> 16)) : "memory");
            }
    }

    FXA_INLINE void add(float (&sum)[FXA_D / 8][4], const u32 (&weights)[BQ / 8][2], u32 tile) const
    {
#pragma unroll
        for (int k = 0; k < BQ / 16; k++) {
            const u32 rows[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0], weights[2 * k + 1][1]};
#pragma unroll
            for (int j = 0; j < FXA_D / 16; j++) {
                u32 r[4];
                operand_b_transposed<BQ>(r, tile, k, j * 2, lane);
                mma(sum[2 * j], rows, r[0], r[1]);
                mma(sum[2 * j + 1], rows, r[2], r[3]);
            }
        }
    }

    /* dQ of 16 queries and half the columns = dS K, added into the sum: four floats of a thread side by side. */
    FXA_INLINE void add_dq(int m, int block, int half) const
    {
        float dq[HALF / 8][4];
        clear(dq);
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
            u32 rows[4], r[4];
            operand_a<BQ>(rows, ds_tile, block * 16, k, lane);
#pragma unroll
            for (int j = 0; j < HALF / 16; j++) {
                operand_b_transposed<BK>(r, k_tile, k, half * (HALF / 8) + j * 2, lane);
                mma(dq[2 * j], rows, r[0], r[1]);
                mma(dq[2 * j + 1], rows, r[2], r[3]);
            }
        }
        float *to = a.grad_q_sum + (padded + m * BQ) * FXA_D + (half * (HALF / 8) * 128 + block * 32 + lane) * 4;
#pragma unroll
        for (int j = 0; j < HALF / 8; j++) add4(to + j * 512, dq[j]);
    }

    FXA_INLINE void visit(int m, bool masked)
    {
        float s[BQ / 8][4], dp[BQ / 8][4];
        u32 p[BQ / 8][2], ds[BQ / 8][2];
        __syncthreads(); /* the last block's tiles are read */
        copy_tile<BQ, THREADS>(q_tile, rows_of(a.q, b, h, (long long)m * BQ), a.q.s, q_len - m * BQ, thread);
        copy_tile<BQ, THREADS>(o_tile, rows_of(a.grad_o, b, h, (long long)m * BQ), a.grad_o.s, q_len - m * BQ, thread);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        products(s, dp);
        if (masked)
            gradients<true>(s, dp, p, ds, m);
        else
            gradients<false>(s, dp, p, ds, m);
        stage(ds);
        add(dv, p, o_tile);
        add(dk, ds, q_tile);
        __syncthreads();
        for (int i = warp; i < 8; i += WARPS) add_dq(m, i & 3, i >> 2);
    }

    FXA_INLINE void store() const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int k = k0 + 8 * r;
            if (k >= a.k_len) continue;
            u32 *to_k = (u32 *)rows_of(a.grad_k, b, kv_h, k), *to_v = (u32 *)rows_of(a.grad_v, b, kv_h, k);
#pragma unroll
            for (int j = 0; j < FXA_D / 8; j++) {
                to_k[j * 4 + (lane & 3)] = pack16(dk[j][r * 2] * a.scale, dk[j][r * 2 + 1] * a.scale);
                to_v[j * 4 + (lane & 3)] = pack16(dv[j][r * 2], dv[j][r * 2 + 1]);
            }
        }
    }

    FXA_INLINE void run()
    {
        copy_tile<BK, THREADS>(k_tile, rows_of(a.k, b, kv_h, (long long)n * BK), a.k.s, k_len - n * BK, thread);
        copy_tile<BK, THREADS>(v_tile, rows_of(a.v, b, kv_h, (long long)n * BK), a.v.s, k_len - n * BK, thread);
        for (int g = 0; g < a.group; g++) {
            h = kv_h * a.group + g;
            padded = ((long long)b * a.heads + h) * a.q_pad;
            const ListRow row(a, b, h, n, (q_len + BQ - 1) / BQ, (n + 1) * BK > k_len, q_len % BQ != 0);
            program.head(a, b, h, q_len, k_len);
#pragma unroll 1
            for (int j = 0; j < row.total; j++) visit(row.tile(j), j < row.partial);
        }
        copy_wait<0>();
        store();
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_backward_shape = {THREADS, BYTES, BQ, BK, 0, 0};

extern "C" __global__ void __launch_bounds__(THREADS) fxa_backward(const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    Tile(a, (shared_address(memory) + 1023) & ~1023u).run();
}
