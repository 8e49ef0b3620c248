/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs plans of a device for callers whose data is in host memory. The regions of a run (problem/run_regions.h) give
 * address ranges. Ranges that overlap are joined, because slices of one tensor may interleave. Each joined range
 * becomes one allocation on the device.
 *
 *     caller's memory --ranges--> device allocations --run--> device allocations
 *     device allocations --written ranges--> host buffers --written elements--> caller's memory
 *
 * The written elements reach the caller's memory only after all copies succeeded, so a failure changes nothing in the
 * caller's memory. Bytes between elements are not written, because another thread may own them.
 */
#include "host_copies.h"

#include "../base/invariant.h"
#include "../base/num.h"
#include "../base/poison.h"
#include "../problem/run_regions.h"

#include <stdlib.h>
#include <string.h>

typedef struct copies_range {
    int64_t first, end; /* host addresses */
    bool written;
    /* Device address that corresponds to the host address `first`. The two addresses are equal modulo COPIES_ALIGN, so
     * that alignment guarantees for host pointers also hold for device pointers. */
    char *device;
    void *memory; /* start of the device allocation that `device` points into */
    char *result; /* [end - first] host buffer for the results, if the range is written; else NULL */
} copies_range;

#define COPIES_ALIGN 256

typedef struct host_copies {
    const fxa_plan *plan;
    fxa_args args; /* the caller's arguments with device pointers; its arrays of pointers are the members below */
    const void *tensors[FXA_MAX_TENSORS], *bprop_tensors[FXA_MAX_TENSORS];
    void *dtensors[FXA_MAX_TENSORS];
    fxa_view views[FXA__ARGS_VIEWS];
    size_t n;
    copies_range range[FXA__RUN_REGIONS];
} host_copies;

static const fxa__memory *copies_memory(const host_copies *s) { return s->plan->code->instance->engine->memory; }
static void *copies_self(const host_copies *s) { return s->plan->code->instance->self; }

/* Returns true if a region of the caller's memory is copied to the device. The params are not copied, because engines
 * read them on the host. The caller's workspace is not copied, because it is not used. */
static bool copies_is_needed(const fxa__run_region *t) {
    return t->region.data && !fxa__region_is_empty(&t->region) && (t->part != FXA__PART_OTHER || t->index == 2);
}

/* ---- Address ranges ---------------------------------------------------------------------------------------------- */

