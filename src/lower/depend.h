/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, depend: the inputs, params and tensors that each node depends on, as bit sets, and from the sets the rate
 * of each node: how often its value changes (fxa__rate). Engines compute a node outside the loops over inputs that the
 * node does not depend on.
 *
 * Sets are conservative: inputs that are not in the set of a node never change the node's value, while inputs in the
 * set may have no effect (0 * q depends on q). A set contains only inputs, params and tensors that are read to compute
 * the node. The operation with_grad depends on what its first operand depends on.
 */
#ifndef FXA_LOWER_DEPEND_H
#define FXA_LOWER_DEPEND_H

#include "../program/linear.h"

typedef struct fxa__depend {
    uint32_t inputs; /* bit i = the node depends on fxa_input i */
    /* true = the node depends on row and key only through q - k, for coordinates and lengths from 0 to
     * FXA__MAX_COORDINATE */
    bool diagonal;
    uint64_t params;  /* bit i = the node depends on param i */
    uint64_t tensors; /* bit i = the node depends on an element of tensor i */
} fxa__depend;

/* Writes the sets of every node to out[n_nodes]. forms: the result of fxa__lower_affine; if NULL, `diagonal` is always
 * false. */
void fxa__lower_depend(const fxa_program *p, const fxa__linear *forms, fxa__depend *out);

/* How often the value of a node changes, from never to once per pair of a row and a key. Values of all rates from HEAD
 * on may also depend on b and on lengths, so a value of rate KEY can differ between batch entries. */
typedef enum fxa__rate {
    FXA__RATE_CONST,    /* depends on nothing */
    FXA__RATE_RUN,      /* depends on params or on tensor elements at constant indices */
    FXA__RATE_BATCH,    /* depends on b, lengths or the number of heads */
    FXA__RATE_HEAD,     /* depends on h */
    FXA__RATE_ROW,      /* depends on q or q_row, and may depend on h */
    FXA__RATE_KEY,      /* depends on k or k_row, not on h */
    FXA__RATE_HEAD_KEY, /* depends on k or k_row, and on h */
    FXA__RATE_DIAGONAL, /* depends on q - k, and may depend on h */
    FXA__RATE_PAIR,     /* depends on row and key, not only through q - k */
    FXA__RATE_SCORE,    /* depends on score or dscore */
    FXA__RATES
} fxa__rate;
/* Returns the rate of a node, from the sets of inputs, params and tensors that the node depends on. */
fxa__rate fxa__lower_rate(const fxa__depend *d);
const char *fxa__lower_rate_name(fxa__rate rate); /* "const", "run", "batch", ... */

#endif
