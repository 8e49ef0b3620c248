/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, wide words: rewrites 64-bit comparisons of i64 elements (fxa__node_compares_wide) as comparisons of their
 * 32-bit halves ("words"), for engines with 32-bit ints. x == y becomes `first words equal && second words equal`,
 * x != y becomes `first words differ || second words differ`. Each word is a load of its own, so an engine's treatment
 * of loads, comparisons and bools applies unchanged.
 */
#ifndef FXA_LOWER_WIDE_WORDS_H
#define FXA_LOWER_WIDE_WORDS_H

#include "../program/program.h"

/* The result. If p has no 64-bit comparison, `program` is p itself. Otherwise it is `own`, with p's declarations and
 * outputs and its own nodes, which are in topological order but may contain equal and unused nodes. Its loads of one
 * half have fxa__node.word 1 or 2, the first or second 32 bits in memory. It has no hash and must not be retained,
 * printed or evaluated. */
typedef struct fxa__wide_words {
    const fxa_program *program; /* the program to lower */
    fxa_program own;
    fxa__node *nodes;
    fxa__output *outputs;
    size_t capacity; /* of nodes */
} fxa__wide_words;

/* Rewrites p, which must outlive *out. *out must not be moved or copied, since it may point into itself. Returns false
 * if memory ran out. The caller frees *out in either case. */
bool fxa__lower_wide_words(fxa__host *host, const fxa_program *p, fxa__wide_words *out);
void fxa__lower_wide_words_free(fxa__host *host, fxa__wide_words *words);

#endif
