/* SPDX-License-Identifier: Apache-2.0
 *
 * How much a pass has to do, about: for engines that tell what a run will cost.
 */
#ifndef FXA_PROBLEM_WORK_H
#define FXA_PROBLEM_WORK_H

#include "problem.h"

/* Multiplications and additions of the matrix products of a pass, over the pairs that bands of the mask leave (causal,
 * windows); packed sequences are taken for equally long, lengths that the run brings for the longest, and rows whose
 * positions it brings for the last ones. */
double fxa__problem_operations(const fxa__problem *p);
/* Bytes of K and V, once: what a pass of few rows has to read. */
double fxa__problem_key_bytes(const fxa__problem *p);
/* Whether a soft cap has to be computed for each pair. */
bool fxa__problem_is_capped(const fxa__problem *p);
/* Whether something besides bands and lengths decides over pairs, or is read for them: tensors, other masks. */
bool fxa__problem_is_uneven(const fxa__problem *p);

#endif
