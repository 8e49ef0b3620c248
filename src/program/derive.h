/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between the reverse sweep (derive.c) and the differentiation rules of operations (derive_rules.c).
 */
#ifndef FXA_PROGRAM_DERIVE_H
#define FXA_PROGRAM_DERIVE_H

#include "program.h"

/* The node that the sweep is at. All values belong to the builder `b`. */
typedef struct fxa__derive_step {
    fxa_builder *b;
    fxa_value adj;               /* adjoint of the node */
    fxa_value result;            /* value of the node */
    fxa_value arg[FXA_MAX_RANK]; /* values of its operands */
    bool wanted[FXA_MAX_RANK];   /* the operand depends on a leaf that has a gradient */
    fxa_value out[FXA_MAX_RANK]; /* result, for wanted operands: contribution to the operand's adjoint; -1 = none */
} fxa__derive_step;

/* Fills out[] by the rule of `op`, which builds a bounded number of nodes. */
void fxa__derive_rule(uint32_t op, fxa__derive_step *s);
/* Returns true if this operation can pass a gradient to an operand. */
bool fxa__derive_passes(uint32_t op);

#endif
