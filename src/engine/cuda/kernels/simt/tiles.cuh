/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of kernels without matrix instructions: all products are computed in f32, for any storage type. The kernels
 * serve f32, which the matrix units would round to tf32, and every architecture, alignment and head dim.
 *
 * A CTA of 256 threads computes a tile of 64 x 64: thread (y, x) of 16 x 16 has rows 4 y + i and columns x + 16 j.
 * Operands pass through shared memory in slices of SLICE columns, so that its size does not depend on the head dim:
 *
 *     shared memory   | slices of both operands of S or dP, or 64 columns of what P or dS multiplies | P | dS |
 */
#ifndef FXA_CUDA_SIMT_TILES_CUH
#define FXA_CUDA_SIMT_TILES_CUH

#include "common/dropout.cuh"
#include "common/operand_loads.cuh"
#include "common/score.cuh"
#include "common/storage.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_forward_simt(TRAITS);
constexpr int SIDE = TILE.launch.q_rows, THREADS = TILE.launch.threads;
/* SLICE: columns per slice of Q, K, dO or V. PITCH: floats from row to row of a slice, 4 more to avoid bank
 * conflicts */
constexpr int SLICE = 32, PITCH = SLICE + 4;
constexpr int WIDE = SIDE + 4; /* floats from row to row of a tile of 64 columns */
static_assert(SIDE == 64 && 16 * THREADS == SIDE * SIDE && TILE.launch.k_rows == SIDE, "a thread has 4 x 4 pairs");
static_assert(SIDE * SLICE % (8 * THREADS) == 0, "threads copy entire groups of 8 elements");

struct Scratch {
    union {
        float slice[2][SIDE * PITCH]; /* slices of Q and K, or dO and V */
        float block[SIDE * WIDE];     /* 64 columns of V, dO, Q or K for a product with P or dS */
    };
    float weights[2][SIDE * WIDE];
};
static_assert(sizeof(Scratch) == TILE.launch.shared_bytes, "common/tile_shape.h has another size");

/* 64 rows of Q, K, V or dO, from row `tile` on; the first `count` rows exist. Keys may be paged. */
struct OperandRows {
    const FxaArgs &a;
    const FxaView &t;
    bool keys;
    int b, h, first, tile, count, columns;

    FXA_INLINE void load(int row, int c, float (&x)[8]) const
    {
        if (FXA_PAGED && keys) {
            const KeyAddress at(a, b, first, tile + row);
            load8(t, at.b, h, at.s, c, columns, x);
        } else {
            load8(t, b, h, first + tile + row, c, columns, x);
        }
    }
};

/* Columns of an OperandRows in registers: loaded from global memory during the computation on the previous columns,
 * then written to shared memory. Elements that do not exist become 0. */
template <int columns, int pitch> struct HeldColumns {
    static constexpr int EACH = SIDE * columns / 8 / THREADS;
    float x[EACH][8];

    FXA_INLINE void fetch(const OperandRows &s, int c)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int e = threadIdx.x + i * THREADS, row = e / (columns / 8), at = e % (columns / 8) * 8;
#pragma unroll
            for (int j = 0; j < 8; j++) x[i][j] = 0.f;
            if (row < s.count) s.load(row, c + at, x[i]);
        }
    }

    /* Returns true if all elements that this thread holds are finite. */
    FXA_INLINE bool is_finite() const
    {
        float none = 0.f;
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) none = __fmaf_rn(x[i][j], 0.f, none);
        return none == 0.f;
    }

    FXA_INLINE void put(float *to) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int e = threadIdx.x + i * THREADS;
            float *at = to + e / (columns / 8) * pitch + e % (columns / 8) * 8;
            *(Float4 *)at = Float4{x[i][0], x[i][1], x[i][2], x[i][3]};
            *(Float4 *)(at + 4) = Float4{x[i][4], x[i][5], x[i][6], x[i][7]};
        }
    }
};

typedef HeldColumns<SLICE, PITCH> HeldSlice; /* slice of Q, K, dO or V for the products S = Q K^T and dP = dO V^T */
typedef HeldColumns<SIDE, WIDE> HeldBlock;   /* 64 columns of V, dO, Q or K for a product with P or dS */

