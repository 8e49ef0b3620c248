/* SPDX-License-Identifier: Apache-2.0
 *
 * Translates a call of an operator into a problem and arguments of the library (torch_call.h). Only conditions that the
 * library cannot check are checked here: ranks and sizes of tensors, which it gets as bare pointers.
 */
#include "torch_call.h"
#include "torch_state.h"

#include <stddef.h>
#include <string.h>

static int64_t config_get(const fxa__torch_call *call, fxa__torch_field field) {
    return (size_t)field < call->n_config ? call->config[field] : 0;
}

fxa_dtype fxa__torch_result_dtype(const fxa__torch_call *call, fxa_dtype dtype) {
    bool narrow = dtype == FXA_F16 || dtype == FXA_BF16;
    return narrow && config_get(call, FXA__TORCH_WIDE) ? FXA_F32 : dtype;
}

void fxa__torch_operand_set(fxa_operand *operand, const fxa__torch_tensor *tensor) {
    operand->dtype = (uint32_t)tensor->dtype;
    operand->layout = FXA_LAYOUT_STRIDED;
    memcpy(operand->stride, tensor->stride, (size_t)tensor->rank * sizeof operand->stride[0]);
}

/* Sets q, k, v and the sizes of the problem. */
static fxa_status sizes_set(fxa__torch_problem *p, fxa__torch_call *call) {
    fxa_problem *problem = &p->problem;
    const fxa__torch_tensor *operand[] = {&call->q, &call->k, &call->v};
    const char *const name[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        if (operand[i]->rank != 4) {
            return fxa__torch_fail(call, FXA_E_PROBLEM, "%s has %d dimensions, not 4", name[i], (int)operand[i]->rank);
        }
    }
    const int64_t *q = call->q.size, *k = call->k.size, *v = call->v.size;
    bool packed = problem->flags & FXA_VARLEN, paged = problem->flags & FXA_PAGED;
    problem->b = q[0];
    problem->hq = q[1];
    problem->hkv = k[1];
    problem->sq = packed ? config_get(call, FXA__TORCH_SQ) : q[2];
    problem->sk = packed || paged ? config_get(call, FXA__TORCH_SK) : k[2];
    problem->d_qk = q[3];
    problem->d_v = v[3] ? v[3] : FXA_D_V_ZERO;
    if (k[3] != q[3] || v[0] != k[0] || v[1] != k[1] || v[2] != k[2] || (!packed && !paged && k[0] != q[0])) {
        return fxa__torch_fail(
            call, FXA_E_PROBLEM,
            "q [%lld,%lld,%lld,%lld], k [%lld,%lld,%lld,%lld] and v [%lld,%lld,%lld,%lld] do not fit", (long long)q[0],
            (long long)q[1], (long long)q[2], (long long)q[3], (long long)k[0], (long long)k[1], (long long)k[2],
            (long long)k[3], (long long)v[0], (long long)v[1], (long long)v[2], (long long)v[3]);
    }
    if (k[1] == 0 && q[1]) { /* the library reads 0 as "the heads of q" */
        return fxa__torch_fail(call, FXA_E_PROBLEM, "k has 0 heads and q has %lld; 0 is accepted where q has none",
                               (long long)q[1]);
    }
    if (packed) {
        problem->total_q = q[2];
        problem->total_k = paged ? 0 : k[2];
    }
    if (paged) {
        problem->n_pages = k[0];
        problem->page_size = (uint32_t)k[2];
    }
    fxa__torch_operand_set(&problem->q, &call->q);
    fxa__torch_operand_set(&problem->k, &call->k);
    fxa__torch_operand_set(&problem->v, &call->v);
    return FXA_OK;
}

/* Returns the number of entries of a page table; 0 if the sizes are out of range, which the library then reports. */
static int64_t pages_count(const fxa_problem *problem) {
    int64_t page = (int64_t)problem->page_size;
    bool small = problem->b <= INT32_MAX && problem->sk >= 0 && problem->sk <= INT32_MAX;
    return page && small ? problem->b * ((problem->sk + page - 1) / page) : 0;
}

