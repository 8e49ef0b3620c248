/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host gives the kernels: one block of arguments for all of them, one block of tensor maps for the kernels
 * that copy by TMA, and what a module tells the host about its own shape. The file is plain C as well as CUDA, so that
 * the engine fills the same structs that the kernels read. docs/cuda-kernels.md is the contract in words.
 *
 * Lengths, strides, head counts, scale, window sizes, params and captured tensors are here and so never cause a new
 * compilation. Head dimension, storage type and the score program are compiled in.
 */
#ifndef FXA_CUDA_COMMON_ARGS_H
#define FXA_CUDA_COMMON_ARGS_H

#define FXA_CUDA_TENSORS 16      /* captured tensors of a program; with the maps all has to stay below 4 KB */
#define FXA_CUDA_SCALARS 32      /* params of each type */
#define FXA_CUDA_SUMS 32         /* gradients that are sums: those of all float params have room */
#define FXA_CUDA_SOFTCAP_TERMS 5 /* terms of a tanh near 0 (common/score.cuh) */
#define FXA_CUDA_HOST_VALUES                                                                                           \
    (14 + FXA_CUDA_SOFTCAP_TERMS) /* numbers that the host computes of them, behind the float ones */
#define FXA_CUDA_RANK 5
#define FXA_CUDA_DECODE_CUTS 4 /* sizes of decode's items but for the largest */
#define FXA_CUDA_RANGES 4      /* tables of ranges of a program */

/* A tensor [b, h, s, d] in memory; strides in elements, d contiguous. */
struct FxaView {
    void *data;
    long long b, h, s;
};

/* A captured tensor as the program's loads see it. */
struct FxaCapture {
    const void *data;
    long long stride[FXA_CUDA_RANK]; /* elements */
    int size[FXA_CUDA_RANK];
    int rank;
};

/*
 * Which tiles a kernel visits. Row r = b * b_rows + h * h_rows + tile has `pitch` ints at items: the numbers of the
 * tiles that need the mask first, then those that are whole, each part ascending; counts holds {partial, total} of the
 * row. A tile that reaches past the last query or key counts as partial. items = 0 means that every tile is visited;
 * the kernel then finds the ragged ones itself. A row with more tiles than `pitch` has {partial, ~total}, and in its
 * last two ints how many of its tiles are listed, n, and x: tile i >= n of the row is tile x + i. b_rows = 0 and h_rows
 * = 0 share rows between entries and heads. The forward and dQ kernels have one row per query tile, the backward
 * kernels one per key tile. Beside the number of a partial tile may stand which parts of 64 queries attend to nothing
 * of it, FXA_CUDA_SKIP << i of part i, and which to all of it, FXA_CUDA_FULL << i, for the kernel that asks for that
 * when the list is written.
 */
#define FXA_CUDA_SKIP (1 << 24) /* lengths are at most 2^28, tiles 64 or more */
#define FXA_CUDA_FULL (8 * FXA_CUDA_SKIP)
struct FxaTileList {
    const int *items;
    const int *counts;
    long long pitch, b_rows, h_rows;
};

/*
 * f(b, h, q - k) as a row of floats: entry `zero` + q - k. Rows are 16-byte aligned, zero % 4 == 3, and a row holds
 * round(k_len, 128) entries before `zero` and round(q_len, 192) + 256 after it, so that the strip of every tile exists.
 */
struct FxaDiagonal {
    const float *data;
    long long b, h; /* elements */
    int zero;
};

/*
 * A sum of floats in which their order makes no difference: a whole number of 320 bits in units of 2^-149, negative
 * ones as in two's complement (common/exact_sum.cuh). rest: what is not finite among them, else 0.
 */
#define FXA_CUDA_EXACT 5
struct FxaExact {
    unsigned long long word[FXA_CUDA_EXACT];
    float rest;
    int unused;
};

/*
 * Sums of the score's gradient along diagonals. Key tile n adds into data[b*b + h*h + n*n + zero + n*zero_step + (q-k)]
 * where that index (without the strides) lies in 0..size-1. With n = 0 all tiles share a row and add atomically; with a
 * row per key tile (zero_step = 128) the row is the tile's own. With PROG_GRAD_DIAGONAL_EXACT data is FxaExact, strides
 * and size count those, and n = zero_step = 0.
 */
