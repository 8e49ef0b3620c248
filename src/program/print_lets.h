/* SPDX-License-Identifier: Apache-2.0
 *
 * Let statements of a printed program (print.c). A node that is used more than once or is deeply nested gets a let,
 * and its users read the name of the let.
 */
#ifndef FXA_PROGRAM_PRINT_LETS_H
#define FXA_PROGRAM_PRINT_LETS_H

#include "program.h"

/* bytes of the prefix with which all names of lets begin, including the terminating zero byte */
enum { FXA__PRINT_PREFIX = 33 };

typedef struct fxa__print_mark {
    uint32_t uses;
    int32_t let; /* number of the node's let; -1 = the node is written in place */
    /* nesting depth of the node's text; an operand with a let adds no depth, because its text is a name */
    uint8_t depth;
    bool reads_score;
} fxa__print_mark;

/* Returns true if the node is a conversion that the builder may insert. */
bool fxa__print_is_cast(const fxa_program *p, int32_t n);
/* Returns true for a constant, an input, a param, and a load with only these as indices. Such a node gets no let, even
 * if it is used more than once. */
bool fxa__print_is_leaf(const fxa_program *p, int32_t n);
/* Writes mark[n] for every node n: the uses, let and depth of n, and whether n reads the score. The array is zeroed
 * before the call. */
void fxa__print_mark_nodes(const fxa_program *p, fxa__print_mark *mark);
/* Writes the first of t, u, ..., z, t_, u_, ... for which no param or tensor is named this prefix followed by digits.
 * `prefix` is zeroed before the call. There are more prefixes than names in a program. */
void fxa__print_choose_prefix(const fxa_program *p, char prefix[FXA__PRINT_PREFIX]);

#endif
