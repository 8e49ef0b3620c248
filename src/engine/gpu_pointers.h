/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of fxa__engine that all engines of CUDA devices share: the check of a run's pointers, and the lifetime of
 * code that CUDA graphs use. They call the functions of src/gpu. `self` is an engine's instance, whose first member
 * must be an fxa__gpu.
 */
#ifndef FXA_ENGINE_GPU_ENGINE_H
#define FXA_ENGINE_GPU_ENGINE_H

#include "../gpu/gpu.h"
#include "engine.h"

/* Implements fxa__engine.check: queries the driver for every device pointer of the bound arguments that the problem
 * uses. Fails with E_BINDING and the name of the first pointer that is not memory of this device. */
fxa_status fxa__gpu_engine_check(void *self, const fxa__problem *p, const fxa__bound_args *bound, fxa_error *err);
/* Implements fxa__engine.tie: if `stream` is being captured into a CUDA graph, arranges that drop(what) is called when
 * the graph is destroyed. */
fxa_status fxa__gpu_engine_tie(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied,
                               fxa_error *err);

#endif
