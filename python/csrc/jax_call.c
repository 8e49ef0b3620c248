/* SPDX-License-Identifier: Apache-2.0
 *
 * Binds XLA's buffers to arguments of the library (jax_call.h). The library gets bare pointers, so buffer sizes are
 * checked here; the library checks everything else.
 */
#include "jax_call.h"

#include "jax_pool.h"
#include "jax_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fxa_status call_fail(fxa__jax_call *call, fxa_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static fxa_status call_fail(fxa__jax_call *call, fxa_status status, const char *format, ...) {
    va_list list;
    memset(&call->err, 0, sizeof call->err);
    call->err.status = status;
    va_start(list, format);
    vsnprintf(call->err.text, sizeof call->err.text, format, list);
    va_end(list);
    return status;
}

/* ---- Attributes and the plan ------------------------------------------------------------------------------------- */

static const void *attribute_find(const fxa__xla_attributes *all, const char *name, int32_t type) {
    size_t size = strlen(name);
    for (int64_t i = 0; i < all->count; i++) {
        if (all->names[i]->size == size && !memcmp(all->names[i]->data, name, size)) {
            return all->types[i] == type ? all->values[i] : NULL;
        }
    }
    return NULL;
}

static fxa_status ordinal_get(fxa__jax_call *call, int32_t *ordinal) {
    const fxa__xla_api *api = call->frame->api;
    fxa__xla_ordinal_args args = {FXA__XLA_SIZE(fxa__xla_ordinal_args, ordinal), NULL, call->frame->context, 0};
    *ordinal = -1;
    if (!call->cuda) {
        return FXA_OK;
    }
    if (!FXA__XLA_HAS(api, device_ordinal)) {
        return call_fail(call, FXA_E_UNAVAILABLE, "this runtime does not say which device it runs on");
    }
    fxa__xla_error *error = api->device_ordinal(&args);
    if (error) {
        fxa__xla_destroy_args destroy = {FXA__XLA_SIZE(fxa__xla_destroy_args, error), NULL, error};
        api->error_destroy(&destroy);
        return call_fail(call, FXA_E_UNAVAILABLE, "the runtime failed to say which device it runs on");
    }
    *ordinal = args.ordinal;
    return FXA_OK;
}

static fxa_status plan_get(fxa__jax_call *call) {
    const fxa__xla_bytes *bytes = attribute_find(&call->frame->attributes, "problem", FXA__XLA_ATTRIBUTE_STRING);
    int32_t ordinal = -1;
    if (!bytes) {
        return call_fail(call, FXA_E_ARGUMENT, "the call has no attribute `problem` of bytes");
    }
    fxa_status status = ordinal_get(call, &ordinal);
    return status ? status : fxa__jax_plan(bytes->data, bytes->size, ordinal, &call->plan, &call->err);
}

