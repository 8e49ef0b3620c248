/* SPDX-License-Identifier: Apache-2.0
 *
 * A run on a device for a caller whose memory is on the host: what fxa_attention does there.
 */
#ifndef FXA_PLAN_STAGE_H
#define FXA_PLAN_STAGE_H

#include "plan.h"

/* args: all pointers on the host; its workspace is not used. Copies to the device what the run touches, runs, waits and
 * copies back what it wrote. On an error nothing of the caller's has changed. */
fxa_status fxa__stage_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err);

/* run.c. Of a plan on a device: is the device here? */
fxa_status fxa__run_usable(const fxa_plan *plan, fxa_error *err);

#endif
