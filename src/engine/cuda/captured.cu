/* SPDX-License-Identifier: Apache-2.0
 *
 * After the backward kernels: gradients of params and captured tensors that were summed by tiles, to where they belong.
 * Tensors are collected in dense f32 arrays (a.grad_tensor), from which the host's helpers take them on.
 *
 * fxa_captured_totals adds the sums of all warps of (b, h), in a fixed order: totals[(b * heads + h) * n + i]. Launch:
 * grid (n, heads, batch).
 *
 * fxa_captured_sums takes the totals to params (over all b and h) and to elements of tensors, in a fixed order, without
 * atomics: who is the first (b, h) of an element adds up all of it. Launch: one CTA.
 *
 * fxa_captured_diagonal takes sums along diagonals (FxaDiagonalGrad) to the elements that the diagonal's load read.
 * Launch: grid (size / 128 rounded up, heads, batch, or 1: then over all entries in order).
 *
 * fxa_captured_dense sums the gradients of pairs (a.grad_dense) over the entries and heads that the tensor does not
 * tell apart, into the caller's gradient. Launch: any grid.
 *
 * fxa_captured_store takes a dense array to the caller's gradient, in its type and strides. Launch: any grid.
 */
#include "score.cuh"
#include "storage.cuh"

/* Of sum i: the param it is the gradient of, or -1 and the tensor. */
struct SumTargets {
    int param[FXA_CUDA_SUMS], tensor[FXA_CUDA_SUMS];
};

constexpr int CAPTURED_THREADS = 256;

/* The sum over the CTA, in a fixed order, for all threads. */
FXA_INLINE double captured_sum(double x)
{
    __shared__ double part[CAPTURED_THREADS];
    __syncthreads();
    part[threadIdx.x] = x;
    for (int n = CAPTURED_THREADS / 2; n; n >>= 1) {
        __syncthreads();
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    }
    __syncthreads();
    return part[0];
}

extern "C" __global__ void __launch_bounds__(CAPTURED_THREADS)
    fxa_captured_totals(FxaSums from, double *totals, int rows, int n)
{
    const int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    const float *data = from.data + b * from.b + h * from.h + i;
    double sum = 0;
    for (int r = threadIdx.x; r < rows; r += CAPTURED_THREADS) sum += (double)data[(long long)r * n];
    sum = captured_sum(sum);
    if (threadIdx.x == 0) totals[((long long)b * gridDim.y + h) * n + i] = sum;
}

extern "C" __global__ void __launch_bounds__(CAPTURED_THREADS)
    fxa_captured_sums(const __grid_constant__ FxaArgs a, const double *totals, double *params, SumTargets to, int add)
{
#if PROG_GRAD_SUMS
    const int pairs = a.batch * a.heads;
    for (int i = 0; i < PROG_GRAD_SUMS; i++) {
        if (to.param[i] >= 0) {
            double sum = 0;
            for (int e = threadIdx.x; e < pairs; e += CAPTURED_THREADS) sum += totals[(long long)e * PROG_GRAD_SUMS + i];
            sum = captured_sum(sum);
            if (threadIdx.x == 0) params[to.param[i]] = (add ? params[to.param[i]] : 0.) + sum;
            continue;
        }
        for (int e = threadIdx.x; e < pairs; e += CAPTURED_THREADS) {
            const long long at = Program::sum_place(a, e / a.heads, e % a.heads, i);
            bool first = at >= 0;
            for (int x = 0; x < e && first; x++) first = Program::sum_place(a, x / a.heads, x % a.heads, i) != at;
            if (!first) continue;
            double sum = 0;
            for (int x = e; x < pairs; x++)
                if (Program::sum_place(a, x / a.heads, x % a.heads, i) == at)
                    sum += totals[(long long)x * PROG_GRAD_SUMS + i];
            a.grad_tensor[to.tensor[i]][at] += (float)sum;
        }
        __syncthreads(); /* the next sum may be of the same tensor */
    }
#endif
}

