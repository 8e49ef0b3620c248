/* SPDX-License-Identifier: Apache-2.0
 *
 * Outputs of one program as those of another that is being built from it: for joint.c and lift.c.
 */
#ifndef FXA_LOWER_COPY_OUTPUTS_H
#define FXA_LOWER_COPY_OUTPUTS_H

#include "../program/program.h"

/* Sets those outputs of p whose kind is in `kinds` (bit i: fxa__out_kind i) as outputs of b, whose kind has them; map
 * gives the value of each node of p. Gradients go to params and tensors of the same names. */
void fxa__lower_copy_outputs(fxa_builder *b, const fxa_program *p, const fxa_value *map, uint32_t kinds);

#endif