struct FxaDiagonalGrad {
    float *data;
    long long b, h, n;
    int zero, zero_step, size;
};

/*
 * Where sums over all pairs of (b, h) leave the backward: PROG_GRAD_SUMS floats from every warp of a key tile, at
 * data[b*b + h*h + (tile * rows + warp) * PROG_GRAD_SUMS], with rows = FxaShape's sum_rows. Tiles that have nothing to
 * do write nothing, so the host sets all to 0. fxa_captured_totals adds them in a fixed order.
 */
struct FxaSums {
    float *data;
    long long b, h;
};

/* A 32-bit word per position (document ids, per-key biases), padded to round(length, 128) + 128 words per row, and the
 * {smallest, largest} int of every 64 positions, as fxa_operands_pack writes them. */
struct FxaOperand {
    const int *data;
    const int *ranges;
    long long b, h;               /* of data */
    long long ranges_b, ranges_h; /* of ranges, in pairs */
};

/* How one is written: from elements of a captured tensor, kind as operand_of() has it. to = 0: it is not. */
struct FxaPackedOperand {
    const void *from;
    long long b, h, s; /* strides of them */
    int *to, *ranges;
    long long pitch;
    int length, kind;
};

struct FxaPackedOperands {
    struct FxaPackedOperand side[2]; /* of queries, of keys */
};

/* Threads of a launch that writes words and a list: a warp for each row of a list of 4096 positions. Beside lengths
 * there are too few registers for so many. */
#define FXA_CUDA_LIST_THREADS(spans) ((spans) ? 512 : 1024)

/* Scalars that only the device knows: each where it is not 0. For texts with PROG_SCALARS; scale and seed of kernels.
 * */
struct FxaScalars {
    const double *scale;  /* NaN: 1 / sqrt(d) */
    const double *params; /* of the problem's program */
    const unsigned long long *seed;
};

/* n / by for 0 <= n < 2^31 in place of a division: 2 n factor / 2^(32 + shift), where shift is the smallest with
 * 2^shift >= by, and factor is 1 more than 2^(31 + shift) / by. */
struct FxaDivisor {
    unsigned factor, shift;
};

