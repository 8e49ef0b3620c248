/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether arguments.py has the kernels' arguments as they are: compiled with what it reckons, never run.
 */
#include "kernel_args.cuh"

static_assert(sizeof(FxaArgs) == ARGS_BYTES && sizeof(FxaMaps) == MAPS_BYTES && sizeof(FxaShape) == SHAPE_BYTES,
              "arguments.py is not kernel_args.cuh");
static_assert(__builtin_offsetof(FxaArgs, f) == F_AT && __builtin_offsetof(FxaArgs, batch) == BATCH_AT &&
                  __builtin_offsetof(FxaArgs, list) == LIST_AT && __builtin_offsetof(FxaArgs, scalars) == SCALARS_AT,
              "arguments.py is not kernel_args.cuh");

extern "C" __global__ void fxa_nothing() {}
