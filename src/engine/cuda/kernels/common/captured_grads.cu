/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels after the backward, which add up the gradients of params and captured tensors and store them in the caller's
 * memory. Gradients of tensors are collected in contiguous arrays of f32, or of FxaExact if PROG_GRAD_EXACT has the
 * tensor's bit, because the result has to be deterministic. All sums except atomics on f32 arrays are deterministic.
 *
 *     fxa_captured_totals     adds the sums of all warps of (b, h), in a fixed order:
 *                             totals[(b * heads + h) * n + i]. Grid (n, heads, batch)
 *     fxa_captured_sums       adds each total i to params[i] if sum i is the gradient of a param, otherwise to an
 *                             element of a tensor's gradient. Grid (batch * heads / 256 rounded up, n)
 *     fxa_captured_params     stores the gradients of params in the caller's memory. One CTA
 *     fxa_captured_diagonal   adds sums along diagonals (FxaDiagonalGrad) to the gradients of the elements from which
 *                             the diagonal row is made. Grid (size / 128 rounded up, heads, batch); with 1 instead of
 *                             batch a CTA adds up all batch entries in order
 *     fxa_captured_dense      sums the gradients a.grad_dense[b, h, q, k] over the batch entries and heads that share
 *                             an element of the tensor, into the caller's gradient. Any number of CTAs
 *     fxa_captured_store      stores a contiguous array as the caller's gradient, in its type and strides. Any number
 *                             of CTAs
 */
#include "common/diagonal_sum.cuh"
#include "common/convert.cuh"
#include "common/storage.cuh"

constexpr int THREADS = FXA_HELPER_THREADS;
static_assert(FXA_CUDA_SUMS <= FXA_GRAD_PARAM_THREADS, "fxa_captured_params has a thread per sum");

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_captured_totals(FxaSums from, double *totals, int rows, int n)
{
    launch_begin();
    const int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    const float *data = from.data + b * from.b + h * from.h + i;
    double sum = 0;
    for (int r = threadIdx.x; r < rows; r += THREADS) sum += (double)data[(long long)r * n];
    sum = sum_of_threads<THREADS>(sum);
    if (threadIdx.x == 0) totals[((long long)b * gridDim.y + h) * n + i] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_captured_sums(const __grid_constant__ FxaArgs a, const double *totals, FxaExact *params, FxaSumTargets to)
{
    launch_begin();
#if PROG_GRAD_SUMS
    const int i = blockIdx.y;
    const long long e = blockIdx.x * (long long)THREADS + threadIdx.x, pairs = (long long)a.batch * a.heads;
    const double total = e < pairs ? totals[e * PROG_GRAD_SUMS + i] : 0.;
    if (to.param[i] >= 0) {
        const double sum = sum_of_threads<THREADS>(total);
        if (threadIdx.x == 0) exact_add_double(params + i, sum);
    } else if (e < pairs) {
        const long long at = Program::sum_place(a, (int)(e / a.heads), (int)(e % a.heads), i);
        if (at >= 0) exact_add_double((FxaExact *)a.grad_tensor[to.tensor[i]] + at, total);
    }
#endif
}

extern "C" __global__ void fxa_captured_params(const FxaExact *from, double *params, FxaSumTargets to, int add)
{
    launch_begin();
    const int at = threadIdx.x < FXA_CUDA_SUMS ? to.param[threadIdx.x] : -1;
    if (at >= 0) params[at] = (add ? params[at] : 0.) + exact_value(from + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(FXA_GRAD_DIAGONAL_ROWS)
    fxa_captured_diagonal(const __grid_constant__ FxaArgs a, int tensor, int tiles, int size, int zero)
{
    launch_begin();
#if PROG_GRAD_DIAGONAL
    const int i = blockIdx.x * FXA_GRAD_DIAGONAL_ROWS + threadIdx.x, h = blockIdx.y, entries = a.batch / gridDim.z;
    const FxaDiagonalGrad &g = a.grad_diagonal;
    if (i >= size) return;
    double sum = 0.;
    for (int b = blockIdx.z * entries; b < (blockIdx.z + 1) * entries; b++)
        for (int n = 0; n < tiles; n++) {
            const int at = i - zero + g.zero + n * g.zero_step;
            if ((unsigned)at < (unsigned)g.size) sum += diagonal_read(diagonal_row(a, b, h, n) + at);
        }
    const long long at = Program::diagonal_place(a, blockIdx.z, h, i - zero);
    if (at < 0 || sum == 0.) return;
    if (PROG_GRAD_EXACT >> tensor & 1)
        exact_add_double((FxaExact *)a.grad_tensor[tensor] + at, sum);
    else
        atomicAdd(a.grad_tensor[tensor] + at, (float)sum);
#endif
}

FXA_INLINE double grad_load(const FxaGradTensor &t, long long at)
{
    return convert_load(FxaConvertArray{t.data, {}, t.dtype}, at);
}

FXA_INLINE void grad_store(const FxaGradTensor &t, long long at, double x)
{
    convert_store(FxaConvertArray{t.data, {}, t.dtype}, at, x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_captured_store(const float *from, const __grid_constant__ FxaGradTensor to, long long count, int exact)
{
    launch_begin();
    const long long step = (long long)gridDim.x * THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += step) {
        long long at = 0, rest = i;
        for (int d = to.rank - 1; d >= 0; d--) {
            at += rest % to.size[d] * to.stride[d];
            rest /= to.size[d];
        }
        const double x = exact ? exact_value((const FxaExact *)from + i) : (double)from[i];
        grad_store(to, at, x + (to.add ? grad_load(to, at) : 0.));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_captured_dense(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaGradTensor to, int by_b, int by_h,
                       long long count)
{
    launch_begin();
    const long long step = (long long)gridDim.x * THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += step) {
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
