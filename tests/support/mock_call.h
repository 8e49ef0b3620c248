/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of a run, placed in the memory of the mock device by the test itself: each tensor in a block of its
 * own. For fxa_plan_run with pointers of a device.
 */
#ifndef FXA_TESTS_MOCK_CALL_H
#define FXA_TESTS_MOCK_CALL_H

#include "mock_queue.h"
#include "plan/plan.h"

typedef struct mock_call {
    fxa__problem *p; /* the plan's, retained */
    fxa_args host;   /* the caller's */
    fxa_args args;   /* of the device; its arrays are here: the struct must not move */
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    void *block[FXA__RUN_REGIONS]; /* by number of the list of run_regions.h; NULL: nothing */
    void *workspace;
} mock_call;

void mock_call_place(mock_call *c, const fxa_plan *plan, const fxa_args *args, int32_t ordinal);
/* Copies the elements that were written to where they belong on the host; nothing else. */
void mock_call_fetch(const mock_call *c);
void mock_call_end(mock_call *c);

#endif
