/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu engine: fused, vectorised, threaded attention, forward and backward. This header declares the kernels of an
 * instruction set. The folders and files:
 *
 *   engine.c        the table of functions: query, compile, workspace, run
 *   select.c        selects the instruction set
 *   addresses.c     addresses, loading and coordinates of rows and keys
 *   scales.c        scales of 8-bit operands, and amax
 *   mask/           which parts of tiles and key blocks have attended pairs
 *   forward/, backward/   the passes
 *   product/        matrix products, and how their operands are packed
 *   bytecode/       a score program as row bytecode
 *   kernels/        one file per instruction set: compiles kernels/body for float and for double into a table
 *
 * The units of work of both passes. Indentation means "consists of":
 *
 *   run              all of a pass
 *     kv group       one (batch entry, KV head), with the rows of its query heads stacked
 *       key split    a range of keys; the results of several key splits of a kv group are merged in order
 *       row tile     rows that pass over the same key blocks
 *
 *                                  key block   key block   key block
 *                                +-----------+-----------+-----------+     # sub-block: rows x run of columns with
 *     row tile    product rows   | ######### | #####     |           |       attended pairs; a tile and a key block
 *                   (<= 128)     | ######### | #######   |           |       may have several
 *                                +-----------+-----------+-----------+
 *                 product rows   | ######### | ######### | ###       |
 *                                | ######### | ######### | #####     |  <- row block (<= 16 of the product rows)
 *                                +-----------+-----------+-----------+
 *
 *   task             what a worker computes at a time. Forward: a row tile and a key split. Backward: a kv group and a
 *                    key split, with a loop over key blocks outside and a loop over row tiles inside
 *   chain            tasks of backward that add to the same sums, and so run one after the other
 *   key block        keys that are packed at once
 *   product rows     rows that share a matrix product
 *   row block        rows that the softmax of forward processes together
 *   granule          16 columns or more; a sub-block may start or end at each multiple of it
 *   column           index of a key within its key block
 *   panel            packed columns of the right operand of a product
 *   lane             one element of a vector
 *
 * The division into tasks depends on nothing but shapes, dtypes and the instruction set, and sums have a fixed order.
 * So results do not depend on the number of threads.
 *
 * `real` is float, or double for f64 problems: the type of all values between loading and storing. Rows of real
 * (scores, registers of bytecode) are padded to FXA__CPU_PAD bytes, so kernels may compute the entire vector that
 * contains the last element. The results past the end are never used. Nothing outside of the caller's arrays is read.
 */
#ifndef FXA_ENGINE_CPU_CPU_H
#define FXA_ENGINE_CPU_CPU_H

#include "../engine.h"
#include "../../base/carve.h"

#define FXA__CPU_PAD 64 /* bytes of the widest vector */
_Static_assert(FXA__CARVE_ALIGN % FXA__CPU_PAD == 0 && FXA_WORKSPACE_ALIGN % FXA__CARVE_ALIGN == 0,
               "parts of a workspace begin at whole vectors");

/* ---- Kernels of one instruction set and float width ------------------------------------------------------------ */

/* Offset that stands for an index outside of its axis: so far below 0 that a sum of offsets with this one is still
 * recognised as outside of the tensor. */
#define FXA__TAPE_OUTSIDE (INT64_MIN / 64)

/* A row operation of the bytecode, see bytecode/tape.h: computes n elements of dst. Each operand is a row or a scalar;
 * the opcode determines which. */
typedef void (*fxa__tape_fn)(int64_t n, void *dst, const void *a, const void *b, const void *c);

/* A row of scores for rows_max and rows_exp. */
typedef struct fxa__cpu_score_row {
    void *s;   /* [n] reals */
    int64_t n; /* number of scores */
    double x;  /* maximum of s, set by rows_max; rows_exp replaces it by the sum of exp(s - x) */
} fxa__cpu_score_row;

