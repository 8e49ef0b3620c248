/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads and launches the helper kernels (launch.h).
 */
#include "launch.h"

#include "../base/invariant.h"

#include "helper_kernels_ptx.h"

enum { LAUNCH_THREADS = 256, LAUNCH_BLOCKS_OF_PROCESSOR = 8 };

/* Checks that the argument structs have the sizes for which tools/gen_ptx.py generated helper_kernels_ptx.h. */
#define LAUNCH_HAS_SIZE(type, bytes)                                                                                   \
    _Static_assert(sizeof(void *) != 8 || sizeof(type) == (bytes), "the PTX was made of another " #type)
LAUNCH_HAS_SIZE(FxaGpuCopy, 256);
LAUNCH_HAS_SIZE(FxaGpuBatchBounds, 832);
LAUNCH_HAS_SIZE(FxaGpuStatistics, 344);
LAUNCH_HAS_SIZE(FxaGpuJoin, 336);
LAUNCH_HAS_SIZE(FxaGpuSink, 568);
LAUNCH_HAS_SIZE(FxaGpuPlaces, 472);
LAUNCH_HAS_SIZE(FxaGpuInverse, 16);

static const struct launch_kernel {
    const char *name;
    /* unit of the argument `work` of fxa__gpu_launch: true = rows or heads, each computed by one CTA; false = elements,
     * each computed by one thread */
    bool by_blocks;
} launch_kernels[FXA__GPU_KERNEL_COUNT] = {
    [FXA__GPU_COPY] = {"fxa_gpu_copy", false},
    [FXA__GPU_BATCH_BOUNDS] = {"fxa_gpu_batch_bounds", false},
    [FXA__GPU_STATISTICS] = {"fxa_gpu_statistics", false},
    [FXA__GPU_JOIN] = {"fxa_gpu_join", true},
    [FXA__GPU_SINK] = {"fxa_gpu_sink", true},
    [FXA__GPU_PLACES] = {"fxa_gpu_places", false},
    [FXA__GPU_INVERSE] = {"fxa_gpu_inverse", false},
};

fxa_status fxa__gpu_module_open(const fxa__gpu *gpu, fxa__gpu_module *module, fxa_error *err) {
    *module = (fxa__gpu_module){.module = NULL};
    FXA_TRY(fxa__gpu_enter(gpu, err));
    int status = gpu->driver.module_load(&module->module, helper_kernels_ptx);
    bool loaded = status == FXA__CUDA_OK;
    for (int i = 0; i < FXA__GPU_KERNEL_COUNT && status == FXA__CUDA_OK; i++) {
        FXA__ASSERT(launch_kernels[i].name); /* launch_kernels has a row for each kernel */
        status = gpu->driver.module_function(&module->function[i], module->module, launch_kernels[i].name);
    }
    if (loaded && status != FXA__CUDA_OK) (void)gpu->driver.module_unload(module->module);
    fxa__gpu_leave(gpu);
    return fxa__gpu_status(gpu, status, loaded ? "cuModuleGetFunction" : "cuModuleLoadData", err);
}

void fxa__gpu_module_close(const fxa__gpu *gpu, const fxa__gpu_module *module) {
    if (fxa__gpu_enter(gpu, NULL) != FXA_OK) return;
    (void)gpu->driver.module_unload(module->module);
    fxa__gpu_leave(gpu);
}

static fxa_status launch_load(const fxa__gpu *gpu, fxa__gpu_module *mine, bool *loaded, fxa_error *err) {
    int before;
    FXA_TRY(fxa__gpu_enter(gpu, err));
    fxa_status status = fxa__gpu_capture_allow(gpu, &before, err);
    if (status == FXA_OK) {
        status = fxa__gpu_module_open(gpu, mine, err);
        *loaded = status == FXA_OK;
        fxa_status restored = fxa__gpu_capture_restore(gpu, before, *loaded ? err : NULL);
        if (*loaded) status = restored;
    }
    fxa__gpu_leave(gpu);
    return status;
}

fxa_status fxa__gpu_helpers_load(fxa__gpu *gpu, fxa_error *err) {
    bool loaded = false;
    if (atomic_load(&gpu->helpers)) return FXA_OK;
    FXA__ASSERT(gpu->host); /* set by the engine that opened the device */
    fxa__gpu_module *mine = fxa__alloc(gpu->host, sizeof *mine), *none = NULL;
    if (!mine) return fxa__fail_memory(err, "helper kernels");
    fxa_status status = launch_load(gpu, mine, &loaded, err);
    if (status == FXA_OK && atomic_compare_exchange_strong(&gpu->helpers, &none, mine)) return FXA_OK;
    if (loaded) fxa__gpu_module_close(gpu, mine);
    fxa__free(gpu->host, mine, sizeof *mine);
    return status;
}

const fxa__gpu_module *fxa__gpu_helpers(const fxa__gpu *gpu) {
    return atomic_load(&((fxa__gpu *)(uintptr_t)gpu)->helpers); /* C11's atomic_load takes no const object */
}

void fxa__gpu_helpers_free(fxa__gpu *gpu) {
    fxa__gpu_module *module = atomic_exchange(&gpu->helpers, NULL);
    if (!module) return;
    fxa__gpu_module_close(gpu, module);
    fxa__free(gpu->host, module, sizeof *module);
}

/* Programmatic dependent launch: minimum architecture, minimum driver (12.3, the first whose dependent launches can be
 * captured into CUDA graphs), and the ID of the launch attribute. */
enum { LAUNCH_EARLY_ARCH = 90, LAUNCH_EARLY_DRIVER = 12030, LAUNCH_EARLY = 6 };

int fxa__gpu_start(const fxa__gpu *gpu, void *function, fxa__gpu_dim grid, unsigned threads, unsigned shared_bytes,
                   bool early, void *stream, void **params) {
    const fxa__gpu_driver *cu = &gpu->driver;
    FXA__ASSERT(grid.x > 0 && grid.y > 0 && grid.z > 0 && threads > 0 && threads <= 1024);
    if (!early || !cu->launch_with || gpu->arch < LAUNCH_EARLY_ARCH || gpu->driver_version < LAUNCH_EARLY_DRIVER)
        return cu->launch(function, grid.x, grid.y, grid.z, threads, 1, 1, shared_bytes, stream, params, NULL);
    fxa__gpu_launch_attribute attribute = {.id = LAUNCH_EARLY, .value = {.flag = 1}};
    fxa__gpu_launch_config config = {{grid.x, grid.y, grid.z}, {threads, 1, 1}, shared_bytes, stream, &attribute, 1};
    return cu->launch_with(&config, function, params, NULL);
}

fxa_status fxa__gpu_launch(const fxa__gpu *gpu, const fxa__gpu_module *module, fxa__gpu_kernel kernel,
                           const fxa__gpu_args *args, int64_t work, void *stream, fxa_error *err) {
    FXA__ASSERT(kernel < FXA__GPU_KERNEL_COUNT && module && gpu->processors > 0);
    const struct launch_kernel *k = &launch_kernels[kernel];
    int64_t blocks = k->by_blocks ? work : (work + LAUNCH_THREADS - 1) / LAUNCH_THREADS;
    int64_t most = (int64_t)gpu->processors * LAUNCH_BLOCKS_OF_PROCESSOR;
    void *params[1] = {(void *)(uintptr_t)args};
    if (work < 1) return FXA_OK;
    fxa__gpu_dim grid = {(unsigned)(blocks < most ? blocks : most), 1, 1};
    FXA__ASSERT(module->function[kernel] && blocks > 0 && blocks <= work);
    int status = fxa__gpu_start(gpu, module->function[kernel], grid, LAUNCH_THREADS, 0, false, stream, params);
    return fxa__gpu_status(gpu, status, k->name, err);
}
