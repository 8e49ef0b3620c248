/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs plans of a device for callers whose data is in host memory, as part of fxa_attention.
 */
#ifndef FXA_PLAN_HOST_COPIES_H
#define FXA_PLAN_HOST_COPIES_H

#include "plan.h"

/* Copies the caller's tensors to the device, runs the plan, waits for the run, and copies the results back. All
 * pointers in `args` are host memory; args->workspace is not used. If the call fails, the caller's memory is
 * unchanged. */
fxa_status fxa__host_copies_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

/* Returns FXA_OK if the plan's device is present in this process, else an error. A plan for a target (the description
 * of a device) is an error. Defined in run.c. */
fxa_status fxa__run_usable(const fxa_plan *plan, fxa_error *err);

#endif
