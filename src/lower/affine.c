/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the affine forms of all nodes of a program (affine.h).
 */
#include "affine.h"

void fxa__lower_affine(const fxa_program *p, fxa__linear *forms) {
    for (int32_t i = 0; i < p->n_nodes; i++) forms[i] = fxa__linear_of(p, i, forms, NULL);
}

/* Returns the coefficient of `input` if it is 1 or -1 and the non-affine part does not read `input`; else 0. */
static int affine_along(const fxa__linear *f, fxa_input input) {
    int32_t coef = f->coef[input];
    return !(f->nonaffine >> input & 1) && (coef == 1 || coef == -1) ? coef : 0;
}

int fxa__lower_key_sign(const fxa__linear *f) { return affine_along(f, FXA_INPUT_K); }
int fxa__lower_row_sign(const fxa__linear *f) { return affine_along(f, FXA_INPUT_Q); }
