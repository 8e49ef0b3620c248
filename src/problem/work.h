/* SPDX-License-Identifier: Apache-2.0
 *
 * How much a pass has to do, about: for engines that tell what a run will cost.
 */
#ifndef FXA_PROBLEM_WORK_H
#define FXA_PROBLEM_WORK_H

#include "problem.h"

/* Multiplications and additions of the matrix products of a pass, over the pairs that bands of the mask leave (causal,
 * windows); packed sequences are taken for equally long, and lengths that the run brings for the longest. */
double fxa__problem_operations(const fxa__problem *p);

#endif
