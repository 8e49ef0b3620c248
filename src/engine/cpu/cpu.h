/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine: fused, vectorised, threaded attention, forward and backward. This header is the contract between its
 * parts:
 *
 *   engine.c      the table of functions: query, compile, workspace, run
 *   select.c      which instruction set a machine runs, by its features and a table of rates per family, or by FXA_CPU
 *   addresses.c   addresses and coordinates of rows and keys
 *   scales.c      scales of operands of 8 bits, and amax
 *   bytecode/     a score program as a tape of row operations
 *   mask/         band.c, classify.c: bands and range analysis of a mask; bits.c, sub_blocks.c: what the mask leaves of
 *                 a tile and a block, as strips, for both passes
 *   product/      products, and how their operands are packed
 *   forward/, backward/   the passes
 *   kernels/      a file per instruction set: the bodies of kernels/body compiled for float and for double, as one
 *                 table; avx512_bf16.c, avx512_bf16_decode.c, amx.c: products of bf16 pairs (bf16.h) for sets that are
 *                 avx512 otherwise
 *   kernels/body/ vectors; math and special: exp, tanh, ...; gemm; rows; tape; storage: between storage and real;
 *                 decode: products straight from storage; dropout
 *
 * `real` is float, and double for f64 problems; everything between loading and storing is in it. Row buffers (scores,
 * tape registers) are padded to FXA__CPU_PAD bytes, so kernels may work on whole vectors past n inside them; what lies
 * there is garbage and never trusted. Nothing outside the caller's buffers is ever read.
 *
 * The words of both passes:
 *   group    one (b, KV head), with the rows of its query heads stacked
 *   item     what a worker takes: forward a tile and a chunk, backward a group and a chunk
 *   lane     items of backward that add to the same sums, and so run one after the other
 *   tile     rows of a group that go together
 *   chunk    keys of an item
 *   block    keys of a chunk that are packed at once
 *   strip    a few rows of a tile and a run of columns of a block that share their products: mask/sub_blocks.h
 *   row, column   of a tile, of a block
 *
 * Results do not depend on the number of threads: work is cut by shape alone, and sums are taken in a fixed order.
 */
#ifndef FXA_ENGINE_CPU_CPU_H
#define FXA_ENGINE_CPU_CPU_H

#include "../engine.h"
#include "../../base/carve.h"

#define FXA__CPU_PAD 64 /* bytes: the widest vector */
_Static_assert(FXA__CARVE_ALIGN % FXA__CPU_PAD == 0 && FXA_WORKSPACE_ALIGN % FXA__CARVE_ALIGN == 0,
               "parts of a workspace begin at whole vectors");

/* ---- Kernels of one instruction set and float width ------------------------------------------------------------ */

/* What an index outside of its axis adds to an offset: so far below that sums of as many as there are axes tell it. */
#define FXA__TAPE_OUTSIDE (INT64_MIN / 64)

/* A row operation of the tape; see bytecode/tape.h. Each operand is a row or one value, as the operation's variant
 * says. */
typedef void (*fxa__tape_fn)(int64_t n, void *dst, const void *a, const void *b, const void *c);

/* Some scores of a row, and a number of theirs. */
typedef struct fxa__cpu_score_row {
    void *s;
    int64_t n;
    double x;
} fxa__cpu_score_row;

/* Rows in storage, features dense. */
typedef struct fxa__cpu_stored_rows {
    const void *data;
    uint32_t dtype;    /* that of real; f16, bf16, e4m3 and e5m2 where that is float */
    int64_t ld, n, d;  /* elements between rows; how many; features, at most FXA_MAX_D */
    const void *next;  /* NULL, or as many rows that will be read soon: they are fetched into the cache on the way */
    int64_t next_step; /* bytes from one of those to the other */
} fxa__cpu_stored_rows;

/* What dropout decides the pairs of a row by, beside their key: see base/philox.h. */
typedef struct fxa__cpu_dropout_row {
    uint64_t seed;
    uint32_t threshold;
    int32_t b, h, q; /* coordinates */
} fxa__cpu_dropout_row;

enum { FXA__CPU_KEEP_CAPACITY = 66 }; /* 3 before a whole counter, 63 past the last in steps of 64 */

