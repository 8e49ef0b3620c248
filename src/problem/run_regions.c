/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists all memory regions of a run, and checks that each written region is disjoint from all other regions. Most
 * regions have disjoint address ranges. Regions whose address ranges intersect are compared by their strides, so
 * interleaved slices of one buffer (packed QKV and its gradients) are found to be disjoint.
 */
#include "scales.h"
#include "run_regions.h"

#include "../base/invariant.h"

static void regions_flat(fxa__run_region *out, const char *kind, const void *data, int64_t element, size_t n,
                         bool written) {
    out->kind = kind;
    out->written = written;
    out->region = (fxa__region){n ? data : NULL, element, 1, {(int64_t)n}, {1}};
}

static void regions_view(fxa__run_region *out, const char *kind, const fxa_program *program, size_t i, fxa_view view,
                         bool written) {
    out->kind = kind;
    out->name = fxa_program_tensor(program, i).name;
    out->written = written;
    out->region = fxa__view_region(&view);
}

static void regions_operand(const fxa_problem *p, const fxa_args *args, size_t i, fxa__run_region *out) {
    const fxa__operand_info *info = fxa__operand_info_get(i);
    fxa__role role = fxa__operand_role(p, info);
    int64_t size[4];
    out->kind = "slot";
    out->name = fxa_slot_name((fxa_slot)info->slot);
    out->index = info->slot;
    out->written = role == FXA__WRITTEN;
    /* fast path for the operands that the run does not use, whose sizes need not be computed */
    if (role == FXA__UNUSED || !args->slot[info->slot]) return;
    fxa__operand_sizes(p, info->shape, size);
    out->region = fxa__operand_region(fxa__operand_of(p, info), size, args->slot[info->slot]);
}

static void regions_table(const fxa_problem *p, const fxa_args *args, size_t i, fxa__run_region *out) {
    fxa_slot slot = (fxa_slot)(FXA_SLOT_Q_LENGTHS + i);
    out->kind = "slot";
    out->name = fxa_slot_name(slot);
    out->index = slot;
    if (!args->slot[slot]) return;
    int64_t n = fxa__slot_length(p, slot);
    regions_flat(out, "slot", args->slot[slot], fxa__slot_element(slot), n > 0 ? (size_t)n : 0,
                 fxa__scale_use_of(p, slot) == FXA__SCALE_WRITTEN);
}

/* Sets *out to region i of those that are neither slots nor tensors: workspace, params, gradients of params, and params
 * of the user-written backward program. */
static void regions_other(const fxa__run_region_list *l, size_t i, fxa__run_region *out) {
    const fxa_problem *p = l->p;
    const fxa_args *args = l->args;
    if (i == 0) regions_flat(out, "workspace", args->workspace, 1, l->workspace_size, true);
    if (i == 1) regions_flat(out, "params", args->params, 8, args->n_params, false);
    if (i == 2) regions_flat(out, "dparams", args->dparams, 8, p->param_grads ? args->n_dparams : 0, true);
    if (i == 3) regions_flat(out, "bprop_params", args->bprop_params, 8, p->bprop ? args->n_bprop_params : 0, false);
}

static void regions_dtensor(const fxa__run_region_list *l, size_t i, fxa__run_region *out) {
    const fxa_problem *p = l->p;
    if (!p->captures[i].grad) return;
    regions_view(out, "dtensors", p->program, i,
                 fxa__capture_grad_view(p->program, p->captures, i, l->args->dtensors[i]), true);
}

bool fxa__run_region_get(const fxa__run_region_list *l, size_t i, fxa__run_region *out) {
    const fxa_problem *p = l->p;
    const fxa_args *args = l->args;
    const size_t count[] = {FXA__OPERAND_COUNT, FXA__RUN_TABLES, FXA__RUN_OTHERS,
                            p->n_captures,      p->n_captures,   p->n_bprop_captures};
    int part = 0;
    *out = (fxa__run_region){"", "", false, {NULL, 1, 0, {0}, {0}}, FXA__PART_OPERAND, 0};
    for (; part <= FXA__PART_BPROP && i >= count[part]; part++) i -= count[part];
    out->part = (fxa__run_region_part)part;
    out->index = i;
    switch (out->part) {
    case FXA__PART_OPERAND: regions_operand(p, args, i, out); return true;
    case FXA__PART_TABLE: regions_table(p, args, i, out); return true;
    case FXA__PART_OTHER: regions_other(l, i, out); return true;
    case FXA__PART_TENSOR:
        regions_view(out, "tensors", p->program, i, fxa__capture_view(p->program, p->captures, i, args->tensors[i]),
                     false);
        return true;
    case FXA__PART_DTENSOR: regions_dtensor(l, i, out); return true;
    case FXA__PART_BPROP:
        regions_view(out, "bprop_tensors", p->bprop, i,
                     fxa__capture_view(p->bprop, p->bprop_captures, i, args->bprop_tensors[i]), false);
        return true;
    }
    return false;
}

static fxa_status regions_check_pair(const fxa__run_region_list *list, size_t i, size_t j, fxa_error *err) {
    fxa__run_region a, b;
    fxa__run_region_get(list, i, &a);
    fxa__run_region_get(list, j, &b);
    fxa__overlap overlap = fxa__region_overlap(&a.region, &b.region);
    if (overlap == FXA__DISJOINT) return FXA_OK;
    return fxa__fail(err, FXA_E_BINDING, "%s%s%s is written and %s %s%s%s in memory%s", a.kind, *a.name ? " " : "",
                     a.name, overlap == FXA__OVERLAP_UNKNOWN ? "may overlap" : "overlaps", b.kind, *b.name ? " " : "",
                     b.name, fxa__overlap_note(overlap));
}

/* Returns true if region i of the list is a slot that is NULL. Faster than fxa__run_region_get. */
static bool regions_is_null(const fxa_args *args, size_t i) {
    if (i < FXA__OPERAND_COUNT) return !args->slot[fxa__operand_info_get(i)->slot];
    i -= FXA__OPERAND_COUNT;
    return i < FXA__RUN_TABLES && !args->slot[FXA_SLOT_Q_LENGTHS + i];
}

fxa_status fxa__args_check_overlap(const fxa_problem *p, const fxa_args *args, size_t workspace_size, fxa_error *err) {
    const fxa__run_region_list list = {p, args, workspace_size};
    int64_t first[FXA__RUN_REGIONS], end[FXA__RUN_REGIONS]; /* address range of each region in use */
    size_t number[FXA__RUN_REGIONS], n = 0;
    bool written[FXA__RUN_REGIONS];
    fxa__run_region t;
    for (size_t i = 0; i < FXA__RUN_REGIONS; i++) {
        if (regions_is_null(args, i)) continue; /* the common case */
        if (!fxa__run_region_get(&list, i, &t)) break;
        if (!t.region.data) continue;
        if (!fxa__region_addresses(&t.region, &first[n], &end[n]))
            return fxa__fail(err, FXA_E_BINDING, "%s%s%s is %p: it leaves the address space", t.kind,
                             *t.name ? " " : "", t.name, t.region.data);
        written[n] = t.written;
        number[n] = i;
        n += first[n] != end[n];
    }
    FXA__ASSERT(!fxa__run_region_get(&list, FXA__RUN_REGIONS, &t)); /* no region was left out */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; written[i] && j < n; j++) {
            if (j == i || (written[j] && j < i)) continue; /* each pair of outputs is compared only once */
            if (first[i] < end[j] && first[j] < end[i]) FXA_TRY(regions_check_pair(&list, number[i], number[j], err));
        }
    return FXA_OK;
}
