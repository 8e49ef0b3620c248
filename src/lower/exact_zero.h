/* SPDX-License-Identifier: Apache-2.0
 *
 * Two analyses of zeros in a backward program.
 *
 * fxa__lower_exact_zero proves that nodes are 0 wherever dscore is 0. Derived programs have this property
 * (derive_rules.c); a user-written backward program may not. For a node with the property, engines store the gradient
 * without a guard and skip pairs whose dscore is 0; for other nodes engines guard the gradient by a test of dscore.
 *
 * fxa__lower_zero_signs finds the nodes whose sign of zero matters: 1 / 0 and 1 / -0 differ, while mulz and divz give 0
 * for both.
 */
#ifndef FXA_LOWER_EXACT_ZERO_H
#define FXA_LOWER_EXACT_ZERO_H

#include "../program/program.h"

/* Writes zero[n_nodes]: true = the node is a float proven to be 0 or -0 wherever dscore is 0 or -0, for all values of
 * the other inputs, params and tensors, NaN and infinities included. */
void fxa__lower_exact_zero(const fxa_program *p, bool *zero);

/* Writes signs[n_nodes]: true = the sign matters when the value of the node is 0 or -0. false = a wrong sign of such a
 * zero changes no output, except the sign of an output that is zero. */
void fxa__lower_zero_signs(const fxa_program *p, bool *signs);

#endif
