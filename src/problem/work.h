/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of a pass: whether there is any work, and estimates of it for the cost models of engines.
 */
#ifndef FXA_PROBLEM_WORK_H
#define FXA_PROBLEM_WORK_H

#include "problem.h"

/* Returns the number of batch entries that a run visits: b, or 0 if no entry has an element to write or a pair to sum
 * over (sequences without rows or keys, rows without features). The sizes b and hq of a tensor without elements are not
 * limited, so a loop over them might take forever. */
int64_t fxa__entries_with_work(const fxa__problem *p);

/* Returns the floating-point operations of the matrix products over the pairs that the band of the mask (causal,
 * windows) keeps. Packed sequences count as equally long, padded ones as full, and rows with run-time positions as the
 * last rows. */
double fxa__problem_operations(const fxa__problem *p);
/* Returns the bytes of K and V. A pass with few rows, as in decoding, reads them once. */
double fxa__problem_key_bytes(const fxa__problem *p);
/* Returns true if each pair computes a tanh soft cap. */
bool fxa__problem_is_capped(const fxa__problem *p);
/* Returns true if there are captured tensors, or masks other than bands (causal, window) and lengths. */
bool fxa__problem_is_uneven(const fxa__problem *p);

#endif
