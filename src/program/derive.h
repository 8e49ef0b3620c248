/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between the reverse sweep (derive.c) and the differentiation rules of operations (derive_rules.c).
 */
#ifndef FXA_PROGRAM_DERIVE_H
#define FXA_PROGRAM_DERIVE_H

#include "program.h"

/* One step of the reverse sweep: the current node, its operands, and what the node adds to the adjoints of the
 * operands. Every fxa_value is a node of builder b. */
typedef struct fxa__derive_step {
    fxa_builder *b;
    fxa_value adj;               /* adjoint of the node */
    fxa_value result;            /* value of the node */
    fxa_value arg[FXA_MAX_RANK]; /* values of the node's operands */
    bool wanted[FXA_MAX_RANK];   /* true = the operand depends on the score, a float param or a load of floats */
    /* Result of the differentiation rule: for each operand with wanted[i], what to add to its adjoint; -1 = nothing. */
    fxa_value out[FXA_MAX_RANK];
} fxa__derive_step;

/* Fills s->out by the differentiation rule of operation `op`. Every rule builds a bounded number of nodes. */
void fxa__derive_rule(uint32_t op, fxa__derive_step *s);
/* Returns true if operation `op` can pass a gradient to an operand. */
bool fxa__derive_passes(uint32_t op);

#endif
