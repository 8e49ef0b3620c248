/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax arithmetic of one row in f64, shared by all engines: the merge of partial rows (fxa_merge, FXA_ACCUMULATE_O)
 * and the probabilities of a backward pass.
 */
#ifndef FXA_PROBLEM_MERGE_H
#define FXA_PROBLEM_MERGE_H

#include <math.h>
#include <stdint.h>

/* Merges the partial row (o_b, lse_b) into (o_a, *lse_a); o_a and o_b have d elements. O of a side with weight exactly
 * 0 is not read. If both LSEs are -inf, O becomes zeros and the LSE stays -inf; a NaN LSE makes the row NaN. */
void fxa__merge_row(double *o_a, double *lse_a, const double *o_b, double lse_b, int64_t d);

/* Returns exp(score - lse), the probability of a score or sink in backward. The result is limited to 1, because a
 * rounded LSE may be less than the largest score. NaN stays NaN. */
static inline double fxa__probability(double score, double lse) {
    double x = score - lse;
    return x > 0 ? 1 : exp(x);
}

#endif