/* Returns the number of elements that the extra tensor of a slot must have; -1 for slots without an extra tensor. */
static int64_t extra_count(const fxa_problem *problem, int slot) {
    switch (slot) {
    case FXA_SLOT_SINKS:
    case FXA_SLOT_MAP_H: return problem->hq;
    case FXA_SLOT_Q_LENGTHS:
    case FXA_SLOT_K_LENGTHS:
    case FXA_SLOT_Q_START:
    case FXA_SLOT_MAP_B: return problem->b;
    case FXA_SLOT_CU_Q:
    case FXA_SLOT_CU_K: return problem->b + 1;
    case FXA_SLOT_PAGES: return pages_count(problem);
    case FXA_SLOT_MAP_Q: return problem->sq;
    case FXA_SLOT_MAP_K: return problem->sk;
    case FXA_SLOT_OFFSET_B:
    case FXA_SLOT_OFFSET_H:
    case FXA_SLOT_OFFSET_Q:
    case FXA_SLOT_OFFSET_K:
    case FXA_SLOT_SEED: return 1;
    case FXA_SLOT_SCALE: return problem->flags & FXA_SCALARS_IN_MEMORY ? 1 : -1;
    default: return -1;
    }
}

/* Checks one tensor of `extras` and sets it as the argument of its slot. */
static fxa_status extra_set(fxa__torch_problem *p, fxa__torch_call *call, int slot, const fxa__torch_tensor *t) {
    fxa_problem *problem = &p->problem;
    fxa_dtype dtype = slot == FXA_SLOT_SEED    ? FXA_I64
                      : slot == FXA_SLOT_SCALE ? FXA_F64
                      : slot == FXA_SLOT_SINKS ? t->dtype
                                               : FXA_I32;
    bool by_value = slot == FXA_SLOT_SEED && !(problem->flags & FXA_SCALARS_IN_MEMORY);
    int64_t need = extra_count(problem, slot);
    int64_t count = 1;
    bool dense = true;
    for (int64_t i = t->rank - 1; i >= 0; i--) {
        dense = dense && (t->size[i] == 1 || t->stride[i] == count);
        count *= t->size[i];
    }
    dense = dense || count == 0 || (slot == FXA_SLOT_SINKS && t->rank == 1);
    if (need < 0) {
        return fxa__torch_fail(call, FXA_E_BINDING, "%s is no slot of an extra tensor",
                               fxa__torch.fxa_slot_name((fxa_slot)slot));
    }
    if (count != need || t->dtype != dtype || !dense) {
        return fxa__torch_fail(call, FXA_E_BINDING, "%s has %lld elements of %s%s; %lld dense ones of %s are accepted",
                               fxa__torch.fxa_slot_name((fxa_slot)slot), (long long)count,
                               fxa__torch.fxa_dtype_name(t->dtype), dense ? "" : " with gaps", (long long)need,
                               fxa__torch.fxa_dtype_name(dtype));
    }
    if (!by_value && (t->device != call->q.device || t->index != call->q.index)) {
        return fxa__torch_fail(call, FXA_E_BINDING, "%s is on another device than q",
                               fxa__torch.fxa_slot_name((fxa_slot)slot));
    }
    if (by_value) { /* must be on the host, also if the problem is on a device */
        if (t->device != fxa__torch.aoti_torch_device_type_cpu()) {
            return fxa__torch_fail(call, FXA_E_BINDING, "the seed is on a device; one of the host is accepted");
        }
        memcpy(&p->args.seed, t->data, sizeof p->args.seed);
        return FXA_OK;
    }
    if (slot == FXA_SLOT_SINKS) {
        problem->sinks.dtype = (uint32_t)t->dtype;
        problem->sinks.layout = FXA_LAYOUT_STRIDED;
        problem->sinks.stride[1] = t->rank == 1 ? t->stride[0] : 1;
    }
    p->args.slot[slot] = t->data;
    return FXA_OK;
}

