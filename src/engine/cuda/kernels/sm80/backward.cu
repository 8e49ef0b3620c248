/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward for sm_80 and newer (mma.sync, cp.async): dK, dV and partial dQ of a key tile.
 *
 * Grid: PARTS * key tiles, KV heads, batch (common/backward_tile.cuh). A CTA has BK keys of one KV head, a warp 16 of
 * them, and runs through the query blocks of its list for every query head of the KV group in turn. Tiles shrink where
 * shared memory is small. Above head dim 128 two CTAs (PARTS) share a tile, each with half of the columns of dK, dV and
 * dQ, because the registers hold no more; both compute the scores.
 *
 *     shared memory   | K [BK, D] | V [BK, DV] | Q [BQ, D] | dO [BQ, DV] | dS [BQ, BK] |
 *
 * Mainloop: scores are computed transposed, with keys as rows; P and dS are then operands of dV and dK in registers. dS
 * passes through shared memory for dQ = dS K, which atomics add to the f32 sum, in the layout that
 * common/backward_prepost.cu reads.
 * Epilogue: dK and dV from registers. Gradients of captured tensors are stored element by element.
 */
#include "sm80/mma.cuh"
#include "common/backward_tile.cuh"
#include "common/dropout.cuh"
#include "common/operand_loads.cuh"
#include "common/pair_gradients.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_backward_sm80(TRAITS);
static_assert(TILE.fits, "shared memory");
constexpr int BK = TILE.launch.k_rows, BQ = TILE.launch.q_rows, THREADS = TILE.launch.threads, WARPS = THREADS / 32;
constexpr int PARTS = TILE.launch.parts;
/* columns (head dim) per CTA: PART of Q and K, PART_V of V */
constexpr int PART = FXA_D / PARTS, PART_V = FXA_DV / PARTS;
constexpr int DQ_SLICE = PART % 32 ? PART : PART / 2; /* columns of dQ that a warp computes at a time */
constexpr int DQ_SLICES = PART / DQ_SLICE;
static_assert(DQ_SLICE % 16 == 0 && PART_V % 16 == 0, "products have 16 columns");
constexpr int K_BYTES = BK * D_STORED * 2, V_BYTES = BK * DV_STORED * 2;
constexpr int Q_BYTES = BQ * D_STORED * 2, DO_BYTES = BQ * DV_STORED * 2;
static_assert(BK == 16 * WARPS && FXA_PAD_ROWS % BQ == 0, "a warp has 16 keys; blocks of the padded workspace");
static_assert(DQ_SLICE * DQ_SLICES == PART, "slices are all columns of dQ");
static_assert(K_BYTES + V_BYTES + Q_BYTES + DO_BYTES + fxa_tile_bytes(BQ, BK) + 1024 == TILE.launch.shared_bytes,
              "common/tile_shape.h has another size");
static_assert(K_BYTES % 1024 == 0 && V_BYTES % 1024 == 0 && Q_BYTES % 1024 == 0 && DO_BYTES % 1024 == 0,
              "swizzled tiles are aligned to 1024 bytes");

typedef KeyTile<BK, BQ> Sm80KeyTile;
/* True if the gradients of captured tensors are computed in a loop over the (q, k) pairs (in_batches) that is not
 * unrolled: with PROG_GRAD_SCATTER, and with more than 16 sums (PROG_GRAD_SUMS). Inlined for every pair, 24 sums take
 * 24 to 28 seconds to compile; in the loop, 5 seconds. */
constexpr bool LOOPED_GRADS = PROG_GRAD_SCATTER || PROG_GRAD_SUMS > 16;
constexpr bool HAS_CAPTURED_GRADS = PROG_GRAD_DENSE || PROG_GRAD_DIAGONAL || PROG_GRAD_SUMS || PROG_GRAD_SCATTER;