FXA_INLINE void add_product(float &sum, const Float4 &x, const Float4 &y)
{
    sum = __fmaf_rn(x.x, y.x, sum);
    sum = __fmaf_rn(x.y, y.y, sum);
    sum = __fmaf_rn(x.z, y.z, sum);
    sum = __fmaf_rn(x.w, y.w, sum);
}

/* Computes out[i][j] = row 4 y + i of `left` times row x + 16 j of `right`, over `columns` columns. */
template <int columns>
FXA_INLINE void multiply(float (&out)[4][4], Scratch &m, const OperandRows &left, const OperandRows &right)
{
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll
    for (int i = 0; i < 4; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.f;
    HeldSlice l, r;
    l.fetch(left, 0);
    r.fetch(right, 0);
#pragma unroll 1
    for (int c = 0; c < columns; c += SLICE) {
        __syncthreads();
        l.put(m.slice[0]);
        r.put(m.slice[1]);
        __syncthreads();
        if (c + SLICE < columns) {
            l.fetch(left, c + SLICE);
            r.fetch(right, c + SLICE);
        }
#pragma unroll
        for (int d = 0; d < SLICE; d += 4) {
            Float4 rows[4], cols[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                rows[i] = *(const Float4 *)(m.slice[0] + (4 * y + i) * PITCH + d);
                cols[i] = *(const Float4 *)(m.slice[1] + (x + 16 * i) * PITCH + d);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) add_product(out[i][j], rows[i], cols[j]);
        }
    }
}

/* Writes the weights (P or dS) of a tile to shared memory, transposed or not. */
template <bool TRANSPOSED> FXA_INLINE void put_weights(float *to, const float (&w)[4][4])
{
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            to[TRANSPOSED ? (x + 16 * j) * WIDE + 4 * y + i : (4 * y + i) * WIDE + x + 16 * j] = w[i][j];
}

/* Adds weights times 64 columns of an operand that has infinities or NaN: weights of 0 are skipped. */
FXA_INLINE void add_nonfinite_block(float (&sum)[4][4], const float *weights, const float *block, int y, int x)
{
#pragma unroll 1
    for (int k = 0; k < SIDE; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float f = weights[(4 * y + i) * WIDE + k];
#pragma unroll
            for (int c = 0; c < 4; c++)
                sum[i][c] = f == 0.f ? sum[i][c] : __fmaf_rn(f, block[k * WIDE + 4 * x + c], sum[i][c]);
        }
}

/* Adds to sum[block][i][c] the product of row 4 y + i of `weights` and column 64 block + 4 x + c of the right operand
 * `s`. `held` has the first 64 columns of s already. A weight of 0 adds nothing, even if the element of s is NaN. */
template <int blocks>
FXA_INLINE void accumulate(float (&sum)[blocks][4][4], Scratch &m, const float *weights, const OperandRows &s,
                           HeldBlock &held)
{
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll
    for (int block = 0; block < blocks; block++) {
        __syncthreads(); /* the weights are written, and the previous block has been read */
        held.put(m.block);
        const int odd = __syncthreads_or(!held.is_finite());
        if (block + 1 < blocks) held.fetch(s, block * 64 + 64);
        if (odd) {
            add_nonfinite_block(sum[block], weights, m.block, y, x);
            continue;
        }
#pragma unroll 2
        for (int k = 0; k < SIDE; k += 4) {
            Float4 w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = *(const Float4 *)(weights + (4 * y + i) * WIDE + k);
#pragma unroll
            for (int d = 0; d < 4; d++) {
                const Float4 v = *(const Float4 *)(m.block + (k + d) * WIDE + 4 * x);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float f = d == 0 ? w[i].x : d == 1 ? w[i].y : d == 2 ? w[i].z : w[i].w;
                    sum[block][i][0] = __fmaf_rn(f, v.x, sum[block][i][0]);
                    sum[block][i][1] = __fmaf_rn(f, v.y, sum[block][i][1]);
                    sum[block][i][2] = __fmaf_rn(f, v.z, sum[block][i][2]);
                    sum[block][i][3] = __fmaf_rn(f, v.w, sum[block][i][3]);
                }
            }
        }
    }
}