static fxa_status extras_set(fxa__torch_problem *p, fxa__torch_call *call) {
    uint64_t slots = (uint64_t)config_get(call, FXA__TORCH_SLOTS);
    size_t next = 0;
    if (slots >> FXA_SLOT_CU_Q & 1) { /* packed rows: the size of cu_q gives the number of batch entries */
        size_t at = 0;
        for (int slot = 0; slot < FXA_SLOT_CU_Q; slot++) {
            at += slots >> slot & 1;
        }
        if (at < call->n_extras && call->extras[at].rank == 1) {
            p->problem.b = call->extras[at].size[0] - 1;
        }
    }
    for (int slot = 0; slot < FXA_SLOT_COUNT; slot++) {
        if (!(slots >> slot & 1)) {
            continue;
        }
        if (next == call->n_extras) {
            return fxa__torch_fail(call, FXA_E_BINDING, "there are fewer extra tensors than slots for them");
        }
        fxa_status status = extra_set(p, call, slot, &call->extras[next++]);
        if (status) {
            return status;
        }
    }
    if (next != call->n_extras) {
        return fxa__torch_fail(call, FXA_E_BINDING, "there are more extra tensors than slots for them");
    }
    return FXA_OK;
}

static fxa_status maps_set(fxa__torch_problem *p, fxa__torch_call *call) {
    fxa_index_map *const maps[] = {&p->problem.map_b, &p->problem.map_h, &p->problem.map_q, &p->problem.map_k};
    const int64_t *c = call->config + FXA__TORCH_MAPS, *end = call->config + call->n_config;
    while (c < end) {
        int64_t n = end - c >= 6 ? c[5] : -1;
        if (n < 0 || n > FXA_MAX_SEGMENTS || end - c < 6 + 3 * n || c[0] < 0 || c[0] > 3) {
            return fxa__torch_fail(call, FXA_E_PROBLEM, "the settings of coordinate maps are cut off");
        }
        fxa_index_map *map = maps[c[0]];
        map->kind = (uint32_t)c[1];
        map->has_offset = (uint32_t)c[2];
        map->base = c[3];
        map->step = c[4];
        map->n_segments = (uint32_t)n;
        for (int64_t i = 0; i < n; i++) {
            map->segment[i] = (fxa_segment){c[6 + 3 * i], c[7 + 3 * i], c[8 + 3 * i]};
        }
        c += 6 + 3 * n;
    }
    return FXA_OK;
}

/* Sets the captured tensors of one program, with the sizes and strides of the PyTorch tensors. */
static fxa_status captures_set(fxa__torch_call *call, const fxa_program *program, const fxa__torch_tensor *tensors,
                               size_t n, fxa_capture *captures, const void **data) {
    if (n != fxa__torch.fxa_program_tensor_count(program)) {
        return fxa__torch_fail(call, FXA_E_BINDING, "%zu captured tensors are given, the program has %zu", n,
                               fxa__torch.fxa_program_tensor_count(program));
    }
    for (size_t i = 0; i < n; i++) {
        fxa_tensor_info info = fxa__torch.fxa_program_tensor(program, i);
        const fxa__torch_tensor *t = &tensors[i];
        if (info.rank != t->rank || info.dtype != t->dtype) {
            return fxa__torch_fail(call, FXA_E_BINDING, "captured tensor %s is %s[%d], the program has %s[%d]",
                                   info.name, fxa__torch.fxa_dtype_name(t->dtype), (int)t->rank,
                                   fxa__torch.fxa_dtype_name(info.dtype), info.rank);
        }
        if (t->device != call->q.device || t->index != call->q.index) {
            return fxa__torch_fail(call, FXA_E_BINDING, "captured tensor %s is on another device than q", info.name);
        }
        memset(&captures[i], 0, sizeof captures[i]);
        memcpy(captures[i].size, t->size, (size_t)t->rank * sizeof captures[i].size[0]);
        memcpy(captures[i].stride, t->stride, (size_t)t->rank * sizeof captures[i].stride[0]);
        captures[i].strided = 1;
        data[i] = t->data;
    }
    return FXA_OK;
}

