/* SPDX-License-Identifier: Apache-2.0
 *
 * Tile classes: whether a rectangle of local (q, k) indices is empty, full or mixed under the mask. fxa_tiles_count and
 * engines use these functions.
 */
#ifndef FXA_PROBLEM_TILES_H
#define FXA_PROBLEM_TILES_H

#include "geometry.h"

/* One axis of a rectangle: local indices (or tiles) first..last, inclusive. */
typedef struct fxa__slice {
    int64_t first, last;
} fxa__slice;

/* Cost of the range analysis of one box, in units of the evaluation of one pair. */
enum { FXA__TILE_BOX_COST = 8 };

/* A tile that range analysis finds MIXED is evaluated pair by pair if it has at most this many pairs. */
enum { FXA__TILE_MAX_PAIRS = 1024 };

/* Returns true if the coordinates of an index map are known only at run time. */
static inline bool fxa__map_is_dynamic(const fxa_index_map *map) {
    return map->kind == FXA_MAP_TABLE || map->has_offset;
}

/* State for evaluating single pairs (tiles_bruteforce.c). */
typedef struct fxa__tile_bruteforce {
    fxa__env env;
    fxa__seq seq;
    fxa_view *views;
    fxa__val *vals; /* values of the program's nodes at one pair; NULL = single pairs cannot be evaluated */
} fxa__tile_bruteforce;

/* Tiles of one batch entry b and head h. The members params and tensors are arguments for fxa_program_classify. */
typedef struct fxa__tile_grid {
    const fxa__problem *p;
    /* Program with the mask: the problem's program, or the result of fxa__program_extract_masks, where masks in the
     * score are part of the mask. */
    const fxa_program *program;
    int64_t b, h, tile_q, tile_k; /* tile_q, tile_k: rows and keys of a tile */
    const double *params;
    const fxa_tensor_range *tensors;
    int64_t *budget; /* number of pair evaluations left; below 0, every class is MIXED. NULL = no limit */
    /* state for evaluating single pairs, set by fxa_tiles_count; NULL = tiles are never evaluated pair by pair */
    fxa__tile_bruteforce *pairs;
} fxa__tile_grid;

/* Returns the class of the pairs q x k (local indices). Lengths and maps that are known only at run time can have any
 * value; see tiles.c. The tile sizes of g are not read. */
fxa_tile_class fxa__tile_class(const fxa__tile_grid *g, fxa__slice q, fxa__slice k);

/* Returns a box for batch entry g->b and head g->h, with the bounds of the inputs b, h, q_len, k_len and heads. The
 * caller sets the bounds of the other coordinates that the mask reads: q, k, q_row and k_row. */
fxa_tile_bounds fxa__tile_full_box(const fxa__tile_grid *g);
/* Returns the class of a box of coordinates. */
fxa_tile_class fxa__tile_box(const fxa__tile_grid *g, const fxa_tile_bounds *box);

/* Implements fxa_tiles_count for a grid with valid p, b, h, tile sizes, params and tensors. Sets program, budget and
 * pairs of the grid. */
fxa_status fxa__tiles_count(fxa__tile_grid *g, fxa_tile_counts *out, fxa_error *err);

/* Capacity of a stack of halved rectangles of tiles. 31 halvings of each axis put at most 63 rectangles on it. */
#define FXA__TILE_DEPTH 64

/* Counts the full-size tiles of the grid along diagonals, without partial tiles at the edges (tiles_diagonal.c).
 * g->budget must be set. Returns false, with nothing counted, if the tiles of one diagonal may have different classes,
 * for instance because the mask depends on q or k in another way than through q - k. */
bool fxa__tiles_count_diagonals(const fxa__tile_grid *g, fxa_tile_counts *out);

/* Prepares the evaluation of single pairs of g (tiles_bruteforce.c). pairs->vals stays NULL if this is not possible:
 * tiles are large, or values that the mask reads are not given or known only at run time. */
fxa_status fxa__tile_bruteforce_open(const fxa__tile_grid *g, fxa__tile_bruteforce *pairs, fxa_error *err);
/* Releases the memory of fxa__tile_bruteforce_open. */
void fxa__tile_bruteforce_close(const fxa__tile_grid *g, fxa__tile_bruteforce *pairs);
/* Returns the class of the tile q x k (local indices) by evaluating each pair of the tile; MIXED if pairs cannot be
 * evaluated or *g->budget is used up. g->pairs and g->budget must be set. */
fxa_tile_class fxa__tile_bruteforce_class(const fxa__tile_grid *g, fxa__slice q, fxa__slice k);
/* Tiles of 1 x 1 pair: evaluates the pairs of a rectangle, which is cheaper than halving the rectangle, and adds
 * `times` to a count of *out for each pair. Returns false, with nothing counted, if the tiles are larger, or if the
 * pairs are too many or cannot be evaluated. */
bool fxa__tile_bruteforce_count(const fxa__tile_grid *g, fxa__slice q, fxa__slice k, uint64_t times,
                                fxa_tile_counts *out);

#endif
