/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, affine: every node of a program as coefficients of the inputs, an offset and a rest (program/linear.h), for
 * engines that turn `k <= q + c`, `t[q - k]` or a tile's corner into constants. The reading of one node is in
 * src/program, because range analysis and counts of tiles, which come before this layer, read it too.
 */
#ifndef FXA_LOWER_AFFINE_H
#define FXA_LOWER_AFFINE_H

#include "../program/linear.h"

/* Fills forms[n_nodes]; they hold for all coordinates (see linear.h for what is said of comparisons). */
void fxa__lower_affine(const fxa_program *p, fxa__linear *forms);

/* sign * k + something that k does not change, with sign 1 or -1; 0: it is not of that form. What is added is the value
 * of the node where k is 0, modulo 2^32. */
int fxa__lower_along_key(const fxa__linear *f);
/* The same of the query. */
int fxa__lower_along_row(const fxa__linear *f);

#endif