/* Micro-kernels of products with B in panels. Only the formats (product/) call these functions and those below. */
typedef struct fxa__cpu_micro {
    int32_t panel_row; /* reals between rows of a panel */

    /* Pack x [n,ld] of real into panels, padded with zeroes: pack_t packs x^T as [ceil(n/nr)][d][nr], whose columns are
     * the rows of x; pack_n packs x as [ceil(d/nr)][n][nr]. */
    void (*pack_t)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
    void (*pack_n)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);

    /* C[m,n] = A B, or beta_i C + A B with one beta per row; the product is summed before it is added. Element (i, j)
     * of A is at i * rs + j * cs. B is in panels of nr columns, `panel` reals apart, or starts inside of a panel, at a
     * multiple of nr_step, if n ends in that panel. n may be rounded up to a multiple of nr, for which C has room. m is
     * any number; rows past m are not touched. */
    void (*gemm)(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, int64_t panel,
                 void *c, int64_t ldc, const void *beta);
} fxa__cpu_micro;

/* Micro-kernels of the format of reals. */
typedef struct fxa__cpu_real_micro {
    /* As gemm, with B as its rows are stored, with pitch ldb; n is a multiple of nr. */
    void (*gemm_rows)(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b,
                      int64_t ldb, void *c, int64_t ldc, const void *beta);
} fxa__cpu_real_micro;

/* Micro-kernels of the formats of bf16 pairs. */
typedef struct fxa__cpu_pairs_micro {
    int32_t depth; /* rows of B that a product takes at once; it is fastest on a multiple of that */

    /* Pack rows of bf16 as they are stored. pack_n_stored returns false if an element is infinite or NaN. */
    void (*pack_t_stored)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
    bool (*pack_n_stored)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);

    /* gemm in two steps, so that A is rounded once for several products. round turns m x k of A into rows of pairs,
     * `step` words apart, each padded with zeroes to a multiple of 16 words; the pairs of a row-major A may overwrite
     * A. gemm_pairs takes such rows. Past k, up to a multiple of 16 words, they may hold other numbers, and past m, up
     * to a multiple of mr, there may be anything that can be read. */
    void (*round)(void *pairs, int64_t step, int64_t m, int64_t k, const void *a, int64_t rs, int64_t cs);
    void (*gemm_pairs)(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                       void *c, int64_t ldc, const void *beta);

    /* out [n,m] += x^T of x [m,n], of real. */
    void (*add_transposed)(void *out, int64_t ld_out, const void *x, int64_t ld, int64_t m, int64_t n);
} fxa__cpu_pairs_micro;
typedef struct fxa__cpu_format fxa__cpu_format;

