/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward without matrix instructions (simt/tiles.cuh), for f32 and for every problem that no other kernel supports.
 * fxa_backward computes dK and dV by tiles of 64 keys, and gradients of captured tensors; fxa_grad_q computes dQ by
 * tiles of 64 queries, with the forward's lists of key tiles. Both compute the scores. Only gradients of captured
 * tensors use atomics (common/exact_sum.cuh), so the results are deterministic.
 *
 * Grid: fxa_backward: common/backward_tile.cuh; fxa_grad_q: as simt/forward.cu. 256 threads; thread (y, x) of 16 x 16
 * has queries 4 y + i and keys x + 16 j.
 * Mainloop: SimtGradients::compute, then products of P and dS through shared memory (struct Scratch).
 * Epilogue: gradients from registers.
 */
#define FXA_KEY_LANES 15 /* bits of the lane number that select the keys of a lane (common/program_interface.cuh) */
#include "common/backward_tile.cuh"
#include "common/pair_gradients.cuh"
#include "common/tile_scheduler.cuh"
#include "simt/tiles.cuh"

namespace {

constexpr int BLOCKS = D_STORED / 64, BLOCKS_V = DV_STORED / 64;

/* Computes scores, weights and gradients of a tile of (q, k) pairs of one (b, h), for both backward kernels. */
struct SimtGradients {
    const FxaArgs &a;
    Scratch &memory;
    Program program;
    OperandLoads loads;
    int b, h, kv_h, q_first, k_first, q_len, k_len;
    long long row; /* first row of (b, h) in the backward's workspace: padded_row() */
    PairGradients captured;

    FXA_INLINE SimtGradients(const FxaArgs &a_, Scratch &memory_, int b_, int h_, const Sequence &q, const Sequence &k)
        : a(a_), memory(memory_), loads(a_, b_, h_, q.length, k.length), b(b_), h(h_), kv_h(h_ / a_.group),
          q_first(q.first), k_first(k.first), q_len(q.length), k_len(k.length), row(padded_row(a_, b_, h_))
    {
        program.head(a, b, h, q_len, k_len);
        captured.clear();
    }

    FXA_INLINE OperandRows queries(const FxaView &t, int m, int columns) const
    {
        return OperandRows{a, t, false, b, h, q_first, m * SIDE, q_len - m * SIDE, columns};
    }

    FXA_INLINE OperandRows keys(const FxaView &t, int n, int columns) const
    {
        return OperandRows{a, t, true, b, kv_h, k_first, n * SIDE, k_len - n * SIDE, columns};
    }

    /* Adds scattered gradients of captured tensors (PROG_GRAD_SCATTER), from the scores s and their gradients g;
     * overwrites both. */
    FXA_INLINE void scatter(float (&s)[4][4], float (&g)[4][4], int q0, int k0)
    {
        in_batches<4>((float(&)[16])g, [&](int first, float (&x)[4]) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                captured.add(program, a, b, h, s[0][j], Pair{q0 + first / 4, k0 + 16 * j, first / 4, 16 * j}, x[j]);
#pragma unroll
            for (int i = 4; i < 16; i++) s[(i - 4) / 4][i % 4] = s[i / 4][i % 4];
        });
    }

    /* Computes p = P, with 0 for dropped (q, k) pairs, as the operand of dV.
     * Computes ds = P * derivative * (dP - delta) as the operand of dQ and dK. */
    template <bool WITH_CAPTURED>
    FXA_INLINE void compute(float (&p)[4][4], float (&ds)[4][4], int m, int n, bool masked)
    {
        float derivative[4][4], raw[4][4], scattered[4][4];
        const int q0 = m * SIDE + 4 * (threadIdx.x >> 4), k0 = n * SIDE + (threadIdx.x & 15);
        multiply<FXA_D>(p, memory, queries(a.q, m, a.d), keys(a.k, n, a.d));
        negate_products(a, p);
        multiply<FXA_DV>(ds, memory, queries(a.grad_o, m, a.dv), keys(a.v, n, a.dv));
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) raw[i][j] = p[i][j];
        const u32 attended = score_tile(program, a, loads, p, derivative, q0, k0, masked);
        const u32 kept = kept_of_tile(a, b, h, q0, k0);
        const float unit = Program::unit(a);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float lse = a.lse2[row + q0 + i], delta = a.delta[row + q0 + i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool keep = keeps(kept, 4 * i + j);
                const float w = attended >> (4 * i + j) & 1 ? exp2_fast(__fmaf_rn(p[i][j], unit, -lse)) : 0.f;
                const float dp = !FXA_DROPOUT ? ds[i][j] : keep ? ds[i][j] * a.keep_inverse : 0.f;
                /* a (q, k) pair of weight 0 has gradient 0, even if dP is NaN */
                float g = w == 0.f ? 0.f : w * (dp - delta);
                const bool mine = WITH_CAPTURED && q0 + i < q_len && k0 + 16 * j < k_len;
                if (mine) store_dense(a, b, h, q0 + i, k0 + 16 * j, g);
                if (mine && !PROG_GRAD_SCATTER)
                    captured.add(program, a, b, h, raw[i][j], Pair{q0 + i, k0 + 16 * j, i, 16 * j}, g);
                scattered[i][j] = mine ? g : 0.f;
                if (PROG_DERIVATIVE) g = attended >> (4 * i + j) & 1 ? times_derivative(g, derivative[i][j]) : 0.f;
                if (PROG_USER_BACKWARD)
                    g = user_gradient(program, a, raw[i][j], pair_of_tile(a, loads, q0, k0, i, j), g);
                p[i][j] = keep ? w : 0.f;
                ds[i][j] = g;
            }
        }
        if (WITH_CAPTURED && PROG_GRAD_SCATTER) scatter(raw, scattered, q0, k0);
    }

    /* Adds dS, stored in shared memory as weights[k][q], along the tile's diagonals (equal q - k) to the gradient of
     * the diagonal row (values that the score program reads by q - k); one diagonal per thread. */
    FXA_INLINE void add_diagonals(const float *weights, int m, int n) const
    {
        const FxaDiagonalGrad &g = a.grad_diagonal;
        const int d = (int)threadIdx.x - (SIDE - 1), at = (m - n) * SIDE + d + g.zero + n * g.zero_step;
        float sum = 0.f;
        if (d >= SIDE || (unsigned)at >= (unsigned)g.size) return;
        for (int k = max(-d, 0); k < min(SIDE - d, SIDE); k++) sum += weights[k * WIDE + k + d];
        diagonal_add(diagonal_row(a, b, h, n) + at, sum);
    }
};

} // namespace

