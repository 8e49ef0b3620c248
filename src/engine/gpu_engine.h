/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tables of engines of CUDA devices have in common above src/gpu: whose the pointers of a run are, and what
 * recorded graphs keep. self is an instance that begins with its fxa__gpu.
 */
#ifndef FXA_ENGINE_GPU_ENGINE_H
#define FXA_ENGINE_GPU_ENGINE_H

#include "../gpu/gpu.h"
#include "engine.h"

/* fxa__engine.check: the driver is asked about every pointer of the bind that the problem uses and that leads somewhere
 * on the device. E_BINDING names the first that is not memory of this device. */
fxa_status fxa__gpu_engine_check(void *self, const fxa__problem *p, const fxa__bind *bind, fxa_error *err);
/* fxa__engine.tie. */
fxa_status fxa__gpu_engine_tie(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied,
                               fxa_error *err);

#endif
