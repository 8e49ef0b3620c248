/* SPDX-License-Identifier: Apache-2.0
 *
 * Before and after the backward kernels, for all architectures.
 *
 * fxa_backward_prepare: delta[q] = dO . O - dLSE and lse2[q] = LSE * log2(e), in rows of q_pad; rows past the length
 * get lse2 = +inf, so that their probabilities are 0. Also sets the f32 sum of dQ to 0, when there is one.
 * Launch: grid (q_pad / ROWS, heads, batch).
 *
 * fxa_grad_q_finish: dQ = scale * sum, from the layout in which the backward kernels add: per block of 64 queries
 * [half of the columns][8-column group][thread of 128] four floats, as the accumulators of an m64 product lie.
 * Launch: grid (q_pad / 64, heads, batch).
 */
#include "device.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int LANES = FXA_DV / 8; /* threads of a row, 8 elements each */
constexpr int ROWS = THREADS / LANES;
constexpr int HALF = FXA_D / 2;

FXA_INLINE float dot8(const Word4 &x, const Word4 &y)
{
    const u32 p[4] = {x.x, x.y, x.z, x.w}, q[4] = {y.x, y.y, y.z, y.w};
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = __fmaf_rn(unpack_low(p[i]), unpack_low(q[i]), sum);
        sum = __fmaf_rn(unpack_high(p[i]), unpack_high(q[i]), sum);
    }
    return sum;
}

FXA_INLINE const Word4 *piece(const FxaView &t, int b, int h, int s, int lane)
{
    return (const Word4 *)((const u16 *)t.data + b * t.b + h * t.h + s * t.s) + lane;
}

} // namespace

extern "C" __constant__ FxaShape fxa_backward_prepare_shape = {THREADS, 0, ROWS, 0, 0, 0};
extern "C" __constant__ FxaShape fxa_grad_q_finish_shape = {THREADS, 0, 64, 0, 0, 0};

extern "C" __global__ void __launch_bounds__(THREADS) fxa_backward_prepare(const __grid_constant__ FxaArgs a)
{
    const int lane = threadIdx.x % LANES, q = blockIdx.x * ROWS + threadIdx.x / LANES, h = blockIdx.y, b = blockIdx.z;
    const long long row = ((long long)b * a.heads + h) * a.q_pad + q;
    const bool inside = q < q_length(a, b);
    float sum = inside ? dot8(*piece(a.o, b, h, q, lane), *piece(a.grad_o, b, h, q, lane)) : 0.f;
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
    if (a.grad_q_sum)
        for (int i = lane; i < FXA_D / 4; i += LANES) ((Float4 *)a.grad_q_sum)[row * (FXA_D / 4) + i] = Float4{};
    if (lane == 0) {
        const long long i = b * a.lse_b + h * a.lse_h + q;
        const float lse = inside ? a.lse[i] : POS_INF;
        a.delta[row] = inside && a.grad_lse ? sum - a.grad_lse[i] : sum;
        a.lse2[row] = lse == NEG_INF ? 0.f : lse * LOG2E;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) fxa_grad_q_finish(const __grid_constant__ FxaArgs a)
{
    constexpr int PITCH = FXA_D / 2 + 4; /* words of a row; 16 bytes more spread columns over banks */
    __shared__ __align__(16) u32 block[64 * PITCH];
    const int h = blockIdx.y, b = blockIdx.z;
    const long long row = ((long long)b * a.heads + h) * a.q_pad + blockIdx.x * 64;
    const Float4 *sum = (const Float4 *)(a.grad_q_sum + row * FXA_D);
#pragma unroll
    for (int e = threadIdx.x; e < 64 * FXA_D / 4; e += THREADS) {
        const Float4 x = sum[e];
        const int half = e / (64 * HALF / 4), i = e % (64 * HALF / 4) >> 7, t = e & 127;
        const int r = (t >> 5) * 16 + ((t & 31) >> 2), c = half * HALF + i * 8 + (t & 3) * 2;
        block[r * PITCH + c / 2] = pack16(x.x * a.scale, x.y * a.scale);
        block[(r + 8) * PITCH + c / 2] = pack16(x.z * a.scale, x.w * a.scale);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 64 * FXA_D / 8; e += THREADS) {
        const int r = e / (FXA_D / 8), c = e % (FXA_D / 8), q = blockIdx.x * 64 + r;
        if (q < a.q_len) *(Word4 *)piece(a.grad_q, b, h, q, c) = *(const Word4 *)(block + r * PITCH + c * 4);
    }
}
