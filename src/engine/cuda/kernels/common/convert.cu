/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between the caller's memory and the workspace (host/convert.c): tensors that the attention kernels read
 * in another type or with other strides, and results that are added to or merged with existing ones. The kernels run on
 * all architectures, compute in f64 and round each result once.
 *
 *     fxa_convert_copy        to = from, or to += from. Not written: in packed tensors, rows that belong to no
 *                             sequence; with +=, rows past a length. Any number of CTAs of THREADS threads
 *     fxa_coordinates_write   coordinates of indices, for dropout. Any number of CTAs of THREADS threads
 *     fxa_convert_merge       merges (O, LSE) of a run with existing ones, as fxa_merge does. Any number of CTAs, each
 *                             a row at a time
 */
#include "common/convert.cuh"

namespace {

constexpr int THREADS = FXA_HELPER_THREADS;

/* Where a row is in memory: indices b and s, with b = 0 in packed tensors. written: true if the kernel must write the
 * row. */
struct ConvertRow {
    long long b, s;
    bool written;

    FXA_INLINE ConvertRow(const FxaArgs &a, int side, bool join, long long b_, long long s_)
        : b(b_), s(s_), written(true)
    {
        if (side == FXA_CONVERT_ALL) return;
        const bool keys = side == FXA_CONVERT_KEYS, packed = keys ? k_starts(a) : q_starts(a);
        const Sequence sequence = keys ? k_sequence(a, (int)b) : q_sequence(a, (int)b);
        written = s < sequence.length || !(packed || join);
        if (packed) b = 0, s += sequence.first;
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_convert_copy(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaConvert s)
{
    launch_begin();
    const long long n = s.size[0] * s.size[1] * s.size[2] * s.size[3], step = (long long)gridDim.x * THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < n; i += step) {
        const long long d = i % s.size[3], row = i / s.size[3], h = row / s.size[2] % s.size[1];
        const ConvertRow at(a, s.side, s.add, row / s.size[2] / s.size[1], row % s.size[2]);
        if (!at.written) continue;
        const long long to = convert_index(s.to, at.b, h, at.s, d);
        const double x = convert_load(s.from, convert_index(s.from, at.b, h, at.s, d));
        convert_store(s.to, to, s.add ? x + convert_load(s.to, to) : x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_coordinates_write(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaCoordinates x)
{
    launch_begin();
    const long long step = (long long)gridDim.x * THREADS;
    for (long long n = blockIdx.x * (long long)THREADS + threadIdx.x; n < x.size * x.entries; n += step) {
        const long long i = n % x.size, b = n / x.size;
        long long at = x.base + x.step * i;
        if (x.table) at = x.table[i];
        for (int s = 0; s < x.segments && x.begin[s] <= i; s++) at = x.from[s] + x.by[s] * (i - x.begin[s]);
        if (x.dynamic) at += *x.dynamic;
        if (x.shift) at += x.shift[b];
        if (x.aligned)
            at += (x.k_len ? x.k_len : k_length(a, (int)b)) - (x.q_len ? x.q_len : q_length(a, (int)b));
        x.out[n] = (int)(u32)at;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_convert_merge(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaConvert s,
                   const __grid_constant__ FxaConvert lse)
{
    launch_begin();
    const double none = (double)NEG_INF;
    for (long long i = blockIdx.x; i < s.size[0] * s.size[1] * s.size[2]; i += gridDim.x) {
        const long long h = i / s.size[2] % s.size[1];
        const ConvertRow at(a, s.side, true, i / s.size[2] / s.size[1], i % s.size[2]);
        if (!at.written) continue;
        const long long to = convert_index(lse.to, at.b, h, at.s, 0);
        const double x = convert_load(lse.from, convert_index(lse.from, at.b, h, at.s, 0));
        const double y = convert_load(lse.to, to);
        const double largest = x > y || x != x ? x : y;
        const double wx = x == none ? 0. : exp(x - largest), wy = y == none ? 0. : exp(y - largest);
        const double sum = wx + wy;
        for (long long d = threadIdx.x; d < s.size[3]; d += THREADS) {
            const long long to_o = convert_index(s.to, at.b, h, at.s, d);
            double o = 0;
            if (wx != 0) o += wx * convert_load(s.from, convert_index(s.from, at.b, h, at.s, d));
            if (wy != 0) o += wy * convert_load(s.to, to_o);
            convert_store(s.to, to_o, sum == 0 ? 0. : o / sum);
        }
        __syncthreads(); /* all threads have read LSE of the row */
        if (threadIdx.x == 0) convert_store(lse.to, to, sum == 0 ? none : largest + log(sum));
    }
}
