/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces src/engine/cuda/kernels/sm90/ptx_wgmma.cuh (common/ptx.h). A warp's rows of a product do not depend on the
 * other warps of its warpgroup, so each warp computes its own rows, and the emulator compares the warps' instructions
 * at the end. Registers and shared memory are read when the product completes, which may be as late as the wait for it.
 */
#ifndef FXA_CUDA_SM90_PTX_WGMMA_CUH
#define FXA_CUDA_SM90_PTX_WGMMA_CUH

#include "common/ptx.cuh"

/* Returns the shared address of eight adjacent elements of an operand: row `row`, from column `column` on. A row of 128
 * bytes has 64 elements; groups of 8 rows are `stride` bytes apart, blocks of 64 columns of a transposed operand `lead`
 * bytes. */
static inline u32 model_operand(u64 descriptor, int row, int column) {
    const u32 start = (u32)(descriptor & 0x3fff) << 4, lead = (u32)(descriptor >> 16 & 0x3fff) << 4;
    const u32 stride = (u32)(descriptor >> 32 & 0x3fff) << 4;
    const u32 at = start + row / 8 * stride + row % 8 * 128 + column / 64 * lead + column % 64 * 2;
    return at ^ (at >> 7 & 7) << 4;
}

static inline ModelRow model_eight(u32 at) {
    const u16 *from = (const u16 *)model_shared(at, 16, 16);
    ModelRow row;
    for (int i = 0; i < 8; i++) row[i] = model_from16(from[i]);
    return row;
}

/* Call visit(address of eight elements, their row, their column) for all that a warp reads of A (model_left) or B
 * (model_right). */
template <class F> static inline void model_left(const model_job *job, F visit) {
    const int first = job->owner / 32 % 4 * 16;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k += 8) visit(model_operand(job->left, first + r, k), r, k);
}

template <class F> static inline void model_right(const model_job *job, F visit) {
    const int rows = job->transposed ? 16 : job->columns, columns = job->transposed ? job->columns : 16;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c += 8) visit(model_operand(job->right, r, c), r, c);
}

static inline void model_wgmma(const model_job *job) {
    static float a[16][16], b[16][256];
    const int n = job->columns;
    if (job->word[0])
        for (int r = 0; r < 16; r++)
            for (int k = 0; k < 16; k += 2) {
                const u32 word = job->word[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2];
                a[r][k] = unpack_low(word), a[r][k + 1] = unpack_high(word);
            }
    else
        model_left(job, [](u32 at, int r, int k) {
            const ModelRow row = model_eight(at);
            memcpy(&a[r][k], &row, sizeof row);
        });
    if (job->transposed)
        model_right(job, [](u32 at, int k, int c) {
            const ModelRow row = model_eight(at);
            memcpy(&b[k][c], &row, sizeof row);
        });
    else
        model_right(job, [](u32 at, int c, int k) {
            const ModelRow row = model_eight(at);
            for (int i = 0; i < 8; i++) b[k + i][c] = row[i];
        });
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < n; c += 8) {
            ModelRow sum = {}, right;
            for (int k = 0; k < 16; k++) {
                memcpy(&right, &b[k][c], sizeof right);
                sum += a[r][k] * right;
            }
            for (int i = 0; i < 8; i++) {
                float &to = job->sum[r % 8 * 4 + i / 2][c / 2 + r / 8 * 2 + i % 2];
                to = job->keep ? to + sum[i] : sum[i];
            }
        }
}

/* A lane's operands of a product. The last lane of the warp starts the product. */
struct ModelPart {
    float *sum;
    const u32 *words;
    u64 left, right;
    int columns, transposed, keep;

    static void begin(void **slot, uint32_t mask) {
        const ModelPart *p = (const ModelPart *)slot[0];
        if (mask != ~0u) model->fail("a product of lanes %x", mask);
        if (p->right >> 62 != 1 || (!p->words && p->left >> 62 != 1))
            model->fail("a descriptor without the swizzle of 128 bytes");
        model_job job = {};
        job.run = model_wgmma, job.kind = MODEL_PRODUCT, job.left = p->left, job.right = p->right;
        job.columns = p->columns, job.transposed = p->transposed, job.keep = p->keep;
        for (int i = 0; i < 32; i++) {
            const ModelPart *lane = (const ModelPart *)slot[i];
            job.sum[i] = lane->sum, job.word[i] = lane->words;
            if (lane->left != p->left || lane->right != p->right || lane->keep != p->keep)
                model->fail("lanes of a product with other operands");
        }
        const auto look = [](u32 at, int, int) { (void)model_shared(at, 16, 16), model_fenced(at); };
        job.owner = model->number & ~31;
        if (!p->words) model_left(&job, look);
        model_right(&job, look);
        model->later(&job);
    }
    static void commit(void **, uint32_t) { model->commit(MODEL_PRODUCT); }
    template <int pending> static void wait(void **, uint32_t) { model->await(MODEL_PRODUCT, pending); }
};

template <int transposed, int steps, int n> FXA_INLINE void wgmma(float (&d)[n], u64 a, u64 b, int accumulate) {
    for (int i = 0; i < steps; i++) {
        ModelPart mine = {d, 0, a + 2 * i, b + (transposed ? 128 : 2) * i, 2 * n, transposed, accumulate || i};
        model->meet(~0u, &mine, ModelPart::begin);
    }
}

template <int transposed, int steps, int words, int n>
FXA_INLINE void wgmma(float (&d)[n], const u32 (&a)[words], int k, u64 b, int accumulate = 1) {
    for (int i = 0; i < steps; i++) {
        ModelPart mine = {d, a + 4 * (k + i), 0, b + (transposed ? 128 : 2) * i, 2 * n, transposed, accumulate || i};
        model->meet(~0u, &mine, ModelPart::begin);
    }
}

FXA_INLINE void wgmma_fence() {}
FXA_INLINE void wgmma_commit() { model->meet(~0u, 0, ModelPart::commit); }
template <int pending> FXA_INLINE void wgmma_wait() { model->meet(~0u, 0, ModelPart::wait<pending>); }
template <int n> FXA_INLINE void settle(float (&)[n]) {}
template <int n> FXA_INLINE void settle(u32 (&)[n]) {}

#endif