/* Rows of K or V as they are stored, with contiguous features. */
typedef struct fxa__cpu_stored_rows {
    const void *data;
    uint32_t dtype;    /* dtype of real; also f16, bf16, e4m3 or e5m2 if real is float */
    int64_t ld;        /* elements from one row to the next */
    int64_t n;         /* number of rows */
    int64_t d;         /* number of features, at most FXA_MAX_D */
    const void *next;  /* n rows to prefetch, because they will be read soon; NULL: none */
    int64_t next_step; /* bytes between rows of `next` */
} fxa__cpu_stored_rows;

/* Values that, together with the keys, determine the dropout decisions of a row; see base/philox.h. */
typedef struct fxa__cpu_dropout_row {
    uint64_t seed;
    uint32_t threshold;
    int32_t b, h, q; /* coordinates of the row */
} fxa__cpu_dropout_row;

/* Number of elements that the array of n dropout decisions (row_keep) has beyond n: 3 before the first decision,
 * because a Philox counter covers 4 keys, and 63 past the last one, because row_keep takes steps of 64 keys. */
enum { FXA__CPU_KEEP_CAPACITY = 66 };

/* Micro-kernels of matrix products C = A B with B packed in panels. Only files of product/ call the functions of this
 * struct, fxa__cpu_real_micro and fxa__cpu_pairs_micro. */
typedef struct fxa__cpu_micro {
    int32_t panel_row; /* reals from one row of a panel to the next */

    /* Pack x [n,ld] of real into panels, padded with zeroes. pack_t packs x^T as [ceil(n/nr)][d][nr], whose columns are
     * the rows of x; pack_n packs x as [ceil(d/nr)][n][nr]. */
    void (*pack_t)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
    void (*pack_n)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);

    /* Computes C[m,n] = A B if beta is NULL, else C[i] = beta[i] C[i] + (A B)[i] for each row i, where (A B)[i] is
     * summed before it is added.
     * A: element (i, j) is at a[i * rs + j * cs].
     * B: panels of nr columns, `panel` reals apart. B may also start inside of a panel, at a column that is a multiple
     *    of nr_step, if its n columns end in the same panel.
     * C: has capacity for n rounded up to a multiple of nr, and columns past n may be written. Rows past m are not
     *    touched; m need not be a multiple of mr. */
    void (*gemm)(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b, int64_t panel,
                 void *c, int64_t ldc, const void *beta);
} fxa__cpu_micro;

/* Micro-kernel of the format that stores the right operand B of a product as reals. */
typedef struct fxa__cpu_real_micro {
    /* Like fxa__cpu_micro.gemm, with the rows of B as they are stored, with pitch ldb. n is a multiple of nr. */
    void (*gemm_rows)(int64_t m, int64_t n, int64_t k, const void *a, int64_t rs, int64_t cs, const void *b,
                      int64_t ldb, void *c, int64_t ldc, const void *beta);
} fxa__cpu_real_micro;

/* Micro-kernels of the formats that store the right operand B of a product as pairs of bf16. */
typedef struct fxa__cpu_pairs_micro {
    /* rows of B that one step of a product reads; products with a multiple of `depth` rows are fastest */
    int32_t depth;

    /* Pack rows of bf16 without conversion. pack_n_stored returns false if an element is infinite or NaN. */
    void (*pack_t_stored)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);
    bool (*pack_n_stored)(void *panels, const void *x, int64_t ld, int64_t n, int64_t d);

    /* gemm in two steps, so that A is rounded once for several products. A pair is two bf16 in a 32-bit word.
     * round: rounds A [m,k] to m rows of pairs, `step` words apart, each padded with zeroes to a multiple of 16 words.
     *        The pairs may overwrite A if A is row-major.
     * gemm_pairs: like gemm, but a is such rows of pairs. In each row, the words past column k, up to a multiple of 16
     *        words, may hold further columns instead of zeroes. Rows past m, up to a multiple of mr, must be
     *        readable. */
    void (*round)(void *pairs, int64_t step, int64_t m, int64_t k, const void *a, int64_t rs, int64_t cs);
    void (*gemm_pairs)(int64_t m, int64_t n, int64_t k, const void *a, int64_t step, const void *b, int64_t panel,
                       void *c, int64_t ldc, const void *beta);

    /* Adds the transpose of x [m,n] to out [n,m], both of real. */
    void (*add_transposed)(void *out, int64_t ld_out, const void *x, int64_t ld, int64_t m, int64_t n);
} fxa__cpu_pairs_micro;
typedef struct fxa__cpu_format fxa__cpu_format;

