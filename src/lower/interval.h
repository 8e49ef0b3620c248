/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, interval: text in C or CUDA that finds out, for one tile of pairs, whether a mask is false everywhere, true
 * everywhere or neither for sure. It is for masks that hang on what only the device knows, captured tensors and
 * run-time lengths: there it runs once per tile, before the kernels that skip by it. What the host knows, range
 * analysis (src/program/range.h) answers, which is more exact and too large for a device. The rules for operations are
 * the same in both: src/program/span_rules.h, which the text calls.
 *
 * What needs neither q nor k is computed as a number, by emit. The rest are spans and reals: an int that is affine in
 * the inputs by its ends in 64 bits, a comparison of two such by the ends of their difference, all else operand by
 * operand. A load of ints or bools along one axis, at one place of all others, reads the smallest and largest elements
 * of blocks of 64 from a table; every other load that moves is anything.
 */
#ifndef FXA_LOWER_INTERVAL_H
#define FXA_LOWER_INTERVAL_H

#include "emit.h"

enum { FXA__INTERVAL_TABLES = 16 };

typedef struct fxa__interval_table { /* pairs along one axis of a tensor, for all places of the other axes */
    int32_t tensor, axis;
} fxa__interval_table;

typedef struct fxa__interval {
    fxa__emit emit; /* of the mask, with nothing kept */
    int32_t mask;   /* node */
    fxa__linear *forms;
    int8_t
        *table; /* by node: of a load; -1: it has none. emit.given, the caller's to fill: text for its span instead */
    uint8_t *late; /* by node, of interval.c */
    fxa__interval_table tables[FXA__INTERVAL_TABLES];
    int32_t n_tables; /* loads that would need more have none */
} fxa__interval;

/* The mask of a SCORE or JOINT program, which lives as long. False: out of memory. Close in either case. */
bool fxa__lower_interval_open(fxa__host *host, const fxa_program *p, fxa__dialect dialect, fxa__interval *out);
void fxa__lower_interval_close(fxa__interval *v);

/* The body of a function of b, h, q_len, k_len, heads and a tile q0..q1 x k0..k1, none of it empty: it returns
 * TILE_FULL, TILE_PARTIAL or TILE_EMPTY. Beside the arguments `a` it calls
 *     fxa__span load_range(a, table, row, size, index)
 * which is fxa__span_load on row number `row` of a table, with the other axes in order, the last one fastest. */
void fxa__lower_interval_text(const fxa__interval *v, fxa__writer *w);

/* Ints of a table, and its pairs: what a device makes by itself. The view has elements. */
int64_t fxa__lower_interval_size(const fxa_view *view, int32_t axis);
void fxa__lower_interval_fill(const fxa_view *view, int32_t axis, int32_t *pairs);

#endif
