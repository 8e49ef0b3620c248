/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of a problem: the class of a rectangle of local indices, for fxa_tiles_count and for engines.
 */
#ifndef FXA_PROBLEM_TILES_H
#define FXA_PROBLEM_TILES_H

#include "geometry.h"

/* One axis of a rectangle of pairs: local indices (or tiles) first..last, inclusive. */
typedef struct fxa__slice {
    int64_t first, last;
} fxa__slice;

/* What a count has left to do, in evaluations of one pair. */
enum { FXA__TILE_BOX_COST = 8 }; /* of range analysis of one box */

/* Tiles of no more pairs than this are looked at pair by pair where range analysis leaves them mixed. */
enum { FXA__TILE_LOOK = 1024 };

/* Only the run knows the coordinates. */
static inline bool fxa__map_is_open(const fxa_index_map *map) { return map->kind == FXA_MAP_TABLE || map->has_offset; }

/* For looking at pairs (tiles_look.c). */
typedef struct fxa__tile_look {
    fxa__env env;
    fxa__seq seq;
    fxa_view *views;
    fxa__val *vals; /* NULL: only a run, or a caller who knows more, can tell what a pair is */
} fxa__tile_look;

/* The tiles of one (b, h). params, tensors as fxa_program_classify takes them. */
typedef struct fxa__tile_grid {
    const fxa__problem *p;
    const fxa_program *program; /* whose mask it is: the problem's, or that with masks lifted out of its score */
    int64_t b, h, tile_q, tile_k;
    const double *params;
    const fxa_tensor_range *tensors;
    int64_t *left;        /* what is below 0 is not done: the tile is MIXED. NULL: no bound */
    fxa__tile_look *look; /* of a count, else NULL */
} fxa__tile_grid;

/* The class of all pairs q x k of local indices. Lengths and maps that only a run knows are taken as unknown: see
 * tiles.c. The tile sizes of the grid are not read. */
fxa_tile_class fxa__tile_class(const fxa__tile_grid *g, fxa__slice q, fxa__slice k);

/* Of the same, when q and k are coordinates already: a box with all but q and k set, and its class. */
fxa_tile_bounds fxa__tile_start(const fxa__tile_grid *g);
fxa_tile_class fxa__tile_box(const fxa__tile_grid *g, const fxa_tile_bounds *box);

/* fxa_tiles_count of a grid whose p, b, h and tile sizes are in order; program, left and look are its own to fill. */
fxa_status fxa__tiles_count(fxa__tile_grid *g, fxa_tile_counts *out, fxa_error *err);

/* Halving keeps one half waiting at each step: at most 31 of each axis. */
#define FXA__TILE_DEPTH 64

/* Counts the whole tiles of the grid (not the cut ones at its ends) along diagonals; g->left is given. False: the mask
 * is not one that allows it, and nothing was counted. (tiles_diagonal.c) */
bool fxa__tiles_count_diagonals(const fxa__tile_grid *g, fxa_tile_counts *out);

/* Makes ready to look at the pairs of g; where that cannot be, vals stays NULL. (tiles_look.c) */
fxa_status fxa__tile_look_open(const fxa__tile_grid *g, fxa__tile_look *look, fxa_error *err);
void fxa__tile_look_close(const fxa__tile_grid *g, fxa__tile_look *look);
/* The class of a tile of local indices that range analysis calls mixed, by its pairs if they are few and can be known;
 * g->look and g->left are given. */
fxa_tile_class fxa__tile_look_at(const fxa__tile_grid *g, fxa__slice q, fxa__slice k);
/* Counts the pairs of a mixed rectangle, `times` each, where tiles are single pairs: cheaper than halving down to them.
 * False: nothing was counted, because they are too many or cannot be known. */
bool fxa__tile_look_pairs(const fxa__tile_grid *g, fxa__slice q, fxa__slice k, uint64_t times, fxa_tile_counts *out);

#endif
