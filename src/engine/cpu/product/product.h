/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products of the passes: C = A B or beta C + A B, and out += W^T X over the rows of a tile. Operands are packed
 * first, and how a packed one looks only its format knows: the passes have one path for all of them.
 *
 *   panels.c      what formats have in common: panels
 *   real.c        panels of reals for B; A as its rows lie
 *   bf16_pairs.c  bf16 pairs for both (kernels/bf16.h), A rounded once for several products; in two formats, which
 *                   differ in how they go over rows
 *
 * Packed operands lie in memory of reals, and sizes and distances count in reals. B is addressed by its rows and
 * columns whatever it is packed as; columns to begin at are multiples of kernels->nr_step.
 */
#ifndef FXA_ENGINE_CPU_CPU_PRODUCT_H
#define FXA_ENGINE_CPU_CPU_PRODUCT_H

#include "../code.h"

typedef struct fxa__cpu_b {
    void *panels;     /* b_size reals of the owner's */
    const void *rows; /* B where it lies, taken as it is; NULL: packed */
    int64_t k;        /* rows of B */
} fxa__cpu_b;

/* C [rows, end - begin] = A B, of rows k_begin..k_end and columns begin..end of B. C has room for whole panels. */
typedef struct fxa__cpu_product {
    int64_t rows;
    const void *a; /* its column 0 meets row a_first of B */
    int64_t lda, a_first;
    const fxa__cpu_b *b;
    int64_t k_begin, k_end, begin, end;
    void *c;
    int64_t ldc;
    const void *beta; /* one real per row; NULL: C is not looked at */
} fxa__cpu_product;

/* out [columns,d] += W^T X, for one X after the other: rows of X are those of W. */
typedef struct fxa__cpu_over {
    int64_t most;       /* rows of an X */
    int64_t d, columns; /* columns: of W, at most */
    void *x;            /* packed: over_x_size reals */
    int64_t rows;       /* that it has */
    void *out;
    int64_t ld_out;
    void *sums, *room; /* the format's own: over_sums_size and over_room_size reals */
    const void *ones;  /* as many reals as `columns` or d, whichever is more */
} fxa__cpu_over;

struct fxa__cpu_format {
    /* A. Distance of rows of a packed A of k columns; rows of a slot (Q) as one, times factor, by way of `room` for
     * kernels->nr rows of it; weights [rows,ld] of real as one, in place: they are in columns begin..end of `columns`,
     * the others count as 0. begin is a multiple of nr_step. */
    int64_t (*a_ld)(const fxa__cpu_kernels *kernels, int64_t k);
    void (*a_load)(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t first, int64_t n,
                   double factor, void *a, int64_t ld, void *room);
    void (*a_weights)(const fxa__cpu_kernels *kernels, void *weights, int64_t ld, int64_t rows, int64_t begin,
                      int64_t end, int64_t columns);

    /* B [k,n], from rows x of real: b_pack_t makes it x^T, n x k, b_pack x, k x n. The same from keys of a slot, with
     * `room` for all of them, ld apart: b_load is false when a number is not finite, and they are in `room` then. Where
     * keys are multiplied as they lie they are not looked at: their products will tell. */
    int64_t (*b_size)(const fxa__cpu_kernels *kernels, int64_t k, int64_t n);
    void (*b_pack_t)(const fxa__cpu_kernels *kernels, fxa__cpu_b *b, const void *x, int64_t ld, int64_t n, int64_t k);
    void (*b_pack)(const fxa__cpu_kernels *kernels, fxa__cpu_b *b, const void *x, int64_t ld, int64_t k, int64_t n);
    void (*b_load_t)(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t key, int64_t n,
                     fxa__cpu_b *b, void *room);
    bool (*b_load)(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t key, int64_t n,
                   fxa__cpu_b *b, void *room, int64_t ld);

    /* The product of a packed A; of rows of real, begun at k_begin. */
    void (*product)(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);
    void (*product_rows)(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);

