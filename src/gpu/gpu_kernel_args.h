/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the helper kernels (gpu_kernels.cu), passed by value: the host fills them, the kernel reads them. Plain
 * C and CUDA, with one layout for both. Arrays are [B,H,S,D]; types are values of fxa_dtype.
 */
#ifndef FXA_GPU_KERNEL_ARGS_H
#define FXA_GPU_KERNEL_ARGS_H

#include <stdint.h>

/* An array. Element (b, h, s, d) is at b stride[0] + h stride[1] + s stride[2] + d stride[3], except that
 *   start: batch entry b starts at row start[b], so start[b] stride[2] replaces b stride[0] (packed layout)
 *   pages: row s of b is row s % page of page number pages[b of_entry + s / page]; page n starts at n stride[0] */
typedef struct FxaGpuArray {
    void *data;           /* NULL: no array */
    const int32_t *start; /* [B] first row of each batch entry; NULL: a stride apart */
    const int32_t *pages; /* [B, of_entry] page table; NULL: not paged */
    int64_t stride[4];    /* in elements */
    int32_t type;         /* fxa_dtype */
    int32_t page;         /* rows of a page */
    int32_t of_entry;     /* number of pages of a batch entry: columns of the page table */
    int32_t reserved;
} FxaGpuArray;

/* The rows that a kernel visits: [B,H,S,D] in size, of which row s of batch entry b
 *   has a result          if s < len[b]
 *   attends to no key     if other[b] is 0 besides (it is then written as an empty row)
 *   is padding            if s >= len[b] */
typedef struct FxaGpuRows {
    const int32_t *len;   /* [B] rows of each batch entry; NULL: size[2] */
    const int32_t *other; /* [B] length of the other sequence (keys for rows of q); NULL: not 0 */
    int64_t size[4];
} FxaGpuRows;

enum { FXA_GPU_COPY, FXA_GPU_ADD };

/* fxa_gpu_copy: to = from or to += from, element by element, converted. A copy writes `fill` to empty rows and, with
 * `past`, to padding; an addition writes neither. */
typedef struct FxaGpuCopy {
    FxaGpuArray to;
    FxaGpuArray from; /* without data: 0 everywhere */
    FxaGpuRows rows;
    int64_t limit[4]; /* elements of `from` at or beyond it read as 0; 0: no limit */
    double fill;
    double instead;      /* replaces NaN, with has_instead */
    int32_t mode;        /* FXA_GPU_COPY or FXA_GPU_ADD */
    int32_t past;        /* 1: padding is written */
    int32_t has_instead; /* 1: NaN is replaced */
    int32_t reserved;
} FxaGpuCopy;

/* One result of which fxa_gpu_spans writes `value` to empty rows and, with `past`, to padding: no other kernel writes
 * them. */
enum { FXA_GPU_OPERANDS = 12, FXA_GPU_FILLS = 4 };
typedef struct FxaGpuFill {
    FxaGpuArray to;
    int64_t heads, rows, features; /* size of `to` without the batch */
    double value;
    int32_t keys; /* 1: its rows are keys; 0: rows of q */
    int32_t reserved;
} FxaGpuFill;

/* fxa_gpu_spans: the bounds of each batch entry: its two lengths, their difference, and the element at which it starts
 * in each operand. Index 0 of a pair stands for rows of q, 1 for keys. */
typedef struct FxaGpuSpans {
    const int32_t *starts[2];          /* [B + 1] given first rows; NULL: not packed */
    const int32_t *lens[2];            /* [B] given lengths; NULL: from starts, else size */
    int32_t *len[2];                   /* [B] result: lengths, clamped to 0 .. size; NULL: not written */
    int32_t *more;                     /* [B] result: number of keys - number of rows; NULL: not written */
    int64_t *offset[FXA_GPU_OPERANDS]; /* [B + 1] result: first element of each batch entry, and the end */
    int64_t row[FXA_GPU_OPERANDS];     /* stride of a row of the operand */
    int64_t entry[FXA_GPU_OPERANDS];   /* stride of a batch entry of the operand */
    int64_t size[2];                   /* largest length */
    FxaGpuFill fill[FXA_GPU_FILLS];
    int32_t batch;
    int32_t operands; /* how many of offset, row, entry are set */
    int32_t keys;     /* bit i = 1: rows of operand i are keys */
    int32_t dense;    /* bit i = 1: batch entries of operand i are a stride apart */
    int32_t fills;    /* how many of `fill` are set */
    int32_t past;     /* 1: fill padding too */
} FxaGpuSpans;

/* fxa_gpu_statistics: LSE and maximum of each row from its running maximum and its sum of exp(s - maximum). */
typedef struct FxaGpuStatistics {
    FxaGpuArray most, sum; /* maximum and sum, from the attention kernel */
    FxaGpuArray lse, max;  /* results; without data: not written */
    FxaGpuRows rows;
    int32_t past; /* 1: padding gets -infinity */
    int32_t reserved;
} FxaGpuStatistics;

/* fxa_gpu_join: merges attention output (o, lse) into (into, into_lse), as fxa_merge does. One block for a row. */
typedef struct FxaGpuJoin {
    FxaGpuArray o, lse, into, into_lse;
    FxaGpuRows rows; /* size[3]: head dim of o */
} FxaGpuJoin;

/* fxa_gpu_sink: gradient of the attention sink of each head, the sum over batch and rows of
 * exp(sink - lse) (dlse - delta). One block for a head. delta = sum over d of o dout; it is read for rows that have a
 * result and computed for empty rows. */
typedef struct FxaGpuSink {
    FxaGpuArray sink, dsink, lse, dlse, delta, o, dout; /* dlse without data: 0 */
    FxaGpuRows rows;
    int64_t features; /* head dim of o */
    int32_t add;      /* 1: dsink += */
    int32_t zero;     /* 1: the sink is 0 and not read */
} FxaGpuSink;

/* fxa_gpu_places: out[b, i] = coordinate of index i of batch entry b, where
 *   coordinate = (table[i], or base + step i, or from[j] + by[j] (i - begin[j]) in segment j)
 *                + add + dynamic[0] + shift[b] + more[b]
 * with the arrays that are not NULL. Sums wrap to 32 bits. */
enum { FXA_GPU_SEGMENTS = 16 };
typedef struct FxaGpuPlaces {
    int32_t *out;           /* [batch, size] */
    const int32_t *table;   /* [size]; NULL: affine */
    const int32_t *dynamic; /* [1] offset known when the kernel runs; NULL: 0 */
    const int32_t *shift;   /* [batch]; NULL: 0 */
    const int32_t *more;    /* [batch]; NULL: 0 */
    int64_t size, batch;
    int64_t base, step; /* affine coordinate without segments */
    int64_t add;
    int64_t begin[FXA_GPU_SEGMENTS]; /* first index of each segment, ascending */
    int64_t from[FXA_GPU_SEGMENTS];  /* coordinate of that index */
    int64_t by[FXA_GPU_SEGMENTS];    /* step in the segment */
    int32_t segments;                /* 0: base and step */
    int32_t reserved;
} FxaGpuPlaces;

/* fxa_gpu_inverse: *to = 1 / *from, or 1 if `from` is NULL. */
typedef struct FxaGpuInverse {
    const float *from;
    float *to;
} FxaGpuInverse;

#endif
