/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of a run, placed in the memory of the mock device: each tensor in a block of its own. For calls of
 * fxa_plan_run with device pointers.
 */
#ifndef FXA_TESTS_MOCK_CALL_H
#define FXA_TESTS_MOCK_CALL_H

#include "mock_queue.h"
#include "plan/plan.h"

typedef struct mock_call {
    fxa__problem *p; /* the plan's, retained */
    fxa_args host;   /* arguments on the host */
    fxa_args args;   /* arguments on the device; they point into this struct, which must not move */
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    void *block[FXA__RUN_REGIONS]; /* [index in the list of run_regions.h]; NULL = no data */
    void *workspace;
} mock_call;

void mock_call_place(mock_call *c, const fxa_plan *plan, const fxa_args *args, int32_t ordinal);
/* Copies the elements that the run wrote, and no other bytes, to the host arrays. */
void mock_call_fetch(const mock_call *c);
void mock_call_end(mock_call *c);

#endif
