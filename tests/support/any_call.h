/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments for any problem, for fuzz targets and for walks over sizes: each tensor and table has memory of exactly its
 * extent, whatever its strides, and valid values.
 */
#ifndef FXA_TESTS_ANY_CALL_H
#define FXA_TESTS_ANY_CALL_H

#include "problem/problem_private.h"

enum { ANY_BLOCKS = FXA_SLOT_COUNT + 3 * FXA_MAX_TENSORS + 4 };

typedef struct any_block {
    void *memory;
    unsigned char *first; /* first byte of the extent */
    size_t bytes;
    bool written; /* true: the run may write the block */
    fxa_dtype dtype;
} any_block;

typedef struct any_call {
    fxa_args args;
    const fxa__problem *problem;
    any_block block[ANY_BLOCKS];
    size_t n_blocks, room; /* number of blocks; bytes that may still be allocated */
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    double params[FXA_MAX_PARAMS], bprop_params[FXA_MAX_PARAMS], dparams[FXA_MAX_PARAMS];
} any_call;

/* Makes the arguments of a run. Results get values too, because runs may add to them; one seed always gives the same
 * values. Returns false, with nothing to free, if more than `most` bytes are needed, or more than 64 multiplications
 * per byte. *x must not move, and p must outlive *x. */
bool any_call_make(any_call *x, const fxa__problem *p, size_t workspace, size_t most, uint64_t seed);
void any_call_free(any_call *x);

#endif
