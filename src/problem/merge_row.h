/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax arithmetic of one row in f64, which all engines share: merging two partial results of a row (fxa_merge,
 * FXA_ACCUMULATE_O), and the probabilities of a backward pass.
 */
#ifndef FXA_PROBLEM_MERGE_ROW_H
#define FXA_PROBLEM_MERGE_ROW_H

#include <math.h>
#include <stdint.h>

/* Merges the partial result b of a row (o_b, lse_b) into the partial result a (o_a, *lse_a); o_a and o_b have d
 * elements. If one of the two partial results has weight exactly 0, its O is not read. If both LSEs are -inf, o_a
 * becomes zeros and *lse_a stays -inf. A NaN LSE makes the row NaN. */
void fxa__merge_row(double *o_a, double *lse_a, const double *o_b, double lse_b, int64_t d);

/* Returns exp(score - lse), the probability of a score or sink in a backward pass. The result is at most 1, although a
 * rounded LSE may be less than the largest score. A NaN score or LSE gives NaN. */
static inline double fxa__probability(double score, double lse) {
    double x = score - lse;
    return x > 0 ? 1 : exp(x);
}

#endif
