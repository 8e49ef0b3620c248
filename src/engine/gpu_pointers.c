/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that the pointers of a run are device memory (gpu_pointers.h). Which slots (pointer arguments of a run) a
 * problem uses is read from the operand table of src/problem, so a new operand needs no change in this file.
 * bound_args.c has already refused missing pointers: a pointer that is NULL here is optional or points to an operand
 * without elements. Params are in host memory and are not checked.
 */
#include "gpu_pointers.h"

#include "../problem/problem_private.h"

static fxa_status gpu_check_one(const fxa__gpu *gpu, const char *kind, const char *name, const void *data,
                                fxa_error *err) {
    return data ? fxa__gpu_check(gpu, kind, name, data, err) : FXA_OK;
}

static fxa_status gpu_check_slots(const fxa__gpu *gpu, const fxa_problem *p, const fxa__bound_args *bound,
                                  fxa_error *err) {
    for (size_t i = 0; i < FXA__OPERAND_COUNT; i++) {
        const fxa__operand_info *info = fxa__operand_info_get(i);
        fxa_slot slot = (fxa_slot)info->slot;
        if (bound->slot[slot] && fxa__operand_role(p, info) != FXA__UNUSED)
            FXA_TRY(gpu_check_one(gpu, "slot", fxa_slot_name(slot), bound->slot[slot], err));
    }
    for (int i = FXA_SLOT_Q_LENGTHS; i < FXA_SLOT_COUNT; i++)
        if (bound->slot[i] && fxa__slot_length(p, (fxa_slot)i) > 0) /* the cheap NULL test comes first */
            FXA_TRY(gpu_check_one(gpu, "slot", fxa_slot_name((fxa_slot)i), bound->slot[i], err));
    return FXA_OK;
}

static fxa_status gpu_check_views(const fxa__gpu *gpu, const char *kind, const fxa_program *program,
                                  const fxa_view *views, size_t n, fxa_error *err) {
    for (size_t i = 0; views && i < n; i++) {
        fxa__region r = fxa__view_region(&views[i]);
        if (!fxa__region_is_empty(&r)) FXA_TRY(gpu_check_one(gpu, kind, program->tensors[i].name, views[i].data, err));
    }
    return FXA_OK;
}

static fxa_status gpu_check_all(const fxa__gpu *gpu, const fxa__problem *p, const fxa__bound_args *bound,
                                fxa_error *err) {
    size_t n = p->in.n_captures, n_bprop = p->in.pass == FXA_BACKWARD ? p->in.n_bprop_captures : 0;
    FXA_TRY(fxa__gpu_check_stream(gpu, bound->stream, p->in.flags & FXA_GRAPH_CAPTURE, err));
    FXA_TRY(gpu_check_slots(gpu, &p->in, bound, err));
    FXA_TRY(gpu_check_views(gpu, "tensor", p->program, bound->tensors, n, err));
    FXA_TRY(gpu_check_views(gpu, "gradient of tensor", p->program, bound->dtensors, n, err));
    FXA_TRY(gpu_check_views(gpu, "tensor of bprop", p->in.bprop, bound->bprop_tensors, n_bprop, err));
    FXA_TRY(gpu_check_one(gpu, "the", "gradients of params", bound->dparams, err));
    return gpu_check_one(gpu, "the", "workspace", bound->workspace, err);
}

fxa_status fxa__gpu_engine_check(void *self, const fxa__problem *p, const fxa__bound_args *bound, fxa_error *err) {
    const fxa__gpu *gpu = self;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = gpu_check_all(gpu, p, bound, err);
    fxa__gpu_leave(gpu);
    return status;
}

fxa_status fxa__gpu_engine_tie(void *self, void *stream, void (*drop)(void *what), void *what, bool *tied,
                               fxa_error *err) {
    const fxa__gpu *gpu = self;
    *tied = false;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = fxa__gpu_tie(gpu, stream, drop, what, tied, err);
    fxa__gpu_leave(gpu);
    return status;
}