typedef struct fxa__cpu_kernels {
    const char *isa;     /* "scalar", "sse2", "avx2", "avx512", "neon", "avx512-bf16" or "amx" */
    size_t real_size;    /* bytes of a `real`: 4 or 8 */
    uint32_t real_dtype; /* FXA_F32 or FXA_F64 */
    int32_t width;       /* reals per vector */
    int32_t mr, nr;      /* rows and columns of C = A B that a micro-kernel computes at once */
    /* nr or nr / 2: a product C = A B may start at the columns of B that are multiples of nr_step */
    int32_t nr_step;
    /* number of rows of A with which a product C = A B is fastest, a multiple of mr; 0 = mr */
    int32_t rows;
    bool rounds;                   /* products round both operands to bf16; see fxa__cpu_q_factor */
    const fxa__cpu_format *format; /* how operands of products are packed: product/product.h */
    fxa__cpu_micro micro;
    union {
        fxa__cpu_real_micro real;   /* if format is fxa__cpu_format_real */
        fxa__cpu_pairs_micro pairs; /* if format is one of the two formats of bf16 pairs */
    };

    /* Convert n elements between stored values of a dtype and reals; strides are in stored elements. `load` returns
     * false if an element is infinite or NaN. `store` multiplies by `factor` in real. If `add`, it then adds the old
     * contents, in real (in double if f64 is stored). The result is rounded to nearest even. */
    bool (*load)(void *real_row, const void *src, uint32_t dtype, int64_t stride, int64_t n);
    void (*store)(void *dst, uint32_t dtype, int64_t stride, const void *real_row, int64_t n, double factor, bool add);

    /* Loads n elements of an int or bool dtype with the conversions of fxa__load_i32. */
    void (*load_ints)(int32_t *out, const void *src, uint32_t dtype, int64_t stride, int64_t n);
    /* Converts n indices along an axis of a captured tensor to offsets, and stores them in `offset`; with `add`, adds
     * them to `offset`. A negative index counts from the end of the axis. An index outside of the axis has the offset
     * FXA__TAPE_OUTSIDE, see bytecode/gather.c. */
    void (*offsets)(int64_t *offset, bool add, const int32_t *index, int64_t size, int64_t stride, int64_t n);

    /* Set up and restore the processor state that a worker's products require. NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);

    /* rows_max and rows_exp process several rows of scores s, each with a number x (fxa__cpu_score_row). rows_max sets
     * x to the maximum of the row, ignoring NaN. rows_exp replaces each score s by exp(s - x), exactly 0 if s is -inf
     * and NaN if s is NaN, and then replaces x by the sum of these results. */
    void (*rows_max)(fxa__cpu_score_row *part, int64_t rows);
    void (*rows_exp)(fxa__cpu_score_row *part, int64_t rows);
    /* Functions of one row of n values. row_probability replaces each score s by exp(s - lse): at most 1, exactly 0 if
     * s is -inf, and NaN if s is NaN. lse must not be NaN; it is not rounded to real before s - lse is computed.
     * row_grad computes ds = p * (dp - delta), exactly 0 where p is 0. */
    void (*row_probability)(void *s, int64_t n, double lse);
    void (*row_scale)(void *x, int64_t n, double factor);
    void (*row_grad)(void *ds, const void *p, const void *dp, double delta, int64_t n);
    double (*row_dot)(const void *x, const void *y, int64_t n);
    /* Computes out[i] = sum of x[i][j] * y[i][j] over j, for m rows of n columns. The sums have the same bits as those
     * of gemm, unless products round to bf16 (`rounds`). */
    void (*rows_dot)(void *out, const void *x, int64_t ldx, const void *y, int64_t ldy, int64_t m, int64_t n);
    /* Masks as bits, 64 per word. row_signs sets bit i of `words` where x[i] >= 0, for i in 0..n; the caller has
     * cleared all bits. row_mask sets x[i] to -inf where bit first + i of `words` is 0; first is a multiple of 16. */
    void (*row_signs)(uint64_t *words, const void *x, int64_t n);
    void (*row_mask)(void *x, const uint64_t *words, int64_t first, int64_t n);
    /* Dropout. row_keep decides for n keys of a row, which have the coordinates k[n]: -1 = kept, 0 = dropped. If `run`
     * is true, each coordinate is the previous one plus 1, modulo 2^32. The array `keep` has n + FXA__CPU_KEEP_CAPACITY
     * elements; row_keep returns the address of the first decision in it. row_drop multiplies x[i] by `factor` if
     * keep[i] is -1, and sets x[i] to 0 otherwise, even if it is NaN. */
    const int32_t *(*row_keep)(int32_t *keep, const fxa__cpu_dropout_row *row, const int32_t *k, int64_t n, bool run);
    void (*row_drop)(void *x, const int32_t *keep, double factor, int64_t n);

    /* Products for decoding, of `rows` rows of reals (q or p) and rows of K or V as they are stored (x). The pitches
     * ldq, ldp and ldo are in reals.
     * dots: out[r][i] = sum_d q[r][d] * x[i][d]. If products round to bf16 (`rounds`), q and x must hold bf16 values.
     * sums: out[r][d] += sum_i p[r][i] * x[i][d]. Products with p[r][i] = 0 are skipped.
     * Row r of out does not depend on the other rows of q or p. */
    void (*dots)(void *out, int64_t ldo, const void *q, int64_t ldq, int64_t rows, const fxa__cpu_stored_rows *x);
    void (*sums)(void *out, int64_t ldo, const void *p, int64_t ldp, int64_t rows, const fxa__cpu_stored_rows *x);

    const fxa__tape_fn *tape; /* [opcode] row operations, see bytecode/tape.h */
} fxa__cpu_kernels;

