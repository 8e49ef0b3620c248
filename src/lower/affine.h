/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, affine: the affine form of every node of a program (coefficients of the inputs, a constant and a non-affine
 * part; program/linear.h). From the forms, engines read the offset c of `k <= q + c` and the coefficients of the index
 * of `t[q - k]`, and compute the bounds of a node over a tile. The form of a single node is computed in src/program,
 * because range analysis and tile counting use it too.
 */
#ifndef FXA_LOWER_AFFINE_H
#define FXA_LOWER_AFFINE_H

#include "../program/linear.h"

/* Writes the affine form of each node to forms[n_nodes]. The forms hold for all coordinates. Exception: the bit
 * FXA__NONAFFINE_SHIFTS of a comparison holds only for coordinates from 0 to FXA__MAX_COORDINATE (linear.h). */
void fxa__lower_affine(const fxa_program *p, fxa__linear *forms);

/* Returns the sign (1 or -1) if the node is sign * k + x, where x does not depend on k; else 0. x is the value of the
 * node at k = 0, modulo 2^32. */
int fxa__lower_key_sign(const fxa__linear *f);
/* Returns the sign (1 or -1) if the node is sign * q + x, where x does not depend on q; else 0. */
int fxa__lower_row_sign(const fxa__linear *f);

#endif
