/* SPDX-License-Identifier: Apache-2.0
 *
 * Geometry shared by the engines that run on the host: where sequences, rows and keys of a run lie, and which
 * coordinates the program sees of them.
 */
#ifndef FXA_PROBLEM_GEOMETRY_H
#define FXA_PROBLEM_GEOMETRY_H

#include "bind.h"

/* One batch entry: how long it is and where it starts. */
typedef struct fxa__seq {
    int64_t q_len, k_len;           /* rows and keys that exist */
    int64_t q_start, k_start;       /* VARLEN: offset of the first row in the packed tensors; else 0 */
    int32_t q_len_seen, k_len_seen; /* what the program reads as q_len, k_len, */
    int32_t heads_seen;             /* and as heads, which no run changes */
    int64_t q_shift;                /* what POSITIONS, or BOTTOM_RIGHT without a ready mask, adds to q */
} fxa__seq;
fxa__seq fxa__seq_get(const fxa__problem *p, const fxa__bind *bind, int64_t b);

/* What k_len - q_len may be, before a run; 0..0 without BOTTOM_RIGHT. */
void fxa__align_range(const fxa_problem *p, int64_t *lo, int64_t *hi);
/* All that q_shift may be, before a run: 0..0 where nothing is added, all of 32 bits where only the run knows. */
void fxa__q_shift_range(const fxa_problem *p, int64_t *lo, int64_t *hi);

/* Returns true if the map gives every index itself. */
bool fxa__map_is_identity(const fxa_index_map *map);
/* Returns FXA_INPUT_Q_ROW and FXA_INPUT_K_ROW as bits where q and k are the index of the row and of the key in every
 * run: no map, position or alignment moves them. */
uint32_t fxa__unmoved_inputs(const fxa_problem *p);

/* BOTTOM_RIGHT without a ready mask to align: the rows themselves are, to the last key. */
bool fxa__rows_are_aligned(const fxa_problem *p);

/* How the rows of a slot lie (Q K V O, gradients, LSE, row maximum), and how many features they have. */
const fxa_operand *fxa__row_operand(const fxa_problem *p, fxa_slot slot, int64_t *d);

/* Offset in elements of feature 0 of (b, head, position) in operand `t`, position local to the sequence b. */
int64_t fxa__row_offset(const fxa__problem *p, const fxa__seq *seq, const fxa_operand *t, bool is_key,
                        const fxa__bind *bind, int64_t b, int64_t h, int64_t s);

/* Coordinate of local index i: axis is FXA_INPUT_B, _H or _K; of row i the sequence it belongs to decides, too. Wrap to
 * 32 bits as program ints do. */
int32_t fxa__coord(const fxa__problem *p, const fxa__bind *bind, fxa_input axis, int64_t i);
int32_t fxa__row_coord(const fxa__problem *p, const fxa__bind *bind, const fxa__seq *seq, int64_t i);

#endif
