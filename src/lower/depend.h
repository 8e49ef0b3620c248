/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, depend: what each node of a program needs, as sets. Whatever does not need the score is computed outside
 * of the innermost loop; how far outside, its rate says: once per run, batch entry, head, row, key, head and key, or
 * diagonal.
 *
 * Sets never lack anything: a node gives the same bits for all values of what its set leaves out. They may hold more
 * than a value really depends on (0 * q needs q), but nothing that no operand of it needs: whoever computes a value
 * finds the leaves that its set names among what it computes. with_grad needs what its first operand needs.
 */
#ifndef FXA_LOWER_DEPEND_H
#define FXA_LOWER_DEPEND_H

#include "../program/linear.h"

typedef struct fxa__depend {
    uint32_t inputs;  /* bit i: fxa_input i */
    bool diagonal;    /* it needs row and key, but only q - k; for coordinates and lengths 0..FXA__PLAIN_MOST */
    uint64_t params;  /* bit i: param i */
    uint64_t tensors; /* bit i: an element of tensor i */
} fxa__depend;

/* Fills out[n_nodes]. forms: of the program, by fxa__lower_affine; NULL: no diagonals are found. */
void fxa__lower_depend(const fxa_program *p, const fxa__linear *forms, fxa__depend *out);

/* How often a value changes, from never to with every pair and score. Lengths and the number of heads are those of a
 * batch entry. A rate says nothing of b: KEY values may be others in each entry. */
typedef enum fxa__rate {
    FXA__RATE_CONST,    /* needs nothing */
    FXA__RATE_RUN,      /* params and tensors at fixed places */
    FXA__RATE_BATCH,    /* b, lengths, heads */
    FXA__RATE_HEAD,     /* h */
    FXA__RATE_ROW,      /* q or q_row, perhaps h */
    FXA__RATE_KEY,      /* k or k_row */
    FXA__RATE_HEAD_KEY, /* h and k */
    FXA__RATE_DIAGONAL, /* q - k, perhaps h */
    FXA__RATE_PAIR,     /* what changes with the row, and with the key */
    FXA__RATE_SCORE,    /* score or dscore */
    FXA__RATES
} fxa__rate;
fxa__rate fxa__lower_rate(const fxa__depend *d);
const char *fxa__lower_rate_name(fxa__rate rate); /* "const", "run", "batch", ... */

#endif
