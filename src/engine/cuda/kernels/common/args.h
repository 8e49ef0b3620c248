/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the kernels: one struct of arguments for all of them, one struct of tensor maps for the kernels that use
 * TMA, and the launch shape that every module exports. The file is C as well as CUDA, so that the host fills the same
 * structs that the kernels read. docs/cuda-kernels.md describes the contract.
 *
 * Lengths, strides, head counts, scale, window sizes, params and captured tensors are run-time arguments and never
 * cause a compilation. Head dims, storage type and the score program are compile-time settings (common/traits.h).
 */
#ifndef FXA_CUDA_COMMON_ARGS_H
#define FXA_CUDA_COMMON_ARGS_H

/* captured tensors of a program; with the tensor maps, all arguments have to stay below 4 KB */
#define FXA_CUDA_TENSORS 16
#define FXA_CUDA_SCALARS 32      /* params of each type */
#define FXA_CUDA_SUMS 32         /* sums of gradients, enough for all float params */
#define FXA_CUDA_SOFTCAP_TERMS 5 /* terms of the polynomial of tanh near 0 (common/softcap_tanh.cuh) */
#define FXA_CUDA_HOST_VALUES                                                                                           \
    (14 + FXA_CUDA_SOFTCAP_TERMS) /* floats that the host computes from the params, stored after them in f[] */
#define FXA_CUDA_RANK 5
#define FXA_CUDA_DECODE_CUTS 4 /* sizes of decode's work items besides the largest */
#define FXA_CUDA_RANGES 4      /* range tables of a program */

/* A tensor [b, h, s, d] in memory; strides in elements, d contiguous. */
struct FxaView {
    void *data;
    long long b, h, s;
};

/* A captured tensor, for the loads of the program. */
struct FxaCapture {
    const void *data;
    long long stride[FXA_CUDA_RANK]; /* elements */
    int size[FXA_CUDA_RANK];
    int rank;
};

/*
 * The tiles that a kernel visits. Row r = b * b_rows + h * h_rows + tile:
 *
 *     items    [r * pitch ...]   indices of the partial tiles, then of the full ones, each ascending
 *     counts   [r]               {partial, total}
 *
 * A tile that extends past the last query or key is partial. items = 0: every tile is visited, and the kernel itself
 * finds the ones that extend past a length. A row with more than `pitch` tiles has {partial, ~total}, and its last
 * two ints are n, the number of listed tiles, and x: tile i >= n of the row is tile x + i. b_rows = 0 and h_rows = 0
 * share rows between batch entries and heads. The forward and dQ kernels have one row per query tile, the backward
 * kernels one per key tile. Kernels with FxaTileShape.query_parts read bits of a partial tile's index: FXA_CUDA_SKIP
 * << i if part i, of 64 rows, attends to nothing of the tile, FXA_CUDA_FULL << i if part i attends to all of it.
 */
#define FXA_CUDA_SKIP (1 << 24) /* bits above the largest index: lengths are at most 2^28, tiles at least 64 */
#define FXA_CUDA_FULL (8 * FXA_CUDA_SKIP)
struct FxaTileList {
    const int *items;
    const int *counts;
    long long pitch, b_rows, h_rows;
};

/*
 * A diagonal row: f(b, h, q - k) as floats, entry `zero` + q - k. Rows are 16-byte aligned, zero % 4 == 3, and a row
 * has round(k_len, 128) entries before `zero` and round(q_len, 192) + 256 after it, so that the entries of every tile
 * exist.
 */
struct FxaDiagonal {
    const float *data;
    long long b, h; /* elements */
    int zero;
};

/* A sum of floats that does not depend on their order: an integer of 320 bits in units of 2^-149, in two's
 * complement (common/exact_sum.cuh). rest: sum of the infinities and NaN, otherwise 0. */
#define FXA_CUDA_EXACT 5
struct FxaExact {
    unsigned long long word[FXA_CUDA_EXACT];
    float rest;
    int unused;
};

/*
 * Sums of the score's gradient along diagonals. Key tile n adds to data[b*b + h*h + n*n + zero + n*zero_step + (q-k)]
 * if that index without the strides is in 0..size-1. With n = 0 all tiles share a row and add atomically; with
 * zero_step = 128 each key tile has a row. With PROG_GRAD_DIAGONAL_EXACT data is FxaExact, strides and size count
 * FxaExact, and n = zero_step = 0.
 */
struct FxaDiagonalGrad {
    float *data;
    long long b, h, n;
    int zero, zero_step, size;
};

