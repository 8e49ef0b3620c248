/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_merge on a CUDA device, by its helper kernel.
 */
#ifndef FXA_GPU_MERGE_H
#define FXA_GPU_MERGE_H

#include "gpu_launch.h"

/* Arguments that have been checked, but for whose the pointers are: E_BINDING then. Only begins, on args->stream, which
 * may be recorded. */
fxa_status fxa__gpu_merge(const fxa__gpu *gpu, const fxa__gpu_module *module, const fxa_merge_args *args,
                          fxa_error *err);

#endif
