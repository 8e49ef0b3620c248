/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the helper kernels (gpu_kernels.cu), by value: what the host fills and the device reads. Plain C and
 * CUDA. Arrays have four axes, [B,H,S,D] of attention; types are those of fxa_dtype.
 */
#ifndef FXA_GPU_KERNEL_ARGS_H
#define FXA_GPU_KERNEL_ARGS_H

#include <stdint.h>

/* An array, strides in elements. `start`: first rows of entries (int32, in rows of stride[2]) instead of stride[0].
 * `pages`: row s of entry b is row s % page of page pages[b * of_entry + s / page], pages a stride[0] apart. */
typedef struct FxaGpuArray {
    void *data; /* NULL: there is none */
    const int32_t *start, *pages;
    int64_t stride[4];
    int32_t type;
    int32_t page, of_entry, reserved;
} FxaGpuArray;

/* Which rows there are: `len` of each entry, NULL: all; entries with `other` 0 have rows that see nothing. */
typedef struct FxaGpuRows {
    const int32_t *len, *other;
    int64_t size[4];
} FxaGpuRows;

enum { FXA_GPU_COPY, FXA_GPU_ADD };

/* fxa_gpu_copy: to = from, or to += from, element by element, converted; rows that see nothing become `fill`, and so do
 * those past the length where `past` is set. Elements at or beyond `limit` (0: none) of `from`
 * read as 0, all of them where it has no data, and a NaN as `instead` where has_instead is set. */
typedef struct FxaGpuCopy {
    FxaGpuArray to, from;
    FxaGpuRows rows;
    int64_t limit[4];
    double fill, instead;
    int32_t mode, past, has_instead, reserved;
} FxaGpuCopy;

/* fxa_gpu_spans: lengths of entries, k length less q length, and where their rows begin, in elements, of some operands;
 * `keys`: bit i, operand i has keys; `dense`: its entries lie a stride apart. Entry `batch` is the end. And what nobody
 * writes of some results: rows that see nothing, and with `past` those past a length, become `value`. */
enum { FXA_GPU_OPERANDS = 12, FXA_GPU_FILLS = 4 };
typedef struct FxaGpuFill {
    FxaGpuArray to;
    int64_t heads, rows, features;
    double value;
    int32_t keys, reserved;
} FxaGpuFill;
typedef struct FxaGpuSpans {
    const int32_t *starts[2], *lens[2];                     /* of rows and keys, given, or NULL */
    int32_t *len[2], *more;                                 /* written; NULL: not wanted */
    int64_t *offset[FXA_GPU_OPERANDS];                      /* batch + 1 each */
    int64_t row[FXA_GPU_OPERANDS], entry[FXA_GPU_OPERANDS]; /* strides */
    int64_t size[2];
    FxaGpuFill fill[FXA_GPU_FILLS];
    int32_t batch, operands, keys, dense, fills, past;
} FxaGpuSpans;

/* fxa_gpu_statistics: LSE and the maximum of rows, from the maximum and the sum of exp(s - maximum). */
typedef struct FxaGpuStatistics {
    FxaGpuArray most, sum, lse, max;
    FxaGpuRows rows;
    int32_t past, reserved;
} FxaGpuStatistics;

/* fxa_gpu_join: what fxa_merge does with (o, lse) and what is in (into, into_lse). A block per row. */
typedef struct FxaGpuJoin {
    FxaGpuArray o, lse, into, into_lse;
    FxaGpuRows rows; /* size[3]: features */
} FxaGpuJoin;

/* fxa_gpu_sink: gradient of a sink: the sum over rows of exp(sink - lse) (dlse - delta), by heads, a block for each.
 * delta has the rows that see something; of others it is the sum of o dout. */
typedef struct FxaGpuSink {
    FxaGpuArray sink, dsink, lse, dlse, delta, o, dout;
    FxaGpuRows rows;
    int64_t features;
    int32_t add, zero; /* add to what is there; the sink is 0 */
} FxaGpuSink;

/* fxa_gpu_places: the coordinates of places 0 to size - 1 for each of `batch` entries. */
enum { FXA_GPU_SEGMENTS = 16 };
typedef struct FxaGpuPlaces {
    int32_t *out;
    const int32_t *table, *dynamic, *shift, *more; /* or NULL; shift and more have an entry per batch entry */
    int64_t size, batch;
    int64_t base, step, add; /* affine: base + step i; add: to all of them */
    int64_t begin[FXA_GPU_SEGMENTS], from[FXA_GPU_SEGMENTS], by[FXA_GPU_SEGMENTS];
    int32_t segments, reserved; /* 0: affine */
} FxaGpuPlaces;

/* fxa_gpu_inverse: *to = 1 / *from; 1 where there is none. */
typedef struct FxaGpuInverse {
    const float *from; /* or NULL */
    float *to;
} FxaGpuInverse;

#endif
