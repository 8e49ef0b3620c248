/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between the reverse sweep (derive.c) and the differentiation rules of operations (derive_rules.c).
 */
#ifndef FXA_PROGRAM_DERIVE_H
#define FXA_PROGRAM_DERIVE_H

#include "program.h"

/* One step of the reverse sweep: the current node, its operands and its contributions. All values belong to builder
 * b. */
typedef struct fxa__derive_step {
    fxa_builder *b;
    fxa_value adj;               /* adjoint of the node */
    fxa_value result;            /* value of the node */
    fxa_value arg[FXA_MAX_RANK]; /* values of the node's operands */
    bool wanted[FXA_MAX_RANK];   /* true = the operand depends on the score, a float param or a load of floats */
    fxa_value out[FXA_MAX_RANK]; /* result for wanted operands: contribution to the operand's adjoint; -1 = none */
} fxa__derive_step;

/* Fills s->out by the differentiation rule of operation `op`. Every rule builds a bounded number of nodes. */
void fxa__derive_rule(uint32_t op, fxa__derive_step *s);
/* Returns true if operation `op` can pass a gradient to an operand. */
bool fxa__derive_passes(uint32_t op);

#endif
