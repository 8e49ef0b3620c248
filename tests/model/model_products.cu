/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of test_model_products.c, in the style of model_kernels.cu: 16-bit numbers, which are f16 or bf16 by FXA_F16;
 * matrices in shared memory; products of a warp and of a warpgroup.
 */
#include "sm80/ptx.cuh"
#include "sm90/ptx.cuh"
#include "sm90/ptx_wgmma.cuh"

#define ARGUMENTS const __grid_constant__ FxaMap map, int *out, const int *in, int way, int n

/* Returns the shared address of element (r, c) of a tile of `rows` rows, in blocks of 64 columns, with the chunks of 16
 * bytes of each row swizzled by the row. */
FXA_INLINE u32 element(u32 tile, int rows, int r, int c)
{
    return tile + c / 64 * rows * 128 + r * 128 + ((c % 64 / 8 ^ r % 8) * 16) + c % 8 * 2;
}

/* Conversions of 16-bit numbers: every f16, every bf16 in pairs, and rounding from f32. */
extern "C" __global__ void fxa_numbers(ARGUMENTS)
{
    const float *x = (const float *)in;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        out[5 * i] = __float_as_int(FXA_F16 ? from_half((u16)i) : unpack_low((u32)i));
        out[5 * i + 1] = (int)pack16(x[i], -x[i]);
        out[5 * i + 2] = (FXA_F16 ? to_half(x[i]) : to_bfloat(x[i])) | (unpack_high((u32)i << 16) == unpack_low((u32)i)) << 16;
        out[5 * i + 3] = __float_as_int(add_down(x[i], x[(i + 1) % n]));
        out[5 * i + 4] = __float_as_int(max_or_nan(x[i], i % 5 ? 1.f : __int_as_float(0x7fc00000)));
    }
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* A matrix of 32 rows of 8 32-bit words: loaded plain and transposed, stored plain and transposed, transposed in
 * registers. */
extern "C" __global__ void fxa_matrices(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 tile = shared_address(memory);
    const int lane = threadIdx.x;
    u32 r[4];
    for (int i = 0; i < 4; i++) store_shared(tile + lane * 16 + 4 * i, in[lane * 4 + i]);
    __syncwarp();
    load_matrix(tile + lane * 16, r);
    for (int i = 0; i < 4; i++) out[lane * 4 + i] = (int)r[i];
    store_matrix(tile + 512 + lane * 16, r[0], r[1], r[2], r[3]);
    store_matrix_transposed(tile + 1024 + lane * 16, r[0], r[1], r[2], r[3]);
    load_matrix_transposed(tile + lane * 16, r);
    for (int i = 0; i < 4; i++) out[128 + lane * 4 + i] = (int)r[i];
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        out[256 + lane * 4 + i] = load_shared(tile + 512 + lane * 16 + 4 * i);
        out[384 + lane * 4 + i] = load_shared(tile + 1024 + lane * 16 + 4 * i);
    }
    out[512 + lane] = (int)transpose8x8((u32)in[lane]);
}

/* d[16 x 8] = 1 + a[16 x 16] b[16 x 8]. Operands are stored as rows of a, then columns of b, two elements per 32-bit
 * word. */
extern "C" __global__ void fxa_mma(ARGUMENTS)
{
    const int row = threadIdx.x / 4, pair = threadIdx.x % 4;
    u32 a[4];
    float d[4] = {1.f, 1.f, 1.f, 1.f};
    for (int i = 0; i < 4; i++) a[i] = (u32)in[(row + i % 2 * 8) * 8 + pair + i / 2 * 4];
    mma(d, a, (u32)in[128 + row * 8 + pair], (u32)in[128 + row * 8 + pair + 4]);
    for (int i = 0; i < 4; i++) ((float *)out)[(row + i / 2 * 8) * 8 + pair * 2 + i % 2] = d[i];
}

FXA_INLINE u64 operand(u32 at, u32 lead)
{
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(lead >> 4) << 16 | (u64)(at >> 4);
}

constexpr int WG_HELD = 1, WG_TRANSPOSED = 2, WG_EARLY = 4, WG_OVERWRITTEN = 8, WG_CHANGED = 16, WG_PART = 32;

