/* SPDX-License-Identifier: Apache-2.0
 *
 * Preprocess and postprocess of the backward, for all architectures.
 *
 *     fxa_backward_prepare   delta[q] = dO . O - dLSE and lse2[q] = LSE * log2(e), for the rows of the workspace, in
 *                            which each batch entry is padded to a multiple of 128 rows. Rows past the length get
 *                            lse2 = +inf, so that their weights are 0. Sets FxaArgs.first_share to 0, or if it is
 *                            NULL, the f32 sum of dQ.
 *                            Grid (pad_rows / ROWS, heads)
 *     fxa_grad_q_finish      dQ = scale * sum. The sum has the layout of the backward kernels: per block of 64 queries
 *                            [8-column group][thread of 128], four floats each, the accumulators of an m64 product.
 *                            Grid (pad_rows / 64, heads), or any number of CTAs with FxaArgs.sent
 *     fxa_grad_sink          gradient of each head's sink, -sum exp(sink - LSE) delta, in a fixed order; after
 *                            fxa_backward_prepare. Grid (heads)
 */
#include "common/storage.cuh"

namespace {

constexpr FxaTileShape TILE = fxa_prepost(FXA_DV);
constexpr int THREADS = TILE.launch.threads, ROWS = TILE.launch.q_rows;
constexpr int LANES = THREADS / ROWS; /* lanes per row of O and dO, 8 elements each */
static_assert(LANES * 8 >= FXA_DV && LANES <= 32, "the lanes of a row are in one warp and read the entire row");
static_assert(FXA_PAD_ROWS % ROWS == 0 && FXA_PAD_ROWS % FXA_DQ_SHARE_ROWS == 0, "padded rows are entire CTAs");

/* Batch entry and query of row i of a head in the backward's workspace, in which each batch entry is padded to a
 * multiple of 128 rows. */
struct PaddedRow {
    int b, q;

    FXA_INLINE PaddedRow(const FxaArgs &a, int i)
    {
        b = q_starts(a) ? tile_entry(q_starts(a), a.batch, 128, a.q_total, i / 128) : i / a.q_pad;
        q = i - (q_starts(a) ? first_tile(q_starts(a), b, 128, a.q_total) * 128 : b * a.q_pad);
    }
};

/*
 * Returns LSE in base 2. Weights of the backward are 2^(score - lse2), and LSE is rounded: up to |LSE| = 2^24 the
 * weights are wrong by a factor of at most 2^5, as docs/numerics.md allows. For larger LSE, lse2 is raised so far that
 * no weight exceeds 1. A row with LSE = -inf has no gradient and gets +inf, like a row past the length; a row whose LSE
 * overflows in base 2 gets +inf too, because its scores overflow.
 */
FXA_INLINE float lse_in_log2(float lse)
{
    const float x = lse * LOG2E;
    if (x == NEG_INF) return POS_INF;
    return fabsf(x) > 16777216.f ? __fmaf_rn(fabsf(x), 1.f / 2097152.f, x) : x;
}

FXA_INLINE void clear_counts(const FxaArgs &a)
{
    if (!a.sent || blockIdx.y) return;
    const int all = (int)sent_index(a, a.batch - 1, a.kv_heads);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < all; i += gridDim.x * THREADS) a.sent[i] = 0;
}

#if !FXA_F32
/* Block i of 64 rows of the backward's workspace (each batch entry padded to a multiple of 128 rows): rows 64 x to 64 x
 * + 63 of head h. i counts the blocks in the order in which fxa_backward finishes them: by batch entry, then by head;
 * with packed sequences by head alone. */
struct QueryBlock {
    int h, x;

    FXA_INLINE QueryBlock(const FxaArgs &a, int i)
    {
        const int all = a.pad_rows / 64, of_entry = q_starts(a) ? all : a.q_pad / 64;
        const int r = i / of_entry, b = r / a.heads;
        h = r - b * a.heads;
        x = b * of_entry + i - r * of_entry;
    }
    FXA_INLINE long long first_row(const FxaArgs &a) const { return (long long)h * a.pad_rows + x * 64; }
};