template <int blocks> FXA_INLINE void clear_sums(float (&sum)[blocks][4][4])
{
#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[b][i][0] = sum[b][i][1] = sum[b][i][2] = sum[b][i][3] = 0.f;
}

/* Stores row 4 y + i of the sums, with y = threadIdx.x / 16, times a factor in row s of a tensor. A factor of 0 stores
 * zeros. */
template <int blocks>
FXA_INLINE void store_sums(const float (&sum)[blocks][4][4], int i, float factor, const FxaView &t, int b, int h,
                           long long s, int columns)
{
    const int x = threadIdx.x & 15;
    Result *row = result_row(t, b, h, s);
#pragma unroll
    for (int block = 0; block < blocks; block++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int column = block * 64 + 4 * x + c;
            if (column < columns) row[column] = to_result(factor == 0.f ? 0.f : sum[block][i][c] * factor);
        }
}

/* Returns (q, k) pair (i, j) of a thread whose first query and key are q0 and k0. */
FXA_INLINE Pair pair_of_tile(const FxaArgs &a, const OperandLoads &loads, int q0, int k0, int i, int j)
{
    const int q = q0 + i, k = k0 + 16 * j;
    return Pair{q, k, i, 16 * j, PROG_DIAGONAL ? __ldg(loads.diagonal + q - k) : 0.f,
                PROG_DENSE ? loads.dense_at(a, q, k) : 0.f, PROG_OPERANDS ? __ldg(loads.q_words + q) : 0,
                PROG_OPERANDS ? __ldg(loads.k_words + k) : 0};
}

/* Turns the products of a tile into new scores (results of the score program), with queries as rows. Returns a bit
 * mask: bit 4 i + j is set if (q, k) pair (i, j) of the thread is attended. With PROG_DERIVATIVE, writes the
 * derivatives d new score / d scaled score. */
template <bool MASKED>
FXA_INLINE u32 score_tile(Program &program, const FxaArgs &a, const OperandLoads &loads, float (&s)[4][4],
                          float (&derivative)[4][4], int q0, int k0)
{
    u32 attended = 0xffffu;
    if (PAIRS_READ_PROGRAM || MASKED) program.tile(a, q0, k0);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int q = q0 + i, k = k0 + 16 * j;
            const Pair pair = pair_of_tile(a, loads, q0, k0, i, j);
            s[i][j] = score_value(program, a, s[i][j], pair, derivative[i][j]);
            if (MASKED && !(q < loads.q_len && k < loads.k_len && score_mask(program, a, pair)))
                attended &= ~(1u << (4 * i + j));
        }
    return attended;
}

/* Calls the instance of the scoring function for masked or for full tiles. */
FXA_INLINE u32 score_tile(Program &program, const FxaArgs &a, const OperandLoads &loads, float (&s)[4][4],
                          float (&derivative)[4][4], int q0, int k0, bool masked)
{
    if (masked) return score_tile<true>(program, a, loads, s, derivative, q0, k0);
    return score_tile<false>(program, a, loads, s, derivative, q0, k0);
}

/* Returns a bit mask: bit 4 i + j is set if dropout keeps (q, k) pair (i, j) of the thread. The four lanes with
 * neighbouring keys share calls of keep_four(). */
FXA_INLINE u32 kept_of_tile(const FxaArgs &a, int b, int h, int q0, int k0)
{
#if FXA_DROPOUT == 2
    u32 kept = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i++) kept |= keep_by_coordinates(a, b, h, q0 + (i >> 2), k0 + 16 * (i & 3)) << i;
    return kept;
#elif FXA_DROPOUT
    const int lane = threadIdx.x & 31, own = lane & 3;
    u32 mine = 0, all = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) mine |= keep_four(a, b, h, q0 + i, (k0 + 16 * own) >> 2) << (4 * i);
#pragma unroll
    for (int j = 0; j < 4; j++) all |= (__shfl_sync(~0u, mine, (lane & ~3) | j) >> own & 0x1111u) << j;
    return all;
#else
    return 0xffffu;
#endif
}

} // namespace

#endif
