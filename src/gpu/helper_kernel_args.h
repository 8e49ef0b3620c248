/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the helper kernels (helper_kernels.cu), passed by value: the host fills them, a kernel reads them. This
 * file is both C and CUDA, with one layout for both. Arrays are [B,H,S,D]; types are values of fxa_dtype.
 */
#ifndef FXA_GPU_KERNEL_ARGS_H
#define FXA_GPU_KERNEL_ARGS_H

#include <stdint.h>

/* An array. Element (b, h, s, d) is at b stride[0] + h stride[1] + s stride[2] + d stride[3], with two exceptions:
 *   start not NULL (packed layout): batch entry b starts at row start[b], so start[b] stride[2] replaces b stride[0]
 *   pages not NULL: row s of b is row s % page of page number pages[b of_entry + s / page]; page n is at n stride[0] */
typedef struct FxaGpuArray {
    void *data;           /* NULL: no array */
    const int32_t *start; /* [B] first row of each batch entry; NULL: batch entries are stride[0] apart */
    const int32_t *pages; /* [B, of_entry] page table; NULL: not paged */
    int64_t stride[4];    /* in elements */
    int32_t type;         /* fxa_dtype */
    int32_t page;         /* rows of a page */
    int32_t of_entry;     /* number of columns of `pages`: maximum number of pages of a batch entry */
    int32_t reserved;
} FxaGpuArray;

/* Rows of a [B,H,S,D] array. Row s of batch entry b
 *   has a result          if s < len[b] and other[b] > 0
 *   is empty              if s < len[b] and other[b] = 0: a row of q that has no keys, or a key that no row of q reads
 *   is padding            if s >= len[b] */
typedef struct FxaGpuRows {
    const int32_t *len; /* [B] number of rows of each batch entry; NULL: size[2] */
    /* [B] for rows of q: number of keys of each batch entry
     *     for keys: number of rows of q of each batch entry
     *     NULL: all these numbers are positive */
    const int32_t *other;
    int64_t size[4]; /* B, H, S, D */
} FxaGpuRows;

enum { FXA_GPU_COPY, FXA_GPU_ADD };

/* fxa_gpu_copy: to = from (FXA_GPU_COPY) or to += from (FXA_GPU_ADD), element by element, with conversion. A copy also
 * writes `fill` to empty rows and, if `past` is 1, to padding. An addition changes neither empty rows nor padding. */
typedef struct FxaGpuCopy {
    FxaGpuArray to;
    FxaGpuArray from; /* from.data NULL: 0 everywhere */
    FxaGpuRows rows;
    /* element (b, h, s, d) of `from` reads as 0 if one of its four indices is >= its limit; 0: no limit */
    int64_t limit[4];
    double fill;         /* value that a copy writes to empty rows */
    double instead;      /* value that replaces NaN if has_instead is 1 */
    int32_t mode;        /* FXA_GPU_COPY or FXA_GPU_ADD */
    int32_t past;        /* 1: a copy also writes `fill` to padding rows; 0: only to empty rows */
    int32_t has_instead; /* 1: NaN is replaced by `instead` */
    int32_t reserved;
} FxaGpuCopy;

/* An array whose empty rows (FxaGpuRows) fxa_gpu_batch_bounds sets to `value`, because no other kernel writes these
 * rows. If FxaGpuBatchBounds.past is 1, the padding rows are set to `value` too. */
enum { FXA_GPU_OPERANDS = 12, FXA_GPU_FILLS = 4 };
typedef struct FxaGpuFill {
    FxaGpuArray to;
    int64_t heads, rows, features; /* size of `to` without the batch axis */
    double value;
    int32_t keys; /* 1: the rows of `to` are keys; 0: they are rows of q */
    int32_t reserved;
} FxaGpuFill;

/* fxa_gpu_batch_bounds: computes the bounds of each batch entry: the number of rows and of keys, their difference, and
 * the element at which the batch entry starts in each operand. In arrays of two, [0] is for rows of q, [1] for keys. */
