/* SPDX-License-Identifier: Apache-2.0
 *
 * Diagonal rows: values that depend on batch entry, head and q - k alone (relative biases, distance buckets).
 *
 * fxa_diagonal_fill tabulates the program's diagonal() into the rows of an FxaDiagonal. Grid (pitch / 256 rounded up,
 * heads, batch), with 1 instead of heads or batch if all of them share a row.
 */
#include "common/program_interface.cuh"

extern "C" __global__ void __launch_bounds__(FXA_HELPER_THREADS)
    fxa_diagonal_fill(const __grid_constant__ FxaArgs a, float *to, long long pitch, int zero)
{
    launch_next();
    const long long i = blockIdx.x * (long long)FXA_HELPER_THREADS + threadIdx.x;
    const long long row = (long long)blockIdx.z * gridDim.y + blockIdx.y;
#if PROG_DIAGONAL
    if (i < pitch) to[row * pitch + i] = Program::diagonal(a, blockIdx.z, blockIdx.y, (int)i - zero);
#endif
    launch_wait();
}
