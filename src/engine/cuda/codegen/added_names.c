/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the names of the tensors and params that the passes of codegen add to the score program: int32 arrays that a
 * run passes as an fxa_slot (coordinate maps, offsets), and the tensors and params of the caller's backward program. A
 * name that the score program already declares gets a number appended. A program sorts its tensors and params by name,
 * so their indices do not show where a run finds their data; fxa__cuda_tensor_source() and fxa__cuda_param_source()
 * find this by the name.
 */
#include "passes.h"

#include "../../../base/invariant.h"

#include <stdio.h>
#include <string.h>

static bool added_is_declared(const fxa_program *p, const char *name) {
    return p && (fxa_program_param_find(p, name) >= 0 || fxa_program_tensor_find(p, name) >= 0);
}

void fxa__cuda_unused_name(const fxa_program *p, const char *base, char name[CUDA_NAME]) {
    (void)snprintf(name, CUDA_NAME, "%s", base);
    for (int i = 0; added_is_declared(p, name); i++) (void)snprintf(name, CUDA_NAME, "%s_%d", base, i);
    FXA__ASSERT(strlen(name) + 1 < CUDA_NAME); /* snprintf truncated no name */
}

void fxa__cuda_added_names_make(cuda_work *w) {
    const fxa__problem *p = w->problem;
    char base[24];
    for (int i = 0; i < FXA_SLOT_COUNT; i++) {
        (void)snprintf(base, sizeof base, "zzzz_slot_%02d", i);
        fxa__cuda_unused_name(p->program, base, w->added.slot[i]);
    }
    for (int32_t i = 0; p->in.bprop && i < p->bprop->n_tensors; i++) {
        (void)snprintf(base, sizeof base, "zzzy_own_t%02d", (int)i);
        fxa__cuda_unused_name(p->program, base, w->added.bprop_tensor[i]);
    }
    for (int32_t i = 0; p->in.bprop && i < p->bprop->n_params; i++) {
        (void)snprintf(base, sizeof base, "zzzy_own_%02d", (int)i);
        fxa__cuda_unused_name(p->program, base, w->added.bprop_param[i]);
    }
}

/* Returns the index of `name` in list[n]; -1 = the list does not contain it. */
static int32_t added_find(const char list[][CUDA_NAME], int32_t n, const char *name) {
    for (int32_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0) return i;
    return -1;
}

fxa__cuda_origin fxa__cuda_tensor_source(const cuda_work *w, const char *name) {
    const fxa_program *caller = w->problem ? w->problem->program : w->config.program;
    int32_t slot = added_find(w->added.slot, FXA_SLOT_COUNT, name);
    int32_t own = added_find(w->added.bprop_tensor, FXA_MAX_TENSORS, name);
    if (slot >= 0) return (fxa__cuda_origin){FXA__CUDA_FROM_SLOT, slot};
    if (own >= 0) return (fxa__cuda_origin){FXA__CUDA_FROM_BPROP, own};
    return (fxa__cuda_origin){FXA__CUDA_FROM_CALLER, fxa_program_tensor_find(caller, name)};
}

int32_t fxa__cuda_param_source(const cuda_work *w, const char *name) {
    const fxa_program *caller = w->problem ? w->problem->program : w->config.program;
    int32_t own = added_find(w->added.bprop_param, FXA_MAX_PARAMS, name);
    return own >= 0 ? FXA__CUDA_BPROP - own : fxa_program_param_find(caller, name);
}
