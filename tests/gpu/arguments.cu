/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks at compile time that the ctypes structs of arguments.py have the sizes and offsets of common/args.h.
 * arguments.py passes its values as macros (ARGS_BYTES, F_AT, ...). The kernel is never run.
 */
#include "common/args.h"

static_assert(sizeof(FxaArgs) == ARGS_BYTES && sizeof(FxaMaps) == MAPS_BYTES && sizeof(FxaShape) == SHAPE_BYTES,
              "arguments.py is not common/args.h");
static_assert(__builtin_offsetof(FxaArgs, f) == F_AT && __builtin_offsetof(FxaArgs, batch) == BATCH_AT &&
                  __builtin_offsetof(FxaArgs, list) == LIST_AT && __builtin_offsetof(FxaArgs, scalars) == SCALARS_AT,
              "arguments.py is not common/args.h");

extern "C" __global__ void fxa_nothing() {}