/*
 * Sums over all pairs of (b, h) from the backward: PROG_GRAD_SUMS floats from every warp of a key tile, at data[b*b +
 * h*h + (tile * rows + warp) * PROG_GRAD_SUMS], with rows = FxaShape.sum_rows. Tiles without pairs write nothing, so
 * the host sets all to 0. fxa_captured_totals adds them in a fixed order.
 */
struct FxaSums {
    float *data;
    long long b, h;
};

/* A row or key operand: a 32-bit word per position (document ids, per-key biases), padded to round(length, 128) +
 * 128 words per row, and {minimum, maximum} of every 64 positions. fxa_operands_pack writes both. */
struct FxaOperand {
    const int *data;
    const int *ranges;
    long long b, h;               /* strides of data, elements */
    long long ranges_b, ranges_h; /* strides of ranges, pairs */
};

/* How an operand is packed: from elements of a captured tensor; kind: see operand_of(); to = 0: not packed */
struct FxaPackedOperand {
    const void *from;
    long long b, h, s; /* strides of `from`, elements */
    int *to, *ranges;
    long long pitch;
    int length, kind;
};

struct FxaPackedOperands {
    struct FxaPackedOperand side[2]; /* row operand, key operand */
};

/* Threads of a launch that packs operands and writes a list: a warp for each row of a list of 4096 positions. With
 * varlen the registers suffice for half of them. */
#define FXA_CUDA_LIST_THREADS(varlen) ((varlen) ? 512 : 1024)

/* Scalars in device memory: a pointer is 0 if the argument is in FxaArgs. */
struct FxaScalars {
    const double *scale;  /* NaN: 1 / sqrt(d) */
    const double *params; /* params of the problem's program */
    const unsigned long long *seed;
};

/* A divisor of n / by for 0 <= n < 2^31: n / by = 2 n factor / 2^(32 + shift), where shift is the smallest with
 * 2^shift >= by, and factor is 1 more than 2^(31 + shift) / by. */
struct FxaDivisor {
    unsigned factor, shift;
};

struct FxaArgs {
    struct FxaView q, k, v, o, grad_o, grad_q, grad_k, grad_v;
    float *lse;                                                        /* natural logarithm */
    const float *grad_lse;                                             /* 0: no gradient of LSE */
    long long lse_b, lse_h, lse_s, grad_lse_b, grad_lse_h, grad_lse_s; /* elements */
    /* workspace of the backward, [heads, pad_rows]: LSE in base 2, delta, f32 sum of dQ */
    float *lse2, *delta, *grad_q_sum;
    /* [rows / 64] 1 = a partial dQ is stored; ordered dQ: number of partial dQ added. NULL: the sum is 0 before */
    int *first_share;
    /* [0] query blocks that the postprocess has taken; [1 ...] per (b, KV head), warps that have added all of their
     * dQ; or 0 */
    unsigned *sent;
    unsigned *next_tile; /* tile counter: 0 before the first launch, and after every launch */
    /* per query tile: CTA that recomputes it, plus 1; 0 before the first launch, and after every launch */
    int *redo;
    const int *q_lens, *k_lens;     /* per batch entry; 0: all have the longest length */
    const int *q_starts, *k_starts; /* packed sequences: first rows of the batch + 1 entries; or 0 */
    /* FXA_PAGED: page pages[b * pages_b + i] of K and V has the keys from i * page_size on of entry b */
    const int *pages;
    long long pages_b;
    int page_size, n_pages; /* page indices are clamped to n_pages - 1 */
    const float *sink;      /* per query head: score of a key without a value; or 0 */
    float *grad_sink;
    struct FxaTileList list;
    struct FxaDiagonal diagonal;
    struct FxaDiagonalGrad grad_diagonal;
    struct FxaOperand q_vector, k_vector;
    /* [b, h, q, k], k contiguous; stride 0: b or h is shared, but never in grad_dense */
    struct FxaView dense, grad_dense;
    struct FxaCapture tensor[FXA_CUDA_TENSORS];
    /* sums of scatter(), 0 before; FxaExact with the tensor's bit of PROG_GRAD_EXACT */
    float *grad_tensor[FXA_CUDA_TENSORS];
    struct FxaSums sums;
    float f[FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES];
    int i[FXA_CUDA_SCALARS];
    int batch, heads, kv_heads, group; /* group = heads / kv_heads */
    int d, dv;                         /* head dims of the tensors, at most FXA_D and FXA_DV */
    int q_len, k_len, q_pad;           /* longest lengths; q_pad: q_len rounded up to 128 */
    int q_total, k_total;              /* rows of packed tensors */
    /* rows of a head in the padded workspace: q_pad * batch; packed: (q_total / 128 + batch) * 128 */
    int pad_rows;
    int q_tiles; /* query tiles of one (b, h) */
    /* tiles of the launch: q_tiles * heads * batch; packed: common/tile_scheduler.cuh; decode: work items */
    int tiles;
    int section, reverse;       /* tile scheduler: heads that share the L2 cache; 1: the last tile of a head first */
    int sent_all;               /* warps that count in `sent`, per (b, KV head) */
    int splits, run;            /* decode: splits of the keys, splits of a work item (sm90/decode.cu) */
    struct FxaDivisor by_group; /* decode, tile scheduler: query heads per KV head */
    /* decode: splits, parts of a row group, row groups of (b, KV head), KV heads */
    struct FxaDivisor by_splits, by_shares, by_row_groups, by_kv_heads;
    /* tile scheduler: tiles of a section, heads of a section, heads of the last section, heads */
    struct FxaDivisor by_order, by_section, by_last, by_heads;
    /* decode: last (b, KV head)s whose work items have a half, a quarter, ... of `run` */
    int cut[FXA_CUDA_DECODE_CUTS];
    float scale, scale_log2; /* scale_log2 = scale * log2(e) */
    /* 1: products of Q and K are multiplied by -1, 2: by 0; scale_log2 and the program have the absolute value */
    int turned;
    float *partial, *partial_ml; /* decode workspace: partial O, {maximum, sum} */
    /* FXA_DROPOUT: low word of the seed first; random words below drop_below drop a pair */
    unsigned seed[2], drop_below;
    float keep_inverse; /* 1 / (1 - p) */
    struct FxaScalars scalars;
    /* FXA_DROPOUT 2: coordinates by index; place_q has a row per batch entry */
    const int *place_b, *place_h, *place_q, *place_k;
    float *row_max; /* FXA_RETURN_ROW_MAX: maximum of the new scores of each row */
    long long max_b, max_h, max_s;
    /* Range tables for tile_class(): {minimum, maximum} of every 64 elements along one axis of a tensor, for all
     * indices of the other axes, written by fxa_range_table; 0: unknown. */
    const int *ranges[FXA_CUDA_RANGES];
};

