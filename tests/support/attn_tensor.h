/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor of a test in memory: any strides, bytes around it that nobody may touch, elements as doubles. And the random
 * numbers that tests of attention draw.
 */
#ifndef FXA_TESTS_ATTN_TENSOR_H
#define FXA_TESTS_ATTN_TENSOR_H

#include "guard.h"

#include "fxattn/fxattn.h"

/* ---- Random numbers (splitmix64) --------------------------------------------------------------------------------- */

uint64_t attn_next(uint64_t *rng);
int64_t attn_int(uint64_t *rng, int64_t lo, int64_t hi); /* inclusive */
double attn_real(uint64_t *rng, double lo, double hi);

/* ---- Tensors of four axes ---------------------------------------------------------------------------------------- */

typedef enum attn_style {
    ATTN_BHSD,
    ATTN_BSHD,
    ATTN_SBHD,
    ATTN_WILD,
    ATTN_EXPANDED,
    ATTN_PITCHED,
    ATTN_GIVEN
} attn_style;

/* What lies around a tensor: bytes that are looked at in the end, or on one side a page that is a fault to touch. */
typedef enum attn_around { ATTN_BYTES, ATTN_PAGE_BEHIND, ATTN_PAGE_BEFORE } attn_around;

typedef struct attn_tensor {
    const char *name;
    fxa_dtype dtype;
    attn_style style;
    int64_t n[4], stride[4];
    unsigned char *memory; /* NULL: there is none */
    size_t bytes;
    unsigned char *origin; /* element (0, 0, 0, 0) */
    size_t band;           /* bytes on either side that must stay as they are; the end of the tensor checks it */
    guard page;            /* whose memory it is, where a page is around */
} attn_tensor;

/* WILD: axes in any order, gaps, negative strides. EXPANDED: the same, and strides of zero. PITCHED: features beside
 * each other, the other axes in any order with gaps of 8 elements; where d is no multiple of 4 it begins one off,
 * where it is one of 4 alone strides are multiples of 8 all the same. Memory is filled with bytes that are NaN in every
 * float dtype. */
attn_tensor attn_tensor_make(const int64_t n[4], fxa_dtype dtype, attn_style style, uint64_t *rng);
/* With strides of the caller's, none negative; NULL: dense. */
attn_tensor attn_tensor_place(const int64_t n[4], fxa_dtype dtype, const int64_t stride[4], attn_around around);
void attn_tensor_free(attn_tensor *t);
double attn_tensor_get(const attn_tensor *t, const int64_t at[4]);   /* ints as doubles */
void attn_tensor_set(attn_tensor *t, const int64_t at[4], double x); /* rounds to the dtype */
fxa_operand attn_tensor_operand(const attn_tensor *t);
double attn_round(fxa_dtype dtype, double x);
fxa_dtype attn_draw_dtype(bool wide, uint64_t *rng); /* of floats; wide: f64 too */

/* Elements by their place in memory, of tensors that were placed: of dense ones all of them, in order. */
int64_t attn_tensor_places(const attn_tensor *t);
double attn_get(const attn_tensor *t, int64_t place);
void attn_set(attn_tensor *t, int64_t place, double x);
double *attn_f64(const attn_tensor *t); /* of a dense f64 tensor */

#endif
