/* SPDX-License-Identifier: Apache-2.0
 *
 * The class of a box of pairs by evaluating every pair: what range analysis must never contradict.
 */
#ifndef FXA_TESTS_BRUTE_H
#define FXA_TESTS_BRUTE_H

#include "fxattn/fxattn.h"

/* Scores that a mask may see; one is enough for a mask that reads none. */
enum { BRUTE_SCORES = 3 };
extern const double brute_scores[BRUTE_SCORES];

/* Every pair is tried with each of the scores. */
fxa_tile_class brute_class(const fxa_program *p, const fxa_tile_bounds *box, const double *params,
                           const fxa_view *tensors, const double *scores, int n_scores);

/* b, h, q, k as given, q_len and k_len single values. */
fxa_tile_bounds brute_box(int32_t b, int32_t h, int64_t q0, int64_t q1, int64_t k0, int64_t k1, int32_t q_len,
                          int32_t k_len);

const char *brute_name(fxa_tile_class tile);                       /* "EMPTY", ... */
void brute_show(const fxa_program *p, const fxa_tile_bounds *box); /* prints both, for a failed test */

#endif