/* Sets the params of one program from `ints` and `floats` (or `scalars`), and advances int_at and float_at. */
static fxa_status params_set(fxa__torch_call *call, const fxa_program *program, double *params, size_t *int_at,
                             size_t *float_at) {
    size_t n = fxa__torch.fxa_program_param_count(program);
    bool given = call->n_scalars && !(config_get(call, FXA__TORCH_FLAGS) & FXA_SCALARS_IN_MEMORY);
    const double *floats = given ? (const double *)call->scalars.data : call->floats + 2;
    size_t n_floats = call->n_floats > 2 ? call->n_floats - 2 : 0;
    if (given) {
        const fxa__torch_tensor *t = &call->scalars;
        bool dense = t->rank == 1 && (t->size[0] < 2 || t->stride[0] == 1);
        if (!dense || t->dtype != FXA_F64 || t->device != fxa__torch.aoti_torch_device_type_cpu()) {
            return fxa__torch_fail(call, FXA_E_BINDING,
                                   "params are given as a tensor of %d dimensions of %s; a dense one of 1 dimension of "
                                   "f64 on the host is accepted",
                                   (int)t->rank, fxa__torch.fxa_dtype_name(t->dtype));
        }
        n_floats = (size_t)t->size[0];
    }
    for (size_t i = 0; i < n; i++) {
        bool whole = fxa__torch.fxa_program_param(program, i).type == FXA_INT;
        if (whole ? *int_at == call->n_ints : *float_at == n_floats) {
            return fxa__torch_fail(call, FXA_E_BINDING, "param %s of the program has no value",
                                   fxa__torch.fxa_program_param(program, i).name);
        }
        params[i] = whole ? (double)call->ints[(*int_at)++] : floats[(*float_at)++];
    }
    return FXA_OK;
}

/* Sets the pointer to params in memory of q's device, which only the run reads (FXA_SCALARS_IN_MEMORY). */
static fxa_status params_point(fxa__torch_problem *p, fxa__torch_call *call) {
    const fxa__torch_tensor *t = &call->scalars;
    int64_t n = (int64_t)fxa__torch.fxa_program_param_count(p->program),
            got = call->n_scalars && t->rank == 1 ? t->size[0] : 0;
    bool fits = !call->n_scalars || (t->rank == 1 && (got < 2 || t->stride[0] == 1) && t->dtype == FXA_F64 &&
                                     t->device == call->q.device && t->index == call->q.index);
    if (!fits || got != n) {
        return fxa__torch_fail(call, FXA_E_BINDING,
                               "params in memory are to be a dense tensor of %lld elements of f64 beside q",
                               (long long)n);
    }
    p->args.slot[FXA_SLOT_PARAMS] = n ? t->data : NULL;
    return FXA_OK;
}

/* Sets the program, and the backward program if there is one, with their tensors and params. */
static fxa_status programs_set(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx) {
    size_t own_text = call->text_size, own_tensors = call->n_tensors, int_at = 0, float_at = 0;
    bool bprop = config_get(call, FXA__TORCH_BPROP_TEXT) != 0;
    if (bprop) {
        int64_t text = config_get(call, FXA__TORCH_BPROP_TEXT), tensors = config_get(call, FXA__TORCH_BPROP_TENSORS);
        if (text < 0 || (size_t)text > call->text_size || tensors < 0 || (size_t)tensors > call->n_tensors) {
            return fxa__torch_fail(call, FXA_E_PROBLEM, "the backward program begins outside the text");
        }
        own_text = (size_t)text;
        own_tensors = (size_t)tensors;
    }
    if (own_tensors > FXA_MAX_TENSORS || call->n_tensors - own_tensors > FXA_MAX_TENSORS) {
        return fxa__torch_fail(call, FXA_E_LIMIT, "a program has more than %d captured tensors", FXA_MAX_TENSORS);
    }
    fxa_status status = fxa__torch_program(ctx, FXA_PROGRAM_SCORE, call->text, own_text, &p->program, &call->err);
    status = status ? status : captures_set(call, p->program, call->tensors, own_tensors, p->captures, p->tensors);
    if (p->problem.flags & FXA_SCALARS_IN_MEMORY) {
        status = status ? status : params_point(p, call);
    } else {
        status = status ? status : params_set(call, p->program, p->params, &int_at, &float_at);
    }
    if (!status && bprop && call->backward) {
        const fxa__torch_tensor *rest = call->tensors + own_tensors;
        size_t n = call->n_tensors - own_tensors;
        status = fxa__torch_program(ctx, FXA_PROGRAM_BPROP, call->text + own_text, call->text_size - own_text,
                                    &p->bprop, &call->err);
        status = status ? status : captures_set(call, p->bprop, rest, n, p->bprop_captures, p->bprop_tensors);
        status = status ? status : params_set(call, p->bprop, p->bprop_params, &int_at, &float_at);
    }
    return status;
}