struct FxaArgs {
    struct FxaView q, k, v, o, grad_o, grad_q, grad_k, grad_v;
    float *lse;                                                        /* natural logarithm */
    const float *grad_lse;                                             /* or 0 */
    long long lse_b, lse_h, lse_s, grad_lse_b, grad_lse_h, grad_lse_s; /* elements */
    float *lse2, *delta, *grad_q_sum; /* backward workspace, rows of q_pad per (b, h) */
    int *first_share; /* of every 64 of those rows: 0 before one of dQ is there, by turns how many are; or 0: the sum
                       * is 0 at first */
    unsigned *sent; /* how many blocks of dQ CTAs of the finish have taken, and of each (b, KV head), packed of each KV
                     * head, how many warps have sent all of theirs; or 0 */
    unsigned *next_tile;            /* zero before the first launch, left zero by every launch */
    int *redo;                      /* per query tile of the launch; the same */
    const int *q_lens, *k_lens;     /* per batch entry, or 0 */
    const int *q_starts, *k_starts; /* packed sequences: the first rows of batch + 1 entries, or 0; see Sequence */
    const int *pages; /* FXA_PAGED: entry b's keys i * page_size on lie in page pages[b * pages_b + i] of K and V */
    long long pages_b;
    int page_size, n_pages; /* page numbers are clamped to n_pages */
    const float *sink;      /* score of a key without a value, per query head; or 0 */
    float *grad_sink;
    struct FxaTileList list;
    struct FxaDiagonal diagonal;
    struct FxaDiagonalGrad grad_diagonal;
    struct FxaOperand q_vector, k_vector;
    struct FxaView dense, grad_dense; /* [b, h, q, k], k contiguous; stride 0 of b or h: shared. grad_dense is whole */
    struct FxaCapture tensor[FXA_CUDA_TENSORS];
    float *grad_tensor[FXA_CUDA_TENSORS]; /* what scatter() adds to; set to 0 by the host. PROG_GRAD_EXACT: FxaExact */
    struct FxaSums sums;
    float f[FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES];
    int i[FXA_CUDA_SCALARS];
    int batch, heads, kv_heads, group; /* group = heads / kv_heads */
    int d, dv;                         /* head dimensions as they are, at most FXA_D and FXA_DV */
    int q_len, k_len, q_pad;           /* q_pad: q_len rounded up to 128. Of packed sequences: the longest */
    int q_total, k_total;              /* rows of packed tensors */
    int pad_rows; /* rows of a head in the padded workspace: q_pad * batch, packed (q_total / 128 + batch) * 128 */
    int q_tiles;  /* query tiles of one (b, h) */
    int tiles; /* of the launch: q_tiles * heads * batch; packed: see common/tile_scheduler.cuh; decode: work tiles */
    int section, reverse; /* order of query tiles: heads that share the L2 cache; 1: the last tile of a head first */
    int sent_all;         /* warps that send, of one of those */
    int splits, run;      /* decode: pieces of the keys, and how many of them an item has: sm90/decode.cu */
    struct FxaDivisor by_group;                                         /* decode, order of query tiles */
    struct FxaDivisor by_splits, by_shares, by_row_groups, by_kv_heads; /* decode; shares, row groups: of an (entry, KV
                                                                         * head) */
    struct FxaDivisor by_order, by_section, by_last, by_heads; /* order of query tiles: tiles of a section, its heads,
                                                                * those of the last one, of an entry */
    int cut[FXA_CUDA_DECODE_CUTS]; /* the last (entry, KV head)s, whose items have a half, a quarter, ... of `run` */
    float scale, scale_log2;       /* scale_log2 = scale * log2(e) */
    int turned; /* 1: products of Q and K count times -1, 2: times 0; scale_log2 and the program have the rest */
    float *partial, *partial_ml;  /* decode workspace */
    unsigned seed[2], drop_below; /* FXA_DROPOUT: low word of the seed first; words below the threshold drop */
    float keep_inverse;           /* 1 / (1 - p) */
    struct FxaScalars scalars;
    const int *place_b, *place_h, *place_q, *place_k; /* FXA_DROPOUT 2: coordinates of indices; of q a row per entry */
    float *row_max;                                   /* FXA_RETURN_ROW_MAX: the largest new score of rows */
    long long max_b, max_h, max_s;
    /* For tile_class(): {smallest, largest} of every 64 elements along one axis of a tensor, for all places of the
     * other axes; 0: nobody knows. fxa_range_table writes them. */
    const int *ranges[FXA_CUDA_RANGES];
};

/* Coordinates of the indices 0 to size - 1 of an axis, of so many entries: by a table, by segments, or base + step i;
 * and what is added to them. common/convert.cu. */
struct FxaCoordinates {
    int *out;
    const int *table, *dynamic, *shift; /* or 0; shift has an element per entry */
    long long size, entries, base, step;
    long long begin[16], from[16], by[16];
    long long q_len, k_len; /* as programs read them; 0: those of the entry */
    int segments, aligned;  /* aligned: to the last key */
};

/* An operand as common/convert.cu takes it: type is a fxa_dtype. */
struct FxaConvertArray {
    void *data;
    long long stride[4]; /* b, h, s, d; elements */
    int type;
};

/* Copies of common/convert.cu. side: all of size as it lies, or rows of entries: of queries, of keys. */
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

/* Maps of 4-dimensional tensors {d, s, h, b} with boxes of 64 columns, 128-byte swizzle, zero fill. Rows of a box: see
 * FxaShape. The dense ones are {k, q, h, b}. */
struct FxaMaps {
    struct FxaMap q, k, v, o, grad_o, grad_q, grad_k, grad_v, dense, grad_dense;
};

/* Every module has one as a constant named as its kernel with _shape behind. */
struct FxaShape {
    int threads;
    int shared_bytes;   /* dynamic */
    int q_rows, k_rows; /* of a tile; boxes of loads have these rows */
    int store_rows;     /* rows of the boxes of stores, 0: no TMA store. Of decode: of loads, but for pages */
    int persistent;     /* 1: the grid is min(tiles, multiprocessors); 0: as docs/cuda-kernels.md says */
    int sum_rows;       /* warps of a CTA that write sums */
    int parts; /* CTAs that share a tile, each with some of its columns: the grid is so many times as wide. Of decode:
                * CTAs of a cluster, 1: there are none */
};

#endif
