/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the forward pass, in order: the kernels that clear buffers, pack operands and write tables
 * (fxa__cuda_prepasses), the kernel that writes the tile list, and fxa_forward.
 */
#include "call.h"

#include "../../../base/num.h"

static fxa_status forward_maps(fxa__cuda_call *c, const struct FxaShape *shape) {
    const fxa_problem *p = &c->p->in;
    int32_t box = shape->k_rows;
    if (p->flags & FXA_PAGED) box = (int32_t)fxa__min_i64(box, p->page_size);
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_Q, shape->q_rows, &c->maps.q));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_K, box, &c->maps.k));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_V, box, &c->maps.v));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_O, shape->store_rows, &c->maps.o));
    return c->a.dense.data ? fxa__cuda_tensor_map_dense(c, &c->a.dense, false, shape->q_rows, &c->maps.dense) : FXA_OK;
}

fxa_status fxa__cuda_forward(fxa__cuda_call *c) {
    const struct FxaShape *shape = &c->code->unit[FXA__CUDA_FORWARD].shape;
    fxa__cuda_args_tile_list(c, &c->at.queries);
    fxa__cuda_args_query_order(c, shape->q_rows);
    if (shape->store_rows) FXA_TRY(forward_maps(c, shape));
    FXA_TRY(fxa__cuda_prepasses(c, &c->at.queries));
    FXA_TRY(fxa__cuda_tile_list_write(c, &c->at.queries));
    return fxa__cuda_launch_query_tiles(c, FXA__CUDA_FORWARD, 0);
}