template <int columns> FXA_INLINE void show_product(const float (&d)[columns / 2], float *to)
{
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4;
    for (int i = 0; i < columns / 2; i++)
        to[(row + i / 2 % 2 * 8) * columns + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
}

/* d[64 x n] = a[64 x 64] b[n x 64]^T of a warpgroup. Operands are stored as a, then b, with 16 bits per element. A is
 * in shared memory or in registers; B has k or n contiguous. Mistakes: results are read before the wait, or only in
 * part; B, or the registers of A, are overwritten before the product is complete. */
template <int columns, bool held, int transposed> FXA_INLINE void group_product(u32 tile, float *out, const u16 *in, int way)
{
    const int t = threadIdx.x, lane = t % 32;
    const u32 left = tile, right = tile + 64 * 128;
    for (int i = t; i < 64 * 64; i += 128) store_shared_half(element(left, 64, i / 64, i % 64), in[i]);
    for (int i = t; i < columns * 64; i += 128) {
        const int c = i / 64, k = i % 64;
        store_shared_half(transposed ? element(right, 64, k, c) : element(right, columns, c, k), in[64 * 64 + i]);
    }
    async_fence();
    __syncthreads();
    float d[columns / 2];
    u32 words[16];
    for (int i = 0; i < columns / 2; i++) d[i] = 3.f;
    for (int i = 0; i < 16; i++) {
        const int row = t / 32 * 16 + lane / 4 + i % 2 * 8, k = i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
        words[i] = in[row * 64 + k] | (u32)in[row * 64 + k + 1] << 16;
    }
    const u64 a = operand(left, 16), b = operand(right, transposed ? 64 * 128 : 16);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u64 at = b + (transposed ? k * 2048 >> 4 : k * 32 >> 4);
        if constexpr (held)
            wgmma<transposed, 1>(d, words, k, at, k > 0);
        else
            wgmma<transposed, 1>(d, a + (k * 32 >> 4), at, k > 0);
        if (way & WG_PART) wgmma_commit();
    }
    wgmma_commit();
    if (way & WG_EARLY) {
        __syncwarp();
        show_product<columns>(d, out);
    }
    if (way & WG_CHANGED) words[0] = words[7] = 0;
    if (way & WG_OVERWRITTEN) __syncthreads(); /* all warps have started the product */
    if (way & WG_OVERWRITTEN) store_shared_half(element(right, 64, t % 8, 0), 0);
    if (way & WG_PART) wgmma_wait<2>();
    if (way & WG_PART) show_product<columns>(d, out);
    wgmma_wait<0>();
    settle(d);
    settle(words);
    if (!(way & (WG_EARLY | WG_PART))) show_product<columns>(d, out);
}

template <int columns> FXA_INLINE void group_products(u32 tile, float *out, const u16 *in, int way)
{
    if constexpr (columns == 32 || columns == 64 || columns == 128) {
        if (way & WG_HELD)
            way & WG_TRANSPOSED ? group_product<columns, true, 1>(tile, out, in, way)
                                : group_product<columns, true, 0>(tile, out, in, way);
        else
            way & WG_TRANSPOSED ? group_product<columns, false, 1>(tile, out, in, way)
                                : group_product<columns, false, 0>(tile, out, in, way);
    } else {
        way & WG_TRANSPOSED ? group_product<columns, true, 1>(tile, out, in, way)
                            : group_product<columns, true, 0>(tile, out, in, way);
    }
}

extern "C" __global__ void __launch_bounds__(128) fxa_wgmma(ARGUMENTS)
{
    extern __shared__ __align__(1024) u8 memory[];
    const u32 tile = shared_address(memory);
    float *to = (float *)out;
    const u16 *from = (const u16 *)in;
    if (n == 32) group_products<32>(tile, to, from, way);
    if (n == 64) group_products<64>(tile, to, from, way);
    if (n == 96) group_products<96>(tile, to, from, way);
    if (n == 128) group_products<128>(tile, to, from, way);
    if (n == 192) group_products<192>(tile, to, from, way);
    if (n == 256) group_products<256>(tile, to, from, way);
}
