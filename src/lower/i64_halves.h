/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, i64 halves: rewrites 64-bit comparisons of i64 elements (fxa__node_compares_wide) as comparisons of their
 * 32-bit halves, for engines with 32-bit ints. x == y becomes `first halves equal && second halves equal`, x != y
 * becomes `first halves differ || second halves differ`. Each half is a load of its own, so an engine's treatment of
 * loads, comparisons and bools applies unchanged.
 */
#ifndef FXA_LOWER_I64_HALVES_H
#define FXA_LOWER_I64_HALVES_H

#include "../program/program.h"

/* Result of fxa__lower_i64_halves. If p has no 64-bit comparison, `program` is p. Otherwise `program` is `own`, a new
 * program with p's declarations and outputs. The nodes of `own` are in topological order but may include equal and
 * unused nodes. fxa__node.half is 1 for a load of the first 32 bits of an element in memory, 2 for the second 32 bits.
 * `own` has no hash, and must not be retained, printed or evaluated. */
typedef struct fxa__i64_halves {
    const fxa_program *program; /* the program to lower: &own, or the program passed in if it needs no rewrite */
    fxa_program own;
    fxa__node *nodes;
    fxa__output *outputs;
    size_t capacity; /* allocated nodes */
} fxa__i64_halves;

/* Rewrites p, which must outlive *out. *out must not be moved or copied, since it may point into itself. Returns false
 * if memory ran out. The caller frees *out in either case. */
bool fxa__lower_i64_halves(fxa__host *host, const fxa_program *p, fxa__i64_halves *out);
void fxa__lower_i64_halves_free(fxa__host *host, fxa__i64_halves *halves);

#endif
