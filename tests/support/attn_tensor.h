/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor of a test in memory: any strides, protected bytes around the elements, access to elements as doubles. Also
 * random numbers for attention tests.
 */
#ifndef FXA_TESTS_ATTN_TENSOR_H
#define FXA_TESTS_ATTN_TENSOR_H

#include "guard.h"

#include "fxattn/fxattn.h"

/* ---- Random numbers (splitmix64) --------------------------------------------------------------------------------- */

uint64_t attn_next(uint64_t *rng);
int64_t attn_int(uint64_t *rng, int64_t lo, int64_t hi); /* returns a random int from lo to hi, both included */
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

/* Protection around a tensor: bytes that are compared at the end, or an inaccessible page on one side. */
typedef enum attn_around { ATTN_BYTES, ATTN_PAGE_BEHIND, ATTN_PAGE_BEFORE } attn_around;

typedef struct attn_tensor {
    const char *name;
    fxa_dtype dtype;
    attn_style style;
    int64_t n[4], stride[4];
    unsigned char *memory; /* NULL = no tensor */
    size_t bytes;
    unsigned char *origin; /* address of element (0, 0, 0, 0) */
    size_t band;           /* number of protected bytes on either side, verified when the tensor is freed */
    guard page;            /* owner of the memory if it is next to an inaccessible page */
} attn_tensor;

/* Makes a tensor filled with bytes that are NaN in every float dtype. Styles:
 *
 *   WILD      axes in any order, gaps, negative strides
 *   EXPANDED  as WILD, and strides of zero
 *   PITCHED   contiguous head dim, other axes in any order with gaps of 8 elements. If d is not a multiple of 4, the
 *             origin is off by one element. If it is a multiple of 4 but not of 8, strides are still multiples of 8. */
attn_tensor attn_tensor_make(const int64_t n[4], fxa_dtype dtype, attn_style style, uint64_t *rng);
/* Makes a tensor with the given strides, none negative; stride NULL = contiguous. */
attn_tensor attn_tensor_place(const int64_t n[4], fxa_dtype dtype, const int64_t stride[4], attn_around around);
void attn_tensor_free(attn_tensor *t);
double attn_tensor_get(const attn_tensor *t, const int64_t at[4]);   /* ints as doubles */
void attn_tensor_set(attn_tensor *t, const int64_t at[4], double x); /* stores x, rounded to the dtype */
fxa_operand attn_tensor_operand(const attn_tensor *t);
double attn_round(fxa_dtype dtype, double x);
fxa_dtype attn_draw_dtype(bool wide, uint64_t *rng); /* returns a random float dtype, with `wide` also f64 */

/* Functions that access the elements of a tensor of attn_tensor_place by their position in memory. In a contiguous
 * tensor these are all elements in order. */
int64_t attn_tensor_places(const attn_tensor *t);
double attn_get(const attn_tensor *t, int64_t place);
void attn_set(attn_tensor *t, int64_t place, double x);
double *attn_f64(const attn_tensor *t); /* returns the elements of a contiguous f64 tensor */

#endif
