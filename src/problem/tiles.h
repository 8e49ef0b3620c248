/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of a problem: the class of a rectangle of local indices, for fxa_tiles_count and for engines.
 */
#ifndef FXA_PROBLEM_TILES_H
#define FXA_PROBLEM_TILES_H

#include "problem.h"

/* One axis of a rectangle of pairs: local indices (or tiles) first..last, inclusive. */
typedef struct fxa__slice {
    int64_t first, last;
} fxa__slice;

/* The tiles of one (b, h). params, tensors as fxa_program_classify takes them. */
typedef struct fxa__tile_grid {
    const fxa__problem *p;
    int64_t b, h, tile_q, tile_k;
    const double *params;
    const fxa_tensor_range *tensors;
    int64_t *left; /* how many more boxes may be looked at; what would be one more is MIXED. NULL: any number */
} fxa__tile_grid;

/* The class of all pairs q x k of local indices. Lengths and maps that only a run knows are taken as unknown: see
 * tiles.c. The tile sizes of the grid are not read. */
fxa_tile fxa__tile_class(const fxa__tile_grid *g, fxa__slice q, fxa__slice k);

/* Of the same, when q and k are coordinates already: a box with all but q and k set, and its class. */
fxa_box fxa__tile_start(const fxa__tile_grid *g);
fxa_tile fxa__tile_box(const fxa__tile_grid *g, const fxa_box *box);

/* Halving keeps one half waiting at each step: at most 31 of each axis. */
#define FXA__TILE_DEPTH 64

/* Counts the whole tiles of the grid (not the cut ones at its ends) along diagonals; g->left is given. False: the mask
 * is not one that allows it, and nothing was counted. (tiles_diagonal.c) */
bool fxa__tiles_count_diagonals(const fxa__tile_grid *g, fxa_tile_counts *out);

#endif
