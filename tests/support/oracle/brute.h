/* SPDX-License-Identifier: Apache-2.0
 *
 * Class of a box of pairs by evaluating every pair, to verify range analysis.
 */
#ifndef FXA_TESTS_BRUTE_H
#define FXA_TESTS_BRUTE_H

#include "fxattn/fxattn.h"

/* Scores for which masks are evaluated; for a mask that does not read the score, one of them suffices. */
enum { BRUTE_SCORES = 3 };
extern const double brute_scores[BRUTE_SCORES];

/* Returns the class of the box, for which every pair is evaluated with each of the scores. */
fxa_tile_class brute_class(const fxa_program *p, const fxa_tile_bounds *box, const double *params,
                           const fxa_view *tensors, const double *scores, int n_scores);

/* Returns a box for b and h, with rows q0..q1, keys k0..k1, and single values of q_len and k_len. */
fxa_tile_bounds brute_box(int32_t b, int32_t h, int64_t q0, int64_t q1, int64_t k0, int64_t k1, int32_t q_len,
                          int32_t k_len);

const char *brute_name(fxa_tile_class tile);                       /* returns "EMPTY", "MIXED" or "FULL" */
void brute_show(const fxa_program *p, const fxa_tile_bounds *box); /* prints the program and the box of a failed test */

#endif
