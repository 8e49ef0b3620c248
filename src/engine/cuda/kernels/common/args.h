/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of the kernels: one struct of arguments for all of them, one struct of tensor maps for the kernels that use
 * TMA, and the launch shape that every module exports. The file is C as well as CUDA, so that host and kernels share
 * the structs. docs/cuda-kernels.md describes the contract.
 *
 * Lengths, strides, head counts, scale, window sizes, params and captured tensors are run-time arguments and never
 * cause a compilation. Head dims, storage type and the score program are compile-time settings (common/traits.h).
 */
#ifndef FXA_CUDA_COMMON_ARGS_H
#define FXA_CUDA_COMMON_ARGS_H

/* Asserts the size of a struct or the offset of a member, on 64-bit machines: the host and NVRTC must agree. */
#ifdef __cplusplus
#define FXA_LAYOUT_ASSERT static_assert
#else
#define FXA_LAYOUT_ASSERT _Static_assert
#endif
#define FXA_LAYOUT_SIZE(type, bytes)                                                                                   \
    FXA_LAYOUT_ASSERT(sizeof(void *) != 8 || sizeof(struct type) == (bytes), "size of a struct of arguments")
#define FXA_LAYOUT_OFFSET(type, member, bytes)                                                                         \
    FXA_LAYOUT_ASSERT(sizeof(void *) != 8 || __builtin_offsetof(struct type, member) == (bytes), "offset of a member")

/* Sizes of the kernels before and after the main kernel, and of what they share with the main kernel. */
enum {
    FXA_HELPER_THREADS = 256,     /* threads of a CTA */
    FXA_LIST_WARPS = 8,           /* warps of FXA_HELPER_THREADS threads; a warp writes a row of a tile list */
    FXA_GRAD_PARAM_THREADS = 32,  /* threads of fxa_captured_params, one per sum of gradients */
    FXA_GRAD_DIAGONAL_ROWS = 128, /* threads of a CTA of fxa_captured_diagonal, one per diagonal (equal q - k) */
    FXA_RANGE_ROWS = 64,          /* elements with one {minimum, maximum} in FxaOperand.ranges, FxaArgs.ranges */
    FXA_BOX_COLUMNS = 64,         /* elements of the head dim in a TMA box: rows of 128 bytes */
    FXA_DIAGONAL_KEYS = 128,      /* FxaDiagonal: `zero` is a multiple of this, minus 1 */
    FXA_DIAGONAL_QUERIES = 192,   /* FxaDiagonal: q_len entries after `zero`, rounded up to a multiple of this */
    FXA_DIAGONAL_EXCESS = 256     /* FxaDiagonal: entries after `zero` in addition to the rounded q_len */
};

/* Types of elements in memory: values of fxa_dtype, which kernels cannot include. */
enum {
    FXA_TYPE_F64 = 1,
    FXA_TYPE_F32 = 2,
    FXA_TYPE_F16 = 3,
    FXA_TYPE_BF16 = 4,
    FXA_TYPE_E4M3 = 11,
    FXA_TYPE_E5M2 = 12
};

/* How fxa_operands_pack and fxa_range_table read an element of a captured tensor as a 32-bit word. */
enum {
    FXA_WORD_NONE, /* tensors of this element type have no packed form */
    FXA_WORD_SAME, /* 32-bit elements, unchanged */
    FXA_WORD_I64,  /* saturated to 32 bits */
    FXA_WORD_I16,
    FXA_WORD_I8,
    FXA_WORD_U8,
    FXA_WORD_BOOL,
    FXA_WORD_F16, /* converted to f32 */
    FXA_WORD_BF16 /* converted to f32 */
};

/* maximum number of captured tensors of a program: all arguments of a kernel, tensor maps included, must be below 4
 * KB */
