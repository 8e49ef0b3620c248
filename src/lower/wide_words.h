/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, wide words: comparisons of whole i64 elements (fxa__node_compares_wide) as comparisons of their halves, for
 * engines whose ints have 32 bits. x == y becomes `first words equal && second words equal`, x != y `first words differ
 * || second words differ`, each word a load of its own: so everything that an engine does with loads, comparisons and
 * bools, how often it computes them and where it keeps them, holds for these too.
 */
#ifndef FXA_LOWER_WIDE_WORDS_H
#define FXA_LOWER_WIDE_WORDS_H

#include "../program/program.h"

/* `program` is p itself where that compares no whole elements. Else it has p's declarations and outputs, and nodes of
 * its own, which are in order but neither unique nor all needed; its loads have fxa__node.word set where they give a
 * word, in whichever order memory has the two. It has no hash, and is not to be retained, printed or evaluated. */
typedef struct fxa__wide_words {
    const fxa_program *program;
    fxa_program own;
    fxa__node *nodes;
    fxa__output *outputs;
    size_t capacity; /* of nodes */
} fxa__wide_words;

/* *out stays where it is, and p lives as long. False: out of memory. Free in either case. */
bool fxa__lower_wide_words(fxa__host *host, const fxa_program *p, fxa__wide_words *out);
void fxa__lower_wide_words_free(fxa__host *host, fxa__wide_words *words);

#endif