/* Returns the kernels of the instruction set that FXA_CPU names, or else of the best one of this machine, for a width
 * of float (4 or 8). dtype: dtype of all operands of products; for FXA_BF16, products may round to bf16. Returns NULL,
 * and a reason, if FXA_CPU names an unknown instruction set or one that the machine cannot run. */
const fxa__cpu_kernels *fxa__cpu_select(size_t real_size, uint32_t dtype, char *reason, size_t reason_size);
/* For tests: returns the kernels of instruction set i of this build for a width of float; NULL past the last one.
 * *usable: this machine can run them. */
const fxa__cpu_kernels *fxa__cpu_set(size_t i, size_t real_size, bool *usable);
/* For tests: like fxa__cpu_set for width 4, but for the instruction sets whose products round to bf16. */
const fxa__cpu_kernels *fxa__cpu_set_bf16(size_t i, bool *usable);

extern const fxa__cpu_format fxa__cpu_format_real, fxa__cpu_format_pairs, fxa__cpu_format_transposed;

/* Each file of kernels/ exports [0] for float and [1] for double. Kernels that round to bf16 only have [0]. */
extern const fxa__cpu_kernels fxa__cpu_scalar[2];
#if defined(__x86_64__)
extern const fxa__cpu_kernels fxa__cpu_sse2[2], fxa__cpu_avx2[2], fxa__cpu_avx512[2];
extern const fxa__cpu_kernels fxa__cpu_avx512_bf16[1], fxa__cpu_amx[1];
#elif defined(__aarch64__)
extern const fxa__cpu_kernels fxa__cpu_neon[2];
#endif

#endif