/* Waits, in one thread, until the partial dQ of all key tiles have been added to the dQ sum of `block`. The wait ends,
 * because the CTAs that add partial dQ have started: this launch starts after all CTAs of the backward kernel have
 * called launch_next(). */
FXA_INLINE void wait_for_partial_dq(const FxaArgs &a, const QueryBlock &block)
{
    const int b = q_starts(a) && !k_starts(a) ? PaddedRow(a, block.x * 64).b : block.x / max(a.q_pad / 64, 1);
    const unsigned *sent = a.sent + sent_index(a, b, block.h / a.group);
    while (count_now(sent) != (unsigned)a.sent_all) count_pause();
}

/* Returns true if no partial dQ has been stored in or added to the dQ sum of `block`; the sum is then undefined. */
FXA_INLINE bool has_no_sum(const FxaArgs &a, const QueryBlock &block)
{
    return a.first_share && a.first_share[block.first_row(a) / 64] == 0;
}
#endif

} // namespace

extern "C" __constant__ FxaShape fxa_backward_prepare_shape = TILE.launch;
extern "C" __constant__ FxaShape fxa_grad_q_finish_shape = {THREADS, 0, 64, 0, 0, 0, 0, 1};
extern "C" __constant__ FxaShape fxa_grad_sink_shape = {THREADS, 0, 0, 0, 0, 0, 0, 1};

extern "C" __global__ void __launch_bounds__(THREADS) fxa_backward_prepare(const __grid_constant__ FxaArgs a)
{
    launch_next();
    const int lane = threadIdx.x % LANES, i = blockIdx.x * ROWS + threadIdx.x / LANES, h = blockIdx.y;
    const PaddedRow at(a, i);
    const Sequence rows = q_sequence(a, at.b);
    const long long row = (long long)h * a.pad_rows + i;
    const bool inside = at.q >= 0 && at.q < rows.length;
    float sum = 0.f;
    if (inside) {
        float x[8], y[8];
#if FXA_O_F32 /* O may be f32 although Q, K, V and dO are 16-bit */
        const float *o = (const float *)a.o.data + at.b * a.o.b + h * a.o.h + (rows.first + at.q) * a.o.s;
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = lane * 8 + j < a.dv ? o[lane * 8 + j] : 0.f;
#else
        load8(a.o, at.b, h, rows.first + at.q, lane * 8, a.dv, x);
#endif
        load8(a.grad_o, at.b, h, rows.first + at.q, lane * 8, a.dv, y);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = __fmaf_rn(x[j], y[j], sum);
    }
#pragma unroll
    for (int j = LANES / 2; j; j >>= 1) sum += __shfl_xor_sync(~0u, sum, j);
    if (a.first_share && lane == 0 && i % 64 == 0) a.first_share[row / 64] = 0;
    clear_counts(a);
    if (a.grad_q_sum && !a.first_share)
        for (int j = lane; j < FXA_D / 4; j += LANES) ((Float4 *)a.grad_q_sum)[row * (FXA_D / 4) + j] = Float4{};
    if (lane == 0) {
        const long long q = rows.first + at.q;
        const float lse = inside ? a.lse[at.b * a.lse_b + h * a.lse_h + q * a.lse_s] : POS_INF;
        const float *grad = a.grad_lse + at.b * a.grad_lse_b + h * a.grad_lse_h + q * a.grad_lse_s;
        a.delta[row] = inside && a.grad_lse ? sum - *grad : sum;
        a.lse2[row] = lse_in_log2(lse);
    }
    launch_wait();
}