#define FXA_CUDA_TENSORS 16
#define FXA_CUDA_SCALARS 32      /* maximum number of params of each type, float and int */
#define FXA_CUDA_SUMS 32         /* largest PROG_GRAD_SUMS (common/program_interface.cuh) */
#define FXA_CUDA_SOFTCAP_TERMS 5 /* terms of the polynomial of tanh near 0 (common/softcap_tanh.cuh) */
#define FXA_CUDA_HOST_VALUES                                                                                           \
    (14 + FXA_CUDA_SOFTCAP_TERMS) /* maximum number of floats that the host computes, after the params in FxaArgs.f */
#define FXA_CUDA_RANK 5
#define FXA_CUDA_DECODE_CUTS 4 /* number of elements of FxaArgs.cut */
#define FXA_CUDA_RANGES 4      /* maximum number of range tables of a program (FxaArgs.ranges) */

/* A tensor [b, h, s, d] in memory. b, h, s: strides in elements; d is contiguous. */
struct FxaView {
    void *data;
    long long b, h, s;
};

/* A captured tensor, from which the score program loads single elements. */
struct FxaCapture {
    const void *data;
    long long stride[FXA_CUDA_RANK]; /* in elements */
    int size[FXA_CUDA_RANK];
    int rank;
};

/*
 * The tiles that a kernel visits. Row r = b * b_rows + h * h_rows + tile:
 *
 *     items    [r * pitch ...]   indices of the partial tiles, then of the full ones, each ascending
 *     counts   [r]               {partial, total}
 *
 * A full tile needs no mask; a partial tile has masked pairs (q, k), or extends past the last query or key. items =
 * NULL: every tile is visited, and the kernel itself finds the tiles that extend past a length. A row with more than
 * `pitch` tiles stores {partial, ~total}, and its last two ints are n, the number of listed tiles, and x: tile i >= n
 * of the row has the index x + i. With b_rows = 0 all batch entries share rows, with h_rows = 0 all heads. The forward
 * and dQ kernels have one row per query tile, the backward kernels one per key tile. Kernels with
 * FxaTileShape.query_parts read bits of a partial tile's index, for each 64 rows (part i) of the tile that the list row
 * stands for: FXA_CUDA_SKIP << i is set if part i has no attended pair in the listed tile, FXA_CUDA_FULL << i if all
 * its pairs are attended.
 */
#define FXA_CUDA_SKIP (1 << 24) /* above all tile indices: 2^28 rows / 64 rows per tile = 2^22 tiles at most */
#define FXA_CUDA_FULL (8 * FXA_CUDA_SKIP)
FXA_LAYOUT_ASSERT((1 << 28) / 64 <= FXA_CUDA_SKIP && FXA_CUDA_FULL >> 3 == FXA_CUDA_SKIP, "three bits of each, above");
struct FxaTileList {
    const int *items;
    const int *counts;
    long long pitch, b_rows, h_rows;
};

/*
 * A diagonal row: floats that depend on b, h and q - k alone, a part of the score such as a relative bias. Entry `zero`
 * + q - k belongs to the pair (q, k). Rows are 16-byte aligned and zero % 4 == 3. The entries of all pairs of every
 * tile exist, also of pairs past the lengths: before `zero` a row has at least k_len entries, rounded up to a multiple
 * of FXA_DIAGONAL_KEYS; after `zero`, q_len entries, rounded up to a multiple of FXA_DIAGONAL_QUERIES, plus
 * FXA_DIAGONAL_EXCESS.
 */
struct FxaDiagonal {
    const float *data;
    long long b, h; /* strides, in elements */
    int zero;
};

/* A sum of floats that does not depend on the order of additions: an integer of 320 bits in units of 2^-149, in two's
 * complement (common/exact_sum.cuh). rest: sum of the infinite and NaN addends, 0 = none. */
#define FXA_CUDA_EXACT 5
struct FxaExact {
    unsigned long long word[FXA_CUDA_EXACT];
    float rest;
    int unused;
};

