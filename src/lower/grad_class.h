/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, grad_class: how the gradients of captured tensors and params are summed. Each `grad` statement of a
 * derivative adds a number per pair to one element; which pairs meet in an element, and so in which pass and in what
 * order they are best summed, is said by what the element's index needs. Nothing here needs atomics but SCATTER.
 *
 * Where coordinates are compared, they are not negative: an index below 0 counts from the end of its axis.
 */
#ifndef FXA_LOWER_GRAD_CLASS_H
#define FXA_LOWER_GRAD_CLASS_H

#include "depend.h"

typedef enum fxa__grad_kind {
    FXA__GRAD_ONE,   /* one element for all pairs; of params always */
    FXA__GRAD_HEAD,  /* one for each b, h or both: sums of whole tiles */
    FXA__GRAD_ROW,   /* one for each q or q_row, and what HEAD has: sums of rows, beside dQ */
    FXA__GRAD_KEY,   /* one for each k or k_row, and what HEAD has: sums of columns, beside dK and dV */
    FXA__GRAD_DENSE, /* q or q_row, and k or k_row, stand among the indices: a store for each pair; summed over b and h
                        if those do not */
    FXA__GRAD_DIAGONAL, /* one for each q - k: sums along diagonals */
    FXA__GRAD_SCATTER,  /* anything else: the index hangs on the score, on data of both q and k, ... */
    FXA__GRAD_KINDS
} fxa__grad_kind;

typedef struct fxa__grad {
    fxa__grad_kind kind;
    uint32_t index; /* inputs that the element depends on, by bits: others are summed over */
    uint32_t value; /* inputs that the number depends on */
    uint32_t apart; /* inputs that are an index by themselves: pairs that differ in one never meet here */
} fxa__grad;

/* Of output number `output` of a DERIVATIVE program, a DPARAM or a DLOAD. sets: by fxa__lower_depend, with forms. */
fxa__grad fxa__lower_grad(const fxa_program *d, int32_t output, const fxa__depend *sets);
const char *fxa__lower_grad_name(fxa__grad_kind kind); /* "one", "head", ... */

/* Over all statements that add to a tensor: inputs such that pairs which differ in one never meet in an element. In
 * t[q, k] + t[k, q] a pair meets another in the other load, so there are none. All bits where nothing is added. */
uint32_t fxa__lower_grad_apart(const fxa_program *d, int32_t tensor);
/* Whether the elements that pairs add to are pairwise different as soon as pairs differ in one of *inputs: one
 * statement, all of whose indices are inputs, none of them twice. */
bool fxa__lower_grad_own(const fxa_program *d, int32_t tensor, uint32_t *inputs);

#endif