fxa_status fxa__jax_call_prepare(fxa__jax_call *call) {
    fxa_status status = plan_get(call);
    if (!status) {
        fxa__jax.fxa_plan_destroy(call->plan);
    }
    return status;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of an element of an XLA dtype; 0 for dtypes that the library does not take. */
static int64_t element_bytes(int32_t dtype) {
    static const int8_t size[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 0, 0, 2, 0, 0, 1, 1};
    return dtype > 0 && dtype < (int32_t)sizeof size ? size[dtype] : 0;
}

static int64_t buffer_bytes(const fxa__xla_buffer *buffer) {
    int64_t bytes = element_bytes(buffer->dtype);
    for (int64_t i = 0; i < buffer->rank; i++) {
        bytes *= buffer->size[i];
    }
    return bytes;
}

static int64_t width_of(const fxa_operand *operand) {
    return (int64_t)fxa__jax.fxa_dtype_size((fxa_dtype)operand->dtype);
}

/* Returns the bytes that the problem requires in a slot of floats; -1 for other slots. */
static int64_t operand_bytes(const fxa_problem *p, int64_t slot) {
    bool packed = p->flags & FXA_VARLEN, paged = p->flags & FXA_PAGED;
    int64_t rows = (packed ? p->total_q : p->b * p->sq) * p->hq;
    int64_t dv = p->d_v == FXA_D_V_ZERO ? 0 : p->d_v;
    int64_t keys = (paged ? p->n_pages * (int64_t)p->page_size : packed ? p->total_k : p->b * p->sk) * p->hkv;
    switch (slot) {
    case FXA_SLOT_Q: return rows * p->d_qk * width_of(&p->q);
    case FXA_SLOT_DQ: return rows * p->d_qk * width_of(&p->dq);
    case FXA_SLOT_K: return keys * p->d_qk * width_of(&p->k);
    case FXA_SLOT_DK: return keys * p->d_qk * width_of(&p->dk);
    case FXA_SLOT_V: return keys * dv * width_of(&p->v);
    case FXA_SLOT_DV: return keys * dv * width_of(&p->dv);
    case FXA_SLOT_O: return rows * dv * width_of(&p->o);
    case FXA_SLOT_DO: return rows * dv * width_of(&p->dout);
    case FXA_SLOT_LSE: return rows * width_of(&p->lse);
    case FXA_SLOT_ROW_MAX: return rows * width_of(&p->row_max);
    case FXA_SLOT_DLSE: return rows * width_of(&p->dlse);
    case FXA_SLOT_SINKS: return p->hq * width_of(&p->sinks);
    case FXA_SLOT_DSINKS: return p->hq * width_of(&p->dsinks);
    default: return -1;
    }
}

/* Returns the bytes that the problem requires in a slot of ints; -1 for other slots. */
static int64_t table_bytes(const fxa_problem *p, int64_t slot) {
    int64_t page = (int64_t)p->page_size;
    switch (slot) {
    case FXA_SLOT_Q_LENGTHS:
    case FXA_SLOT_K_LENGTHS:
    case FXA_SLOT_Q_START:
    case FXA_SLOT_MAP_B: return p->b * 4;
    case FXA_SLOT_CU_Q:
    case FXA_SLOT_CU_K: return (p->b + 1) * 4;
    case FXA_SLOT_PAGES: return page ? p->b * ((p->sk + page - 1) / page) * 4 : -1;
    case FXA_SLOT_MAP_H: return p->hq * 4;
    case FXA_SLOT_MAP_Q: return p->sq * 4;
    case FXA_SLOT_MAP_K: return p->sk * 4;
    case FXA_SLOT_OFFSET_B:
    case FXA_SLOT_OFFSET_H:
    case FXA_SLOT_OFFSET_Q:
    case FXA_SLOT_OFFSET_K: return 4;
    case FXA_SLOT_SEED: return 8;
    default: return -1;
    }
}

/* Returns the bytes of captured tensor i of a program, or of its gradient; -1 if there is none. */
static int64_t capture_bytes(const fxa_program *program, const fxa_capture *captures, size_t n, size_t i, bool grad) {
    if (i >= n) {
        return -1;
    }
    fxa_tensor_info info = fxa__jax.fxa_program_tensor(program, i);
    fxa_dtype dtype = grad && captures[i].grad_dtype ? (fxa_dtype)captures[i].grad_dtype : info.dtype;
    int64_t bytes = (int64_t)fxa__jax.fxa_dtype_size(dtype);
    for (int32_t d = 0; d < info.rank; d++) {
        bytes *= captures[i].size[d];
    }
    return bytes;
}

static int64_t role_bytes(const fxa__jax_call *call, int64_t role, bool result) {
    const fxa_problem *p = &call->problem;
    if (role >= 0 && role < FXA_SLOT_MAX) {
        int64_t bytes = operand_bytes(p, role);
        return bytes >= 0 ? bytes : table_bytes(p, role);
    }
    if (role == FXA__JAX_SCALARS) {
        return (int64_t)(1 + call->n_params + call->n_bprop_params) * 8;
    }
    if (role == FXA__JAX_DPARAMS) {
        return (int64_t)call->n_params * 8;
    }
    if (role >= FXA__JAX_TENSORS && role < FXA__JAX_BPROP_TENSORS) {
        return capture_bytes(p->program, p->captures, p->n_captures, (size_t)(role - FXA__JAX_TENSORS), result);
    }
    if (role >= FXA__JAX_BPROP_TENSORS && role < FXA__JAX_ROLES) {
        return capture_bytes(p->bprop, p->bprop_captures, p->n_bprop_captures, (size_t)(role - FXA__JAX_BPROP_TENSORS),
                             false);
    }
    return -1;
}

/* ---- Buffers into arguments -------------------------------------------------------------------------------------- */

static void scalars_set(fxa__jax_call *call, double *data) {
    fxa_args *args = &call->args;
    args->slot[FXA_SLOT_SCALE] = data;
    args->slot[FXA_SLOT_PARAMS] = call->n_params ? data + 1 : NULL;
    args->bprop_params = call->n_bprop_params ? data + 1 + call->n_params : NULL;
    args->n_bprop_params = call->n_bprop_params;
}

static fxa_status buffer_set(fxa__jax_call *call, int64_t role, const fxa__xla_buffer *buffer, bool result) {
    fxa_args *args = &call->args;
    int64_t given = buffer_bytes(buffer), need = role_bytes(call, role, result);
    if (role == FXA__JAX_ALIAS) {
        return FXA_OK;
    }
    call->addresses |= (uintptr_t)buffer->data;
    if (role == FXA__JAX_WORKSPACE) {
        args->workspace = buffer->data;
        args->workspace_size = (size_t)given;
        return FXA_OK;
    }
    if (need < 0 || given != need) {
        const char *name = role < FXA_SLOT_MAX ? fxa__jax.fxa_slot_name((fxa_slot)role) : NULL;
        return call_fail(call, FXA_E_BINDING, "buffer %s (role %lld) has %lld bytes; the problem needs %lld",
                         name ? name : "of a program", (long long)role, (long long)given, (long long)need);
    }
    if (role < FXA_SLOT_MAX) {
        args->slot[role] = buffer->data;
    } else if (role == FXA__JAX_SCALARS && call->cuda && call->n_bprop_params) { /* the host reads these params */
        return call_fail(call, FXA_E_UNSUPPORTED, "params of a backward program are not taken from memory of a device");
    } else if (role == FXA__JAX_SCALARS) {
        scalars_set(call, buffer->data);
    } else if (role == FXA__JAX_DPARAMS) {
        args->dparams = buffer->data;
        args->n_dparams = call->n_params;
    } else if (role >= FXA__JAX_BPROP_TENSORS) {
        call->bprop_tensors[role - FXA__JAX_BPROP_TENSORS] = buffer->data;
    } else if (result) {
        call->dtensors[role - FXA__JAX_TENSORS] = buffer->data;
    } else {
        call->tensors[role - FXA__JAX_TENSORS] = buffer->data;
    }
    return FXA_OK;
}

static fxa_status buffers_set(fxa__jax_call *call, const fxa__xla_buffers *buffers, const char *name, bool result) {
    const fxa__xla_array *roles = attribute_find(&call->frame->attributes, name, FXA__XLA_ATTRIBUTE_ARRAY);
    if (!roles || roles->dtype != FXA__XLA_S64 || roles->size != (size_t)buffers->count) {
        return call_fail(call, FXA_E_ARGUMENT,
                         "the attribute `%s` must have one number of 64 bits for each of the %lld", name,
                         (long long)buffers->count);
    }
    fxa_status status = FXA_OK;
    for (int64_t i = 0; i < buffers->count && !status; i++) {
        status = buffer_set(call, ((const int64_t *)roles->data)[i], buffers->values[i], result);
    }
    return status;
}

static fxa_status sizes_follow(fxa__jax_call *call) {
    const fxa__xla_attributes *all = &call->frame->attributes;
    const fxa__xla_array *layout = attribute_find(all, "follow", FXA__XLA_ATTRIBUTE_ARRAY);
    const fxa__xla_array *roles = attribute_find(all, "operands", FXA__XLA_ATTRIBUTE_ARRAY);
    if (!layout) {
        return FXA_OK;
    }
    if (call->cuda || layout->dtype != FXA__XLA_S64 || layout->size != 1 || !roles || roles->dtype != FXA__XLA_S64 ||
        roles->size != (size_t)call->frame->operands.count) {
        return call_fail(call, FXA_E_ARGUMENT, "the attribute `follow` is one number, in calls on the host");
    }
    return fxa__jax_follow(call, *(const int64_t *)layout->data, roles->data);
}

static fxa_status arguments_set(fxa__jax_call *call) {
    fxa_args *args = &call->args;
    fxa_problem *p = &call->problem;
    *args = (fxa_args)FXA_ARGS_INIT;
    p->struct_size = sizeof *p;
    fxa__jax.fxa_plan_problem(call->plan, p);
    call->n_params = p->program ? fxa__jax.fxa_program_param_count(p->program) : 0;
    call->n_bprop_params = p->bprop ? fxa__jax.fxa_program_param_count(p->bprop) : 0;
    fxa_status status = buffers_set(call, &call->frame->operands, "operands", false);
    status = status ? status : buffers_set(call, &call->frame->results, "results", true);
    /* The library may skip its pointer checks: XLA's buffers are in memory of the running device, their sizes were
     * checked here, and results overlap no operands except those of role ALIAS. */
    args->flags = call->cuda && p->alignment && call->addresses % p->alignment == 0 ? FXA_SKIP_POINTER_CHECKS : 0;
    args->tensors = call->tensors;
    args->n_tensors = p->n_captures;
    if (p->pass == FXA_BACKWARD) {
        args->dtensors = call->dtensors;
        args->n_dtensors = p->n_captures;
        args->bprop_tensors = call->bprop_tensors;
        args->n_bprop_tensors = p->n_bprop_captures;
    }
    return status;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static fxa_status workspace_get(fxa__jax_call *call) {
    fxa_args *args = &call->args;
    size_t size = fxa__jax.fxa_plan_workspace(call->plan);
    if (args->workspace_size >= size) {
        return FXA_OK;
    }
    if (call->cuda) {
        return call_fail(call, FXA_E_WORKSPACE,
                         "the call has a workspace of %zu bytes, and the plan needs %zu: it was lowered where there is "
                         "no such device; lower it on a machine that has one",
                         args->workspace_size, size);
    }
    args->workspace_size = size;
    if (posix_memalign(&call->host_workspace, FXA_WORKSPACE_ALIGN, size)) {
        call->host_workspace = NULL;
        return call_fail(call, FXA_E_MEMORY, "there is no memory for a workspace of %zu bytes", size);
    }
    args->workspace = call->host_workspace;
    return FXA_OK;
}

static fxa_status stream_get(fxa__jax_call *call) {
    const fxa__xla_api *api = call->frame->api;
    fxa__xla_stream_args args = {FXA__XLA_SIZE(fxa__xla_stream_args, stream), NULL, call->frame->context, NULL};
    if (!call->cuda) {
        return FXA_OK;
    }
    fxa__xla_error *error = api->stream_get(&args);
    if (error) {
        fxa__xla_destroy_args destroy = {FXA__XLA_SIZE(fxa__xla_destroy_args, error), NULL, error};
        api->error_destroy(&destroy);
        return call_fail(call, FXA_E_UNAVAILABLE, "the runtime gives no stream");
    }
    call->args.stream = args.stream;
    return FXA_OK;
}

fxa_status fxa__jax_call_run(fxa__jax_call *call) {
    fxa__jax_pool pool = {call->frame->api, call->frame->context};
    fxa_status status = plan_get(call);
    status = status ? status : sizes_follow(call);
    status = status ? status : arguments_set(call);
    status = status ? status : workspace_get(call);
    status = status ? status : stream_get(call);
    if (!status) {
        call->args.parallel_user = &pool;
        status = fxa__jax.fxa_plan_run(call->plan, &call->args, &call->err);
    }
    if (call->plan) {
        fxa__jax.fxa_plan_destroy(call->plan);
    }
    free(call->host_workspace);
    return status;
}
