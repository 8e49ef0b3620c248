/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens CUDA devices, and checks pointers and streams (gpu.h). An open device retains its primary context, which
 * PyTorch and JAX use too, so their streams and pointers are valid in it.
 */
#include "gpu.h"

#include "../base/dl.h"
#include "../base/invariant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU_FUNCTION(name, field)                                                                                      \
    { name, offsetof(fxa__gpu_driver, field), false }
static const fxa__dl_symbol gpu_symbols[] = {
    GPU_FUNCTION("cuInit", init),
    GPU_FUNCTION("cuDriverGetVersion", version),
    GPU_FUNCTION("cuDeviceGetCount", device_count),
    GPU_FUNCTION("cuDeviceGet", device_get),
    GPU_FUNCTION("cuDeviceGetAttribute", device_attribute),
    GPU_FUNCTION("cuDeviceGetName", device_name),
    GPU_FUNCTION("cuDeviceTotalMem_v2", device_memory),
    GPU_FUNCTION("cuDevicePrimaryCtxRetain", context_retain),
    GPU_FUNCTION("cuDevicePrimaryCtxRelease_v2", context_release),
    GPU_FUNCTION("cuCtxPushCurrent_v2", context_push),
    GPU_FUNCTION("cuCtxPopCurrent_v2", context_pop),
    GPU_FUNCTION("cuCtxSynchronize", context_wait),
    GPU_FUNCTION("cuMemAlloc_v2", alloc),
    GPU_FUNCTION("cuMemFree_v2", give),
    GPU_FUNCTION("cuMemcpyHtoDAsync_v2", copy_to),
    GPU_FUNCTION("cuMemcpyDtoHAsync_v2", copy_from),
    GPU_FUNCTION("cuMemsetD32Async", fill),
    GPU_FUNCTION("cuStreamCreate", stream_create),
    GPU_FUNCTION("cuStreamDestroy_v2", stream_destroy),
    GPU_FUNCTION("cuStreamSynchronize", stream_wait),
    GPU_FUNCTION("cuStreamIsCapturing", stream_capturing),
    GPU_FUNCTION("cuThreadExchangeStreamCaptureMode", capture_mode),
    GPU_FUNCTION("cuPointerGetAttributes", pointer_attributes),
    GPU_FUNCTION("cuModuleLoadData", module_load),
    GPU_FUNCTION("cuModuleUnload", module_unload),
    GPU_FUNCTION("cuModuleGetFunction", module_function),
    GPU_FUNCTION("cuFuncSetAttribute", function_attribute),
    GPU_FUNCTION("cuLaunchKernel", launch),
    /* the next four functions exist from driver 11.3 on */
    {"cuStreamGetCaptureInfo_v2", offsetof(fxa__gpu_driver, stream_graph), true},
    {"cuUserObjectCreate", offsetof(fxa__gpu_driver, object_create), true},
    {"cuUserObjectRelease", offsetof(fxa__gpu_driver, object_release), true},
    {"cuGraphRetainUserObject", offsetof(fxa__gpu_driver, graph_keep), true},
    {"cuLaunchKernelEx", offsetof(fxa__gpu_driver, launch_with), true},      /* from driver 11.8 on */
    {"cuTensorMapEncodeTiled", offsetof(fxa__gpu_driver, tensor_map), true}, /* from driver 12.0 on */
    GPU_FUNCTION("cuGetErrorString", error_string),
};

static const char *const gpu_names[] = {"libcuda.so.1", NULL};
static const fxa__dl_spec gpu_spec = {"the CUDA driver", gpu_names, gpu_symbols,
                                      sizeof gpu_symbols / sizeof *gpu_symbols};

/* Values of the driver API's enums. */
enum {
    GPU_OUT_OF_MEMORY = 2,
    GPU_PROCESSORS = 16,
    GPU_MAJOR = 75,
    GPU_MINOR = 76,
    GPU_POINTER_TYPE = 2,
    GPU_POINTER_MANAGED = 8,
    GPU_POINTER_ORDINAL = 9,
    GPU_TYPE_HOST = 1,
    GPU_NOT_CAPTURING = 0,
    GPU_CAPTURING = 1,
    GPU_OBJECT_UNSYNCHRONISED = 1, /* CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the only flag of cuUserObjectCreate */
    GPU_OBJECT_MOVED = 1,          /* CU_GRAPH_USER_OBJECT_MOVE: the graph takes over the caller's reference */
    GPU_CAPTURE_RELAXED = 2,
    GPU_STREAM_NON_BLOCKING = 1 /* CU_STREAM_NON_BLOCKING: does not synchronise with the default stream */
};

static const char *gpu_text(const fxa__gpu *gpu, int status) {
    const char *text = NULL;
    if (gpu->driver.error_string(status, &text) != FXA__CUDA_OK || !text) text = "the driver has no words for it";
    return text;
}