typedef struct fxa__cpu_kernels {
    const char *isa;     /* "scalar", "sse2", "avx2", "avx512", "neon"; "avx512-bf16", "amx" */
    size_t real_size;    /* 4 or 8 */
    uint32_t real_dtype; /* FXA_F32 or FXA_F64 */
    int32_t width;       /* lanes of a vector of real */
    int32_t mr, nr;      /* rows and columns of C that the matrix micro-kernel makes at once */
    int32_t nr_step;     /* products may begin at columns of B that are multiples of this: nr, or half of it */
    int32_t rows;        /* a product is fastest on this many rows, a multiple of mr, or more; 0: on mr */
    bool rounds;         /* products round A and B to bf16; see fxa__cpu_q_factor */
    const fxa__cpu_format *format; /* how operands of products are packed: product/product.h */
    fxa__cpu_micro micro;
    union {
        fxa__cpu_real_micro real;   /* if format is fxa__cpu_format_real */
        fxa__cpu_pairs_micro pairs; /* if format is another */
    };

    /* n elements between storage and real; strides in elements of the storage. store multiplies by the factor in real
     * and rounds to nearest even; `add` adds to what is there, in real (in double where f64 is stored). load returns
     * false when an element is not finite. */
    bool (*load)(void *real_row, const void *src, uint32_t dtype, int64_t stride, int64_t n);
    void (*store)(void *dst, uint32_t dtype, int64_t stride, const void *real_row, int64_t n, double factor, bool add);

    /* n elements of an int or bool dtype, as fxa__load_i32 gives them. */
    void (*load_ints)(int32_t *out, const void *src, uint32_t dtype, int64_t stride, int64_t n);
    /* n offsets: what the index of each along an axis of a captured tensor makes of it, or adds to it; below 0 an index
     * counts from the end. That is FXA__TAPE_OUTSIDE where it is outside, see bytecode/gather.c. */
    void (*offsets)(int64_t *offset, bool add, const int32_t *index, int64_t size, int64_t stride, int64_t n);

    /* Around all products of a worker; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);

    /* Rows of scores, several in one call: rows_max sets x to the maximum, which ignores NaN; rows_exp makes them
     * exp(s - x), exactly 0 at -inf, NaN stays NaN, and x their sum. */
    void (*rows_max)(fxa__cpu_score_row *part, int64_t rows);
    void (*rows_exp)(fxa__cpu_score_row *part, int64_t rows);
    /* One row of n. row_probability: exp(s - lse), at most 1, where lse keeps the digits that real has no room for:
     * what is lost is a rounding of the difference. Exactly 0 at -inf, NaN stays NaN; lse is not NaN. row_grad: ds =
     * p * (dp - delta), exactly 0 where p is 0. */
    void (*row_probability)(void *s, int64_t n, double lse);
    void (*row_scale)(void *x, int64_t n, double factor);
    void (*row_grad)(void *ds, const void *p, const void *dp, double delta, int64_t n);
    double (*row_dot)(const void *x, const void *y, int64_t n);
    /* out[i] = row i of x times row i of y, m rows of n: the very sums that gemm makes, but for sets that round. */
    void (*rows_dot)(void *out, const void *x, int64_t ldx, const void *y, int64_t ldy, int64_t m, int64_t n);
    /* Masks as bits, 64 to a word. row_signs sets bits 0..n of words that are 0 where x is not negative; row_mask makes
     * x -inf where bit first + i is not set; first is a multiple of 16. */
    void (*row_signs)(uint64_t *words, const void *x, int64_t n);
    void (*row_mask)(void *x, const uint64_t *words, int64_t first, int64_t n);
    /* Dropout. row_keep decides about the pairs of a row with n keys of coordinates k, `run` when each is the one
     * before plus 1, modulo 2^32: -1 is kept, 0 dropped. The result is where in `keep`, which has room for n +
     * FXA__CPU_KEEP_CAPACITY, the decisions lie. row_drop: x times factor where kept, else 0 whatever x is. */
    const int32_t *(*row_keep)(int32_t *keep, const fxa__cpu_dropout_row *row, const int32_t *k, int64_t n, bool run);
    void (*row_drop)(void *x, const int32_t *keep, double factor, int64_t n);

    /* Decode: straight from storage, no packing; `rows` rows of real at once, ldq, ldp and ldo reals apart.
     * out[r][i] = sum_d q[r][d] * x[i][d]; out[r][d] += sum_i p[r][i] * x[i][d], where x[i] is not looked at for
     * p[r][i] = 0. What a row gets does not depend on the other rows. dots of sets that round: q and x are bf16. */
    void (*dots)(void *out, int64_t ldo, const void *q, int64_t ldq, int64_t rows, const fxa__cpu_stored_rows *x);
    void (*sums)(void *out, int64_t ldo, const void *p, int64_t ldp, int64_t rows, const fxa__cpu_stored_rows *x);

    const fxa__tape_fn *tape; /* by tape opcode, see bytecode/tape.h */
} fxa__cpu_kernels;

/* The best set of this machine for a float width (4 or 8) and the dtype that everything multiplied is stored in, or the
 * one FXA_CPU names; NULL with a reason when FXA_CPU names one that is unknown or not here. bf16 may be multiplied as
 * such. */
const fxa__cpu_kernels *fxa__cpu_select(size_t real_size, uint32_t dtype, char *reason, size_t reason_size);
/* For tests: set number i of this build for a width, NULL past the end; *usable tells whether this machine can run
 * it. */
const fxa__cpu_kernels *fxa__cpu_set(size_t i, size_t real_size, bool *usable);
/* The same of the sets that round; their real is float. */
const fxa__cpu_kernels *fxa__cpu_set_bf16(size_t i, bool *usable);

extern const fxa__cpu_format fxa__cpu_format_real, fxa__cpu_format_pairs, fxa__cpu_format_transposed;

/* Each file of kernels/ exports one pair: [0] float, [1] double; those that round, float alone. */
extern const fxa__cpu_kernels fxa__cpu_scalar[2];
#if defined(__x86_64__)
extern const fxa__cpu_kernels fxa__cpu_sse2[2], fxa__cpu_avx2[2], fxa__cpu_avx512[2];
extern const fxa__cpu_kernels fxa__cpu_avx512_bf16[1], fxa__cpu_amx[1];
#elif defined(__aarch64__)
extern const fxa__cpu_kernels fxa__cpu_neon[2];
#endif

#endif
