/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory, copies and waits on a CUDA device (gpu.h), and the fxa__memory table of these functions for engines whose
 * instance begins with an fxa__gpu.
 */
#include "gpu.h"

fxa_status fxa__gpu_alloc(const fxa__gpu *gpu, size_t size, void **out, fxa_error *err) {
    uintptr_t ptr = 0;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = fxa__gpu_status(gpu, gpu->driver.alloc(&ptr, size), "cuMemAlloc", err);
    fxa__gpu_leave(gpu);
    if (status == FXA_E_MEMORY)
        return fxa__fail(err, FXA_E_MEMORY, "%zu bytes of memory of device cuda %d", size, (int)gpu->ordinal);
    if (status == FXA_OK) *out = (void *)ptr;
    return status;
}

void fxa__gpu_give(const fxa__gpu *gpu, void *ptr) {
    if (fxa__gpu_enter(gpu, NULL) != FXA_OK) return;
    (void)gpu->driver.give((uintptr_t)ptr);
    fxa__gpu_leave(gpu);
}

void fxa__gpu_wait_all(const fxa__gpu *gpu) {
    if (fxa__gpu_enter(gpu, NULL) != FXA_OK) return;
    (void)gpu->driver.context_wait();
    fxa__gpu_leave(gpu);
}

/* ---- The table of memory functions ------------------------------------------------------------------------------- */

static fxa_status memory_begin(void *self, void *stream, fxa_error *err) {
    const fxa__gpu *gpu = self;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = fxa__gpu_check_stream(gpu, stream, false, err);
    fxa__gpu_leave(gpu);
    return status;
}

static fxa_status memory_alloc(void *self, size_t size, void **out, fxa_error *err) {
    return fxa__gpu_alloc(self, size, out, err);
}

static void memory_give(void *self, void *ptr, size_t size) {
    (void)size;
    fxa__gpu_give(self, ptr);
}

static fxa_status memory_copy_to(void *self, void *device, const void *from, size_t size, void *stream,
                                 fxa_error *err) {
    const fxa__gpu *gpu = self;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    int status = gpu->driver.copy_to((uintptr_t)device, from, size, stream);
    fxa__gpu_leave(gpu);
    return fxa__gpu_status(gpu, status, "cuMemcpyHtoDAsync", err);
}

static fxa_status memory_copy_from(void *self, void *to, const void *device, size_t size, void *stream,
                                   fxa_error *err) {
    const fxa__gpu *gpu = self;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    int status = gpu->driver.copy_from(to, (uintptr_t)device, size, stream);
    fxa__gpu_leave(gpu);
    return fxa__gpu_status(gpu, status, "cuMemcpyDtoHAsync", err);
}

static fxa_status memory_wait(void *self, void *stream, fxa_error *err) {
    const fxa__gpu *gpu = self;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    int status = gpu->driver.stream_wait(stream);
    fxa__gpu_leave(gpu);
    return fxa__gpu_status(gpu, status, "cuStreamSynchronize", err);
}

const fxa__memory fxa__gpu_memory = {memory_begin,   memory_alloc,     memory_give,
                                     memory_copy_to, memory_copy_from, memory_wait};
