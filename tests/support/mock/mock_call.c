/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments in the memory of the mock device (mock_call.h).
 */
#include "mock_call.h"

#include <stdlib.h>
#include <string.h>

static bool mock_call_get(const mock_call *c, size_t i, fxa__run_region *t, int64_t *first, int64_t *end) {
    const fxa__run_region_list list = {&c->p->in, &c->host, 0};
    if (!fxa__run_region_get(&list, i, t)) return false;
    bool on_host = t->part == FXA__PART_OTHER && t->index != 2;
    if (on_host || fxa__region_is_empty(&t->region)) t->region.data = NULL;
    if (t->region.data && !fxa__region_addresses(&t->region, first, end)) abort();
    return true;
}

static void mock_call_point(mock_call *c, const fxa__run_region *t, void *at) {
    if (t->part == FXA__PART_OPERAND || t->part == FXA__PART_TABLE) c->args.slot[t->index] = at;
    if (t->part == FXA__PART_OTHER && t->index == 2) c->args.dparams = at;
    if (t->part == FXA__PART_TENSOR) c->tensors[t->index] = at;
    if (t->part == FXA__PART_DTENSOR) c->dtensors[t->index] = at;
    if (t->part == FXA__PART_BPROP) c->bprop_tensors[t->index] = at;
}

void mock_call_place(mock_call *c, const fxa_plan *plan, const fxa_args *args, int32_t ordinal) {
    fxa__run_region t;
    int64_t first = 0, end = 0;
    memset(c, 0, sizeof *c);
    c->p = fxa__problem_retain(plan->problem), c->host = c->args = *args;
    memset(c->args.slot, 0, sizeof c->args.slot);
    c->args.tensors = c->tensors, c->args.bprop_tensors = c->bprop_tensors, c->args.dtensors = c->dtensors;
    for (size_t i = 0; mock_call_get(c, i, &t, &first, &end); i++) {
        if (!t.region.data) continue;
        c->block[i] = mock_place(ordinal, (const void *)(uintptr_t)first, (size_t)(end - first), (size_t)(first % 256));
        mock_call_point(c, &t, (char *)c->block[i] + ((int64_t)(uintptr_t)t.region.data - first));
    }
    c->args.workspace_size = fxa_plan_workspace(plan);
    if (c->args.workspace_size) c->workspace = mock_place(ordinal, NULL, c->args.workspace_size, 0);
    c->args.workspace = c->workspace;
}

static void mock_call_copy(const fxa__region *r, char *to, const char *from) {
    int64_t at[FXA_MAX_RANK] = {0};
    for (int32_t axis = 0; axis >= 0;) {
        int64_t place = 0;
        for (int32_t i = 0; i < r->rank; i++) place += at[i] * r->stride[i];
        memcpy(to + place * r->element, from + place * r->element, (size_t)r->element);
        for (axis = r->rank - 1; axis >= 0 && ++at[axis] == r->size[axis]; axis--) at[axis] = 0;
    }
}

void mock_call_fetch(const mock_call *c) {
    fxa__run_region t;
    int64_t first = 0, end = 0;
    for (size_t i = 0; mock_call_get(c, i, &t, &first, &end); i++) {
        if (!c->block[i] || !t.written) continue;
        char *copy = malloc((size_t)(end - first));
        if (!copy) abort();
        mock_fetch(copy, c->block[i], (size_t)(end - first));
        int64_t origin = (int64_t)(uintptr_t)t.region.data - first;
        mock_call_copy(&t.region, (char *)(uintptr_t)first + origin, copy + origin);
        free(copy);
    }
}

void mock_call_end(mock_call *c) {
    for (size_t i = 0; i < FXA__RUN_REGIONS; i++) mock_unplace(c->block[i]);
    mock_unplace(c->workspace);
    fxa__problem_release(c->p);
}
