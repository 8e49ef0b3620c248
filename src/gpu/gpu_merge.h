/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_merge on a CUDA device, by a helper kernel.
 */
#ifndef FXA_GPU_MERGE_H
#define FXA_GPU_MERGE_H

#include "gpu_launch.h"

/* fxa__engine.merge; self: an instance that begins with its fxa__gpu. Arguments have been checked, except that pointers
 * are memory of the device: that is checked here (E_BINDING). Asynchronous on args->stream, which may be captured; only
 * the first call may not, because it loads the kernels. */
fxa_status fxa__gpu_merge(void *self, const fxa_merge_args *args, fxa_error *err);

#endif