extern "C" __global__ void __launch_bounds__(128)
    fxa_captured_diagonal(const __grid_constant__ FxaArgs a, int tensor, int tiles, int size, int zero)
{
#if PROG_GRAD_DIAGONAL
    const int i = blockIdx.x * 128 + threadIdx.x, h = blockIdx.y, entries = a.batch / gridDim.z;
    const FxaDiagonalGrad &g = a.grad_diagonal;
    if (i >= size) return;
    float sum = 0.f;
    for (int b = blockIdx.z * entries; b < (blockIdx.z + 1) * entries; b++)
        for (int n = 0; n < tiles; n++) {
            const int at = i - zero + g.zero + n * g.zero_step;
            if ((unsigned)at < (unsigned)g.size) sum += g.data[b * g.b + h * g.h + n * g.n + at];
        }
    const long long at = Program::diagonal_place(a, blockIdx.z, h, i - zero);
    if (at >= 0 && sum != 0.f) atomicAdd(a.grad_tensor[tensor] + at, sum);
#endif
}

/* A gradient in memory of the caller's. */
struct GradTensor {
    void *data;
    long long stride[FXA_CUDA_RANK];
    int size[FXA_CUDA_RANK];
    int rank, dtype, add; /* dtype: fxa_dtype */
};

enum { GRAD_F64 = 1, GRAD_F32 = 2, GRAD_F16 = 3, GRAD_BF16 = 4 };

FXA_INLINE double grad_load(const GradTensor &t, long long at)
{
    if (t.dtype == GRAD_F64) return ((const double *)t.data)[at];
    if (t.dtype == GRAD_F32) return (double)((const float *)t.data)[at];
    const u16 word = ((const u16 *)t.data)[at];
    float x = __int_as_float((int)((u32)word << 16));
    if (t.dtype == GRAD_F16) asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(word));
    return (double)x;
}

FXA_INLINE void grad_store(const GradTensor &t, long long at, double x)
{
    u16 word;
    if (t.dtype == GRAD_F64)
        ((double *)t.data)[at] = x;
    else if (t.dtype == GRAD_F32)
        ((float *)t.data)[at] = (float)x;
    else if (t.dtype == GRAD_F16) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(word) : "f"((float)x));
        ((u16 *)t.data)[at] = word;
    } else {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(word) : "f"((float)x));
        ((u16 *)t.data)[at] = word;
    }
}

extern "C" __global__ void __launch_bounds__(CAPTURED_THREADS)
    fxa_captured_store(const float *from, const __grid_constant__ GradTensor to, long long count)
{
    const long long step = (long long)gridDim.x * CAPTURED_THREADS;
    for (long long i = blockIdx.x * (long long)CAPTURED_THREADS + threadIdx.x; i < count; i += step) {
        long long at = 0, rest = i;
        for (int d = to.rank - 1; d >= 0; d--) {
            at += rest % to.size[d] * to.stride[d];
            rest /= to.size[d];
        }
        grad_store(to, at, (double)from[i] + (to.add ? grad_load(to, at) : 0.));
    }
}

extern "C" __global__ void __launch_bounds__(CAPTURED_THREADS)
    fxa_captured_dense(const __grid_constant__ FxaArgs a, const __grid_constant__ GradTensor to, int by_b, int by_h,
                       long long count)
{
    const long long step = (long long)gridDim.x * CAPTURED_THREADS;
    for (long long i = blockIdx.x * (long long)CAPTURED_THREADS + threadIdx.x; i < count; i += step) {
        int index[FXA_CUDA_RANK];
        long long at = 0, rest = i;
        for (int d = to.rank - 1; d >= 0; d--) {
            index[d] = (int)(rest % to.size[d]);
            rest /= to.size[d];
            at += index[d] * to.stride[d];
        }
        const int q = index[to.rank - 2], k = index[to.rank - 1], b0 = by_b ? index[0] : 0, h0 = by_h ? index[by_b] : 0;
        const int b1 = by_b ? min(b0 + 1, a.batch) : a.batch, h1 = by_h ? min(h0 + 1, a.heads) : a.heads;
        double sum = to.add ? grad_load(to, at) : 0.;
        if (q < a.q_len && k < a.k_len)
            for (int b = b0; b < b1; b++)
                for (int h = h0; h < h1; h++) sum += (double)from_stored(row_of(a.grad_dense, b, h, q)[k]);
        grad_store(to, at, sum);
    }
}