#if !FXA_F32
#if FXA_OUT_F32
FXA_INLINE void finish_block(const FxaArgs &a, const QueryBlock &of, bool is_empty, float scale)
{
    const PaddedRow first(a, of.x * 64);
    const Sequence sequence = q_sequence(a, first.b);
    const float *from = a.grad_q_sum + of.first_row(a) * FXA_D;
    const int limit = q_starts(a) ? sequence.length : a.q_len;
    for (int e = threadIdx.x; e < 64 * FXA_D; e += THREADS) {
        const int t = e >> 2 & 127, r = (t >> 5) * 16 + ((t & 31) >> 2) + (e & 2) * 4;
        const int c = (e >> 9) * 8 + (t & 3) * 2 + (e & 1), q = first.q + r;
        if (q >= 0 && q < limit && c < a.d)
            result_row(a.grad_q, first.b, of.h, sequence.first + q)[c] = is_empty ? 0.f : from[e] * scale;
    }
    __syncthreads();
}
#else
FXA_INLINE void finish_block(const FxaArgs &a, const QueryBlock &of, bool is_empty, float scale)
{
    constexpr int PITCH = FXA_D / 2 + 4; /* 32-bit words per row; the 4 of padding avoid bank conflicts */
    __shared__ __align__(16) u32 block[64 * PITCH];
    const PaddedRow at(a, of.x * 64);
    const Sequence rows = q_sequence(a, at.b);
    const Float4 *sum = (const Float4 *)(a.grad_q_sum + of.first_row(a) * FXA_D);
#pragma unroll
    for (int e = threadIdx.x; e < 64 * FXA_D / 4; e += THREADS) {
        const Float4 x = is_empty ? Float4{} : sum[e];
        const int t = e & 127, r = (t >> 5) * 16 + ((t & 31) >> 2), c = (e >> 7) * 8 + (t & 3) * 2;
        block[r * PITCH + c / 2] = pack16(x.x * scale, x.y * scale);
        block[(r + 8) * PITCH + c / 2] = pack16(x.z * scale, x.w * scale);
    }
    __syncthreads();
    const int limit = q_starts(a) ? rows.length : a.q_len;
    for (int e = threadIdx.x; e < 64 * FXA_D / 8; e += THREADS) {
        const int r = e / (FXA_D / 8), c = e % (FXA_D / 8) * 8, q = at.q + r;
        if (q >= 0 && q < limit)
            store8(a.grad_q, at.b, of.h, rows.first + q, c, a.d, *(const Word4 *)(block + r * PITCH + c / 2));
    }
}
#endif

/* Converts the f32 sum of dQ to the type of dQ. With FxaArgs.sent, CTAs convert the blocks of heads whose dQ is
 * complete while fxa_backward still computes other heads, on multiprocessors that have no CTA of fxa_backward left. */
extern "C" __global__ void __launch_bounds__(THREADS, FXA_D <= 128 && !FXA_OUT_F32 ? 8 : 1)
    fxa_grad_q_finish(const __grid_constant__ FxaArgs a)
{
    __shared__ int taken, empty;
    const int all = a.pad_rows / 64 * a.heads;
    launch_next();
    if (!a.sent) launch_wait();
    const float scale = run_scale(a);
    int i = blockIdx.x + gridDim.x * blockIdx.y;
    if (a.sent && threadIdx.x == 0) i = (int)atomicAdd(a.sent, 1u);
    for (;;) {
        if (threadIdx.x == 0) {
            if (a.sent && i < all) wait_for_partial_dq(a, QueryBlock(a, i));
            taken = i;
            empty = i < all && has_no_sum(a, QueryBlock(a, i));
            i = a.sent && i < all ? (int)atomicAdd(a.sent, 1u) : all;
        }
        __syncthreads();
        if (taken >= all) break;
        finish_block(a, QueryBlock(a, taken), empty, scale);
    }
    launch_wait();
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) fxa_grad_sink(const __grid_constant__ FxaArgs a)
{
    launch_begin();
    const int h = blockIdx.x;
    const float z = a.sink[h] * LOG2E;
    const long long first = (long long)h * a.pad_rows;
    double sum = 0;
    for (int i = threadIdx.x; i < a.pad_rows; i += THREADS)
        if (a.lse2[first + i] != POS_INF) sum -= (double)(exp2_fast(z - a.lse2[first + i]) * a.delta[first + i]);
    sum = sum_of_threads<THREADS>(sum);
    if (threadIdx.x == 0) a.grad_sink[h] = (float)sum;
}
