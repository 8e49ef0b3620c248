/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements fxa_merge on a CUDA device by a helper kernel.
 */
#ifndef FXA_GPU_MERGE_H
#define FXA_GPU_MERGE_H

#include "launch.h"

/* Implements fxa__engine.merge. self: an instance whose first member is its fxa__gpu. The caller has checked all
 * arguments except pointers; a pointer that is not memory of the device fails with E_BINDING. The merge is asynchronous
 * on args->stream. The stream may be in graph capture, except in the first call, which loads the kernels. */
fxa_status fxa__gpu_merge(void *self, const fxa_merge_args *args, fxa_error *err);

#endif