/*
 * Gradient of the diagonal row: sums of dS over the pairs of equal q - k. In batch entry i, head j and key tile t, dS
 * of (q, k) is added to element x = zero + t*zero_step + q - k of the row at data + i*b + j*h + t*n, if 0 <= x < size.
 * With n = 0 all key tiles share a row and add atomically; with zero_step = 128 each key tile has a row. With
 * PROG_GRAD_DIAGONAL_EXACT the elements are FxaExact instead of floats, and n = zero_step = 0.
 */
struct FxaDiagonalGrad {
    float *data;
    long long b, h, n;
    int zero, zero_step, size;
};

/*
 * Gradients that are sums over all pairs (q, k) of a (b, h), such as those of params. Each warp of a key tile of batch
 * entry i and head j stores PROG_GRAD_SUMS floats, as row tile * FxaShape.sum_rows + warp of data + i*b + j*h.
 * Tiles without attended pairs write nothing, so the host sets the array to 0 before the backward kernel.
 * fxa_captured_totals adds the floats in a fixed order.
 */
struct FxaSums {
    float *data;
    long long b, h;
};

/* A query or key operand: the values of a captured tensor with one value per query or per key (document ids, per-key
 * biases). data: for each (b, h), a 32-bit word per query or key, padded to a multiple of 128 words and by 128 more.
 * ranges: {minimum, maximum} of every 64 words. fxa_operands_pack writes data and ranges. */
struct FxaOperand {
    const int *data;
    const int *ranges;
    long long b, h;               /* strides of data, in elements */
    long long ranges_b, ranges_h; /* strides of ranges, in {minimum, maximum} pairs */
};

/* What fxa_operands_pack reads and writes: the elements `from` of a captured tensor become the words `to` of an
 * FxaOperand; to = NULL: nothing is written. kind: how an element is read, FXA_WORD_SAME or another FXA_WORD */
struct FxaPackedOperand {
    const void *from;
    long long b, h, s; /* strides of `from`, in elements */
    int *to, *ranges;
    long long pitch;
    int length, kind;
};

struct FxaPackedOperands {
    struct FxaPackedOperand side[2]; /* [0] writes FxaArgs.q_vector, [1] FxaArgs.k_vector */
};

/* Tile sizes and dimensions of an FxaTileList, for fxa_tile_lists, which writes the list. */
struct FxaListShape {
    int q_rows;  /* queries of a tile */
    int k_rows;  /* keys of a tile */
    int rows;    /* rows of the list for a (b, h) */
    int columns; /* number of tiles that exist for a row of the list, listed or not */
    int by_key;  /* 1 = a row of the list stands for a key tile, 0 = for a query tile */
    /* number of 64-row parts of the tile that a row of the list stands for; each part has an FXA_CUDA_SKIP and an
     * FXA_CUDA_FULL bit in `items`. 0 = items have no such bits */
    int parts;
};

/* Threads per CTA of fxa_tile_lists if the kernel also writes FxaOperands: 1024, a warp for each of the 32 list rows of
 * a sequence of 4096 positions (tiles of 128). With varlen the registers suffice for only 512 threads. */
#define FXA_CUDA_LIST_THREADS(varlen) ((varlen) ? 512 : 1024)

/* Scalars in device memory. A NULL pointer = the scalar is passed by value in FxaArgs. */
struct FxaScalars {
    const double *scale;  /* a value of NaN stands for the scale 1 / sqrt(d) */
    const double *params; /* all params of the score program, as f64 */
    const unsigned long long *seed;
};

/* A divisor `by` for quotient(): n / by = 2 n factor / 2^(32 + shift), rounded down, for 0 <= n < 2^31. shift is the
 * smallest number with 2^shift >= by, and factor is 2^(31 + shift) / by, rounded down, plus 1. */
struct FxaDivisor {
    unsigned factor, shift;
};

