/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies the outputs of a program to a builder that has imported the program's nodes. Used by fuse.c and
 * parameterize.c.
 */
#ifndef FXA_LOWER_COPY_OUTPUTS_H
#define FXA_LOWER_COPY_OUTPUTS_H

#include "../program/program.h"

/* Adds every output of p whose kind is in `kinds` (bit i: fxa__out_kind i) to the outputs of b; the program kind of b
 * must allow these output kinds. map[n_nodes] holds the value of b for each node of p. Gradients are added to the
 * params and tensors of b with the same names. Failures are recorded in b. */
void fxa__lower_copy_outputs(fxa_builder *b, const fxa_program *p, const fxa_value *map, uint32_t kinds);

#endif
