/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the backward pass, in this order:
 * - fxa__cuda_prepasses(): kernels that clear buffers, pack captured tensors and write tables
 * - kernels that write tile lists
 * - fxa_backward_prepare, the preprocess
 * - fxa_backward, over key tiles
 * - if dQ is requested: fxa_grad_q_finish, the postprocess, which converts the f32 sum of dQ; or fxa_grad_q, a separate
 *   kernel that computes dQ
 * - kernels for the gradients of sinks, params and captured tensors
 */
#include "call.h"
#include "recipes.h"

#include "../../../base/num.h"

enum {
    BACKWARD_FINISH = 8 /* resident CTAs of fxa_grad_q_finish per multiprocessor */
};

static fxa_status backward_maps(fxa__cuda_call *c, const struct FxaShape *shape) {
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_Q, shape->q_rows, &c->maps.q));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_DO, shape->q_rows, &c->maps.grad_o));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_K, shape->k_rows, &c->maps.k));
    FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_V, shape->k_rows, &c->maps.v));
    return c->a.dense.data ? fxa__cuda_tensor_map_dense(c, &c->a.dense, false, shape->q_rows, &c->maps.dense) : FXA_OK;
}

static fxa_status backward_keys(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    const struct FxaShape *shape = &c->code->unit[FXA__CUDA_BACKWARD].shape;
    bool packed = (p->flags & FXA_VARLEN) && !(p->flags & FXA_PAGED);
    int64_t tiles = packed ? p->total_k / shape->k_rows + p->b : fxa__div_up(p->sk, shape->k_rows);
    if (shape->store_rows) {
        FXA_TRY(backward_maps(c, shape));
        FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_DK, shape->store_rows, &c->maps.grad_k));
        FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_DV, shape->store_rows, &c->maps.grad_v));
        if (c->a.grad_dense.data)
            FXA_TRY(fxa__cuda_tensor_map_dense(c, &c->a.grad_dense, true, shape->q_rows, &c->maps.grad_dense));
    }
    fxa__cuda_args_tile_list(c, &c->at.keys);
    if (c->code->choice.traits.ordered_dq) fxa__cuda_args_dq_order(c);
    FXA__ASSERT(!c->at.reduced || fxa__cuda_tile_shape(&c->code->choice, FXA__CUDA_BACKWARD).dq_writers > 0);
    c->a.sent_all = (int)tiles * fxa__cuda_tile_shape(&c->code->choice, FXA__CUDA_BACKWARD).dq_writers;
    return fxa__cuda_launch_main(c, FXA__CUDA_BACKWARD, c->code->choice.recipe->main.function,
                                 (fxa__cuda_grid){tiles * shape->parts, p->hkv, packed ? 1 : p->b});
}

static fxa_status backward_queries(fxa__cuda_call *c) {
    const fxa__cuda_kernel *kernel = &c->code->choice.recipe->dq_kernel;
    const struct FxaShape *shape = &c->code->unit[kernel->unit].shape;
    if (shape->store_rows) {
        FXA_TRY(backward_maps(c, shape));
        FXA_TRY(fxa__cuda_tensor_map(c, FXA_SLOT_DQ, shape->store_rows, &c->maps.grad_q));
    }
    fxa__cuda_args_tile_list(c, &c->at.queries);
    fxa__cuda_args_query_order(c, shape->q_rows);
    return fxa__cuda_launch_query_tiles(c, kernel->unit, kernel->function);
}

/* Launches a kernel that runs before or after the backward kernel, on a grid of rows x heads CTAs. */
static fxa_status backward_end(fxa__cuda_call *c, int function, int64_t rows, int64_t heads) {
    void *params[] = {&c->a};
    return fxa__cuda_launch(c, FXA__CUDA_PREPOST, function, (fxa__cuda_grid){rows, heads, 1},
                            c->code->unit[FXA__CUDA_PREPOST].shape.threads, params);
}

/* Launches the postprocess of dQ, which multiplies the sum of dQ by the scale. If the scale is < 0, kernels have
 * negated K, so the sum has the opposite sign, and the postprocess multiplies by -scale instead. */
static fxa_status backward_finish(fxa__cuda_call *c) {
    float scale = c->a.scale;
    if (c->a.turned) c->a.scale = (float)fxa__cuda_unit_scale(c);
    fxa__cuda_grid grid = {c->at.pad_rows / FXA_DQ_SHARE_ROWS, c->p->in.hq, 1};
    if (c->a.sent_all == 0) c->a.sent = NULL; /* without keys no kernel adds to dQ or to `sent` */
    if (c->a.sent) grid = (fxa__cuda_grid){fxa__min_i64(grid.x * grid.y, BACKWARD_FINISH * c->self->processors), 1, 1};
    fxa_status status = backward_end(c, FXA__CUDA_POSTPROCESS, grid.x, grid.y);
    c->a.scale = scale;
    return status;
}

/* Launches a backward of 0 batch entries: the requested gradients of sinks, params and captured tensors are sums
 * without terms. No attention kernel runs, because no row of Q, K and V belongs to a batch entry. */
static fxa_status backward_of_nothing(fxa__cuda_call *c) {
    FXA_TRY(fxa__cuda_prepasses(c, NULL));
    FXA_TRY(fxa__cuda_captured_grads_begin(c));
    c->a.pad_rows = 0;
    if (c->p->in.flags & FXA_GRAD_SINKS) FXA_TRY(backward_end(c, FXA__CUDA_SINK_GRAD, c->p->in.hq, 1));
    return fxa__cuda_captured_grads_store(c);
}

fxa_status fxa__cuda_backward(fxa__cuda_call *c) {
    const fxa_problem *p = &c->p->in;
    int32_t rows = c->code->unit[FXA__CUDA_PREPOST].shape.q_rows;
    FXA__ASSERT(rows > 0 && c->at.pad_rows % rows == 0);
    fxa__cuda_captured_grads_args(c);
    if (p->b == 0) return backward_of_nothing(c);
    FXA_TRY(fxa__cuda_prepasses(c, &c->at.keys));
    FXA_TRY(fxa__cuda_captured_grads_begin(c));
    FXA_TRY(fxa__cuda_tile_list_write(c, &c->at.keys));
    FXA_TRY(fxa__cuda_tile_list_write(c, &c->at.queries));
    if (c->code->choice.converts)
        /* The preprocess reads inputs before it waits for the kernel that converts them, so it must not start early. */
        c->follows_kernel = false;
    FXA_TRY(backward_end(c, FXA__CUDA_PREPROCESS, c->at.pad_rows / rows, p->hq));
    FXA_TRY(backward_keys(c));
    if (p->flags & FXA_GRAD_Q)
        FXA_TRY(c->code->choice.dq == FXA__CUDA_DQ_OWN_KERNEL ? backward_queries(c) : backward_finish(c));
    if (p->flags & FXA_GRAD_SINKS) FXA_TRY(backward_end(c, FXA__CUDA_SINK_GRAD, p->hq, 1));
    return fxa__cuda_captured_grads_store(c);
}
