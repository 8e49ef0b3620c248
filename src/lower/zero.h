/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, zero: which nodes of a backward program keep an exact 0. "Zero wins" (derive_rules.c) makes derivatives
 * that are 0 wherever dscore is; a user's bprop need not be. Engines write a gradient straight where this proves it,
 * and guard it by dscore where it does not; and pairs whose dscore is 0 may be passed over for what it proves.
 *
 * And of which nodes somebody sees the sign of a 0: 1 / 0 and 1 / -0 differ, and mulz and divz make 0 of both.
 */
#ifndef FXA_LOWER_ZERO_H
#define FXA_LOWER_ZERO_H

#include "../program/program.h"

/* zero[n_nodes]: the node is a float that is 0 or -0 wherever dscore is 0 or -0, whatever all else is, NaN and
 * infinities included. False where that is not proven. */
void fxa__lower_zero(const fxa_program *p, bool *zero);

/* signs[n_nodes]: an output may differ in more than the sign of its own 0 where the node is -0 and not 0, or 0 and not
 * -0. True where nothing is known. */
void fxa__lower_zero_signs(const fxa_program *p, bool *signs);

#endif
