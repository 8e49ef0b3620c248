/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the reverse sweep (derive.c) and the rules of single operations (derive_rules.c).
 */
#ifndef FXA_PROGRAM_DERIVE_H
#define FXA_PROGRAM_DERIVE_H

#include "program.h"

/* One node of the program being derived, while the sweep stands on it. All values live in the builder `b`. */
typedef struct fxa__derive_step {
    fxa_builder *b;
    fxa_value adj;               /* derivative of the result by this node */
    fxa_value result;            /* the node itself */
    fxa_value arg[FXA_MAX_RANK]; /* its operands */
    bool wanted[FXA_MAX_RANK];   /* does anything that gets a gradient lie behind this operand? */
    fxa_value out[FXA_MAX_RANK]; /* to fill for wanted operands: what flows back to each; -1: nothing */
} fxa__derive_step;

/* Fills out[] by the rule of `op`; node count of what it builds is bounded by a constant. */
void fxa__derive_rule(uint32_t op, fxa__derive_step *s);
/* Does this operation ever pass a gradient to an operand? */
bool fxa__derive_passes(uint32_t op);

#endif
