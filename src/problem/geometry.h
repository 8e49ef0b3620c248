/* SPDX-License-Identifier: Apache-2.0
 *
 * Geometry for engines that run on the host: memory offsets of rows and keys, and coordinates that the program reads.
 */
#ifndef FXA_PROBLEM_GEOMETRY_H
#define FXA_PROBLEM_GEOMETRY_H

#include "bound_args.h"

/* Lengths and starts of one batch entry. */
typedef struct fxa__seq {
    int64_t q_len, k_len;           /* number of rows and of keys */
    int64_t q_start, k_start;       /* VARLEN: index of the first row and key in the packed tensors; else 0 */
    int32_t q_len_seen, k_len_seen; /* values of the program's inputs q_len and k_len */
    int32_t heads_seen;             /* value of the program's input `heads`, the same in all runs */
    /* Number added to q: Q_START of the batch entry, or the shift of BOTTOM_RIGHT without a built-in mask; else 0. */
    int64_t q_shift;
} fxa__seq;
/* Returns the sequence of batch entry b, from lengths and offsets in the slots of bound. */
fxa__seq fxa__seq_get(const fxa__problem *p, const fxa__bound_args *bound, int64_t b);

/* Sets the range of k_len - q_len over all runs; 0..0 without BOTTOM_RIGHT. */
void fxa__align_range(const fxa_problem *p, int64_t *lo, int64_t *hi);
/* Sets the range of q_shift over all runs: 0..0 if there is no shift, all 32-bit values for Q_START. */
void fxa__q_shift_range(const fxa_problem *p, int64_t *lo, int64_t *hi);

/* Returns true if the map is the identity. */
bool fxa__map_is_identity(const fxa_index_map *map);
/* Returns bit FXA_INPUT_Q_ROW if the coordinate q of a row is its local index in every run, because no map, start
 * position or alignment changes q; likewise bit FXA_INPUT_K_ROW for keys. */
uint32_t fxa__identity_inputs(const fxa_problem *p);

/* Returns true if BOTTOM_RIGHT shifts q itself, so that the last row is aligned to the last key: the flag is set, but
 * neither CAUSAL nor WINDOW, whose masks it would shift instead. */
bool fxa__rows_are_aligned(const fxa_problem *p);

/* Returns the operand that is stored in a slot (Q, K, V, O, their gradients, LSE, dLSE, row maximum), and sets *d to
 * its head dim; 1 for operands without head dim. */
const fxa_operand *fxa__row_operand(const fxa_problem *p, fxa_slot slot, int64_t *d);

/* Returns the offset in elements of row (b, h, s) in operand t; s is the position in sequence b. */
int64_t fxa__row_offset(const fxa__problem *p, const fxa__seq *seq, const fxa_operand *t, bool is_key,
                        const fxa__bound_args *bound, int64_t b, int64_t h, int64_t s);

/* Returns the coordinate of local index i of axis FXA_INPUT_B, _H or _K, wrapped to 32 bits like ints of programs. */
int32_t fxa__coord(const fxa__problem *p, const fxa__bound_args *bound, fxa_input axis, int64_t i);
/* Returns the coordinate q of row i, including the shift seq->q_shift, wrapped to 32 bits. */
int32_t fxa__row_coord(const fxa__problem *p, const fxa__bound_args *bound, const fxa__seq *seq, int64_t i);

#endif
