/* SPDX-License-Identifier: Apache-2.0
 *
 * In place of src/engine/cuda/ptx_wgmma.cuh: see model_ptx.h. A warp's rows of a product need nothing of the other warps
 * of its group, so each does its own; registers and shared memory are read when the product is done, which may be as
 * late as the wait for it.
 */
#ifndef FXA_CUDA_PTX_WGMMA_CUH
#define FXA_CUDA_PTX_WGMMA_CUH

#include "ptx.cuh"

/* An element of an operand in shared memory. A row of 128 bytes has 64 elements; groups of 8 rows lie `stride` apart,
 * blocks of 64 columns of a transposed operand `lead`. */
static inline float model_operand(u64 descriptor, int row, int column)
{
    const u32 start = (u32)(descriptor & 0x3fff) << 4, lead = (u32)(descriptor >> 16 & 0x3fff) << 4;
    const u32 stride = (u32)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1) model->fail("a descriptor without the swizzle of 128 bytes");
    const u32 at = start + row / 8 * stride + row % 8 * 128 + column / 64 * lead + column % 64 * 2;
    return model_from16(*(u16 *)model_shared(at ^ (at >> 7 & 7) << 4, 2, 2));
}

static inline void model_wgmma(const model_job *job)
{
    static float a[16][16], b[16][256];
    const int first = (int)(job->owner / 32 % 4) * 16, n = job->columns;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++) {
            const u32 word = job->word[0] ? job->word[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2] : 0;
            a[r][k] = !job->word[0] ? model_operand(job->left, first + r, k) : k % 2 ? unpack_high(word) : unpack_low(word);
        }
    for (int k = 0; k < 16; k++)
        for (int c = 0; c < n; c++)
            b[k][c] = job->transposed ? model_operand(job->right, k, c) : model_operand(job->right, c, k);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < n / 2; i++) {
            const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            float sum = 0.f;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            job->sum[lane][i] = job->keep ? job->sum[lane][i] + sum : sum;
        }
}

/* What a lane has of a product; the last one begins it for the warp. */
struct ModelPart {
    float *sum;
    const u32 *words;
    u64 left, right;
    int columns, transposed, keep;

    static void begin(void **slot, uint32_t mask)
    {
        const ModelPart *p = (const ModelPart *)slot[0];
        if (mask != ~0u) model->fail("a product of %x lanes", mask);
        model_job job = {};
        job.run = model_wgmma, job.kind = MODEL_PRODUCT, job.left = p->left, job.right = p->right;
        job.columns = p->columns, job.transposed = p->transposed, job.keep = p->keep;
        for (int i = 0; i < 32; i++) job.sum[i] = ((ModelPart *)slot[i])->sum, job.word[i] = ((ModelPart *)slot[i])->words;
        model->later(&job);
    }
    static void commit(void **, uint32_t) { model->commit(MODEL_PRODUCT); }
    template <int pending> static void wait(void **, uint32_t) { model->await(MODEL_PRODUCT, pending); }
};

template <int transposed, int n> FXA_INLINE void wgmma(float (&d)[n], u64 a, u64 b, int accumulate)
{
    ModelPart mine = {d, 0, a, b, 2 * n, transposed, accumulate};
    model->meet(~0u, &mine, ModelPart::begin);
}

template <int transposed, int words, int n>
FXA_INLINE void wgmma(float (&d)[n], const u32 (&a)[words], int k, u64 b, int accumulate = 1)
{
    ModelPart mine = {d, a + 4 * k, 0, b, 2 * n, transposed, accumulate};
    model->meet(~0u, &mine, ModelPart::begin);
}

FXA_INLINE void wgmma_fence() {}
FXA_INLINE void wgmma_commit() { model->meet(~0u, 0, ModelPart::commit); }
template <int pending> FXA_INLINE void wgmma_wait() { model->meet(~0u, 0, ModelPart::wait<pending>); }
template <int n> FXA_INLINE void settle(float (&)[n]) {}
template <int n> FXA_INLINE void settle(u32 (&)[n]) {}

#endif
