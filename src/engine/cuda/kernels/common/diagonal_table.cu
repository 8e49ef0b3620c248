/* SPDX-License-Identifier: Apache-2.0
 *
 * TmaRows of what depends on batch entry, head and q - k alone (relative biases, distance buckets).
 *
 * fxa_diagonal_fill tabulates the program's diagonal() into the rows of an FxaDiagonal. Launch: grid (pitch / 256
 * rounded up, heads or 1, batch or 1).
 *
 * fxa_diagonal_reduce adds the rows of an FxaDiagonalGrad with a row per key tile, in a fixed order, into
 * out[h * size + i] with i = zero + (q - k): over key tiles and, with batch > 1, over batch entries. Launch: grid
 * (size / 128 rounded up, heads).
 */
#include "common/score.cuh"

extern "C" __global__ void __launch_bounds__(256)
    fxa_diagonal_fill(const __grid_constant__ FxaArgs a, float *to, long long pitch, int zero)
{
    launch_next();
    const long long i = blockIdx.x * 256ll + threadIdx.x, row = (long long)blockIdx.z * gridDim.y + blockIdx.y;
#if PROG_DIAGONAL
    if (i < pitch) to[row * pitch + i] = Program::diagonal(a, blockIdx.z, blockIdx.y, (int)i - zero);
#endif
    launch_wait();
}

extern "C" __global__ void __launch_bounds__(128)
    fxa_diagonal_reduce(FxaDiagonalGrad g, float *out, int batch, int key_tiles, int size, int zero)
{
    launch_begin();
    const int i = blockIdx.x * 128 + threadIdx.x, h = blockIdx.y;
    if (i >= size) return;
    float sum = 0.f;
    for (int b = 0; b < batch; b++)
        for (int n = 0; n < key_tiles; n++) {
            const int at = i - zero + g.zero + n * g.zero_step;
            if ((unsigned)at < (unsigned)g.size) sum += g.data[b * g.b + h * g.h + n * g.n + at];
        }
    out[(long long)h * size + i] = sum;
}
