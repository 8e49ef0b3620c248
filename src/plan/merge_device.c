/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements fxa_merge, which merges two partial results of attention. The CPU merges tensors in host memory. Tensors
 * on a device are merged by a kernel of an engine; if no engine has a kernel for them, they are copied to the host,
 * merged and copied back. Only elements are written, never the gaps between the elements of a tensor, because another
 * thread may own the gaps.
 */
#include "plan.h"

#include "../base/dtype.h"
#include "../base/float_state.h"
#include "../base/invariant.h"
#include "../base/num.h"
#include "../problem/merge_tensors.h"

/* A tensor of fxa_merge on a device, with its copy on the host. */
typedef struct merge_tensor {
    const fxa__region *region;
    int64_t first; /* first device address of the range that is copied */
    size_t size;
    char *host; /* copy of the range in host memory; NULL = the tensor is empty */
} merge_tensor;

/* ---- Choice of the engine ---------------------------------------------------------------------------------------- */

/* Sets *out to the first engine of the device that can be opened, and that can merge or at least copy device memory. If
 * there is none, fails with E_UNSUPPORTED; the message has the reason why the last engine could not be opened. */
static fxa_status merge_find_engine(const fxa_merge_args *a, fxa__instance **out, fxa_error *err) {
    const fxa__engine *engine;
    fxa_error why = {.status = FXA_OK};
    const char *refused = NULL;
    for (size_t i = 0; (engine = fxa__engine_at(i)) != NULL; i++) {
        if (engine->device != a->device || (!engine->merge && !engine->memory)) continue;
        FXA_TRY(fxa__instance_get(fxa__context_host(a->ctx), engine, a->ordinal, NULL, out, err));
        if (fxa__instance_usable(*out, &why) == FXA_OK) return FXA_OK;
        if (why.status == FXA_E_MEMORY) return fxa__fail(err, why.status, "%s", why.text);
        refused = engine->name;
    }
    if (refused) return fxa__fail(err, FXA_E_UNSUPPORTED, "no engine can merge there: %s: %s", refused, why.text);
    return fxa__fail(err, FXA_E_UNSUPPORTED, "no engine of this build merges in the memory of device %s",
                     fxa_device_name((fxa_device)a->device));
}

/* ---- Copies to the host and back --------------------------------------------------------------------------------- */

/* Allocates host memory for a tensor's address range and starts to copy the range from the device. Does nothing if the
 * tensor is empty. */
static fxa_status merge_copy_from_device(const fxa__instance *at, merge_tensor *tensor, void *stream, fxa_error *err) {
    int64_t end;
    if (fxa__region_is_empty(tensor->region)) return FXA_OK;
    /* fxa__region_addresses cannot fail here, because fxa__merge_args_read has checked the addresses */
    (void)fxa__region_addresses(tensor->region, &tensor->first, &end);
    tensor->size = (size_t)(end - tensor->first);
    tensor->host = fxa__alloc_aligned(at->host, tensor->size, FXA_WORKSPACE_ALIGN);
    if (!tensor->host)
        return fxa__fail(err, FXA_E_MEMORY, "out of memory: %zu bytes that come from a device", tensor->size);
    return at->engine->memory->copy_from(at->self, tensor->host, (const void *)(uintptr_t)tensor->first, tensor->size,
                                         stream, err);
}

/* Finds the axes whose elements together form one contiguous piece of memory, and sets the sizes of these axes to 1.
 * Returns the number of elements of the piece. The other axes of *r then enumerate the pieces. */
static int64_t merge_fold_axes(fxa__region *r) {
    int64_t whole = 1;
    for (int32_t i = 0; i < r->rank;) {
        if (r->size[i] == 1 || r->stride[i] != whole) {
            i++;
            continue;
        }
        whole *= r->size[i];
        r->size[i] = 1;
        i = 0; /* start again: an axis that was skipped before may extend the larger piece */
    }
    return whole;
}

/* Copies the elements of a tensor from the host back to the device, with one copy for each contiguous piece of memory.
 * A dense tensor is one piece. */
