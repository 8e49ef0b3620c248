/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of a problem: the class of a rectangle of local indices, for fxa_tiles_count and for engines.
 */
#ifndef FXA_PROBLEM_TILES_H
#define FXA_PROBLEM_TILES_H

#include "problem.h"

/* One axis of a rectangle of pairs: local indices first..last, inclusive. */
typedef struct fxa__slice {
    int64_t first, last;
} fxa__slice;

/* The class of all pairs q x k of one (b, h) under the program of p. Lengths and maps that only a run knows are taken
 * as unknown; see tiles.c. params, tensors as fxa_program_classify takes them. */
fxa_tile fxa__tile_class(const fxa__problem *p, int64_t b, int64_t h, fxa__slice q, fxa__slice k, const double *params,
                         const fxa_tensor_range *tensors);

#endif
