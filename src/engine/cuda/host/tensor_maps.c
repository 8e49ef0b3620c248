/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor maps of a run's operands. The driver encodes them on the host from addresses, sizes and strides, in less time
 * than a lookup of a cached map takes (bench/bench_runs.c).
 */
#include "call.h"

#include "../../../base/num.h"

enum { MAPS_F16 = 6, MAPS_BF16 = 9, MAPS_SWIZZLE_128 = 3, MAPS_L2_128 = 2, MAPS_L2_256 = 3, MAPS_MAX_ROWS = 256 };

/* Returns the L2 promotion (bytes that L2 fetches at a time). Decode reads every byte once, and is 4 % faster with 128
 * bytes than with 256. The forward of short documents is 0.3 % faster with 128 bytes, and no forward is slower. */
static int maps_promotion(const fxa__cuda_call *c) { return c->p->in.pass == FXA_FORWARD ? MAPS_L2_128 : MAPS_L2_256; }

/* Encodes the tensor map of a tensor [b, h, s, d] of 16-bit elements, with boxes of `rows` rows. stride: in elements,
 * of b, h, s; strides of axes of size 1 are ignored. */
static fxa_status maps_make(fxa__cuda_call *c, const void *data, const int64_t size[4], const int64_t stride[3],
                            int32_t rows, struct FxaMap *out) {
    const uint64_t sizes[4] = {(uint64_t)size[3], (uint64_t)size[2], (uint64_t)size[1], (uint64_t)size[0]};
    const uint32_t box[4] = {FXA_BOX_COLUMNS, (uint32_t)rows, 1, 1}, ones[4] = {1, 1, 1, 1};
    uint64_t bytes[3];
    for (int i = 0; i < 3; i++)
        bytes[i] = size[2 - i] > 1 ? 2 * (uint64_t)stride[2 - i] : 2 * (uint64_t)fxa__round_up(size[3], 8);
    FXA__ASSERT(rows > 0 && rows <= MAPS_MAX_ROWS && fxa_dtype_size(c->code->choice.dtype) == 2);
    for (int i = 0; i < 3; i++) FXA__ASSERT(bytes[i] > 0 && bytes[i] % 16 == 0 && size[2 - i] > 0);
    int type = c->code->choice.dtype == FXA_F16 ? MAPS_F16 : MAPS_BF16;
    int status = c->self->gpu.driver.tensor_map(out, type, 4, (uintptr_t)data, sizes, bytes, box, ones, 0,
                                                MAPS_SWIZZLE_128, maps_promotion(c), 0);
    return fxa__gpu_status(&c->self->gpu, status, "cuTensorMapEncodeTiled", c->err);
}

fxa_status fxa__cuda_tensor_map(fxa__cuda_call *c, fxa_slot slot, int32_t rows, struct FxaMap *out) {
    const fxa__cuda_operand *t = &c->operand[slot];
    return maps_make(c, t->view.data, t->size, (const int64_t[3]){t->view.b, t->view.h, t->view.s}, rows, out);
}

fxa_status fxa__cuda_tensor_map_dense(fxa__cuda_call *c, const struct FxaView *view, bool whole, int32_t rows,
                                      struct FxaMap *out) {
    const fxa_problem *p = &c->p->in;
    const int64_t size[4] = {whole || view->b ? p->b : 1, whole || view->h ? p->hq : 1, p->sq, p->sk};
    return maps_make(c, view->data, size, (const int64_t[3]){view->b, view->h, view->s}, rows, out);
}
