/* SPDX-License-Identifier: Apache-2.0
 *
 * For engines that run on the host: memory offsets of rows and keys, and the coordinates that a program reads.
 */
#ifndef FXA_PROBLEM_GEOMETRY_H
#define FXA_PROBLEM_GEOMETRY_H

#include "bound_args.h"

/* Lengths and starts of one batch entry. */
typedef struct fxa__seq {
    int64_t q_len, k_len;           /* number of rows and of keys */
    int64_t q_start, k_start;       /* VARLEN: positions of the first row and key in the packed tensors; else 0 */
    int32_t q_len_seen, k_len_seen; /* values of the program's inputs q_len and k_len */
    int32_t heads_seen;             /* value of the program's input `heads`, the same for all batch entries */
    /* Number added to the coordinate q of each row: the entry of Q_START, or k_len - q_len if fxa__rows_are_aligned;
     * else 0. */
    int64_t q_shift;
} fxa__seq;
/* Returns lengths and starts of batch entry b, from the arrays in the slots of `bound`. */
fxa__seq fxa__seq_get(const fxa__problem *p, const fxa__bound_args *bound, int64_t b);

/* Sets *lo..*hi to the range of k_len - q_len over all possible runs; to 0..0 without the flag BOTTOM_RIGHT. */
void fxa__align_range(const fxa_problem *p, int64_t *lo, int64_t *hi);
/* Sets *lo..*hi to the range of fxa__seq.q_shift over all possible runs: 0..0 if rows are not shifted, all 32-bit
 * values for Q_START. */
void fxa__q_shift_range(const fxa_problem *p, int64_t *lo, int64_t *hi);

/* Returns true if the map assigns to each index the index itself. */
bool fxa__map_is_identity(const fxa_index_map *map);
/* Returns which coordinates always equal positions in the tensors. Bit FXA_INPUT_Q_ROW: the coordinate q of a row is
 * its position in every run, because no map, start position or alignment changes q. Bit FXA_INPUT_K_ROW: the coordinate
 * k of a key is its position in every run. */
uint32_t fxa__identity_inputs(const fxa_problem *p);

/* Returns true if BOTTOM_RIGHT shifts the coordinate q, so that the last row is aligned to the last key. This is so if
 * the flag is set without CAUSAL and WINDOW; with one of these flags, BOTTOM_RIGHT shifts their mask instead. */
bool fxa__rows_are_aligned(const fxa_problem *p);

/* Returns the operand of a slot (Q, K, V, O, a gradient of these, LSE, dLSE or row maximum), and sets *d to the
 * operand's head dim, or to 1 if the operand has no head dim. */
const fxa_operand *fxa__row_operand(const fxa_problem *p, fxa_slot slot, int64_t *d);

/* Returns the offset, in elements, of the row with position s of batch entry b and head h in operand t. `is_key`: the
 * operand has rows of keys (K, V, dK, dV). */
int64_t fxa__row_offset(const fxa__problem *p, const fxa__seq *seq, const fxa_operand *t, bool is_key,
                        const fxa__bound_args *bound, int64_t b, int64_t h, int64_t s);

/* Returns the coordinate of index i of axis FXA_INPUT_B, FXA_INPUT_H or FXA_INPUT_K, wrapped to 32 bits like the ints
 * of programs. */
int32_t fxa__coord(const fxa__problem *p, const fxa__bound_args *bound, fxa_input axis, int64_t i);
/* Returns the coordinate q of the row with position i, wrapped to 32 bits. The shift seq->q_shift is included. */
int32_t fxa__row_coord(const fxa__problem *p, const fxa__bound_args *bound, const fxa__seq *seq, int64_t i);

#endif
