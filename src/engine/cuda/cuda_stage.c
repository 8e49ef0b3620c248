/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels want otherwise than the caller has it goes through the workspace, by the helper kernels of src/gpu:
 * sinks of other types and strides, and gradients that are added to what is there (they are rounded to storage before,
 * as the engine's detail says).
 */
#include "cuda_run.h"

static bool stage_is_apart(const fxa_operand *t) { return t->dtype != FXA_F32 || t->stride[1] != 1; }

bool fxa__cu_stage_is_needed(const fxa_problem *p, fxa_slot slot) {
    uint32_t flags = p->flags;
    bool backward = p->pass == FXA_BACKWARD;
    switch (slot) {
    case FXA_SLOT_SINK: return (flags & FXA_SINK) && stage_is_apart(&p->sink);
    case FXA_SLOT_DSINK:
        return backward && (flags & FXA_GRAD_SINK) && (stage_is_apart(&p->dsink) || (flags & FXA_ACC_SINK));
    case FXA_SLOT_DQ: return backward && (flags & FXA_GRAD_Q) && (flags & FXA_ACC_Q);
    case FXA_SLOT_DK: return backward && (flags & FXA_GRAD_K) && (flags & FXA_ACC_K);
    case FXA_SLOT_DV: return backward && (flags & FXA_GRAD_V) && (flags & FXA_ACC_V);
    default: return false;
    }
}

bool fxa__cu_stage_is_any(const fxa_problem *p) {
    static const fxa_slot slots[] = {FXA_SLOT_SINK, FXA_SLOT_DSINK, FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    bool any = false;
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) any = any || fxa__cu_stage_is_needed(p, slots[i]);
    return any;
}

static FxaGpuArray stage_array(const struct FxaView *v, fxa_dtype type) {
    return (FxaGpuArray){.data = v->data, .stride = {v->b, v->h, v->s, 1}, .type = (int32_t)type};
}

/* Of one element per head. */
static FxaGpuArray stage_heads(void *data, int64_t stride, fxa_dtype type) {
    return (FxaGpuArray){.data = data, .stride = {0, stride, 0, 0}, .type = (int32_t)type};
}

static fxa_status stage_copy(fxa__cu_call *c, const FxaGpuArray *to, const FxaGpuArray *from, const int64_t size[4],
                             bool add) {
    fxa__gpu_args args = {.copy = {.to = *to, .from = *from, .mode = add ? FXA_GPU_ADD : FXA_GPU_COPY}};
    int64_t work = 1;
    for (int i = 0; i < 4; i++) args.copy.rows.size[i] = size[i], work *= size[i];
    const fxa__gpu *gpu = &c->self->gpu;
    return fxa__gpu_launch(gpu, fxa__gpu_helpers(gpu), FXA__GPU_COPY, &args, work, c->bind->stream, c->err);
}

fxa_status fxa__cu_stage_in(fxa__cu_call *c) {
    const fxa_problem *p = &c->p->in;
    if (!fxa__cu_stage_is_needed(p, FXA_SLOT_SINK)) return FXA_OK;
    FxaGpuArray to = stage_heads(c->at.sink, 1, FXA_F32);
    FxaGpuArray from = stage_heads(c->bind->slot[FXA_SLOT_SINK], p->sink.stride[1], (fxa_dtype)p->sink.dtype);
    return stage_copy(c, &to, &from, (const int64_t[4]){1, p->hq, 1, 1}, false);
}

fxa_status fxa__cu_stage_out(fxa__cu_call *c) {
    static const fxa_slot slots[] = {FXA_SLOT_DQ, FXA_SLOT_DK, FXA_SLOT_DV};
    const fxa_problem *p = &c->p->in;
    fxa_dtype type = c->code->choice.dtype;
    for (int i = 0; i < 3; i++) {
        if (!fxa__cu_stage_is_needed(p, slots[i])) continue;
        fxa__cu_tensor from = fxa__cu_tensor_of(c, slots[i]), to = fxa__cu_tensor_given(c, slots[i]);
        FxaGpuArray there = stage_array(&to.view, type), here = stage_array(&from.view, type);
        FXA_TRY(stage_copy(c, &there, &here, to.size, true));
    }
    if (!fxa__cu_stage_is_needed(p, FXA_SLOT_DSINK)) return FXA_OK;
    FxaGpuArray there = stage_heads(c->bind->slot[FXA_SLOT_DSINK], p->dsink.stride[1], (fxa_dtype)p->dsink.dtype);
    FxaGpuArray here = stage_heads(c->at.grad_sink, 1, FXA_F32);
    return stage_copy(c, &there, &here, (const int64_t[4]){1, p->hq, 1, 1}, p->flags & FXA_ACC_SINK);
}