extern "C" __constant__ FxaShape fxa_backward_shape = fxa_backward_simt(TRAITS).launch;
extern "C" __constant__ FxaShape fxa_grad_q_shape = TILE.launch;

extern "C" __global__ void __launch_bounds__(THREADS, 1) fxa_backward(const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(16) u8 bytes[];
    Scratch &memory = *(Scratch *)bytes;
    launch_begin();
    const KeyTile<SIDE, SIDE> at(a);
    if (at.outside(a)) return;
    float dk[BLOCKS][4][4], dv[BLOCKS_V][4][4], p[4][4], ds[4][4];
    clear_sums(dk);
    clear_sums(dv);
    for (int g = 0; g < a.group; g++) {
        const int h = at.first_head(a) + g;
        const ListRow row = at.row(a, h);
        SimtGradients pairs(a, memory, at.b, h, q_sequence(a, at.b), k_sequence(a, at.b));
#pragma unroll 1
        for (int j = 0; j < row.total; j++) {
            const int m = row.tile(j);
            pairs.compute<true>(p, ds, m, at.n, j < row.partial);
            HeldBlock held;
            held.fetch(pairs.queries(a.grad_o, m, a.dv), 0);
            put_weights<true>(memory.weights[0], p);
            put_weights<true>(memory.weights[1], ds);
#if PROG_GRAD_DIAGONAL
            __syncthreads();
            pairs.add_diagonals(memory.weights[1], m, at.n);
#endif
            accumulate(dv, memory, memory.weights[0], pairs.queries(a.grad_o, m, a.dv), held);
            held.fetch(pairs.queries(a.q, m, a.d), 0);
            accumulate(dk, memory, memory.weights[1], pairs.queries(a.q, m, a.d), held);
        }
        pairs.captured.store(a, at.b, h, at.n * 8 + (threadIdx.x >> 5));
    }
    const int limit = k_starts(a) ? at.k_len : a.k_len;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = at.n * SIDE + 4 * (threadIdx.x >> 4) + i;
        if (k >= limit) continue;
        store_sums(dk, i, run_scale(a), a.grad_k, at.b, at.kv_h, at.k_first + k, a.d);
        store_sums(dv, i, FXA_DROPOUT ? a.keep_inverse : 1.f, a.grad_v, at.b, at.kv_h, at.k_first + k, a.dv);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) fxa_grad_q(const __grid_constant__ FxaArgs a)
{
    extern __shared__ __align__(16) u8 bytes[];
    Scratch &memory = *(Scratch *)bytes;
    launch_begin();
    const QueryTile<SIDE> at(a);
    if (at.outside(a)) return;
    const int q_len = at.q.length, k_len = at.k.length;
    const ListRow row(a, at.b, at.h, at.m, (k_len + SIDE - 1) / SIDE, (at.m + 1) * SIDE > q_len, k_len % SIDE != 0);
    SimtGradients pairs(a, memory, at.b, at.h, at.q, at.k);
    float dq[BLOCKS][4][4], p[4][4], ds[4][4];
    clear_sums(dq);
#pragma unroll 1
    for (int j = 0; j < row.total; j++) {
        const int n = row.tile(j);
        pairs.compute<false>(p, ds, at.m, n, j < row.partial);
        HeldBlock held;
        held.fetch(pairs.keys(a.k, n, a.d), 0);
        put_weights<false>(memory.weights[0], ds);
        accumulate(dq, memory, memory.weights[0], pairs.keys(a.k, n, a.d), held);
    }
    const int limit = q_starts(a) ? q_len : a.q_len;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int q = at.m * SIDE + 4 * (threadIdx.x >> 4) + i;
        if (q < limit) store_sums(dq, i, run_scale(a), a.grad_q, at.b, at.h, at.q.first + q, a.d);
    }
}
