/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that evaluate the tanh functions of common/score.cuh. fxa_try_tanh evaluates score_tanh for every f32 from a
 * bit pattern on (values near 0 by score_softcap_series if `terms` is given); run_gpu.py compares the results with f64.
 * fxa_try_bend evaluates score_softcap_four for groups of four pairs in place. Launch: any grid of 256 threads.
 */
#include "common/score.cuh"

extern "C" __global__ void fxa_try_tanh(float *to, unsigned first, long long count, const float *terms)
{
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        const float x = __uint_as_float(first + (unsigned)i);
        to[i] = terms && fabsf(x) < TANH_NEAR ? score_softcap_series(x, terms) : score_tanh(x);
    }
}

extern "C" __global__ void fxa_try_bend(float *pairs, long long groups, float factor, float inverse, float u)
{
    const Bend bend = {factor, inverse, u};
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < groups; i += gridDim.x * 256ll) {
        float s[4];
        for (int k = 0; k < 4; k++) s[k] = pairs[4 * i + k];
        score_softcap_four(bend, s);
        for (int k = 0; k < 4; k++) pairs[4 * i + k] = s[k];
    }
}