fxa_status fxa__gpu_status(const fxa__gpu *gpu, int status, const char *call, fxa_error *err) {
    if (status == FXA__CUDA_OK) return FXA_OK;
    return fxa__fail(err, status == GPU_OUT_OF_MEMORY ? FXA_E_MEMORY : FXA_E_ENGINE, "%s on device cuda %d: %d, %s",
                     call, (int)gpu->ordinal, status, gpu_text(gpu, status));
}

/* ---- Opening and closing a device -------------------------------------------------------------------------------- */

static fxa_status gpu_refuse(const fxa__gpu *gpu, const char *call, int status, fxa_error *err) {
    return fxa__fail(err, FXA_E_UNAVAILABLE, "the CUDA driver does not give device %d: %s says %d, %s",
                     (int)gpu->ordinal, call, status, gpu_text(gpu, status));
}

static fxa_status gpu_describe(fxa__gpu *gpu, fxa_error *err) {
    const fxa__gpu_driver *cu = &gpu->driver;
    int major = 0, minor = 0, status = cu->version(&gpu->driver_version);
    if (status == FXA__CUDA_OK) status = cu->device_attribute(&major, GPU_MAJOR, gpu->device);
    if (status == FXA__CUDA_OK) status = cu->device_attribute(&minor, GPU_MINOR, gpu->device);
    if (status == FXA__CUDA_OK) status = cu->device_attribute(&gpu->processors, GPU_PROCESSORS, gpu->device);
    if (status == FXA__CUDA_OK) status = cu->device_name(gpu->name, (int)sizeof gpu->name, gpu->device);
    gpu->arch = 10 * major + minor;
    return status == FXA__CUDA_OK ? FXA_OK : gpu_refuse(gpu, "asking for its attributes", status, err);
}

static fxa_status gpu_start(fxa__gpu *gpu, fxa_error *err) {
    const fxa__gpu_driver *cu = &gpu->driver;
    int count = 0, status = cu->init(0);
    if (status != FXA__CUDA_OK) return gpu_refuse(gpu, "cuInit", status, err);
    status = cu->device_count(&count);
    if (status != FXA__CUDA_OK) return gpu_refuse(gpu, "cuDeviceGetCount", status, err);
    if (gpu->ordinal < 0 || gpu->ordinal >= count)
        return fxa__fail(err, FXA_E_UNAVAILABLE, "ordinal is %d: the CUDA driver has %d device%s", (int)gpu->ordinal,
                         count, count == 1 ? "" : "s");
    status = cu->device_get(&gpu->device, gpu->ordinal);
    if (status != FXA__CUDA_OK) return gpu_refuse(gpu, "cuDeviceGet", status, err);
    return gpu_describe(gpu, err);
}

fxa_status fxa__gpu_find(fxa__gpu *gpu, int32_t ordinal, fxa_error *err) {
    *gpu = (fxa__gpu){.ordinal = ordinal};
    if (sizeof(void *) < sizeof(uint64_t))
        return fxa__fail(err, FXA_E_UNAVAILABLE, "addresses of CUDA devices have 64 bits, those of this process %zu",
                         8 * sizeof(void *));
    FXA_TRY(fxa__dl_open(&gpu_spec, &gpu->driver, sizeof gpu->driver, &gpu->library, err));
    fxa_status status = gpu_start(gpu, err);
    if (status != FXA_OK) fxa__dl_close(gpu->library);
    return status;
}

void fxa__gpu_forget(fxa__gpu *gpu) { fxa__dl_close(gpu->library); }

fxa_status fxa__gpu_open(fxa__gpu *gpu, int32_t ordinal, fxa_error *err) {
    FXA_TRY(fxa__gpu_find(gpu, ordinal, err));
    int status = gpu->driver.context_retain(&gpu->context, gpu->device);
    if (status == FXA__CUDA_OK) return FXA_OK;
    (void)gpu_refuse(gpu, "cuDevicePrimaryCtxRetain", status, err);
    fxa__gpu_forget(gpu);
    return FXA_E_UNAVAILABLE;
}

void fxa__gpu_close(fxa__gpu *gpu) {
    (void)gpu->driver.context_release(gpu->device);
    fxa__gpu_forget(gpu);
}

fxa_status fxa__gpu_enter(const fxa__gpu *gpu, fxa_error *err) {
    return fxa__gpu_status(gpu, gpu->driver.context_push(gpu->context), "cuCtxPushCurrent", err);
}

void fxa__gpu_leave(const fxa__gpu *gpu) {
    void *context;
    bool popped = gpu->driver.context_pop(&context) == FXA__CUDA_OK;
    FXA__ASSERT(!popped || context == gpu->context); /* fails if calls of enter and leave are unbalanced */
    (void)popped;
}

/* ---- Pointers and streams ---------------------------------------------------------------------------------------- */

/* One driver call returns three attributes of the pointer. The memory type is 0 for memory that CUDA does not
 * manage. */