struct FxaArgs {
    struct FxaView q, k, v, o, grad_o, grad_q, grad_k, grad_v;
    float *lse;            /* log-sum-exp (LSE) of each row, natural logarithm */
    const float *grad_lse; /* gradient of LSE; NULL = none */
    long long lse_b, lse_h, lse_s, grad_lse_b, grad_lse_h, grad_lse_s; /* strides, in elements */
    /* workspace of the backward, [heads, pad_rows]: LSE in base 2; delta = dO . O - dLSE; f32 sum of dQ */
    float *lse2, *delta, *grad_q_sum;
    /* [rows / 64] state of the sum of dQ of 64 rows. NULL = grad_q_sum is set to 0 before the backward kernel.
     * Any order: 0 = undefined, -1 = a CTA now stores the first partial dQ (of a key tile), 1 = it is stored.
     * Fixed order of additions: the number of partial dQ in the sum */
    int *first_share;
    /* sent[0]: query blocks that fxa_grad_q_finish has taken; sent[1 + i]: warps that have added all their partial dQ
     * of (b, KV head) i. NULL = fxa_grad_q_finish waits for the end of the backward kernel */
    unsigned *sent;
    unsigned *next_tile; /* tile counter of persistent kernels: 0 before and after every launch */
    /* for each query tile: 1 + index of the CTA that recomputes the tile; 0 = none. All are 0 between launches.
     * Decode: flags of the work items that are stored, then a list of work items to recompute (sm90/decode.cu) */
    int *redo;
    const int *q_lens, *k_lens;     /* [batch] lengths; NULL = all batch entries have q_len queries, k_len keys */
    const int *q_starts, *k_starts; /* [batch + 1] first row of each packed sequence; NULL = not packed */
    /* FXA_PAGED: page pages[b * pages_b + i] of K and V has the keys i * page_size ... of batch entry b */
    const int *pages;
    long long pages_b;
    int page_size, n_pages; /* page_size: keys per page; page indices are clamped to n_pages - 1 */
    const float *sink;      /* [query heads] sink: score of an additional key without a value; NULL = no sinks */
    float *grad_sink;
    struct FxaTileList list;
    struct FxaDiagonal diagonal;
    struct FxaDiagonalGrad grad_diagonal;
    struct FxaOperand q_vector, k_vector;
    /* a captured tensor [b, h, q, k] that has an element for each (q, k), with k contiguous, and its gradient. A
     * stride of 0, in `dense` only: all batch entries or all heads share elements */
    struct FxaView dense, grad_dense;
    struct FxaCapture tensor[FXA_CUDA_TENSORS];
    /* sum of the gradient of each captured tensor but `dense`, set to 0 before the backward. Its elements are FxaExact
     * if the tensor's bit of PROG_GRAD_EXACT is set, otherwise f32 */
    float *grad_tensor[FXA_CUDA_TENSORS];
    struct FxaSums sums;
    float f[FXA_CUDA_SCALARS + FXA_CUDA_HOST_VALUES];
    int i[FXA_CUDA_SCALARS];
    int batch, heads, kv_heads, group; /* group = heads / kv_heads */
    int d, dv;                         /* head dims of Q and K, and of V: at most FXA_D and FXA_DV */
    int q_len, k_len, q_pad;           /* longest lengths of the batch; q_pad: q_len rounded up to a multiple of 128 */
    int q_total, k_total;              /* packed sequences: rows of Q, rows of K and V */
    /* rows of one head in the backward's workspace, in which every batch entry is padded to a multiple of 128 rows:
     * q_pad * batch; packed: (q_total / 128 + batch) * 128 */
    int pad_rows;
    int q_tiles; /* query tiles of one (b, h) */
    /* number of tiles of the launch: q_tiles * heads, and times `batch` unless sequences are packed
     * (common/tile_scheduler.cuh). Decode: number of work items */
    int tiles;
    int section;  /* number of heads whose tiles alternate: tile 0 of each of them, then tile 1 of each, ... */
    int reverse;  /* tile scheduler: 1 = the last tile of a head comes first */
    int sent_all; /* number of warps that add to dQ of a (b, KV head) i: sent[1 + i] when this dQ is complete */
    int splits;   /* decode: number of splits, parts of the keys of a (b, KV head) (sm90/decode.cu) */
    int run;      /* decode: number of splits of a work item, a power of 2 */
    struct FxaDivisor by_group; /* divisor `group`, for decode and the tile scheduler */
    /* divisors of decode. by_splits: number of splits; by_shares: work items of a row group (query rows that share a
     * work item); by_row_groups: row groups of a (b, KV head); by_kv_heads: number of KV heads */
    struct FxaDivisor by_splits, by_shares, by_row_groups, by_kv_heads;
    /* divisors of the tile scheduler. by_order: tiles of a section (a group of heads); by_section: heads of a section;
     * by_last: heads of the last section; by_heads: number of all heads */
    struct FxaDivisor by_order, by_section, by_last, by_heads;
    /* decode: numbers of the (b, KV head)s at the end that have smaller work items than `run` splits: first cut[0] with
     * run / 2 splits per item, then cut[1] with run / 4, ... */
    int cut[FXA_CUDA_DECODE_CUTS];
    float scale, scale_log2; /* scale_log2 = scale * log2(e) */
    /* sign of the scale: 1 = products of Q and K are multiplied by -1, 2 = by 0, 0 = unchanged; scale_log2 and the
     * program use the absolute value of the scale */
    int turned;
    float *partial, *partial_ml; /* decode, of each work item: O over its keys; {maximum, sum} of each row */
    /* FXA_DROPOUT: low word of the seed first; a pair (q, k) is dropped if its random word is below drop_below */
    unsigned seed[2], drop_below;
    float keep_inverse; /* 1 / (1 - dropout probability) */
    struct FxaScalars scalars;
    /* FXA_DROPOUT 2: the coordinates that the random number generator uses instead of the indices b, h, q, k; place_q
     * has a row per batch entry */
    const int *place_b, *place_h, *place_q, *place_k;
    float *row_max; /* FXA_RETURN_ROW_MAX: maximum of each row's scores after the score program */
    long long max_b, max_h, max_s;
    /* Range tables for tile_class(): {minimum, maximum} of every 64 elements along one axis of a captured tensor, for
     * all indices of the other axes, written by fxa_range_table; NULL = unknown. */
    const int *ranges[FXA_CUDA_RANGES];
};

