/* SPDX-License-Identifier: Apache-2.0
 *
 * Ints as sums of the inputs: what range analysis, counts of tiles, bands of masks and index expressions ask of a node.
 * This is the one reading of "linear in q and k"; src/lower/affine.h has it of whole programs.
 *
 * Program ints wrap, so every int is congruent to its form modulo 2^32, whatever happens on the way: (q + c) - c is q.
 * A form without a rest whose values over a box all fit 32 bits is the value itself there (fxa__linear_bounds).
 */
#ifndef FXA_PROGRAM_LINEAR_H
#define FXA_PROGRAM_LINEAR_H

#include "range.h"

/* Of a rest: the low bits are the inputs that it reads (bit i: fxa_input i), then */
enum {
    FXA__REST = 1 << FXA_INPUT_COUNT, /* there is one */
    FXA__REST_MOVES =
        2 << FXA_INPUT_COUNT, /* it may change when q and k move by the same amount, or with q_row or k_row */
    FXA__REST_READS = FXA__REST - 1
};

/* value = c + the sum of coef[i] * input i + rest, modulo 2^32. A float, a bool, a product of inputs, a param or a load
 * is nothing but rest; of floats and bools the sum is empty, and the rest tells what they read. */
typedef struct fxa__linear {
    int32_t coef[FXA_INPUT_COUNT]; /* signed: 2^32 - 1 is -1 */
    int32_t c;
    uint32_t rest;
} fxa__linear;

/* Coordinates and lengths that analysis counts on where nothing else is said: 0 to this. */
#define FXA__PLAIN_MOST ((1 << 30) - 1)
fxa_tile_bounds fxa__box_plain(void); /* of them all */

/* The form of a node by those of its operands. With `range`, which has analysed it, ints that are one value over the
 * box are constants, and the forms hold over the box; without it they hold everywhere, but for REST_MOVES of
 * comparisons, which is said of plain coordinates and lengths. */
fxa__linear fxa__linear_of(const fxa_program *p, int32_t node, const fxa__linear *forms, const fxa__range *range);
/* a * x + b * y. */
fxa__linear fxa__linear_sum(const fxa__linear *x, int32_t a, const fxa__linear *y, int32_t b);
bool fxa__linear_is_const(const fxa__linear *f);
/* All inputs that the value may depend on, by bits. */
uint32_t fxa__linear_reads(const fxa__linear *f);
/* Returns true if the value stays as it is when q and k move by the same amount, wherever q_row and k_row go. */
bool fxa__linear_is_still(const fxa__linear *f);
/* The smallest and largest value over a box, both attained; true only where the value is the form itself: there is no
 * rest, and nothing leaves 32 bits. */
bool fxa__linear_bounds(const fxa__linear *f, const fxa_tile_bounds *box, int64_t *lo, int64_t *hi);

#endif
