/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces src/engine/cuda/kernels/sm80/ptx.cuh (common/ptx.h).
 */
#ifndef FXA_CUDA_SM80_PTX_CUH
#define FXA_CUDA_SM80_PTX_CUH

#include "common/ptx.cuh"

static inline void model_copy(const model_job *job) {
    uint8_t *to = model_shared(job->shared, 16, 16);
    memset(to, 0, 16);
    memcpy(to, job->memory, (size_t)job->bytes);
}

FXA_INLINE void copy_async(u32 to, const void *from, int bytes) {
    model_job job = {};
    if ((uintptr_t)from % 16 || bytes < 0 || bytes > 16) model->fail("a copy of %d bytes from %p", bytes, from);
    (void)model_shared(to, 16, 16);
    MODEL_READ(from, (size_t)bytes);
    job.run = model_copy, job.kind = MODEL_COPY, job.shared = to, job.memory = from, job.bytes = bytes;
    model->later(&job);
}

FXA_INLINE void copy_commit() { model->commit(MODEL_COPY); }
template <int pending> FXA_INLINE void copy_wait() { model->await(MODEL_COPY, pending); }

/* A product of a warp: accumulators and operand registers of every lane. */
struct ModelProduct {
    float *d;
    const u32 *a;
    u32 b[2];

    static void multiply(void **slot, uint32_t mask) {
        float a[16][16];
        ModelRow b[16];
        if (mask != ~0u) model->fail("a product of lanes %x", mask);
        for (int lane = 0; lane < 32; lane++) {
            const ModelProduct *p = (ModelProduct *)slot[lane];
            for (int i = 0; i < 4; i++) {
                float *row = &a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
                row[0] = unpack_low(p->a[i]), row[1] = unpack_high(p->a[i]);
            }
            for (int i = 0; i < 2; i++) {
                ModelRow *rows = &b[lane % 4 * 2 + i * 8];
                rows[0][lane / 4] = unpack_low(p->b[i]), rows[1][lane / 4] = unpack_high(p->b[i]);
            }
        }
        for (int row = 0; row < 16; row++) {
            ModelRow sum = {};
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k];
            for (int column = 0; column < 8; column++)
                ((ModelProduct *)slot[row % 8 * 4 + column / 2])->d[row / 8 * 2 + column % 2] += sum[column];
        }
    }
};

FXA_INLINE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    ModelProduct mine = {d, a, {b0, b1}};
    model->meet(~0u, &mine, ModelProduct::multiply);
}

#endif
