/* SPDX-License-Identifier: Apache-2.0
 *
 * score_tanh of every f32 from a bit pattern on, for run_gpu.py to compare with f64; with terms what is near 0 by
 * score_bend_near. Launch: any grid of 256 threads.
 */
#include "score.cuh"

extern "C" __global__ void fxa_try_tanh(float *to, unsigned first, long long count, const float *terms)
{
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        const float x = __uint_as_float(first + (unsigned)i);
        to[i] = terms && fabsf(x) < TANH_NEAR ? score_bend_near(x, terms) : score_tanh(x);
    }
}
