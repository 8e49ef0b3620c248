/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, conjunct: splits a mask into parts that must all hold. Engines implement most parts cheaply (loop bounds,
 * kernel arguments, per-row and per-key operands) and evaluate the others pair by pair.
 *
 * For coordinates and lengths from 0 to FXA__MAX_COORDINATE, the mask is true exactly where every part is true. A part
 * with `needs_small_bound` has one more condition. The comments on fxa__part_kind use these abbreviations, in 64-bit
 * arithmetic without wrap-around:
 *
 *     Q = aligned ? q + k_len - q_len : q
 *     C = c + times_bound * value of node `bound`    (bound -1: C = c)
 */
#ifndef FXA_LOWER_CONJUNCT_H
#define FXA_LOWER_CONJUNCT_H

#include "affine.h"

/* Condition of a part. Q and C are defined at the top of this file. */
typedef enum fxa__part_kind {
    FXA__PART_CAUSAL, /* k <= Q + C */
    FXA__PART_WINDOW, /* Q - k <= C */
    FXA__PART_LENGTH, /* k <= C; of_length: k <= k_len + C */
    FXA__PART_PREFIX, /* the condition of CAUSAL with `prefix` in place of C, or the condition of LENGTH */
    FXA__PART_EQUAL,  /* values of int nodes `row` and `key` are equal; `row` reads q and not k, `key` k and not q */
    FXA__PART_ROW,    /* bool node `node`, which reads neither k nor the score, so it masks entire rows */
    FXA__PART_KEY,    /* bool node `node`, which reads neither q nor the score, so it masks entire columns */
    FXA__PART_OTHER,  /* any other condition: bool node `node`, evaluated for each pair of a row and a key */
    FXA__PARTS
} fxa__part_kind;

typedef struct fxa__part {
    uint8_t kind; /* fxa__part_kind */
    bool negated; /* ROW, KEY, OTHER: the part holds where `node` is false */
    /* CAUSAL, WINDOW, PREFIX: true = the condition is aligned to the bottom right: Q is q + k_len - q_len, not q */
    bool aligned;
    bool of_length; /* LENGTH, PREFIX: true = the limit of k counts from k_len; false = from 0 */
    /* true = the part is valid only if the value of `bound` is in [-2^30, 2^30]; engines check the value before a
     * run */
    bool needs_small_bound;
    bool same;          /* EQUAL: `key` is `row` with q replaced by k, as in t[q] == t[k] */
    bool wide;          /* EQUAL: row and key are i64 loads, compared in all 64 bits, not as saturated 32-bit ints */
    int8_t times_bound; /* 1 or -1: the limit C is c + times_bound * (value of `bound`) */
    int32_t node;       /* bool node of the mask that this part implements; two parts may implement one node */
    int32_t bound;      /* int node that reads neither q, k nor the score; -1 = none */
    int32_t row, key;   /* EQUAL: the two int nodes that are compared; -1 for other kinds */
    int64_t c, prefix;  /* constants in the condition of the part's kind (fxa__part_kind) */
} fxa__part;

typedef struct fxa__conjuncts {
    fxa__part *parts; /* [n] conditions; the mask is true where all conditions are true */
    size_t n, capacity;
    bool exact; /* true = no part is of kind OTHER */
} fxa__conjuncts;

/* Splits the mask of a SCORE program into *out. Without parts, every pair is attended. Returns false if memory ran out.
 * The caller frees *out in either case. */
bool fxa__lower_conjuncts(fxa__host *host, const fxa_program *p, fxa__conjuncts *out);
void fxa__lower_conjuncts_free(fxa__host *host, fxa__conjuncts *c);
const char *fxa__lower_part_name(fxa__part_kind kind); /* "causal", "window", ... */

#endif
