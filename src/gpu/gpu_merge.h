/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_merge on a CUDA device, by its helper kernel.
 */
#ifndef FXA_GPU_MERGE_H
#define FXA_GPU_MERGE_H

#include "gpu_launch.h"

/* As engines have it; self: their instance, which begins with the fxa__gpu. Arguments that have been checked, but for
 * whose the pointers are: E_BINDING then. Only begins, on args->stream, which may be recorded, but for the first one,
 * which loads kernels. */
fxa_status fxa__gpu_merge(void *self, const fxa_merge_args *args, fxa_error *err);

#endif
