/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, conjunct: a mask as parts that must all hold. Engines have cheap forms for most of them: bounds of loops,
 * arguments of kernels, words beside Q and K; what is left is evaluated pair by pair.
 *
 * The mask is true where every part is, for coordinates and lengths from 0 to FXA__PLAIN_MOST and for every score,
 * param and tensor that `narrow` does not speak of. Below, Q is q, or q + k_len - q_len where the part is `aligned`,
 * and C is c plus times_bound times the value of node `bound`, if there is one. All of it in 64 bits: nothing wraps.
 */
#ifndef FXA_LOWER_CONJUNCT_H
#define FXA_LOWER_CONJUNCT_H

#include "affine.h"

typedef enum fxa__part_kind {
    FXA__PART_CAUSAL, /* k <= Q + C */
    FXA__PART_WINDOW, /* Q - k <= C */
    FXA__PART_LENGTH, /* k <= C, or k <= k_len + C where it is `of_length` */
    FXA__PART_PREFIX, /* k <= Q + prefix, or what LENGTH says */
    FXA__PART_EQUAL,  /* node `row` equals node `key`: ints; the one reads q and no k, the other k and no q; `whole`: as
                         64 bits, of which the values of the two nodes are not enough */
    FXA__PART_ROW,    /* node `node`: reads neither k nor score: whole rows */
    FXA__PART_KEY,    /* node `node`: reads neither q nor score: whole columns */
    FXA__PART_OTHER,  /* node `node` */
    FXA__PARTS
} fxa__part_kind;

typedef struct fxa__part {
    uint8_t kind;
    bool negated;   /* ROW, KEY, OTHER: the node is to be false */
    bool aligned;   /* CAUSAL, WINDOW, PREFIX */
    bool of_length; /* LENGTH, PREFIX */
    bool narrow;    /* true only where the bound's value lies from -2^30 to 2^30; engines look at it before they run */
    bool same;      /* EQUAL: key is row with k for q, as in t[q] == t[k] */
    bool whole;     /* EQUAL: both are loads of i64, whose elements are compared, not what they saturate to */
    int8_t times_bound;
    int32_t node;  /* a bool of the mask that this part is, or is one of two parts of */
    int32_t bound; /* an int that reads neither q nor k nor score; -1: none */
    int32_t row, key;
    int64_t c, prefix;
} fxa__part;

typedef struct fxa__conjuncts {
    fxa__part *parts;
    size_t n, capacity;
    bool exact; /* no part is OTHER */
} fxa__conjuncts;

/* The mask of a SCORE program; no part: everything is attended. False: out of memory. Free in either case. */
bool fxa__lower_conjuncts(fxa__host *host, const fxa_program *p, fxa__conjuncts *out);
void fxa__lower_conjuncts_free(fxa__host *host, fxa__conjuncts *c);
const char *fxa__lower_part_name(fxa__part_kind kind); /* "causal", "window", ... */

#endif
