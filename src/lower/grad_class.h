/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, grad_class: how the gradients of captured tensors and params are summed. Each `grad` statement of a
 * derivative adds one value per pair (q, k) to one element. The inputs that the element's index depends on decide which
 * pairs add to the same element, and thus in which kernel and order the values of pairs are summed. Only SCATTER needs
 * atomics.
 *
 * The classes assume nonnegative coordinates: a negative index counts from the end of its axis, so two coordinates
 * could give the same element.
 */
#ifndef FXA_LOWER_GRAD_CLASS_H
#define FXA_LOWER_GRAD_CLASS_H

#include "depend.h"

/* Which pairs of a row and a key add to the same element of a gradient, and how their values are summed. */
typedef enum fxa__grad_kind {
    FXA__GRAD_ONE,      /* one element for all pairs; always the class of params */
    FXA__GRAD_HEAD,     /* one element per b, h or (b, h): sums over all rows and keys */
    FXA__GRAD_ROW,      /* an index depends on q or q_row, maybe on b, h: sums over keys, computed with dQ */
    FXA__GRAD_KEY,      /* an index depends on k or k_row, maybe on b, h: sums over rows, computed with dK, dV */
    FXA__GRAD_DENSE,    /* one element per pair: one index is q or q_row, another index is k or k_row */
    FXA__GRAD_DIAGONAL, /* one element per q - k: sums along diagonals */
    FXA__GRAD_SCATTER,  /* any other case, for example an index that depends on the score */
    FXA__GRAD_KINDS
} fxa__grad_kind;

/* How one gradient is summed. The members index, value and separators are sets of inputs: bit i is fxa_input i. */
typedef struct fxa__grad {
    fxa__grad_kind kind;
    /* inputs that decide which element of the gradient is added to; the gradient is summed over all other inputs */
    uint32_t index;
    uint32_t value; /* inputs that the value added to the element depends on */
    /* Inputs that are used directly as an index, like q in t[q, 0]. Pairs that differ in one of these inputs never add
     * to the same element. */
    uint32_t separators;
} fxa__grad;

/* Classifies output number `output` of a DERIVATIVE program. The output must be the gradient of a param or of a load
 * (DPARAM or DLOAD). sets: the result of fxa__lower_depend with `forms` not NULL. */
fxa__grad fxa__lower_grad(const fxa_program *d, int32_t output, const fxa__depend *sets);
const char *fxa__lower_grad_name(fxa__grad_kind kind); /* "one", "head", ... */

/* Returns the set of inputs that separate elements: two (q, k) pairs that differ in one of these inputs never add to
 * the same element of the tensor's gradient, in any statements. The set is empty for t[q, k] + t[k, q], because the
 * pairs (1, 2) and (2, 1) add to the same elements. Returns all bits if no statement adds to the gradient. */
uint32_t fxa__lower_grad_separators(const fxa_program *d, int32_t tensor);
/* Returns true if exactly one `grad` statement of d adds to the tensor's gradient, and the indices of this statement
 * are different inputs, as in t[b, q]. *inputs is then the set of these inputs: (q, k) pairs that differ in one of them
 * add to different elements. */
bool fxa__lower_grad_is_injective(const fxa_program *d, int32_t tensor, uint32_t *inputs);

#endif
