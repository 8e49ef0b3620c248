/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering, interval: writes C or CUDA text that classifies one tile of pairs: the mask is false everywhere, true
 * everywhere, or unknown. The text is for masks that depend on data which only the device has (captured tensors and
 * run-time lengths): it runs on the device once per tile, before the kernels that skip tiles by its result. Masks whose
 * data the host has are classified by range analysis (src/program/range.h), which is more exact and too large for a
 * device. Range analysis and the generated text use the same rules for operations, src/program/interval_rules.h, which
 * the generated text includes.
 *
 * Nodes that depend on neither q nor k are computed as values, by emit.h. All others are computed as intervals:
 *   - an int that is affine in the inputs: from the bounds of the affine form, in 64 bits
 *   - a comparison of two such ints: from the bounds of their difference
 *   - a load of ints or bools with one index that varies: from a table with the {min, max} of each block of 64 elements
 *   - any other load, and the score: unbounded; 0 to 1 for bools
 *   - any other node: from the intervals of its operands
 */
#ifndef FXA_LOWER_INTERVAL_H
#define FXA_LOWER_INTERVAL_H

#include "emit.h"

enum { FXA__INTERVAL_TABLES = 16 };

/* Identifies a {min, max} table of tensor number `tensor`. The table has a row for each combination of indices of the
 * axes other than `axis`; a row has the minimum and maximum of each block of elements along `axis`. */
typedef struct fxa__interval_table {
    int32_t tensor, axis;
} fxa__interval_table;

typedef struct fxa__interval_text {
    /* generator of the mask's text. All variables are local (emit.hoisted is 0). emit.given[i] is the expression of the
     * interval of node i, not of its value. */
    fxa__emit emit;
    int32_t mask;       /* node of the mask output */
    fxa__linear *forms; /* [nodes] affine forms */
    int8_t *table;      /* [nodes] index in `tables` of the {min, max} table that a load reads; -1 = none */
    uint8_t *order;     /* [nodes] bits INTERVAL_LOADS, INTERVAL_CONJUNCT (interval.c), which order the statements */
    fxa__interval_table tables[FXA__INTERVAL_TABLES];
    int32_t n_tables; /* number of tables; once `tables` is full, the intervals of further loads are unbounded */
} fxa__interval_text;

/* Prepares the generated text for the mask of p, a SCORE or FUSED program. p must outlive *out. Returns false if memory
 * ran out. The caller closes *out in either case. */
bool fxa__lower_interval_open(fxa__host *host, const fxa_program *p, fxa__dialect dialect, fxa__interval_text *out);
void fxa__lower_interval_close(fxa__interval_text *v);

/* Writes the body of a function that returns TILE_FULL, TILE_PARTIAL or TILE_EMPTY for the nonempty tile q0..q1 x
 * k0..k1 (bounds inclusive). The body reads b, h, q_len, k_len, heads and the arguments `a`. It calls this function,
 * which the caller defines as fxa__interval_load on row `row` of table `table`:
 *     fxa__interval load_range(a, table, row, size, index)
 * The rows of a table (fxa__interval_table) are in row-major order of the indices of all axes but the table's own. */
void fxa__lower_interval_text(const fxa__interval_text *v, fxa__writer *w);

/* Returns the number of ints of the {min, max} table of a tensor along `axis`. The tensor must not be empty. */
int64_t fxa__lower_interval_size(const fxa_view *view, int32_t axis);
/* Writes the {min, max} table of a tensor along `axis`, pairs[fxa__lower_interval_size], on the host. Tests compare
 * tables that kernels write on a device with the result of this function. */
void fxa__lower_interval_fill(const fxa_view *view, int32_t axis, int32_t *pairs);

#endif