/* Arguments of fxa_coordinates_write (common/convert.cu), for dropout. The kernel writes the coordinate of each index 0
 * to size - 1 of an axis, for each of `entries` batch entries. First the coordinate is table[index], or the value of
 * the segment (begin, from, by) that contains the index, or base + step * index. Then *dynamic and shift[b] are added,
 * and k_len - q_len if `aligned`. */
struct FxaCoordinates {
    int *out;
    const int *table;   /* [size] coordinate of each index; NULL = none */
    const int *dynamic; /* one number, added to all coordinates; NULL = none */
    const int *shift;   /* [entries] number for each batch entry, added to its coordinates; NULL = none */
    long long size, entries, base, step;
    /* segment i: indices from begin[i] on have the coordinates from[i] + by[i] * (index - begin[i]) */
    long long begin[16], from[16], by[16];
    long long q_len, k_len; /* lengths for `aligned`; 0 = lengths of the batch entry */
    int segments;           /* number of used elements of begin, from and by; 0 = none */
    int aligned;            /* 1 = k_len - q_len is added to coordinates: the last query is at the last key */
};

/* An array [b, h, s, d] that common/convert.cu reads or writes; type: FXA_TYPE_F64 or another FXA_TYPE */
struct FxaConvertArray {
    void *data;
    long long stride[4]; /* of b, h, s, d; in elements */
    int type;
};

/* Arguments of fxa_convert_copy (common/convert.cu). side: what the index s counts: FXA_CONVERT_ALL = rows in memory;
 * FXA_CONVERT_QUERIES or FXA_CONVERT_KEYS = queries or keys of batch entry b. add: 1 = adds to existing values */
enum { FXA_CONVERT_ALL, FXA_CONVERT_QUERIES, FXA_CONVERT_KEYS };
struct FxaConvert {
    struct FxaConvertArray to, from;
    long long size[4];
    int side, add;
};

