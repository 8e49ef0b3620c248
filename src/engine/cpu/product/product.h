/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products of the passes: C = A B or C = beta C + A B, and transposed sums out += W^T X over the rows of tiles.
 * Operands are packed first. Only the format of the kernels knows how; the passes have one path for all formats.
 *
 *   panels.c       what the formats have in common: B in panels
 *   real.c         format of reals: B in panels of reals, A as rows of reals
 *   bf16_pairs.c   two formats of bf16 pairs for A and B (kernels/bf16.h), which compute transposed sums differently
 *
 * A packed operand has the memory of reals, and sizes and pitches count reals. Callers address B by its rows and
 * columns, however it is packed. Products may start at columns of B that are multiples of kernels->nr_step.
 */
#ifndef FXA_ENGINE_CPU_PRODUCT_PRODUCT_H
#define FXA_ENGINE_CPU_PRODUCT_PRODUCT_H

#include "../code.h"
#include "../real.h"

#include <string.h>

typedef struct fxa__cpu_packed_b {
    void *panels;     /* b_size reals, owned by the caller */
    const void *rows; /* B where it is stored, used without packing; NULL: B is in panels */
    int64_t k;        /* rows of B */
} fxa__cpu_packed_b;

/* C [rows, end - begin] = A B, with rows k_begin..k_end and columns begin..end of B. C has room for entire panels. */
typedef struct fxa__cpu_product {
    int64_t rows;
    const void *a;   /* packed A, or rows of real */
    int64_t lda;     /* pitch of A */
    int64_t a_first; /* row of B that belongs to column 0 of A */
    const fxa__cpu_packed_b *b;
    int64_t k_begin, k_end, begin, end;
    void *c;
    int64_t ldc;
    const void *beta; /* [rows] factors of C; NULL: C is not read */
} fxa__cpu_product;

/* out [columns,d] += W^T X, for one X after the other, with W [rows,columns] and X [rows,d]. */
typedef struct fxa__cpu_transposed_sum {
    int64_t capacity;    /* rows of an X, at most */
    int64_t d, columns;  /* columns: of W, at most */
    void *out;           /* [columns,ld_out] */
    int64_t ld_out;      /* pitch of out */
    const void *ones;    /* max(columns, d) reals of value 1 */
    int64_t x_size;      /* reals of x: this and the next five are set by sum_layout */
    int64_t sums_size;   /* reals of sums */
    int64_t room_size;   /* reals of room */
    int64_t depth;       /* rows that a product reads at once: W must be 0 in those that it has too many */
    int64_t step;        /* columns of W that a call of sum_add should have */
    int64_t masked_step; /* the same where columns of W have different rows that are not 0 */
    void *x;             /* packed X */
    void *sums, *room;   /* memory of the format */
    int64_t rows;        /* rows of the packed X */
} fxa__cpu_transposed_sum;

struct fxa__cpu_format {
    /* Returns the pitch of a packed A with k columns. */
    int64_t (*a_ld)(const fxa__cpu_kernels *kernels, int64_t k);
    /* Packs n rows of slot Q, times factor, as A. room: for kernels->nr rows of real. */
    void (*a_load)(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t first, int64_t n,
                   double factor, void *a, int64_t ld, void *room);
    /* Packs weights [rows,ld] of real as A, in place. Columns outside of begin..end count as 0; begin is a multiple of
     * nr_step. */
    void (*a_weights)(const fxa__cpu_kernels *kernels, void *weights, int64_t ld, int64_t rows, int64_t begin,
                      int64_t end, int64_t columns);

    /* Returns the reals of a packed B [k,n]. */
    int64_t (*b_size)(const fxa__cpu_kernels *kernels, int64_t k, int64_t n);
    /* Pack rows x of real as B: b_pack_t packs x^T, where x is [n,k]; b_pack packs x, which is [k,n]. */
    void (*b_pack_t)(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t n,
                     int64_t k);
    void (*b_pack)(const fxa__cpu_kernels *kernels, fxa__cpu_packed_b *b, const void *x, int64_t ld, int64_t k,
                   int64_t n);
    /* Do the same with n keys of a slot. room: for all of them, with pitch ld for b_load. b_load returns false if a
     * value is infinite or NaN; the keys are in `room` then, and not packed. Keys that are stored as the format needs
     * them are not examined; b_load returns true for these. */
    void (*b_load_t)(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n,
                     fxa__cpu_packed_b *b, void *room);
    bool (*b_load)(const fxa__cpu_kernels *kernels, const fxa__cpu_kv_group *g, fxa_slot slot, int64_t key, int64_t n,
                   fxa__cpu_packed_b *b, void *room, int64_t ld);

    /* Compute a product: of a packed A; of rows of real that start at k_begin. */
    void (*product)(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);
    void (*product_rows)(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);

    /* Transposed sums. sum_layout sets sizes and steps from capacity, d and columns. sum_pack packs x [n,ld] of real as
     * X. sum_add adds columns begin..end of W [rows,ldw] of real, which are 0 outside of rows first..last. sum_end adds
     * what is in `sums` to out, for the first `columns` columns; out is incomplete before. */
    void (*sum_layout)(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum);
    void (*sum_pack)(const fxa__cpu_kernels *kernels, fxa__cpu_transposed_sum *sum, const void *x, int64_t ld,
                     int64_t n);
    void (*sum_add)(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, const void *w, int64_t ldw,
                    int64_t begin, int64_t end, int64_t first, int64_t last);
    void (*sum_end)(const fxa__cpu_kernels *kernels, const fxa__cpu_transposed_sum *sum, int64_t columns);
};

/* Starts a transposed sum: sets `sums` to 0. The caller sets out. */
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
