/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies the outputs of a program to a builder that has imported its nodes. Used by fuse.c and parameterize.c.
 */
#ifndef FXA_LOWER_COPY_OUTPUTS_H
#define FXA_LOWER_COPY_OUTPUTS_H

#include "../program/program.h"

/* Sets every output of p whose kind is in `kinds` (bit i: fxa__out_kind i) as an output of b. map[n_nodes] holds the
 * value of b for each node of p. Gradients are added to the params and tensors of the same names. The program kind of b
 * must have these output kinds; failures are recorded in b. */
void fxa__lower_copy_outputs(fxa_builder *b, const fxa_program *p, const fxa_value *map, uint32_t kinds);

#endif