/* Targets of the PROG_GRAD_SUMS sums: sum i is the gradient of param param[i], or if param[i] = -1, of an element of
 * captured tensor tensor[i]. */
struct FxaSumTargets {
    int param[FXA_CUDA_SUMS], tensor[FXA_CUDA_SUMS];
};

/* The gradient of a captured tensor in the caller's memory. dtype: FXA_TYPE_F64 or another FXA_TYPE; add = 1: the
 * gradient is added to the existing values */
struct FxaGradTensor {
    void *data;
    long long stride[FXA_CUDA_RANK]; /* elements */
    int size[FXA_CUDA_RANK];
    int rank, dtype, add;
};

/* The tensor map that cuTensorMapEncodeTiled writes. */
struct
#ifdef __cplusplus
    alignas(128)
#endif
        FxaMap {
    unsigned long long opaque[16];
};

/* Tensor maps of 4-dimensional tensors {d, s, h, b} with boxes of 64 elements of d, 128-byte swizzle and zero fill;
 * FxaShape has the rows of a box. The maps of the dense tensor and its gradient are {k, q, h, b}. */
struct FxaMaps {
    struct FxaMap q, k, v, o, grad_o, grad_q, grad_k, grad_v, dense, grad_dense;
};

/* Launch shape of a kernel, exported by its module as a constant KERNEL_shape. */
struct FxaShape {
    int threads;
    int shared_bytes;   /* bytes of dynamic shared memory */
    int q_rows, k_rows; /* queries and keys of a tile, also the rows of a TMA box of a load */
    /* rows of a TMA box of a store, 0 = no TMA stores. Decode: rows of a TMA box of a load of K or V without pages */
    int store_rows;
    /* 1: the grid is min(tiles, multiprocessors); 0: the comment at the top of the kernel's file describes the grid */
    int persistent;
    int sum_rows; /* warps of a CTA that write FxaSums */
    /* number of CTAs that share a tile, each with a part of the head dim; the grid is `parts` times as wide. Decode:
     * number of CTAs of a cluster */
    int parts;
};

/* Layouts of structs that kernels take by value or read from device memory: the host and NVRTC must agree. */
FXA_LAYOUT_SIZE(FxaArgs, 2696);
FXA_LAYOUT_OFFSET(FxaArgs, lse, 256);
FXA_LAYOUT_OFFSET(FxaArgs, list, 448);
FXA_LAYOUT_OFFSET(FxaArgs, tensor, 728);
FXA_LAYOUT_OFFSET(FxaArgs, f, 2032);
FXA_LAYOUT_OFFSET(FxaArgs, by_group, 2440);
FXA_LAYOUT_OFFSET(FxaArgs, scalars, 2576);
FXA_LAYOUT_OFFSET(FxaArgs, ranges, 2664);
FXA_LAYOUT_SIZE(FxaMaps, 1280);
FXA_LAYOUT_SIZE(FxaShape, 32);
FXA_LAYOUT_SIZE(FxaExact, 48);
FXA_LAYOUT_SIZE(FxaCapture, 72);
FXA_LAYOUT_SIZE(FxaSums, 24);
FXA_LAYOUT_SIZE(FxaPackedOperands, 128);
FXA_LAYOUT_SIZE(FxaListShape, 24);
FXA_LAYOUT_SIZE(FxaCoordinates, 472);
FXA_LAYOUT_OFFSET(FxaCoordinates, q_len, 448);
FXA_LAYOUT_SIZE(FxaConvert, 136);
FXA_LAYOUT_OFFSET(FxaConvert, side, 128);
FXA_LAYOUT_SIZE(FxaSumTargets, 256);
FXA_LAYOUT_SIZE(FxaGradTensor, 80);
FXA_LAYOUT_OFFSET(FxaGradTensor, dtype, 72);
FXA_LAYOUT_ASSERT(sizeof(void *) != 8 || sizeof(struct FxaMaps) + sizeof(struct FxaArgs) <= 4096,
                  "a kernel's arguments must be below 4 KB");

#endif
