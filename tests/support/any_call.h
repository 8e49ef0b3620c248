/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments for a problem that nobody chose: of the problem as a plan has it every tensor and table gets memory of just
 * its extent, whatever its strides are, and values that are accepted. For fuzz targets and for walks over sizes.
 */
#ifndef FXA_TESTS_ANY_CALL_H
#define FXA_TESTS_ANY_CALL_H

#include "problem/problem_private.h"

enum { ANY_BLOCKS = FXA_SLOT_COUNT + 3 * FXA_MAX_TENSORS + 4 };

typedef struct any_block {
    void *memory;
    unsigned char *first; /* byte of the extent */
    size_t bytes;
    bool written; /* by the run */
    fxa_dtype dtype;
} any_block;

typedef struct any_call {
    fxa_args args;
    const fxa__problem *problem;
    any_block block[ANY_BLOCKS];
    size_t n_blocks, room; /* room: bytes that may still be taken */
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    double params[FXA_MAX_PARAMS], bprop_params[FXA_MAX_PARAMS], dparams[FXA_MAX_PARAMS];
} any_call;

/* False where more than `most` bytes would be needed, or more multiplications than 64 for each of them: then there is
 * nothing to free. The struct must not move, and the problem must live as long. Results have values too, which a run
 * may add to; the same seed gives the same values. */
bool any_call_make(any_call *x, const fxa__problem *p, size_t workspace, size_t most, uint64_t seed);
void any_call_free(any_call *x);

#endif
