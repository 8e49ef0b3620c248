/* SPDX-License-Identifier: Apache-2.0
 *
 * Merges on a CUDA device (merge.h). The kernel computes the formulas of src/problem/merge_tensors.c in f64, with exp
 * and log of the device.
 */
#include "merge.h"

#include "../base/invariant.h"

#include <string.h>

static FxaGpuArray merge_array(const fxa_operand *t, const void *data, bool row) {
    FxaGpuArray a = {.data = (void *)(uintptr_t)data, .type = (int32_t)t->dtype};
    memcpy(a.stride, t->stride, sizeof a.stride);
    if (row) a.stride[3] = 0;
    return a;
}

static fxa_status merge_begin(const fxa__gpu *gpu, const fxa_merge_args *a, fxa_error *err) {
    const struct {
        const char *name;
        const void *data;
        bool row;
    } sides[] = {{"o_a_data", a->o_a_data, false},
                 {"lse_a_data", a->lse_a_data, true},
                 {"o_b_data", a->o_b_data, false},
                 {"lse_b_data", a->lse_b_data, true}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (sides[i].row || a->d) FXA_TRY(fxa__gpu_check(gpu, "argument", sides[i].name, sides[i].data, err));
    fxa__gpu_args args = {.join = {.o = merge_array(&a->o_b, a->o_b_data, false),
                                   .lse = merge_array(&a->lse_b, a->lse_b_data, true),
                                   .into = merge_array(&a->o_a, a->o_a_data, false),
                                   .into_lse = merge_array(&a->lse_a, a->lse_a_data, true),
                                   .rows = {.size = {a->b, a->h, a->s, a->d}}}};
    return fxa__gpu_launch(gpu, fxa__gpu_helpers(gpu), FXA__GPU_JOIN, &args, a->b * a->h * a->s, a->stream, err);
}

fxa_status fxa__gpu_merge(void *self, const fxa_merge_args *args, fxa_error *err) {
    fxa__gpu *gpu = self;
    if (!fxa__gpu_helpers(gpu)) FXA_TRY(fxa__gpu_memory.begin(gpu, args->stream, err));
    FXA_TRY(fxa__gpu_helpers_load(gpu, err));
    FXA__ASSERT(args->b >= 0 && args->h >= 0 && args->s >= 0 && args->d >= 0); /* fxa_merge has checked the sizes */
    if (args->b == 0 || args->h == 0 || args->s == 0) return FXA_OK;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = merge_begin(gpu, args, err);
    fxa__gpu_leave(gpu);
    return status;
}
