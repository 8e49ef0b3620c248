/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mock device (mock_device.h) has been told to do and has not done yet: copies and runs, in order, each of a
 * stream. Operations have copies of everything that the caller may take back once his call has returned.
 */
#ifndef FXA_TESTS_MOCK_QUEUE_H
#define FXA_TESTS_MOCK_QUEUE_H

#include "mock_device.h"
#include "mock_memory.h"
#include "problem/run_regions.h"

/* Code of the mock: that of ref, for whoever holds it, the queue among them. */
typedef struct mock_code {
    atomic_size_t refs;
    fxa__host *host;
    void *inner;
} mock_code;
void mock_code_leave(mock_code *code);

typedef struct mock_op {
    int32_t ordinal;
    void *stream;
    mock_block *block[FXA__RUN_REGIONS]; /* which it needs open */
    size_t n_blocks;
    void *to; /* a copy; its host side is read and written when it is performed */
    const void *from;
    size_t size;
    mock_code *code; /* a run */
    fxa__problem *p;
    fxa__bound_args bound;
    fxa_view views[FXA__ARGS_VIEWS];
    double params[FXA_MAX_PARAMS], bprop_params[FXA_MAX_PARAMS];
    struct mock_op *next;
} mock_op;

/* Counts a call; a failure when it is the one that is to fail. */
fxa_status mock_count_call(mock_hook hook, fxa_error *err);

/* Takes the op, which is from calloc. */
void mock_queue_push(mock_op *op);
/* A run with copies of what bound points to on the host. */
mock_op *mock_op_of_run(mock_code *code, const fxa__problem *p, const fxa__bound_args *bound);
/* Performs what was queued on a stream, or on all; on a failure the rest is dropped. */
fxa_status mock_queue_perform(int32_t ordinal, bool all, void *stream, fxa_error *err);
/* Drops what was queued on a stream, or on all. */
void mock_queue_drop(int32_t ordinal, bool all, void *stream);
bool mock_queue_needs(const mock_block *block);

/* What a run touches of the device's memory, by number; false past the end. Entries without data are not touched. */
typedef struct mock_touch {
    fxa_args args;
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
} mock_touch;
void mock_touch_start(mock_touch *t, const fxa__problem *p, const fxa__bound_args *bound);
bool mock_touch_get(const mock_touch *t, const fxa__problem *p, const fxa__bound_args *bound, size_t i,
                    fxa__run_region *out);

#endif