fxa_status fxa__gpu_check(const fxa__gpu *gpu, const char *kind, const char *name, const void *ptr, fxa_error *err) {
    int attributes[] = {GPU_POINTER_TYPE, GPU_POINTER_MANAGED, GPU_POINTER_ORDINAL};
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    void *values[] = {&type, &managed, &ordinal};
    int status = gpu->driver.pointer_attributes(3, attributes, values, (uintptr_t)ptr);
    FXA_TRY(fxa__gpu_status(gpu, status, "cuPointerGetAttributes", err));
    if (type == 0)
        return fxa__fail(err, FXA_E_BINDING, "%s %s is %p, which is no memory of device cuda %d", kind, name, ptr,
                         (int)gpu->ordinal);
    if (type == GPU_TYPE_HOST || managed || ordinal == gpu->ordinal) return FXA_OK;
    return fxa__fail(err, FXA_E_BINDING, "%s %s is %p, of device cuda %d; the problem is on device cuda %d", kind, name,
                     ptr, ordinal, (int)gpu->ordinal);
}

fxa_status fxa__gpu_check_stream(const fxa__gpu *gpu, void *stream, bool capturing, fxa_error *err) {
    int now = GPU_NOT_CAPTURING, status = gpu->driver.stream_capturing(stream, &now);
    FXA_TRY(fxa__gpu_status(gpu, status, "cuStreamIsCapturing", err));
    if (now == GPU_NOT_CAPTURING || capturing) return FXA_OK;
    return fxa__fail(
        err, FXA_E_BINDING,
        "stream is %p, which is being recorded into a graph: accepted for plans with FXA_GRAPH_CAPTURE, and by "
        "fxa_plan_run alone",
        stream);
}

fxa_status fxa__gpu_tie(const fxa__gpu *gpu, void *stream, void (*drop)(void *what), void *what, bool *tied,
                        fxa_error *err) {
    const fxa__gpu_driver *driver = &gpu->driver;
    void *graph = NULL, *object = NULL;
    int now = GPU_NOT_CAPTURING;
    *tied = false;
    if (!driver->stream_graph || !driver->object_create || !driver->object_release || !driver->graph_keep)
        return FXA_OK;
    int status = driver->stream_graph(stream, &now, NULL, &graph, NULL, NULL);
    FXA_TRY(fxa__gpu_status(gpu, status, "cuStreamGetCaptureInfo", err));
    if (now != GPU_CAPTURING) return FXA_OK;
    FXA__ASSERT(graph); /* a stream that is being captured has a graph */
    status = driver->object_create(&object, what, drop, 1, GPU_OBJECT_UNSYNCHRONISED);
    FXA_TRY(fxa__gpu_status(gpu, status, "cuUserObjectCreate", err));
    *tied = true;
    status = driver->graph_keep(graph, object, 1, GPU_OBJECT_MOVED);
    if (status) (void)driver->object_release(object, 1);
    return fxa__gpu_status(gpu, status, "cuGraphRetainUserObject", err);
}

fxa_status fxa__gpu_capture_allow(const fxa__gpu *gpu, int *before, fxa_error *err) {
    *before = GPU_CAPTURE_RELAXED;
    return fxa__gpu_status(gpu, gpu->driver.capture_mode(before), "cuThreadExchangeStreamCaptureMode", err);
}

fxa_status fxa__gpu_capture_restore(const fxa__gpu *gpu, int before, fxa_error *err) {
    return fxa__gpu_status(gpu, gpu->driver.capture_mode(&before), "cuThreadExchangeStreamCaptureMode", err);
}

static fxa_status gpu_run_on_own_stream(const fxa__gpu *gpu,
                                        fxa_status (*begin)(void *user, void *stream, fxa_error *err), void *user,
                                        fxa_error *err) {
    void *stream = NULL;
    FXA_TRY(fxa__gpu_status(gpu, gpu->driver.stream_create(&stream, GPU_STREAM_NON_BLOCKING), "cuStreamCreate", err));
    fxa_status status = begin(user, stream, err);
    int waited = gpu->driver.stream_wait(stream);
    (void)gpu->driver.stream_destroy(stream);
    return status == FXA_OK ? fxa__gpu_status(gpu, waited, "cuStreamSynchronize", err) : status;
}

fxa_status fxa__gpu_run_on_own_stream(const fxa__gpu *gpu,
                                      fxa_status (*begin)(void *user, void *stream, fxa_error *err), void *user,
                                      fxa_error *err) {
    int before;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = fxa__gpu_capture_allow(gpu, &before, err);
    if (status == FXA_OK) {
        status = gpu_run_on_own_stream(gpu, begin, user, err);
        fxa_status restored = fxa__gpu_capture_restore(gpu, before, status == FXA_OK ? err : NULL);
        if (status == FXA_OK) status = restored;
    }
    fxa__gpu_leave(gpu);
    return status;
}

fxa_status fxa__gpu_switch_read(const char *variable, bool *on, fxa_error *err) {
    const char *value = getenv(variable);
    *on = value && strcmp(value, "1") == 0;
    if (!value || !*value || *on || strcmp(value, "0") == 0) return FXA_OK;
    return fxa__fail(err, FXA_E_UNAVAILABLE, "%s is \"%.32s\"; accepted are 0 and 1", variable, value);
}
