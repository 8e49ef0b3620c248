/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products of the passes: C = A B or C = beta C + A B, and transposed sums out += W^T X over the rows of tiles.
 * Operands are packed first. The format of the kernels (fxa__cpu_format) defines the packing; the passes have one path
 * for all formats.
 *
 *   panels.c       functions that the formats share: B in panels
 *   real.c         format of reals: B in panels of reals, A as rows of reals
 *   bf16_pairs.c   two formats of bf16 pairs for A and B (kernels/bf16.h), which compute transposed sums differently
 *
 * The memory of a packed operand, its sizes and its pitches are counted in reals. Callers address B by its rows and
 * columns in every format. Products may start at columns of B that are multiples of kernels->nr_step.
 */
#ifndef FXA_ENGINE_CPU_PRODUCT_PRODUCT_H
#define FXA_ENGINE_CPU_PRODUCT_PRODUCT_H

#include "../code.h"
#include "../real.h"

#include <string.h>

typedef struct fxa__cpu_packed_b {
    void *panels;     /* [b_size] packed B, in the caller's memory */
    const void *rows; /* B as it is stored, if it is used without packing; NULL: B is in `panels` */
    int64_t k;        /* number of rows of B */
} fxa__cpu_packed_b;

/* A product C [rows, end - begin] = A B, with rows k_begin..k_end and columns begin..end of B. Products write entire
 * panels of columns, so C must have memory for them. */
typedef struct fxa__cpu_product {
    int64_t rows;
    const void *a;   /* A: packed for `product`, rows of reals for `product_rows` */
    int64_t lda;     /* row pitch of A */
    int64_t a_first; /* row of B that column 0 of A is multiplied by */
    const fxa__cpu_packed_b *b;
    int64_t k_begin, k_end, begin, end;
    void *c;
    int64_t ldc;
    const void *beta; /* [rows] factors of the old C; NULL: C is not read */
} fxa__cpu_product;

/* A transposed sum: out [columns,d] += W^T X for several X, with W [rows,columns] and X [rows,d]. */
typedef struct fxa__cpu_transposed_sum {
    int64_t capacity;   /* maximum number of rows of one X */
    int64_t d, columns; /* number of columns of X; maximum number of columns of W */
    void *out;          /* [columns,ld_out] result */
    int64_t ld_out;     /* row pitch of `out` */
    const void *ones;   /* [max(columns, d)] reals of value 1, the factors of sums to which products are added */
    /* sum_layout sets the members from here to masked_step. */
    int64_t x_size;      /* number of reals of `x` */
    int64_t sums_size;   /* number of reals of `sums` */
    int64_t room_size;   /* number of reals of `room` */
    int64_t depth;       /* number of rows of W that a product reads at once; rows past the last one must be 0 */
    int64_t step;        /* recommended columns of W per call of sum_add */
    int64_t masked_step; /* like `step`, for a mask that leaves different nonzero rows in each column of W */
    void *x;             /* packed X */
    void *sums, *room;   /* partial sums; scratch memory */
    int64_t rows;        /* number of rows of the packed X */
} fxa__cpu_transposed_sum;

struct fxa__cpu_format {
    /* Returns the row pitch of a packed left operand A with k columns. */
    int64_t (*a_ld)(const fxa__cpu_kernels *kernels, int64_t k);
    /* Packs n rows of the tensor `slot` (Q), multiplied by `factor`, as the left operand A. room: scratch memory for
     * kernels->nr rows of reals. */
    void (*a_load)(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n,
                   double factor, void *a, int64_t ld, void *room);
    /* Packs weights [rows,ld] of real as the left operand A, in place. Columns outside of begin..end count as 0; begin
     * must be a multiple of nr_step. */
    void (*a_weights)(const fxa__cpu_kernels *kernels, void *weights, int64_t ld, int64_t rows, int64_t begin,
                      int64_t end, int64_t columns);

    /* Returns the number of reals that a packed right operand B [k,n] occupies. */
    int64_t (*b_size)(const fxa__cpu_kernels *kernels, int64_t k, int64_t n);
    /* Pack a matrix x of reals as the right operand B [k,n]. b_pack_t packs the transpose of x [n,k], b_pack packs x
     * [k,n]. */
    void (*b_pack_t)(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t n,
                     int64_t k);
    void (*b_pack)(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t k,
                   int64_t n);
    /* Pack n keys of the tensor `slot` (K or V) as the right operand B: b_load_t packs their transpose, b_load the keys
     * as they are. room: scratch memory for n rows, of pitch ld in b_load. If a value is infinite or NaN, b_load
     * returns false, with the keys in `room`, not packed. Keys that need no packing are not examined; b_load then
     * returns true. */
    void (*b_load_t)(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n,
                     fxa__cpu_packed_b *b, void *room);
    bool (*b_load)(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n,
                   fxa__cpu_packed_b *b, void *room, int64_t ld);

    /* Compute a product. For `product`, A is packed; for `product_rows`, A is rows of real that start at column
     * k_begin. */
    void (*product)(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);
    void (*product_rows)(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);

    /* Transposed sums out += W^T X (fxa__cpu_transposed_sum):
     *   sum_layout   computes sizes and steps from capacity, d and columns
     *   sum_pack     packs x [n,ld] of real as X
     *   sum_add      adds W^T X for columns begin..end of W [rows,ldw] of real, which must be 0 outside of rows
     *                first..last
     *   sum_end      adds `sums` to the first `columns` rows of `out`; before this call, `out` is incomplete */
    void (*sum_layout)(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum);
    void (*sum_pack)(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum, const void *x, int64_t ld,
                     int64_t n);
    void (*sum_add)(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, const void *w, int64_t ldw,
                    int64_t begin, int64_t end, int64_t first, int64_t last);
    void (*sum_end)(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, int64_t columns);
};

/* Starts a transposed sum: sets `sums` to 0. The caller initialises `out`. */
static inline void fxa__cpu_transposed_sum_clear(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum) {
    if (sum->sums_size > 0) memset(sum->sums, 0, (size_t)sum->sums_size * kernels->real_size);
}

/* ---- panels.c: members of fxa__cpu_format that several formats share --------------------------------------------- */

int64_t fxa__cpu_panels_size(const fxa__cpu_kernels *kernels, int64_t k, int64_t n);
void fxa__cpu_panels_pack_t(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t n,
                            int64_t k);
void fxa__cpu_panels_pack(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t k,
                          int64_t n);
void fxa__cpu_panels_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key,
                            int64_t n, fxa__cpu_packed_b *b, void *room);
void fxa__cpu_panels_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);
void fxa__cpu_panels_sum_layout(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum);
void fxa__cpu_panels_sum_pack(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum, const void *x, int64_t ld,
                              int64_t n);
void fxa__cpu_panels_sum_add(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, const void *w,
                             int64_t ldw, int64_t begin, int64_t end, int64_t first, int64_t last);
void fxa__cpu_panels_sum_end(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, int64_t columns);

#define FXA__CPU_PANELS                                                                                                \
    .b_size = fxa__cpu_panels_size, .b_pack_t = fxa__cpu_panels_pack_t, .b_pack = fxa__cpu_panels_pack
#define FXA__CPU_PANELS_SUM                                                                                            \
    .sum_layout = fxa__cpu_panels_sum_layout, .sum_pack = fxa__cpu_panels_sum_pack,                                    \
    .sum_add = fxa__cpu_panels_sum_add, .sum_end = fxa__cpu_panels_sum_end

#endif
