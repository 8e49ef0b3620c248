/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the steps of helper_steps.h.
 */
#include "helper_steps.h"

#include "../../../base/invariant.h"

#include <string.h>

_Static_assert(sizeof(fxa__gpu_args) <= UINT16_MAX, "fxa__dnn_ref.at is an offset into the arguments");
_Static_assert(FXA__DNN_REFS <= UINT8_MAX, "fxa__dnn_step.n_refs counts the pointers");

fxa__dnn_step *fxa__dnn_step_new(fxa__dnn_graph *g, fxa__gpu_kernel kernel, bool after, int64_t work,
                                 fxa__dnn_step *discarded) {
    if (g->status == FXA_OK && !fxa__grow(g->host, &g->steps, &g->step_capacity, g->n_steps + 1, sizeof *g->steps))
        g->status = FXA_E_MEMORY;
    fxa__dnn_step *step = g->status == FXA_OK ? &g->steps[g->n_steps++] : discarded;
    memset(step, 0, sizeof *step);
    step->kernel = (uint8_t)kernel, step->after = after, step->work = work;
    return step;
}

void fxa__dnn_step_point(fxa__dnn_step *step, const void *field, uint8_t source, int32_t index, int64_t offset) {
    /* Only the discarded step of a failed graph can be full, because it receives the pointers of all steps. */
    if (step->n_refs == FXA__DNN_REFS) return;
    const char *args = (const char *)&step->args;
    FXA__ASSERT((const char *)field >= args && (const char *)field + sizeof(void *) <= args + sizeof step->args);
    /* run_ref (run.c) handles these sources only. */
    FXA__ASSERT(source == FXA__DNN_SLOT || source == FXA__DNN_SCRATCH || source == FXA__DNN_TENSOR ||
                source == FXA__DNN_OWN_TENSOR || source == FXA__DNN_DTENSOR);
    step->ref[step->n_refs++] = (fxa__dnn_ref){(uint16_t)((const char *)field - args), source, false, index, offset};
}

void fxa__dnn_step_data(fxa__dnn_step *step, const void *field, const fxa__dnn_graph *g, int32_t tensor) {
    if (g->status != FXA_OK) return;
    const fxa__dnn_tensor *t = &g->tensors[tensor];
    FXA__ASSERT(tensor < (int32_t)g->n_tensors && t->source != FXA__DNN_VIRTUAL && !fxa__dnn_is_by_value(t));
    bool elements = fxa__dnn_is_captured(t);
    fxa__dnn_step_point(step, field, t->source, t->index, elements ? t->offset * fxa__dnn_size(t->type) : t->offset);
}

/* Returns the fxa_dtype of a type of cuDNN. */
static int32_t step_type(uint8_t type) {
    switch (type) {
    case CUDNN_DATA_HALF: return FXA_F16;
    case CUDNN_DATA_BFLOAT16: return FXA_BF16;
    case CUDNN_DATA_INT32: return FXA_I32;
    case CUDNN_DATA_INT64: return FXA_I64;
    default: return FXA_F32;
    }
}

void fxa__dnn_step_tensor(fxa__dnn_step *step, FxaGpuArray *array, const fxa__dnn_graph *g, int32_t tensor) {
    if (g->status != FXA_OK) return;
    const fxa__dnn_tensor *t = &g->tensors[tensor];
    for (int i = 0; i < 4; i++) array->stride[i] = t->dim[i] > 1 ? t->stride[i] : 0;
    array->type = step_type(t->type);
    fxa__dnn_step_data(step, &array->data, g, tensor);
}
