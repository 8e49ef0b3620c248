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

/* Returns the estimated number of floating-point operations of the matrix products, over the pairs of a row and a key
 * that the causal and window bounds of the mask keep. Assumptions about values known only at run time:
 * - Packed sequences (VARLEN) all have the same length.
 * - Padded sequences (PADDING) have no padding.
 * - With start positions (Q_START), the last row is at the last key. */
double fxa__problem_operations(const fxa__problem *p);
/* Returns the size of K and V in bytes. A pass with few rows, as in decoding, reads K and V once. */
double fxa__problem_key_bytes(const fxa__problem *p);
/* Returns true if the score of each pair has a tanh soft cap. */
bool fxa__problem_is_capped(const fxa__problem *p);
/* Returns true if the work per row may vary irregularly, for one of these reasons:
 * - The problem has captured tensors.
 * - The mask depends on the batch entry or the head.
 * - The mask is neither absent nor a causal mask, a window or a padding mask. */
bool fxa__problem_is_uneven(const fxa__problem *p);

#endif
