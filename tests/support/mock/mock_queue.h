/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that the mock device (mock_device.h) has queued: copies and runs, in order, each on a stream. An operation
 * holds copies of everything that the caller may free after the call.
 */
#ifndef FXA_TESTS_MOCK_QUEUE_H
#define FXA_TESTS_MOCK_QUEUE_H

#include "mock_device.h"
#include "mock_memory.h"
#include "problem/run_regions.h"

/* Code of the mock: the code of ref, with a reference count for its owners and the queue. */
typedef struct mock_code {
    atomic_size_t refs;
    fxa__host *host;
    void *inner;
} mock_code;
void mock_code_leave(mock_code *code);

typedef struct mock_op {
    int32_t ordinal;
    void *stream;
    mock_block *block[FXA__RUN_REGIONS]; /* blocks that are opened while the operation is performed */
    size_t n_blocks;
    void *to; /* copy: host memory, which is accessed when the operation is performed */
    const void *from;
    size_t size;
    mock_code *code; /* run */
    fxa__problem *p;
    fxa__bound_args bound;
    fxa_view views[FXA__ARGS_VIEWS];
    double params[FXA_MAX_PARAMS], bprop_params[FXA_MAX_PARAMS];
    struct mock_op *next;
} mock_op;

/* Counts a call. Returns a failure if this is the call that should fail. */
fxa_status mock_count_call(mock_hook hook, fxa_error *err);

/* Adds an operation, allocated by calloc, to the queue, which takes ownership. */
void mock_queue_push(mock_op *op);
/* Makes the operation of a run, with copies of the host data that `bound` points to. */
mock_op *mock_op_of_run(mock_code *code, const fxa__problem *p, const fxa__bound_args *bound);
/* Performs the operations of a stream, or of all streams; after a failure drops the remaining operations. */
fxa_status mock_queue_perform(int32_t ordinal, bool all, void *stream, fxa_error *err);
/* Drops the operations of a stream, or of all streams. */
void mock_queue_drop(int32_t ordinal, bool all, void *stream);
bool mock_queue_needs(const mock_block *block);

/* Iterates over the device memory of a run by index. Returns false past the end. Regions without data are not
 * accessed. */
typedef struct mock_touch {
    fxa_args args;
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
} mock_touch;
void mock_touch_start(mock_touch *t, const fxa__problem *p, const fxa__bound_args *bound);
bool mock_touch_get(const mock_touch *t, const fxa__problem *p, const fxa__bound_args *bound, size_t i,
                    fxa__run_region *out);

#endif
