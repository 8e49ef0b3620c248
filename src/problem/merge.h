/* SPDX-License-Identifier: Apache-2.0
 *
 * What softmax makes of one row, in f64 for every engine: the join of partial rows, as fxa_merge and FXA_ACCUMULATE_O
 * do it, and the probabilities that backward takes.
 */
#ifndef FXA_PROBLEM_MERGE_H
#define FXA_PROBLEM_MERGE_H

#include <math.h>
#include <stdint.h>

/* (o_a, *lse_a) becomes the join of itself and (o_b, lse_b), d features each. Of a side whose weight is exactly 0 no
 * feature is read; both -inf: zeroes and -inf; a NaN LSE makes the row NaN. */
void fxa__merge_row(double *o_a, double *lse_a, const double *o_b, double lse_b, int64_t d);

/* What backward takes for the probability of a new score or a sink. An LSE that was rounded may lie below the largest
 * score; a probability is at most 1 all the same. NaN stays NaN. */
static inline double fxa__probability(double score, double lse) {
    double x = score - lse;
    return x > 0 ? 1 : exp(x);
}

#endif