typedef struct FxaGpuBatchBounds {
    /* [B + 1] input: first row of each batch entry, then the end of the last batch entry; NULL: not packed */
    const int32_t *starts[2];
    /* [B] input: length of each batch entry; NULL: differences of `starts`, or `size` if `starts` is NULL too */
    const int32_t *lens[2];
    int32_t *len[2]; /* [B] result: length of each batch entry, clamped to 0 .. size; NULL: not written */
    int32_t *more;   /* [B] result: number of keys - number of rows of q; NULL: not written */
    /* [B + 1] result for each operand: element at which each batch entry starts, then the end of the last entry */
    int64_t *offset[FXA_GPU_OPERANDS];
    int64_t row[FXA_GPU_OPERANDS];   /* stride between rows of each operand, in elements */
    int64_t entry[FXA_GPU_OPERANDS]; /* stride between batch entries of each operand that is not packed, in elements */
    int64_t size[2];                 /* maximum number of rows of q, and of keys, of a batch entry */
    FxaGpuFill fill[FXA_GPU_FILLS];
    int32_t batch;
    int32_t operands; /* number of operands: elements of offset, row and entry that are used */
    int32_t keys;     /* bit i = 1: rows of operand i are keys; 0: rows of q */
    /* bit i = 1: operand i is never packed: its batch entry b starts at element b * entry[i]
     * bit i = 0: operand i is packed if `starts` is not NULL: its batch entry b starts at row starts[b] */
    int32_t dense;
    int32_t fills; /* number of elements of `fill` that are set */
    int32_t past;  /* 1: `fill` writes padding too, not only empty rows */
} FxaGpuBatchBounds;

/* fxa_gpu_statistics: computes LSE and maximum of each row from the maximum score and the sum of exp(score - maximum)
 * that the attention kernel has stored for the row. */
typedef struct FxaGpuStatistics {
    FxaGpuArray most, sum; /* input: maximum score of each row, and the row's sum of exp(score - maximum) */
    FxaGpuArray lse, max;  /* results; data NULL: the result is not written */
    FxaGpuRows rows;
    int32_t past; /* 1: -infinity is written to padding rows; 0: padding rows are not written */
    int32_t reserved;
} FxaGpuStatistics;

/* fxa_gpu_join: merges attention output (o, lse) into (into, into_lse), as fxa_merge does. One CTA per row. */
typedef struct FxaGpuJoin {
    FxaGpuArray o, lse, into, into_lse;
    FxaGpuRows rows; /* rows to merge; rows.size[3] is the head dim of o */
} FxaGpuJoin;

/* fxa_gpu_sink: gradient of the attention sink of each head. One CTA per head:
 *     dsink = sum over batch and rows of exp(sink - lse) (dlse - delta),  delta = sum over d of o dout
 * For rows with a result, delta is read from the array `delta`; for empty rows, delta is computed from o and dout. */
typedef struct FxaGpuSink {
    FxaGpuArray sink, dsink, lse, dlse, delta, o, dout; /* dlse.data NULL: dlse is 0 */
    FxaGpuRows rows;
    int64_t features; /* head dim of o */
    int32_t add;      /* 1: the gradient is added to dsink; 0: it replaces dsink */
    int32_t zero;     /* 1: the sink is 0; the array `sink` is not read */
} FxaGpuSink;

/* fxa_gpu_places: writes out[b, i] = c(i) + add + dynamic[0] + shift[b] + more[b], the coordinate of index i of batch
 * entry b, modulo 2^32. A NULL array adds 0.
 *   c(i) = table[i]                             if `table` is not NULL
 *   c(i) = base + step * i                      else if `segments` is 0
 *   c(i) = from[j] + by[j] * (i - begin[j])     else; j is the segment that i is in */
enum { FXA_GPU_SEGMENTS = 16 };
typedef struct FxaGpuPlaces {
    int32_t *out; /* [batch, size] */
    /* [size] coordinate c(i) of each index i; NULL: c(i) is computed from `base` and `step`, or from the segments */
    const int32_t *table;
    const int32_t *dynamic; /* [1] number in device memory that is added to all coordinates; NULL: 0 */
    const int32_t *shift;   /* [batch] number that is added to all coordinates of a batch entry; NULL: 0 */
    const int32_t *more;    /* [batch] second number that is added to all coordinates of a batch entry; NULL: 0 */
    int64_t size, batch;
    int64_t base, step; /* if there are no segments: index i has the coordinate base + step * i */
    int64_t add;
    int64_t begin[FXA_GPU_SEGMENTS]; /* first index of each segment, ascending */
    int64_t from[FXA_GPU_SEGMENTS];  /* coordinate of the first index of each segment */
    int64_t by[FXA_GPU_SEGMENTS];    /* coordinate step of each segment */
    int32_t segments;                /* number of segments; 0: `base` and `step` determine the coordinates */
    int32_t reserved;
} FxaGpuPlaces;

/* fxa_gpu_inverse: *to = 1 / *from, or 1 if `from` is NULL. */
typedef struct FxaGpuInverse {
    const float *from;
    float *to;
} FxaGpuInverse;

#endif