/* Sets the pointers in problem and args to the arrays of `p`. */
static void arrays_link(fxa__torch_problem *p) {
    fxa_args *args = &p->args;
    p->problem.program = p->program;
    p->problem.bprop = p->bprop;
    p->problem.captures = p->captures;
    p->problem.n_captures = args->n_tensors = fxa__torch.fxa_program_tensor_count(p->program);
    memset(p->dtensors, 0, args->n_tensors * sizeof p->dtensors[0]);
    args->tensors = p->tensors;
    args->params = p->params;
    args->n_params = fxa__torch.fxa_program_param_count(p->program);
    if (p->bprop) {
        p->problem.bprop_captures = p->bprop_captures;
        p->problem.n_bprop_captures = args->n_bprop_tensors = fxa__torch.fxa_program_tensor_count(p->bprop);
        args->bprop_tensors = p->bprop_tensors;
        args->bprop_params = p->bprop_params;
        args->n_bprop_params = fxa__torch.fxa_program_param_count(p->bprop);
    }
}

fxa_status fxa__torch_problem_begin(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx) {
    memset(p, 0, offsetof(fxa__torch_problem, captures));
    p->problem.struct_size = sizeof p->problem;
    p->args.struct_size = sizeof p->args;
    p->problem.pass = call->backward ? FXA_BACKWARD : FXA_FORWARD;
    p->problem.flags = (uint32_t)config_get(call, FXA__TORCH_FLAGS);
    p->problem.window_left = config_get(call, FXA__TORCH_WINDOW_LEFT);
    p->problem.window_right = config_get(call, FXA__TORCH_WINDOW_RIGHT);
    p->problem.global_q_len = config_get(call, FXA__TORCH_Q_LEN);
    p->problem.global_k_len = config_get(call, FXA__TORCH_K_LEN);
    p->problem.global_heads = config_get(call, FXA__TORCH_HEADS);
    p->args.scale = call->n_floats > 0 ? call->floats[0] : NAN;
    p->problem.dropout_p = call->n_floats > 1 ? call->floats[1] : 0;
    fxa_status status = sizes_set(p, call);
    status = status ? status : extras_set(p, call);
    status = status ? status : maps_set(p, call);
    status = status ? status : programs_set(p, call, ctx);
    status = status ? status : fxa__torch_device_begin(p, call);
    if (!status) {
        arrays_link(p);
    }
    p->args.slot[FXA_SLOT_Q] = call->q.data;
    p->args.slot[FXA_SLOT_K] = call->k.data;
    p->args.slot[FXA_SLOT_V] = call->v.data;
    return status;
}

void fxa__torch_problem_end(fxa__torch_problem *p) {
    fxa__torch.fxa_program_destroy(p->program);
    fxa__torch.fxa_program_destroy(p->bprop);
    fxa__torch_device_workspace_release(&p->workspace);
    fxa__torch_host_workspace_release(p->host_workspace);
}

static fxa_status workspace_new(fxa__torch_problem *p, fxa__torch_call *call, size_t size) {
    p->args.workspace_size = size;
    if (p->problem.device == FXA_HOST) {
        p->host_workspace = fxa__torch_host_workspace_acquire(size);
        if (!p->host_workspace) {
            return fxa__torch_fail(call, FXA_E_MEMORY, "there is no memory for a workspace of %zu bytes", size);
        }
        p->args.workspace = p->host_workspace;
        return FXA_OK;
    }
    fxa_status status = fxa__torch_device_workspace_acquire(p, call, size);
    p->args.workspace = p->workspace.data;
    return status;
}

fxa_status fxa__torch_problem_run(fxa__torch_problem *p, fxa__torch_call *call, fxa_context *ctx) {
    fxa_plan *plan = NULL;
    if (fxa__torch_has_no_rows(p, call)) {
        return FXA_OK;
    }
    fxa_status status = p->problem.device == FXA_HOST ? fxa__torch_plan_get(ctx, &p->problem, &plan, &call->err)
                                                      : fxa__torch_device_plan(p, call, ctx, &plan);
    size_t size = status ? 0 : fxa__torch.fxa_plan_workspace(plan);
    if (size > 0) {
        status = workspace_new(p, call, size);
    }
    if (!status) {
        status = fxa__torch.fxa_plan_run(plan, &p->args, &call->err);
    }
    fxa__torch.fxa_plan_destroy(plan);
    return status;
}
