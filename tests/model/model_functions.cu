/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of test_model_functions.c, in the style of model_kernels.cu: the tanh functions of
 * common/softcap_tanh.cuh. `in` starts with eight floats: coefficients of score_softcap_series, or the members of
 * SoftcapExp; the arguments of the function follow.
 */
#include "common/softcap_tanh.cuh"

#define ARGUMENTS const __grid_constant__ FxaMap map, int *out, const int *in, int way, int n

/* tanh of n floats; way 1: by score_softcap_series where it may be used. */
extern "C" __global__ void fxa_tanh(ARGUMENTS)
{
    const float *terms = (const float *)in, *from = terms + 8;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const float x = from[i];
        out[i] = __float_as_int(way && fabsf(x) < TANH_MAX_SERIES ? score_softcap_series(x, terms) : score_tanh(x));
    }
}

/* score_softcap_four of n / 4 groups of four scores. */
extern "C" __global__ void fxa_tanh_four(ARGUMENTS)
{
    const float *numbers = (const float *)in, *from = numbers + 8;
    const SoftcapExp cap = {numbers[0], numbers[1], numbers[2]};
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        float s[4];
        for (int k = 0; k < 4; k++) s[k] = from[4 * i + k];
        score_softcap_four(cap, s);
        for (int k = 0; k < 4; k++) out[4 * i + k] = __float_as_int(s[k]);
    }
}
