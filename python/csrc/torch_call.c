/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the arguments of a call from the dispatcher's stack and releases their handles (torch_call.h).
 */
#include "torch_call.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

fxa_status fxa__torch_fail(fxa__torch_call *call, fxa_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    call->err.status = status;
    vsnprintf(call->err.text, sizeof call->err.text, format, arguments);
    va_end(arguments);
    return status;
}

static fxa_status tensor_read(fxa__torch_call *call, fxa__torch_value value, const char *name, fxa__torch_tensor *out) {
    int64_t *size = NULL, *stride = NULL;
    int32_t dtype = -1;
    memcpy(&out->handle, &value, sizeof out->handle);
    out->rank = 0; /* `out` may be in an array that was not cleared */
    if (fxa__torch.aoti_torch_get_data_ptr(out->handle, &out->data) ||
        fxa__torch.aoti_torch_get_dim(out->handle, &out->rank) || fxa__torch.aoti_torch_get_sizes(out->handle, &size) ||
        fxa__torch.aoti_torch_get_strides(out->handle, &stride) ||
        fxa__torch.aoti_torch_get_dtype(out->handle, &dtype) ||
        fxa__torch.aoti_torch_get_device_type(out->handle, &out->device) ||
        fxa__torch.aoti_torch_get_device_index(out->handle, &out->index)) {
        return fxa__torch_fail(call, FXA_E_ARGUMENT, "%s has no memory with strides", name);
    }
    out->size = size;
    out->stride = stride;
    out->dtype = fxa__torch_dtype_ours(dtype);
    if (out->dtype == FXA_DTYPE_NONE) {
        return fxa__torch_fail(call, FXA_E_UNSUPPORTED,
                               "%s has a dtype that fxattn has not (float64, float32, float16, bfloat16, int64, int32, "
                               "int16, int8, uint8 and bool are taken)",
                               name);
    }
    return FXA_OK;
}

/* Reads the items of a list and releases the list. The caller owns *count items, also after a failure. */
static fxa_status list_read(fxa__torch_call *call, fxa__torch_value value, const char *name, fxa__torch_value *items,
                            size_t capacity, size_t *count) {
    void *list;
    size_t n = 0;
    memcpy(&list, &value, sizeof list);
    bool failed = fxa__torch.torch_list_size(list, &n) != 0;
    *count = 0;
    for (size_t i = 0; i < n && i < capacity && !failed; i++) {
        failed = fxa__torch.torch_list_get_item(list, i, &items[i]) != 0;
        *count += !failed;
    }
    fxa__torch.torch_delete_list(list);
    if (failed) {
        return fxa__torch_fail(call, FXA_E_ARGUMENT, "PyTorch does not give the items of %s", name);
    }
    if (n > capacity) {
        return fxa__torch_fail(call, FXA_E_LIMIT, "%zu %s are given, at most %zu are taken", n, name, capacity);
    }
    return FXA_OK;
}

static void tensor_drop(fxa__torch_tensor *tensor) {
    if (tensor->handle) {
        fxa__torch.aoti_torch_delete_tensor_object(tensor->handle);
        tensor->handle = NULL;
    }
}

/* Reads a list of tensors. A single tensor of more than FXA_MAX_RANK dimensions means an empty list (torch_call.h). */
static fxa_status tensors_take(fxa__torch_call *call, fxa__torch_value value, const char *name, fxa__torch_tensor *out,
                               size_t capacity, size_t *count) {
    fxa__torch_value items[2 * FXA_MAX_TENSORS];
    _Static_assert((int)FXA_SLOT_MAX <= 2 * FXA_MAX_TENSORS, "capacity for extra tensors");
    fxa_status status = list_read(call, value, name, items, capacity, count);
    for (size_t i = 0; i < *count; i++) {
        fxa_status read = tensor_read(call, items[i], name, &out[i]);
        status = status ? status : read;
    }
    if (*count == 1 && out[0].rank > FXA_MAX_RANK) {
        tensor_drop(&out[0]);
        *count = 0;
    }
    return status;
}

/* Reads a list of int64_t or of doubles into `out`: both are stored in 8 bytes. */
static fxa_status numbers_read(fxa__torch_call *call, fxa__torch_value value, const char *name, void *out,
                               size_t capacity, size_t *count) {
    fxa__torch_value items[FXA__TORCH_MAX_CONFIG];
    _Static_assert(2 * FXA_MAX_PARAMS + 2 <= FXA__TORCH_MAX_CONFIG, "capacity for params");
    _Static_assert(FXA__TORCH_MAX_WANT <= FXA__TORCH_MAX_CONFIG, "capacity for wanted gradients");
    fxa_status status = list_read(call, value, name, items, capacity, count);
    memcpy(out, items, *count * sizeof items[0]);
    return status;
}

static fxa_status text_take(fxa__torch_call *call, fxa__torch_value value) {
    memcpy(&call->text_handle, &value, sizeof call->text_handle);
    if (fxa__torch.torch_string_length(call->text_handle, &call->text_size) ||
        fxa__torch.torch_string_c_str(call->text_handle, &call->text)) {
        return fxa__torch_fail(call, FXA_E_ARGUMENT, "the program is no text");
    }
    return FXA_OK;
}

void fxa__torch_call_clear(fxa__torch_call *call, bool backward) {
    memset(call, 0, offsetof(fxa__torch_call, tensors));
    call->err.status = FXA_OK;
    call->backward = backward;
}