static fxa_status merge_copy_to_device(const fxa__instance *at, const merge_tensor *tensor, void *stream,
                                       fxa_error *err) {
    int64_t index[FXA_MAX_RANK] = {0};
    if (!tensor->host) return FXA_OK;
    fxa__region r = *tensor->region;
    size_t bytes = (size_t)(merge_fold_axes(&r) * r.element);
    for (int32_t axis = 0; axis >= 0;) {
        int64_t place = 0;
        for (int32_t i = 0; i < r.rank; i++) place += index[i] * r.stride[i];
        char *device = (char *)(uintptr_t)r.data + place * r.element;
        const char *from = tensor->host + ((int64_t)(uintptr_t)device - tensor->first);
        FXA__ASSERT(from >= tensor->host && from + bytes <= tensor->host + tensor->size);
        FXA_TRY(at->engine->memory->copy_to(at->self, device, from, bytes, stream, err));
        for (axis = r.rank - 1; axis >= 0 && ++index[axis] == r.size[axis]; axis--) index[axis] = 0;
    }
    return FXA_OK;
}

/* Returns the address in the host copy that corresponds to the tensor's data pointer; NULL if the tensor has no host
 * copy. */
static void *merge_host_pointer(const merge_tensor *tensor) {
    return tensor->host ? tensor->host + ((int64_t)(uintptr_t)tensor->region->data - tensor->first) : NULL;
}

static fxa_status merge_on_host(const fxa__instance *at, const fxa_merge_args *a,
                                merge_tensor tensor[FXA__MERGE_TENSORS], fxa_error *err) {
    const fxa__memory *memory = at->engine->memory;
    fxa_merge_args here = *a;
    for (int i = 0; i < FXA__MERGE_TENSORS; i++) FXA_TRY(merge_copy_from_device(at, &tensor[i], a->stream, err));
    FXA_TRY(memory->wait(at->self, a->stream, err));
    here.o_a_data = merge_host_pointer(&tensor[0]), here.lse_a_data = merge_host_pointer(&tensor[1]);
    here.o_b_data = merge_host_pointer(&tensor[2]), here.lse_b_data = merge_host_pointer(&tensor[3]);
    fxa__merge_tensors(&here);
    for (int i = 0; i < FXA__MERGE_WRITTEN; i++) FXA_TRY(merge_copy_to_device(at, &tensor[i], a->stream, err));
    return memory->wait(at->self, a->stream, err);
}

/* Merges tensors of a device on the host: copies them to host memory, merges, and copies the results back. After a
 * failure the host memory is freed only when pending copies have finished. */
static fxa_status merge_by_copies(const fxa__instance *at, const fxa_merge_args *a, const fxa__region *region,
                                  fxa_error *err) {
    merge_tensor tensor[FXA__MERGE_TENSORS] = {
        {.region = &region[0]}, {.region = &region[1]}, {.region = &region[2]}, {.region = &region[3]}};
    if (a->b == 0 || a->h == 0 || a->s == 0) return FXA_OK;
    if (at->engine->memory->begin) FXA_TRY(at->engine->memory->begin(at->self, a->stream, err));
    fxa_status status = merge_on_host(at, a, tensor, err);
    if (status != FXA_OK) (void)at->engine->memory->wait(at->self, a->stream, NULL);
    for (int i = 0; i < FXA__MERGE_TENSORS; i++)
        fxa__free_aligned(at->host, tensor[i].host, tensor[i].size, FXA_WORKSPACE_ALIGN);
    return status;
}

/* Returns true if an O tensor has 8-bit floats, which merge kernels do not support. */
static bool merge_has_8_bit_floats(const fxa_merge_args *a) {
    return fxa__dtype_is_byte_float(a->o_a.dtype) || fxa__dtype_is_byte_float(a->o_b.dtype);
}

fxa_status fxa_merge(const fxa_merge_args *args, fxa_error *err) {
    FXA__FLOAT_SCOPE;
    fxa_merge_args a;
    fxa__region region[FXA__MERGE_TENSORS];
    fxa__instance *at = NULL;
    FXA_TRY(fxa__merge_args_read(args, &a, region, err));
    if (a.device == FXA_HOST) {
        fxa__merge_tensors(&a);
        return fxa__ok(err);
    }
    FXA_TRY(merge_find_engine(&a, &at, err));
    bool kernel = at->engine->merge && !(at->engine->memory && merge_has_8_bit_floats(&a));
    FXA_TRY(kernel ? at->engine->merge(at->self, &a, err) : merge_by_copies(at, &a, region, err));
    return fxa__ok(err);
}
