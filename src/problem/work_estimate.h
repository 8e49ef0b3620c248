/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of a pass: whether there is any work, and estimates of the work for the cost models of engines.
 */
#ifndef FXA_PROBLEM_WORK_ESTIMATE_H
#define FXA_PROBLEM_WORK_ESTIMATE_H

#include "problem.h"

/* Returns the number of batch entries that a run loops over: b, or 0 if there is nothing to compute because sequences
 * have no rows or keys, or rows have head dim 0. A loop over b would be slow in these cases, because b of an empty
 * tensor may be as large as 2^31 - 1. */
int64_t fxa__entries_with_work(const fxa__problem *p);

/* Returns the estimated number of floating-point operations of the matrix products, over the pairs that the causal and
 * window bounds of the mask keep. Packed sequences count as equally long, padded sequences as full, and rows with start
 * positions known only at run time as the last rows. */
double fxa__problem_operations(const fxa__problem *p);
/* Returns the size of K and V in bytes. A pass with few rows, as in decoding, reads K and V once. */
double fxa__problem_key_bytes(const fxa__problem *p);
/* Returns true if the score of each pair has a tanh soft cap. */
bool fxa__problem_is_capped(const fxa__problem *p);
/* Returns true if the work per row may vary irregularly: the problem has captured tensors, a mask that differs between
 * batch entries or heads, or a mask that is not causal, a window or padding. */
bool fxa__problem_is_uneven(const fxa__problem *p);

#endif
