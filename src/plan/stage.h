/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs on a device for callers with host memory, as part of fxa_attention.
 */
#ifndef FXA_PLAN_STAGE_H
#define FXA_PLAN_STAGE_H

#include "plan.h"

/* Copies the memory of a run to the device, runs, waits, and copies back what was written. All pointers in args are
 * host memory; args->workspace is not used. On failure no memory of the caller has changed. */
fxa_status fxa__stage_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

/* Returns FXA_OK if the plan's device is present in this process. Defined in run.c. */
fxa_status fxa__run_usable(const fxa_plan *plan, fxa_error *err);

#endif