template <int n> FXA_INLINE void clear(float (&x)[n][4])
{
#pragma unroll
    for (int i = 0; i < n; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.f;
}

struct Sm80Backward {
    const FxaArgs &a;
    const Sm80KeyTile &at;
    u32 k_tile, v_tile, q_tile, o_tile, ds_tile;
    int part, n, kv_h, b, h, thread, warp, lane, q_len, k_len, k0;
    long long padded; /* first row of (b, h) in the backward's workspace: padded_row() */
    Program program;
    float unit, dk[PART / 8][4], dv[PART_V / 8][4];
    PairGradients captured;

    FXA_INLINE Sm80Backward(const FxaArgs &a_, const Sm80KeyTile &at_, u32 base)
        : a(a_), at(at_), k_tile(base), v_tile(base + K_BYTES), q_tile(v_tile + V_BYTES), o_tile(q_tile + Q_BYTES),
          ds_tile(o_tile + DO_BYTES), part(blockIdx.x % PARTS), n(at_.n), kv_h(at_.kv_h), b(at_.b), thread(threadIdx.x),
          warp(threadIdx.x >> 5), lane(threadIdx.x & 31), q_len(at_.q_len), k_len(at_.k_len),
          k0(n * BK + warp * 16 + (lane >> 2)), unit(Program::unit(a_))
    {
        clear(dk);
        clear(dv);
    }

    /* Computes x = 16 rows of `keys` (K or V of this warp's keys) times the transposed rows of `queries` (Q or dO of
     * the block). */
    template <int columns> FXA_INLINE void products(float (&x)[BQ / 8][4], u32 keys, u32 queries) const
    {
        clear(x);
#pragma unroll
        for (int k = 0; k < columns / 16; k++) {
            u32 rows[4], r[4];
            operand_a<BK>(rows, keys, warp * 16, k, lane);
#pragma unroll
            for (int j = 0; j < BQ / 16; j++) {
                operand_b<BQ>(r, queries, j * 16, k, lane);
                mma(x[2 * j], rows, r[0], r[1]);
                mma(x[2 * j + 1], rows, r[2], r[3]);
            }
        }
    }

    /* Returns the pair of query q0 + c and key k0 + 8 r with its captured values. The row operand (captured value per
     * query) is loaded only with OPERANDS. */
    template <bool OPERANDS> FXA_INLINE Pair pair_at(const OperandLoads &loads, int q0, int c, int r, int k_word) const
    {
        return {q0 + c,
                k0 + 8 * r,
                c,
                8 * r,
                PROG_DIAGONAL ? __ldg(loads.diagonal + q0 - k0 + c - 8 * r) : 0.f,
                PROG_DENSE ? loads.dense_at(a, q0 + c, k0 + 8 * r) : 0.f,
                OPERANDS ? __ldg(loads.q_words + q0 + c) : 0,
                k_word};
    }

    /* Adds the gradients of captured tensors, from the scores of a tile and their gradients; overwrites both arrays. */
    template <bool OPERANDS>
    FXA_INLINE void add_captured(float (&s)[BQ / 8][4], float (&g)[BQ / 8][4], const OperandLoads &loads, int q0,
                                 const int (&k_word)[2])
    {
        in_batches<4>((float(&)[BQ / 2])g, [&](int first, float (&x)[4]) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                captured.add(program, a, b, h, s[0][i],
                             pair_at<OPERANDS>(loads, q0, first * 2 + (i & 1), i >> 1, k_word[i >> 1]), x[i]);
#pragma unroll
            for (int i = 4; i < BQ / 2; i++) s[(i - 4) / 4][i % 4] = s[i / 4][i % 4];
        });
    }

    /* Computes P and dS in 16 bits, as A operands of the products dV and dK. */
    template <bool MASKED>
    FXA_INLINE void gradients(float (&s)[BQ / 8][4], float (&dp)[BQ / 8][4], u32 (&p)[BQ / 8][2], u32 (&ds)[BQ / 8][2],
                              int m)
    {
        constexpr bool OPERANDS = PROG_OPERANDS == 2 || (PROG_OPERANDS && MASKED);
        const int q0 = m * BQ + (lane & 3) * 2;
        const OperandLoads loads(a, b, h, q_len, k_len);
        const int k_word[2] = {OPERANDS ? __ldg(loads.k_words + k0) : 0, OPERANDS ? __ldg(loads.k_words + k0 + 8) : 0};
        const int queries[2] = {k0 < k_len ? q_len - q0 : 0, k0 + 8 < k_len ? q_len - q0 : 0};
        const u32 kept = FXA_DROPOUT ? kept_of_column(a, b, h, m * BQ, k0) : 0;
        if (PAIRS_READ_PROGRAM || MASKED) program.tile(a, q0, k0);
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
                    float derivative;
                    const Pair pair = pair_at<OPERANDS>(loads, q0, c, r, k_word[r]);
                    const float value = score_value(program, a, s[j][r * 2 + x], pair, derivative);
                    w[x] = exp2_fast(__fmaf_rn(value, unit, -(x ? lse.y : lse.x)));
                    if (MASKED && !((c < queries[r]) & score_mask(program, a, pair))) w[x] = derivative = 0.f;
                    const bool keep = keeps(kept, j * 4 + r * 2 + x);
                    float dp_ = dp[j][r * 2 + x];
                    if (FXA_DROPOUT) dp_ = keep ? dp_ * a.keep_inverse : 0.f;
                    g[x] = w[x] * (dp_ - (x ? delta.y : delta.x));
                    /* a (q, k) pair of weight 0 has gradient 0, even if dP is NaN */
                    if (HAS_CAPTURED_GRADS && w[x] == 0.f) g[x] = 0.f;
                    if (!keep) w[x] = 0.f;
                    const bool mine = part == 0 && q0 + c < q_len && k0 + 8 * r < k_len;
                    if (mine) store_captured(a, b, h, n, q0 + c, k0 + 8 * r, g[x]);
                    if (mine && !LOOPED_GRADS) captured.add(program, a, b, h, s[j][r * 2 + x], pair, g[x]);
                    dp[j][r * 2 + x] = mine ? g[x] : 0.f;
                    if (PROG_DERIVATIVE) g[x] = times_derivative(g[x], derivative);
                    if (PROG_USER_BACKWARD) g[x] = user_gradient(program, a, s[j][r * 2 + x], pair, g[x]);
                }
                p[j][r] = pack16(w[0], w[1]);
                ds[j][r] = pack16(g[0], g[1]);
            }
        }
        if (LOOPED_GRADS && part == 0) add_captured<OPERANDS>(s, dp, loads, q0, k_word);
    }

    /* Writes dS to shared memory as [q][k]: the registers hold its transpose. */
    FXA_INLINE void ds_to_shared(const u32 (&ds)[BQ / 8][2]) const
    {
#pragma unroll
        for (int j = 0; j < BQ / 8; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int key = warp * 16 + r * 8 + (lane >> 2), q = j * 8 + (lane & 3) * 2;
                const u32 at = swizzled<BQ>(ds_tile, q, key >> 3) + (key & 7) * 2;
                const u32 below = swizzled<BQ>(ds_tile, q + 1, key >> 3) + (key & 7) * 2;
                store_shared_half(at, (u16)ds[j][r]);
                store_shared_half(below, (u16)(ds[j][r] >> 16));
            }
    }

    /* Adds P dO to this CTA's columns of dV, or dS Q to those of dK, for the warp's 16 keys. */
    template <int blocks>
    FXA_INLINE void add(float (&sum)[blocks][4], const u32 (&weights)[BQ / 8][2], u32 tile) const
    {
#pragma unroll
        for (int k = 0; k < BQ / 16; k++) {
            const u32 rows[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0], weights[2 * k + 1][1]};
#pragma unroll
            for (int j = 0; j < blocks / 2; j++) {
                u32 r[4];
                operand_b_transposed<BQ>(r, tile, k, part * blocks + j * 2, lane);
                mma(sum[2 * j], rows, r[0], r[1]);
                mma(sum[2 * j + 1], rows, r[2], r[3]);
            }
        }
    }

    /* Adds dQ = dS K, for 16 queries and one slice of this CTA's columns of K, to a.grad_q_sum; a thread adds four
     * neighbouring floats at a time. */
    FXA_INLINE void add_dq(int m, int block, int slice) const
    {
        const int group = part * (PART / 8) + slice * (DQ_SLICE / 8), q = m * BQ + block * 16;
        float dq[DQ_SLICE / 8][4];
        clear(dq);
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
            u32 rows[4], r[4];
            operand_a<BQ>(rows, ds_tile, block * 16, k, lane);
#pragma unroll
            for (int j = 0; j < DQ_SLICE / 16; j++) {
                operand_b_transposed<BK>(r, k_tile, k, group + j * 2, lane);
                mma(dq[2 * j], rows, r[0], r[1]);
                mma(dq[2 * j + 1], rows, r[2], r[3]);
            }
        }
        float *to = a.grad_q_sum + (padded + (q & ~63)) * FXA_D + (group * 128 + (q & 63) * 2 + lane) * 4;