/* Coordinates of the indices 0 to size - 1 of an axis, for each of `entries` batch entries: from a table, from
 * segments, or base + step i, plus offsets. See common/convert.cu. */
struct FxaCoordinates {
    int *out;
    const int *table, *dynamic, *shift; /* each may be 0; shift has an element per batch entry */
    long long size, entries, base, step;
    long long begin[16], from[16], by[16];
    long long q_len, k_len; /* lengths that the program reads; 0: lengths of the batch entry */
    int segments, aligned;  /* aligned: offset by k_len - q_len, to the last key */
};

/* An operand of common/convert.cu; type: a fxa_dtype */
struct FxaConvertArray {
    void *data;
    long long stride[4]; /* b, h, s, d; elements */
    int type;
};

/* A copy of common/convert.cu. side: all rows, or the rows of batch entries on the query or key side */
enum { FXA_CONVERT_ALL, FXA_CONVERT_QUERIES, FXA_CONVERT_KEYS };
struct FxaConvert {
    struct FxaConvertArray to, from;
    long long size[4];
    int side, add;
};

/* The tensor map that cuTensorMapEncodeTiled writes. */
struct
#ifdef __cplusplus
    alignas(128)
#endif
        FxaMap {
    unsigned long long opaque[16];
};

/* Tensor maps of 4-dimensional tensors {d, s, h, b} with boxes of 64 columns, 128-byte swizzle and zero fill;
 * FxaShape has the rows of a box. The maps of dense tensors are {k, q, h, b}. */
struct FxaMaps {
    struct FxaMap q, k, v, o, grad_o, grad_q, grad_k, grad_v, dense, grad_dense;
};

/* Launch shape of a kernel, exported by its module as a constant KERNEL_shape. */
struct FxaShape {
    int threads;
    int shared_bytes;   /* dynamic shared memory */
    int q_rows, k_rows; /* rows of a tile, which are the rows of the boxes of loads */
    /* rows of the boxes of stores, 0: no TMA store; decode: rows of the boxes of loads, unless pages are smaller */
    int store_rows;
    /* 1: the grid is min(tiles, multiprocessors); 0: the head of the kernel's file has the grid */
    int persistent;
    int sum_rows; /* warps of a CTA that write sums */
    /* CTAs that share a tile, each with some of its columns; the grid is `parts` times as wide. Decode: CTAs of a
     * cluster */
    int parts;
};

#endif