    /* Over rows. over_step: columns of W that a call should take, where those of a tile differ in their rows or not;
     * over_depth: rows that are taken at once, so that over_add reads more than it is told to, which must be 0;
     * over_clear: nothing added yet (out is the owner's to clear); over_pack: x [n,ld] of real as X; over_add: columns
     * begin..end of W [rows,ldw] of real, of rows first..last, the others being 0 there; over_end: out is whole. */
    int64_t (*over_x_size)(const fxa__cpu_kernels *kernels, int64_t most, int64_t d);
    int64_t (*over_sums_size)(const fxa__cpu_kernels *kernels, int64_t columns, int64_t d);
    int64_t (*over_room_size)(const fxa__cpu_kernels *kernels, int64_t most);
    int64_t (*over_depth)(const fxa__cpu_kernels *kernels);
    int64_t (*over_step)(const fxa__cpu_kernels *kernels, bool differ, int64_t columns);
    void (*over_clear)(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o);
    void (*over_pack)(const fxa__cpu_kernels *kernels, fxa__cpu_over *o, const void *x, int64_t ld, int64_t n);
    void (*over_add)(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, const void *w, int64_t ldw, int64_t begin,
                     int64_t end, int64_t first, int64_t last);
    void (*over_end)(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, int64_t columns);
};

/* Element i of a matrix of real. */
static inline void *fxa__cpu_at(const fxa__cpu_kernels *kernels, const void *x, int64_t i) {
    return (char *)(uintptr_t)x + i * (int64_t)kernels->real_size;
}

/* ---- Between the formats: product/panels.c, as the functions above ----------------------------------------------- */

int64_t fxa__cpu_panels_size(const fxa__cpu_kernels *kernels, int64_t k, int64_t n);
void fxa__cpu_panels_pack_t(const fxa__cpu_kernels *kernels, fxa__cpu_b *b, const void *x, int64_t ld, int64_t n,
                            int64_t k);
void fxa__cpu_panels_pack(const fxa__cpu_kernels *kernels, fxa__cpu_b *b, const void *x, int64_t ld, int64_t k,
                          int64_t n);
void fxa__cpu_panels_load_t(const fxa__cpu_kernels *kernels, const fxa__cpu_group *g, fxa_slot slot, int64_t key,
                            int64_t n, fxa__cpu_b *b, void *room);
void fxa__cpu_panels_product(const fxa__cpu_kernels *kernels, const fxa__cpu_product *x);
int64_t fxa__cpu_panels_over_sums_size(const fxa__cpu_kernels *kernels, int64_t columns, int64_t d);
int64_t fxa__cpu_panels_over_room_size(const fxa__cpu_kernels *kernels, int64_t most);
int64_t fxa__cpu_panels_over_depth(const fxa__cpu_kernels *kernels);
int64_t fxa__cpu_panels_over_step(const fxa__cpu_kernels *kernels, bool differ, int64_t columns);
void fxa__cpu_panels_over_clear(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o);
void fxa__cpu_panels_over_end(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, int64_t columns);
void fxa__cpu_panels_over_pack(const fxa__cpu_kernels *kernels, fxa__cpu_over *o, const void *x, int64_t ld, int64_t n);
void fxa__cpu_panels_over_add(const fxa__cpu_kernels *kernels, const fxa__cpu_over *o, const void *w, int64_t ldw,
                              int64_t begin, int64_t end, int64_t first, int64_t last);

#define FXA__CPU_PANELS                                                                                                \
    .b_size = fxa__cpu_panels_size, .b_pack_t = fxa__cpu_panels_pack_t, .b_pack = fxa__cpu_panels_pack
#define FXA__CPU_PANELS_OVER                                                                                           \
    .over_x_size = fxa__cpu_panels_size, .over_sums_size = fxa__cpu_panels_over_sums_size,                             \
    .over_room_size = fxa__cpu_panels_over_room_size, .over_depth = fxa__cpu_panels_over_depth,                        \
    .over_step = fxa__cpu_panels_over_step, .over_clear = fxa__cpu_panels_over_clear,                                  \
    .over_pack = fxa__cpu_panels_over_pack, .over_add = fxa__cpu_panels_over_add, .over_end = fxa__cpu_panels_over_end

#endif