#pragma unroll
        for (int j = 0; j < DQ_SLICE / 8; j++) add4(to + j * 512, dq[j]);
    }

    FXA_INLINE void block_step(int m, bool masked)
    {
        float s[BQ / 8][4], dp[BQ / 8][4];
        u32 p[BQ / 8][2], ds[BQ / 8][2];
        __syncthreads(); /* all warps have read the tiles of the previous block */
        const int queries = q_len - m * BQ, first = at.q_first + m * BQ;
        copy_tile<BQ, FXA_D, THREADS>(q_tile, TileRows(a.q, b, h, first), queries, a.d, thread);
        copy_tile<BQ, FXA_DV, THREADS>(o_tile, TileRows(a.grad_o, b, h, first), queries, a.dv, thread);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        products<FXA_D>(s, k_tile, q_tile);
        products<FXA_DV>(dp, v_tile, o_tile);
        if (masked)
            gradients<true>(s, dp, p, ds, m);
        else
            gradients<false>(s, dp, p, ds, m);
        ds_to_shared(ds);
        add(dv, p, o_tile);
        add(dk, ds, q_tile);
        __syncthreads();
        for (int i = warp; i < BQ / 16 * DQ_SLICES; i += WARPS) add_dq(m, i / DQ_SLICES, i % DQ_SLICES);
    }

    FXA_INLINE void store() const
    {
        const int limit = k_starts(a) ? k_len : a.k_len;
        const float scale = run_scale(a), scale_v = FXA_DROPOUT ? a.keep_inverse : 1.f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int k = k0 + 8 * r, c = (lane & 3) * 2;
            if (k >= limit) continue;
#pragma unroll
            for (int j = 0; j < PART / 8; j++)
                store_results(a.grad_k, b, kv_h, at.k_first + k, part * PART + j * 8 + c, a.d, dk[j][r * 2] * scale,
                              dk[j][r * 2 + 1] * scale);
#pragma unroll
            for (int j = 0; j < PART_V / 8; j++)
                store_results(a.grad_v, b, kv_h, at.k_first + k, part * PART_V + j * 8 + c, a.dv,
                              dv[j][r * 2] * scale_v, dv[j][r * 2 + 1] * scale_v);
        }
    }

    FXA_INLINE void run()
    {
        const int keys = k_len - n * BK;
        copy_tile<BK, FXA_D, THREADS>(k_tile, KeyRows(a, a.k, b, kv_h, at.k_first, n * BK), keys, a.d, thread);
        copy_tile<BK, FXA_DV, THREADS>(v_tile, KeyRows(a, a.v, b, kv_h, at.k_first, n * BK), keys, a.dv, thread);
        if (a.turned) {
            copy_commit();
            copy_wait<0>();
            __syncthreads();
            negate_tile(a, k_tile, K_BYTES, thread, THREADS);
        }
        for (int g = 0; g < a.group; g++) {
            h = at.first_head(a) + g;
            padded = at.workspace_row(a, h);
            const ListRow row = at.row(a, h);
            program.head(a, b, h, q_len, k_len);
            captured.clear();
#pragma unroll 1
            for (int j = 0; j < row.total; j++) block_step(row.tile(j), j < row.partial);
            if (part == 0) captured.store(a, b, h, n * WARPS + warp);
        }
        copy_wait<0>();
        store();
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_backward_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS) fxa_backward(const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(1024) u8 memory[];
    launch_begin();
    const Sm80KeyTile at(a, PARTS);
    if (!at.outside(a)) Sm80Backward(a, at, (shared_address(memory) + 1023) & ~1023u).run();
}
