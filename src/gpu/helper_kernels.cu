/* SPDX-License-Identifier: Apache-2.0
 *
 * Helper kernels of engines on CUDA devices: conversions, batch bounds, statistics and merges around an attention
 * kernel. tools/gen_ptx.py compiles this file into helper_kernels_ptx.h, which the library loads; tests/standin compiles
 * it for the host, where a kernel runs as one thread. This file is therefore C, except for the macros below, and
 * includes no header of the CUDA toolkit.
 */
#include "helper_kernel_args.h"

#ifdef __CUDACC__
#define FXA_KERNEL extern "C" __global__ void __launch_bounds__(256)
#define FXA_DEVICE __device__ static inline
#define FXA_CALL __device__ static __noinline__ /* smaller code: not inlined, one copy in each kernel */
#define FXA_ARGS const __grid_constant__        /* __grid_constant__: threads do not copy the arguments */
#define FXA_ONE_BY_ONE _Pragma("unroll 1")
#define FXA_FIRST ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define FXA_STEP ((int64_t)gridDim.x * blockDim.x)
#define FXA_BLOCK ((int64_t)blockIdx.x)
#define FXA_BLOCKS ((int64_t)gridDim.x)
#define FXA_THREAD ((int64_t)threadIdx.x)
#define FXA_THREADS ((int64_t)blockDim.x)
#define FXA_SYNC() __syncthreads()
#define FXA_SHARED __shared__
#define FXA_NO_MAX (-__int_as_float(0x7f800000))
#define FXA_AS_BITS(f) __float_as_uint(f)
#define FXA_AS_FLOAT(u) __uint_as_float(u)
#else
#include <math.h>
#include <string.h>
#define FXA_KERNEL static void
#define FXA_DEVICE static inline
#define FXA_CALL static
#define FXA_ARGS const
#define FXA_ONE_BY_ONE
#define FXA_FIRST ((int64_t)0)
#define FXA_STEP ((int64_t)1)
#define FXA_BLOCK ((int64_t)0)
#define FXA_BLOCKS ((int64_t)1)
#define FXA_THREAD ((int64_t)0)
#define FXA_THREADS ((int64_t)1)
#define FXA_SYNC() ((void)0)
#define FXA_SHARED
#define FXA_NO_MAX (-(double)INFINITY)
static inline uint32_t FXA_AS_BITS(float f) {
    uint32_t u;
    return memcpy(&u, &f, 4), u;
}
static inline float FXA_AS_FLOAT(uint32_t u) {
    float f;
    return memcpy(&f, &u, 4), f;
}
#endif

FXA_CALL double exp_of(double x) { return exp(x); }
FXA_CALL double log_of(double x) { return log(x); }

/* ---- Storage ------------------------------------------------------------------------------------------------------ */

enum { T_F64 = 1, T_F32, T_F16, T_BF16, T_I64, T_I32, T_I16, T_I8, T_U8, T_B8, T_E4M3, T_E5M2 };

FXA_DEVICE float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return FXA_AS_FLOAT(sign | 0x7f800000u | fraction << 13);
    float x = exponent ? FXA_AS_FLOAT((exponent + 112) << 23 | fraction << 13) : (float)fraction * 0x1p-24f;
    return FXA_AS_FLOAT(FXA_AS_BITS(x) | sign);
}

/* Returns the value of an E4M3 number. E4M3 has no infinities; a number with all bits of exponent and fraction set is
 * NaN. */
FXA_DEVICE float from_e4m3(uint8_t x) {
    uint32_t sign = (uint32_t)(x & 0x80) << 24, exponent = x >> 3 & 15, fraction = x & 7;
    if ((x & 0x7f) == 0x7f) return FXA_AS_FLOAT(sign | 0x7fc00000u);
    float y = exponent ? FXA_AS_FLOAT((exponent + 120) << 23 | fraction << 20) : (float)fraction * 0x1p-9f;
    return FXA_AS_FLOAT(FXA_AS_BITS(y) | sign);
}

/* Returns f as f16 bits, rounded to nearest even. If f itself is a rounded double, rounding twice adds an error below
 * 2^-29 ulp. */