/* Compares two ranges for qsort: the range with the lower address comes first. */
static int copies_compare(const void *a, const void *b) {
    const copies_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Sets s->range to the address ranges of the regions that are copied, sorted by address; overlapping ranges are joined.
 * fxa__region_addresses cannot fail here, because the arguments were checked. */
static void copies_collect(host_copies *s, const fxa__run_region_list *list) {
    fxa__run_region t;
    size_t n = 0, joined = 0;
    for (size_t i = 0; fxa__run_region_get(list, i, &t); i++) {
        if (!copies_is_needed(&t)) continue;
        FXA__ASSERT(n < FXA__RUN_REGIONS);
        copies_range *range = &s->range[n++];
        *range = (copies_range){.written = t.written};
        (void)fxa__region_addresses(&t.region, &range->first, &range->end);
    }
    qsort(s->range, n, sizeof *s->range, copies_compare);
    for (size_t i = 0; i < n; i++) {
        copies_range *last = joined ? &s->range[joined - 1] : NULL;
        if (!last || s->range[i].first >= last->end) {
            s->range[joined++] = s->range[i];
            continue;
        }
        last->end = fxa__max_i64(last->end, s->range[i].end);
        last->written = last->written || s->range[i].written;
    }
    for (size_t i = 1; i < joined; i++) FXA__ASSERT(s->range[i - 1].end <= s->range[i].first);
    s->n = joined;
}

/* Returns the address range that contains a region; NULL if the region is not copied to the device. */
static const copies_range *copies_find(const host_copies *s, const fxa__run_region *t) {
    int64_t first, end;
    if (!copies_is_needed(t) || !fxa__region_addresses(&t->region, &first, &end)) return NULL;
    for (size_t i = 0; i < s->n; i++)
        if (s->range[i].first <= first && end <= s->range[i].end) return &s->range[i];
    return NULL;
}

/* ---- Arguments with device pointers ------------------------------------------------------------------------------ */

/* Sets the pointer of a region in s->args to the region's address on the device; to NULL if the region is not
 * copied. */
static void copies_set_pointer(host_copies *s, const fxa__run_region *t) {
    const copies_range *x = copies_find(s, t);
    FXA__ASSERT(!x == !copies_is_needed(t)); /* copies_collect has put each copied region into a range */
    void *at = x ? x->device + ((int64_t)(uintptr_t)t->region.data - x->first) : NULL;
    switch (t->part) {
    case FXA__PART_OPERAND:
    case FXA__PART_TABLE: s->args.slot[t->index] = at; break;
    case FXA__PART_OTHER:
        if (t->index == 2) s->args.dparams = at;
        break;
    case FXA__PART_TENSOR: s->tensors[t->index] = at; break;
    case FXA__PART_DTENSOR: s->dtensors[t->index] = at; break;
    case FXA__PART_BPROP: s->bprop_tensors[t->index] = at; break;
    }
}

/* Replaces each pointer in s->args to a copied region by the device pointer of the region. The pointer of an empty
 * operand becomes NULL. */
static void copies_arguments(host_copies *s, const fxa__run_region_list *list) {
    fxa__run_region t;
    memset(s->args.slot, 0, sizeof s->args.slot);
    for (size_t i = 0; fxa__run_region_get(list, i, &t); i++) copies_set_pointer(s, &t);
    if (s->args.n_tensors) s->args.tensors = s->tensors;
    if (s->args.n_dtensors) s->args.dtensors = s->dtensors;
    if (s->args.n_bprop_tensors) s->args.bprop_tensors = s->bprop_tensors;
}

/* ---- Copies between host and device ------------------------------------------------------------------------------ */

/* In builds with asserts, fills the workspace on the device with poison before a run (`after` false), or checks the red
 * zones of the workspace after a run (`after` true). run.c does the same for a workspace in host memory. */
static fxa_status copies_zones(host_copies *s, bool after, fxa_error *err) {
    fxa_status status = FXA_OK;
    (void)s, (void)after, (void)err;
#if FXA_ASSERT
    const fxa__memory *memory = copies_memory(s);
    size_t size = s->args.workspace_size;
    if (!size || !s->plan->code->instance->engine->zones) return FXA_OK;
    void *copy = fxa__alloc_aligned(s->plan->host, size, FXA_WORKSPACE_ALIGN);
    if (!copy) return fxa__fail(err, FXA_E_MEMORY, "out of memory: a copy of a workspace of %zu bytes", size);
    if (!after) fxa__poison_fill(copy, size);
    status = after ? memory->copy_from(copies_self(s), copy, s->args.workspace, size, s->args.stream, err)
                   : memory->copy_to(copies_self(s), s->args.workspace, copy, size, s->args.stream, err);
    if (status == FXA_OK) status = memory->wait(copies_self(s), s->args.stream, err);
    if (status == FXA_OK && after) fxa__plan_zones(s->plan, copy);
    fxa__free_aligned(s->plan->host, copy, size, FXA_WORKSPACE_ALIGN);
#endif
    return status;
}

/* Allocates device memory for all ranges and copies the ranges to it. Also allocates the workspace, and host buffers
 * for the results. */
static fxa_status copies_send(host_copies *s, fxa_error *err) {
    const fxa__memory *memory = copies_memory(s);
    for (size_t i = 0; i < s->n; i++) {
        copies_range *x = &s->range[i];
        size_t size = (size_t)(x->end - x->first), before = (size_t)(x->first % COPIES_ALIGN);
        if (x->written && !(x->result = fxa__alloc_aligned(s->plan->host, size, FXA_WORKSPACE_ALIGN)))
            return fxa__fail(err, FXA_E_MEMORY, "out of memory: %zu bytes that come from a device", size);
        FXA_TRY(memory->alloc(copies_self(s), before + size, &x->memory, err));
        x->device = (char *)x->memory + before;
        FXA_TRY(
            memory->copy_to(copies_self(s), x->device, (const void *)(uintptr_t)x->first, size, s->args.stream, err));
    }
    s->args.workspace_size = s->plan->workspace;
    s->args.workspace = NULL;
    if (s->args.workspace_size) FXA_TRY(memory->alloc(copies_self(s), s->args.workspace_size, &s->args.workspace, err));
    return copies_zones(s, false, err);
}

/* Waits for the run, then copies the written ranges from the device to the host buffers. */
static fxa_status copies_receive(host_copies *s, fxa_error *err) {
    const fxa__memory *memory = copies_memory(s);
    /* If the run failed, returns the error here, before anything is copied. */
    FXA_TRY(memory->wait(copies_self(s), s->args.stream, err));
    FXA_TRY(copies_zones(s, true, err));
    for (size_t i = 0; i < s->n; i++) {
        const copies_range *x = &s->range[i];
        if (x->written)
            FXA_TRY(memory->copy_from(copies_self(s), x->result, x->device, (size_t)(x->end - x->first), s->args.stream,
                                      err));
    }
    return memory->wait(copies_self(s), s->args.stream, err);
}

/* Copies the elements of a region to the caller's memory. `from`: a copy of the region with the same strides. */
static void copies_elements_write(const fxa__region *r, const char *from) {
    char *to = (char *)(uintptr_t)r->data;
    int64_t at[FXA_MAX_RANK] = {0};
    size_t bytes = (size_t)r->element;
    int32_t dense = -1; /* index of the axis that one memcpy copies as a whole; -1 = none */
    for (int32_t i = 0; i < r->rank && dense < 0; i++)
        if (r->stride[i] == 1) dense = i;
    if (dense >= 0) bytes *= (size_t)r->size[dense];
    for (int32_t axis = 0; axis >= 0;) {
        int64_t place = 0;
        for (int32_t i = 0; i < r->rank; i++) place += at[i] * r->stride[i];
        memcpy(to + place * r->element, from + place * r->element, bytes);
        for (axis = r->rank - 1; axis >= 0 && (axis == dense || ++at[axis] == r->size[axis]); axis--) at[axis] = 0;
    }
}

/* Copies to the caller's memory the gradient of each param i for which bit i of `asked` is set. */
static void copies_param_grads_write(uint64_t asked, const fxa__region *r, const char *from) {
    for (int64_t i = 0; i < r->size[0]; i++) {
        fxa__region one = {(const char *)r->data + i * r->element, r->element, 0, {0}, {0}};
        if (asked >> i & 1u) copies_elements_write(&one, from + i * r->element);
    }
}

/* Copies the written elements of all regions from the host buffers to the caller's memory. */
static void copies_results_write(const host_copies *s, const fxa__run_region_list *list) {
    fxa__run_region t;
    for (size_t i = 0; fxa__run_region_get(list, i, &t); i++) {
        const copies_range *x = t.written ? copies_find(s, &t) : NULL;
        if (!x) continue;
        const char *from = x->result + ((int64_t)(uintptr_t)t.region.data - x->first);
        if (t.part == FXA__PART_OTHER)
            copies_param_grads_write(list->p->param_grads, &t.region, from);
        else
            copies_elements_write(&t.region, from);
    }
}

/* Frees the device memory and the host buffers. After a failure, first waits for work on the device that may still use
 * them. */
static void copies_release(host_copies *s, bool failed) {
    const fxa__memory *memory = copies_memory(s);
    if (failed) (void)memory->wait(copies_self(s), s->args.stream, NULL);
    for (size_t i = 0; i < s->n; i++) {
        const copies_range *x = &s->range[i];
        if (x->memory)
            memory->give(copies_self(s), x->memory, (size_t)(x->first % COPIES_ALIGN) + (size_t)(x->end - x->first));
        fxa__free_aligned(s->plan->host, x->result, (size_t)(x->end - x->first), FXA_WORKSPACE_ALIGN);
    }
    if (s->args.workspace) memory->give(copies_self(s), s->args.workspace, s->args.workspace_size);
}

static fxa_status copies_run(host_copies *s, const fxa_args *args, fxa_error *err) {
    const fxa_plan *plan = s->plan;
    fxa__bound_args bound;
    fxa_args checked = *args;
    checked.workspace = NULL;
    FXA_TRY(fxa__bound_args_make(plan->problem, &checked, 0, true, s->views, &bound, err));
    fxa__progress progress = {.fn = bound.progress_fn, .user = bound.progress_user, .total = 1};
    /* fxa_plan_run gets no progress callback: this function reports the end, after the results have been copied */
    checked.progress = NULL;
    const fxa__run_region_list list = {&plan->problem->in, &checked, 0};
    s->args = checked;
    if (copies_memory(s)->begin) FXA_TRY(copies_memory(s)->begin(copies_self(s), s->args.stream, err));
    copies_collect(s, &list);
    fxa_status status = copies_send(s, err);
    if (status == FXA_OK) {
        copies_arguments(s, &list);
        status = fxa_plan_run(plan, &s->args, err);
    }
    if (status == FXA_OK) status = copies_receive(s, err);
    if (status == FXA_OK) copies_results_write(s, &list);
    copies_release(s, status != FXA_OK);
    if (status == FXA_OK && progress.fn) fxa__progress_end(&progress);
    return status;
}

fxa_status fxa__host_copies_run(const fxa_plan *plan, const fxa_args *args, fxa_error *err) {
    FXA_TRY(fxa__run_usable(plan, err));
    if (plan->problem->in.flags & FXA_GRAPH_CAPTURE)
        return fxa__fail(
            err, FXA_E_ARGUMENT,
            "flag FXA_GRAPH_CAPTURE is set: fxa_attention waits for the device, which a run that is recorded "
            "must not; fxa_plan_run does not");
    if (!copies_memory(&(host_copies){.plan = plan}))
        return fxa__fail(err, FXA_E_UNSUPPORTED, "engine %s has no way to the memory of its device",
                         fxa_plan_engine(plan));
    host_copies *s = fxa__alloc(plan->host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "what goes to a device");
    s->plan = plan;
    fxa_status status = copies_run(s, args, err);
    fxa__free(plan->host, s, sizeof *s);
    return status;
}
