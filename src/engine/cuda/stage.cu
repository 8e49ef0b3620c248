/* SPDX-License-Identifier: Apache-2.0
 *
 * Operands on their way between the caller's memory and the workspace (cuda_stage.c): what kernels want in another type
 * or with other strides than the caller has it, and results that join what is there. All architectures; arithmetic in
 * f64, each result rounded once.
 *
 * fxa_stage_copy: to = from, or to += from. Of packed sequences the rows that an entry has are written, and no others;
 * what is past a length is left alone where something is added. Launch: any grid of THREADS.
 *
 * fxa_stage_join: (O, LSE) of a run joins what is there, as fxa_merge does it. Launch: any grid, a CTA takes rows.
 */
#include "spans.cuh"

namespace {

constexpr int THREADS = 256;

enum { STAGE_F64 = 1, STAGE_F32 = 2, STAGE_F16 = 3, STAGE_BF16 = 4, STAGE_E4M3 = 11, STAGE_E5M2 = 12 }; /* fxa_dtype */

FXA_INLINE float from_half(u16 word)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(word));
    return x;
}

/* All bits set are the NaN; there are no infinities. */
FXA_INLINE float from_e4m3(u32 x)
{
    const u32 sign = (x & 0x80) << 24, exponent = x >> 3 & 15, fraction = x & 7;
    if ((x & 0x7f) == 0x7f) return __int_as_float((int)(sign | 0x7fc00000u));
    const float y = exponent ? __int_as_float((int)((exponent + 120) << 23 | fraction << 20)) : fraction * 0x1p-9f;
    return __int_as_float((int)((u32)__float_as_int(y) | sign));
}

/* Eight bits with so many of fraction: beyond the largest number that number, as docs/numerics.md says. */
FXA_INLINE u8 to_byte(float x, int fraction, int bias, float least, float largest, u32 last, u32 nan)
{
    const u32 u = (u32)__float_as_int(x), sign = u >> 24 & 0x80, a = u & 0x7fffffff;
    const int cut = 23 - fraction;
    u32 code;
    if (a > 0x7f800000u)
        code = nan;
    else if (fabsf(x) >= largest)
        code = last;
    else if (fabsf(x) >= least)
        code = ((a + (1u << (cut - 1)) - 1 + (a >> cut & 1)) >> cut) - ((u32)(127 - bias) << fraction);
    else
        code = (u32)__float2int_rn(fabsf(x) / least * (float)(1 << fraction));
    return (u8)(sign | code);
}

FXA_INLINE double stage_load(const FxaStageArray &t, long long at)
{
    switch (t.type) {
    case STAGE_F64: return ((const double *)t.data)[at];
    case STAGE_F32: return (double)((const float *)t.data)[at];
    case STAGE_F16: return (double)from_half(((const u16 *)t.data)[at]);
    case STAGE_BF16: return (double)__int_as_float((int)((u32)((const u16 *)t.data)[at] << 16));
    case STAGE_E4M3: return (double)from_e4m3(((const u8 *)t.data)[at]);
    default: return (double)from_half((u16)(((const u8 *)t.data)[at] << 8));
    }
}

FXA_INLINE void stage_store(const FxaStageArray &t, long long at, double x)
{
    u16 word;
    switch (t.type) {
    case STAGE_F64: ((double *)t.data)[at] = x; break;
    case STAGE_F32: ((float *)t.data)[at] = (float)x; break;
    case STAGE_F16:
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(word) : "f"((float)x));
        ((u16 *)t.data)[at] = word;
        break;
    case STAGE_BF16:
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(word) : "f"((float)x));
        ((u16 *)t.data)[at] = word;
        break;
    case STAGE_E4M3: ((u8 *)t.data)[at] = to_byte((float)x, 3, 7, 0x1p-6f, 448.f, 0x7e, 0x7f); break;
    default: ((u8 *)t.data)[at] = to_byte((float)x, 2, 15, 0x1p-14f, 57344.f, 0x7b, 0x7e); break;
    }
}

FXA_INLINE long long stage_place(const FxaStageArray &t, long long b, long long h, long long s, long long d)
{
    return b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d * t.stride[3];
}

/* Where row s of entry b lies, and whether it is written. */
struct StageRow {
    long long b, s;
    bool there;

    FXA_INLINE StageRow(const FxaArgs &a, int side, bool join, long long b_, long long s_) : b(b_), s(s_), there(true)
    {
        if (side == FXA_STAGE_WHOLE) return;
        const bool keys = side == FXA_STAGE_KEYS, packed = keys ? k_starts(a) : q_starts(a);
        const Span span = keys ? k_span(a, (int)b) : q_span(a, (int)b);
        there = s < span.length || !(packed || join);
        if (packed) b = 0, s += span.first;
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_stage_copy(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaStage s)
{
    const long long n = s.size[0] * s.size[1] * s.size[2] * s.size[3], step = (long long)gridDim.x * THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < n; i += step) {
        const long long d = i % s.size[3], row = i / s.size[3], h = row / s.size[2] % s.size[1];
        const StageRow at(a, s.side, s.add, row / s.size[2] / s.size[1], row % s.size[2]);
        if (!at.there) continue;
        const long long to = stage_place(s.to, at.b, h, at.s, d);
        const double x = stage_load(s.from, stage_place(s.from, at.b, h, at.s, d));
        stage_store(s.to, to, s.add ? x + stage_load(s.to, to) : x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fxa_stage_join(const __grid_constant__ FxaArgs a, const __grid_constant__ FxaStage s,
                   const __grid_constant__ FxaStage lse)
{
    const double none = (double)NEG_INF;
    for (long long i = blockIdx.x; i < s.size[0] * s.size[1] * s.size[2]; i += gridDim.x) {
        const long long h = i / s.size[2] % s.size[1];
        const StageRow at(a, s.side, true, i / s.size[2] / s.size[1], i % s.size[2]);
        if (!at.there) continue;
        const long long to = stage_place(lse.to, at.b, h, at.s, 0);
        const double x = stage_load(lse.from, stage_place(lse.from, at.b, h, at.s, 0)), y = stage_load(lse.to, to);
        const double most = x > y || x != x ? x : y, wx = x == none ? 0. : exp(x - most), wy = y == none ? 0. : exp(y - most);
        const double sum = wx + wy;
        for (long long d = threadIdx.x; d < s.size[3]; d += THREADS) {
            const long long there = stage_place(s.to, at.b, h, at.s, d);
            double o = 0;
            if (wx != 0) o += wx * stage_load(s.from, stage_place(s.from, at.b, h, at.s, d));
            if (wy != 0) o += wy * stage_load(s.to, there);
            stage_store(s.to, there, sum == 0 ? 0. : o / sum);
        }
        __syncthreads(); /* all have read it */
        if (threadIdx.x == 0) stage_store(lse.to, to, sum == 0 ? none : most + log(sum));
    }
}
