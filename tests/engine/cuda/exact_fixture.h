/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles src/engine/cuda/kernels/common/exact_sum.cuh for the host, with the device functions that it needs.
 */
#ifndef EXACT_RIG_H
#define EXACT_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/cuda/kernels/common/args.h"
#include "engine/all/host_device.h"

static inline long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float exact_rig_float(float *to, float x) {
    float old = *to;
    *to += x;
    return old;
}

static inline u64 exact_rig_word(u64 *to, u64 x) {
    u64 old = *to;
    *to += x;
    return old;
}

#define atomicAdd(to, x) _Generic((to), float * : exact_rig_float, u64 * : exact_rig_word)(to, x)

#include "engine/cuda/kernels/common/exact_sum.cuh"

#undef atomicAdd

#endif