fxa_status fxa__torch_call_begin(fxa__torch_call *call, const fxa__torch_value *stack, bool backward) {
    fxa_status status[FXA__TORCH_N_BACKWARD] = {FXA_OK};
    size_t n = backward ? FXA__TORCH_N_BACKWARD : FXA__TORCH_N_FORWARD;
    fxa__torch_call_clear(call, backward);
    status[0] = tensor_read(call, stack[0], "q", &call->q);
    status[1] = tensor_read(call, stack[1], "k", &call->k);
    status[2] = tensor_read(call, stack[2], "v", &call->v);
    status[3] = tensors_take(call, stack[3], "captured tensors", call->tensors, 2 * FXA_MAX_TENSORS, &call->n_tensors);
    status[4] = tensors_take(call, stack[4], "extra tensors", call->extras, FXA_SLOT_MAX, &call->n_extras);
    status[5] = tensors_take(call, stack[5], "tensors of params", &call->scalars, 1, &call->n_scalars);
    status[6] = numbers_read(call, stack[6], "int params", call->ints, 2 * FXA_MAX_PARAMS, &call->n_ints);
    status[7] = numbers_read(call, stack[7], "numbers", call->floats, 2 * FXA_MAX_PARAMS + 2, &call->n_floats);
    status[8] = numbers_read(call, stack[8], "settings", call->config, FXA__TORCH_MAX_CONFIG, &call->n_config);
    status[9] = text_take(call, stack[9]);
    if (backward) {
        status[10] = tensor_read(call, stack[10], "out", &call->out);
        status[11] = tensor_read(call, stack[11], "lse", &call->lse);
        status[12] = tensors_take(call, stack[12], "gradients of outputs", call->grads, 2, &call->n_grads);
        status[13] = numbers_read(call, stack[13], "wanted gradients", call->want, FXA__TORCH_MAX_WANT, &call->n_want);
    }
    for (size_t i = 0; i < n; i++) {
        if (status[i]) {
            return status[i];
        }
    }
    return FXA_OK;
}

void fxa__torch_call_end(fxa__torch_call *call) {
    fxa__torch_tensor *ones[] = {&call->q,   &call->k,       &call->v,        &call->out,
                                 &call->lse, &call->scalars, &call->grads[0], &call->grads[1]};
    for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++) {
        tensor_drop(ones[i]);
    }
    for (size_t i = 0; i < call->n_tensors; i++) {
        tensor_drop(&call->tensors[i]);
    }
    for (size_t i = 0; i < call->n_extras; i++) {
        tensor_drop(&call->extras[i]);
    }
    if (call->text_handle) {
        fxa__torch.torch_delete_string(call->text_handle);
    }
}

fxa_status fxa__torch_tensor_new(fxa__torch_call *call, const fxa__torch_tensor *like, fxa_dtype dtype, int64_t rank,
                                 const int64_t *size, const int64_t *stride, fxa__torch_tensor *out) {
    void *handle = NULL;
    memset(out, 0, sizeof *out);
    if (fxa__torch.aoti_torch_empty_strided(rank, size, stride, fxa__torch_dtype_theirs(dtype), like->device,
                                            like->index, &handle)) {
        return fxa__torch_fail(call, FXA_E_MEMORY, "PyTorch gave no memory for a result of dtype %s",
                               fxa__torch.fxa_dtype_name(dtype));
    }
    int64_t *sizes = NULL, *strides = NULL;
    *out = (fxa__torch_tensor){
        .handle = handle, .rank = rank, .dtype = dtype, .device = like->device, .index = like->index};
    fxa_status status = FXA_OK;
    if (fxa__torch.aoti_torch_get_data_ptr(handle, &out->data) || fxa__torch.aoti_torch_get_sizes(handle, &sizes) ||
        fxa__torch.aoti_torch_get_strides(handle, &strides)) {
        status = fxa__torch_fail(call, FXA_E_ENGINE, "a result has no memory with strides");
    }
    out->size = sizes;
    out->stride = strides;
    if (status) {
        tensor_drop(out);
    }
    return status;
}

fxa_status fxa__torch_result_clear(fxa__torch_call *call, const fxa__torch_tensor *result) {
    return fxa__torch.aoti_torch_zero_(result->handle)
               ? fxa__torch_fail(call, FXA_E_ENGINE, "PyTorch could not clear a result")
               : FXA_OK;
}

fxa_status fxa__torch_result_new(fxa__torch_call *call, const fxa__torch_tensor *like, fxa_dtype dtype, int64_t rank,
                                 const int64_t *size, const int64_t *stride, fxa__torch_tensor *out) {
    fxa_status status = fxa__torch_tensor_new(call, like, dtype, rank, size, stride, out);
    bool packed = call->n_config > FXA__TORCH_FLAGS && call->config[FXA__TORCH_FLAGS] & FXA_VARLEN;
    return status || !packed ? status : fxa__torch_result_clear(call, out);
}

void fxa__torch_strides_like(const fxa__torch_tensor *like, const int64_t size[4], int64_t stride[4]) {
    int order[4] = {0, 1, 2, 3}; /* innermost first; if strides are equal, the later dimension is the inner one */
    for (int i = 1; i < 4; i++) {
        for (int j = i; j > 0 && like->stride[order[j]] <= like->stride[order[j - 1]]; j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    }
    int64_t next = size[3] ? size[3] : 1;
    stride[3] = 1;
    for (int i = 0; i < 4; i++) {
        if (order[i] != 3) {
            stride[order[i]] = next;
            next *= size[order[i]] ? size[order[i]] : 1;
        }
    }
}