FXA_DEVICE uint16_t to_f16(float f) {
    uint32_t u = FXA_AS_BITS(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* at least 65520: infinity */
    if (a < 0x38800000u) { /* subnormal f16: f + 0.5 rounds f to a multiple of 2^-24 */
        return (uint16_t)(sign | (FXA_AS_BITS(FXA_AS_FLOAT(a) + 0.5f) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13));
}

FXA_DEVICE uint16_t to_bf16(float f) {
    uint32_t u = FXA_AS_BITS(f);
    if ((u & 0x7fffffff) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* Returns x clamped to the range of int32. */
FXA_DEVICE int32_t saturate(int64_t x) {
    return x > 2147483647 ? 2147483647 : x < -2147483647 - 1 ? -2147483647 - 1 : (int32_t)x;
}

/* Returns element i of an array of `type`, converted; i64 saturates to the range of i32. */
FXA_CALL double load(const void *data, int32_t type, int64_t i) {
    switch (type) {
    case T_F64: return ((const double *)data)[i];
    case T_F32: return ((const float *)data)[i];
    case T_F16: return from_f16(((const uint16_t *)data)[i]);
    case T_BF16: return FXA_AS_FLOAT((uint32_t)((const uint16_t *)data)[i] << 16);
    case T_I64: return saturate(((const int64_t *)data)[i]);
    case T_I32: return ((const int32_t *)data)[i];
    case T_I16: return ((const int16_t *)data)[i];
    case T_I8: return ((const int8_t *)data)[i];
    case T_U8: return ((const uint8_t *)data)[i];
    case T_E4M3: return from_e4m3(((const uint8_t *)data)[i]);
    case T_E5M2: return from_f16((uint16_t)(((const uint8_t *)data)[i] << 8)); /* E5M2 is the high byte of f16 */
    default: return ((const uint8_t *)data)[i] != 0;
    }
}

/* Returns x truncated and clamped to the range of int32; 0 for NaN. */
FXA_DEVICE int32_t to_int(double x) {
    return x != x ? 0 : x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : (int32_t)x;
}

/* Stores x as element i of an array of `type`: f64, f32, f16, bf16 or i32. */
FXA_CALL void store(void *data, int32_t type, int64_t i, double x) {
    switch (type) {
    case T_F64: ((double *)data)[i] = x; break;
    case T_F32: ((float *)data)[i] = (float)x; break;
    case T_F16: ((uint16_t *)data)[i] = to_f16((float)x); break;
    case T_BF16: ((uint16_t *)data)[i] = to_bf16((float)x); break;
    default: ((int32_t *)data)[i] = to_int(x); break;
    }
}

/* Returns the index of element (b, h, s, d) in a->data. */
FXA_CALL int64_t place(const FxaGpuArray *a, int64_t b, int64_t h, int64_t s, int64_t d) {
    int64_t first = a->start ? (int64_t)a->start[b] * a->stride[2] : b * a->stride[0];
    if (a->pages) {
        first = a->pages[b * a->of_entry + s / a->page] * a->stride[0];
        s %= a->page;
    }
    return first + h * a->stride[1] + s * a->stride[2] + d * a->stride[3];
}

/* ---- Rows --------------------------------------------------------------------------------------------------------- */

/* States of a row (FxaGpuRows): has a result, is empty, is padding. */
enum { ROW_THERE, ROW_EMPTY, ROW_PAST };

FXA_DEVICE int row_state(const FxaGpuRows *r, int64_t b, int64_t s) {
    if (r->len && s >= r->len[b]) return ROW_PAST;
    return r->other && r->other[b] == 0 ? ROW_EMPTY : ROW_THERE;
}

FXA_DEVICE int copy_is_outside(const FxaGpuCopy *a, int64_t b, int64_t h, int64_t s, int64_t d) {
    return (a->limit[0] && b >= a->limit[0]) || (a->limit[1] && h >= a->limit[1]) ||
           (a->limit[2] && s >= a->limit[2]) || (a->limit[3] && d >= a->limit[3]);
}

FXA_KERNEL fxa_gpu_copy(FXA_ARGS FxaGpuCopy a) {
    int64_t n = a.rows.size[0] * a.rows.size[1] * a.rows.size[2] * a.rows.size[3];
    FXA_ONE_BY_ONE
    for (int64_t i = FXA_FIRST; i < n; i += FXA_STEP) {
        int64_t d = i % a.rows.size[3], rest = i / a.rows.size[3], s = rest % a.rows.size[2];
        int64_t h = rest / a.rows.size[2] % a.rows.size[1], b = rest / a.rows.size[2] / a.rows.size[1];
        int state = row_state(&a.rows, b, s);
        if (state == ROW_PAST && (!a.past || a.mode == FXA_GPU_ADD)) continue;
        if (state == ROW_EMPTY && a.mode == FXA_GPU_ADD) continue;
        int64_t at = place(&a.to, b, h, s, d);
        double x = a.fill;
        if (state == ROW_THERE)
            x = !a.from.data || copy_is_outside(&a, b, h, s, d)
                    ? 0
                    : load(a.from.data, a.from.type, place(&a.from, b, h, s, d));
        if (x != x && a.has_instead) x = a.instead;
        if (a.mode == FXA_GPU_ADD) x += load(a.to.data, a.to.type, at);
        store(a.to.data, a.to.type, at, x);
    }
}

/* ---- Lengths and offsets ------------------------------------------------------------------------------------------ */

/* Returns the number of rows of batch entry b for keys = 0, its number of keys for keys = 1; 0 for b == a->batch. */
FXA_DEVICE int32_t bounds_length(const FxaGpuBatchBounds *a, int keys, int64_t b) {
    int64_t most = a->size[keys], n = most;
    if (b >= a->batch) return 0;
    if (a->starts[keys]) n = (int64_t)a->starts[keys][b + 1] - a->starts[keys][b];
    if (a->lens[keys]) n = a->lens[keys][b];
    return (int32_t)(n < 0 ? 0 : n > most ? most : n);
}

/* Writes the element at which batch entry b starts in operand number `operand`. If `operand` is a->operands, no operand
 * has this number, and the lengths of b are written instead. */
FXA_DEVICE void bounds_write(const FxaGpuBatchBounds *a, int64_t b, int32_t operand) {
    if (operand < a->operands) {
        const int32_t *starts = a->dense >> operand & 1 ? 0 : a->starts[a->keys >> operand & 1];
        a->offset[operand][b] = starts ? (int64_t)starts[b] * a->row[operand] : b * a->entry[operand];
        return;
    }
    int32_t q = bounds_length(a, 0, b), k = bounds_length(a, 1, b);
    if (b == a->batch) return;
    if (a->len[0]) a->len[0][b] = q;
    if (a->len[1]) a->len[1][b] = k;
    if (a->more) a->more[b] = k - q;
}

/* Writes f->value to the empty rows of batch entry b and, with `past`, to its padding. Thread `thread` of `threads`
 * writes every threads-th row. lens: number of rows and of keys of b. */
FXA_DEVICE void bounds_fill(const FxaGpuFill *f, int past, const int32_t lens[2], int64_t b, int64_t thread,
                          int64_t threads) {
    int64_t len = f->keys ? lens[1] : lens[0], first = (f->keys ? lens[0] : lens[1]) == 0 ? 0 : len;
    int64_t rows = (past ? f->rows : len) - first;
    FXA_ONE_BY_ONE
    for (int64_t i = thread; i < rows * f->heads; i += threads) {
        FXA_ONE_BY_ONE
        for (int64_t d = 0; d < f->features; d++)
            store(f->to.data, f->to.type, place(&f->to, b, i / rows, first + i % rows, d), f->value);
    }
}

FXA_KERNEL fxa_gpu_batch_bounds(FXA_ARGS FxaGpuBatchBounds a) {
    int64_t entries = (int64_t)a.batch + 1, parts = FXA_BLOCKS / a.batch; /* parts = CTAs per batch entry */
    if (parts < 1) parts = 1;
    FXA_ONE_BY_ONE
    for (int64_t i = FXA_FIRST; i < entries * (a.operands + 1); i += FXA_STEP)
        bounds_write(&a, i % entries, (int32_t)(i / entries));
    FXA_ONE_BY_ONE
    for (int64_t u = FXA_BLOCK; u < a.batch * parts; u += FXA_BLOCKS) {
        int64_t b = u / parts;
        int32_t lens[2] = {bounds_length(&a, 0, b), bounds_length(&a, 1, b)};
        if (!a.past && lens[0] && lens[1]) continue; /* no row of the batch entry has to be filled */
        FXA_ONE_BY_ONE
        for (int j = 0; j < a.fills; j++)
            bounds_fill(&a.fill[j], a.past, lens, b, u % parts * FXA_THREADS + FXA_THREAD, parts * FXA_THREADS);
    }
}

/* ---- Statistics --------------------------------------------------------------------------------------------------- */

FXA_KERNEL fxa_gpu_statistics(FXA_ARGS FxaGpuStatistics a) {
    int64_t n = a.rows.size[0] * a.rows.size[1] * a.rows.size[2];
    FXA_ONE_BY_ONE
    for (int64_t i = FXA_FIRST; i < n; i += FXA_STEP) {
        int64_t s = i % a.rows.size[2], h = i / a.rows.size[2] % a.rows.size[1],
                b = i / a.rows.size[2] / a.rows.size[1];
        int state = row_state(&a.rows, b, s);
        if (state == ROW_PAST && !a.past) continue;
        double most = FXA_NO_MAX, lse = FXA_NO_MAX;
        if (state == ROW_THERE) {
            most = load(a.most.data, a.most.type, place(&a.most, b, h, s, 0));
            double sum = load(a.sum.data, a.sum.type, place(&a.sum, b, h, s, 0));
            if (most != FXA_NO_MAX) lse = most + log_of(sum);
            if (sum != sum) { /* a score of the row is +infinity or NaN; `most` ignores scores that are NaN */
                lse = sum;
                if (most != -FXA_NO_MAX) most = sum;
            }
        }
        if (a.lse.data) store(a.lse.data, a.lse.type, place(&a.lse, b, h, s, 0), lse);
        if (a.max.data) store(a.max.data, a.max.type, place(&a.max, b, h, s, 0), most);
    }
}

FXA_KERNEL fxa_gpu_join(FXA_ARGS FxaGpuJoin a) {
    int64_t n = a.rows.size[0] * a.rows.size[1] * a.rows.size[2];
    FXA_ONE_BY_ONE
    for (int64_t i = FXA_BLOCK; i < n; i += FXA_BLOCKS) {
        int64_t s = i % a.rows.size[2], h = i / a.rows.size[2] % a.rows.size[1],
                b = i / a.rows.size[2] / a.rows.size[1];
        if (row_state(&a.rows, b, s) != ROW_THERE) continue;
        double x = load(a.lse.data, a.lse.type, place(&a.lse, b, h, s, 0));
        double y = load(a.into_lse.data, a.into_lse.type, place(&a.into_lse, b, h, s, 0));
        double most = x > y || x != x ? x : y, wx = x == FXA_NO_MAX ? 0 : exp_of(x - most),
               wy = y == FXA_NO_MAX ? 0 : exp_of(y - most);
        double sum = wx + wy;
        FXA_ONE_BY_ONE
        for (int64_t d = FXA_THREAD; d < a.rows.size[3]; d += FXA_THREADS) {
            int64_t at = place(&a.into, b, h, s, d);
            double o = 0;
            if (wx != 0) o += wx * load(a.o.data, a.o.type, place(&a.o, b, h, s, d));
            if (wy != 0) o += wy * load(a.into.data, a.into.type, at);
            store(a.into.data, a.into.type, at, sum == 0 ? 0 : o / sum);
        }
        FXA_SYNC();
        if (FXA_THREAD == 0)
            store(a.into_lse.data, a.into_lse.type, place(&a.into_lse, b, h, s, 0),
                  sum == 0 ? FXA_NO_MAX : most + log_of(sum));
    }
}

/* Returns the sum over d of o dout of row (b, h, s). */
FXA_DEVICE double sink_delta(const FxaGpuSink *a, int64_t b, int64_t h, int64_t s) {
    double sum = 0;
    if (row_state(&a->rows, b, s) == ROW_THERE) return load(a->delta.data, a->delta.type, place(&a->delta, b, h, s, 0));
    FXA_ONE_BY_ONE
    for (int64_t d = 0; d < a->features; d++)
        sum += load(a->o.data, a->o.type, place(&a->o, b, h, s, d)) *
               load(a->dout.data, a->dout.type, place(&a->dout, b, h, s, d));
    return sum;
}

FXA_KERNEL fxa_gpu_sink(FXA_ARGS FxaGpuSink a) {
    FXA_SHARED double sums[256];
    int64_t n = a.rows.size[0] * a.rows.size[2];
    FXA_ONE_BY_ONE
    for (int64_t h = FXA_BLOCK; h < a.rows.size[1]; h += FXA_BLOCKS) {
        double z = a.zero ? 0 : load(a.sink.data, a.sink.type, place(&a.sink, 0, h, 0, 0)), sum = 0;
        FXA_ONE_BY_ONE
        for (int64_t i = FXA_THREAD; i < n; i += FXA_THREADS) {
            int64_t b = i / a.rows.size[2], s = i % a.rows.size[2];
            if (row_state(&a.rows, b, s) == ROW_PAST) continue;
            double lse = load(a.lse.data, a.lse.type, place(&a.lse, b, h, s, 0));
            double weight = z == FXA_NO_MAX || lse == FXA_NO_MAX ? 0 : exp_of(z - lse);
            double slope = a.dlse.data ? load(a.dlse.data, a.dlse.type, place(&a.dlse, b, h, s, 0)) : 0;
            if (weight != 0) sum += weight * (slope - sink_delta(&a, b, h, s));
        }
        sums[FXA_THREAD] = sum;
        FXA_ONE_BY_ONE
        for (int64_t half = FXA_THREADS / 2; half > 0; half /= 2) {
            FXA_SYNC();
            if (FXA_THREAD < half) sums[FXA_THREAD] += sums[FXA_THREAD + half];
        }
        FXA_SYNC();
        if (FXA_THREAD == 0) {
            int64_t at = place(&a.dsink, 0, h, 0, 0);
            store(a.dsink.data, a.dsink.type, at, sums[0] + (a.add ? load(a.dsink.data, a.dsink.type, at) : 0));
        }
        FXA_SYNC();
    }
}

/* ---- Coordinates -------------------------------------------------------------------------------------------------- */

/* Returns c(i) of FxaGpuPlaces: the coordinate of index i before the kernel adds the members `add`, `dynamic`, `shift`
 * and `more`. */
FXA_DEVICE int64_t place_coordinate(const FxaGpuPlaces *a, int64_t i) {
    int at = 0;
    if (a->table) return a->table[i];
    if (!a->segments) return a->base + a->step * i;
    while (at + 1 < a->segments && a->begin[at + 1] <= i) at++;
    return a->from[at] + a->by[at] * (i - a->begin[at]);
}

FXA_KERNEL fxa_gpu_places(FXA_ARGS FxaGpuPlaces a) {
    FXA_ONE_BY_ONE
    for (int64_t n = FXA_FIRST; n < a.size * a.batch; n += FXA_STEP) {
        int64_t b = n / a.size, x = place_coordinate(&a, n % a.size) + a.add;
        if (a.dynamic) x += a.dynamic[0];
        if (a.shift) x += a.shift[b];
        if (a.more) x += a.more[b];
        a.out[n] = (int32_t)(uint32_t)x;
    }
}

/* ---- Scales ------------------------------------------------------------------------------------------------------- */

FXA_KERNEL fxa_gpu_inverse(FXA_ARGS FxaGpuInverse a) {
    if (FXA_FIRST == 0) a.to[0] = a.from ? 1 / a.from[0] : 1;
}
