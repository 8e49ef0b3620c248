/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_merge on a CUDA device, by a helper kernel.
 */
#ifndef FXA_GPU_MERGE_H
#define FXA_GPU_MERGE_H

#include "gpu_launch.h"

/* Implements fxa__engine.merge. self: an instance whose first member is its fxa__gpu. The caller has checked the
 * arguments, except that the pointers are memory of the device: this function checks that (E_BINDING).
 * Asynchronous on args->stream, which may be captured; only the first call may not, because it loads the kernels. */
fxa_status fxa__gpu_merge(void *self, const fxa_merge_args *args, fxa_error *err);

#endif
