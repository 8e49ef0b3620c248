/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads and launches the helper kernels of helper_kernels.cu. A launch is asynchronous on the caller's stream; it
 * allocates nothing and waits for nothing, so it can be captured into a CUDA graph.
 */
#ifndef FXA_GPU_LAUNCH_H
#define FXA_GPU_LAUNCH_H

#include "gpu.h"
#include "helper_kernel_args.h"

/* The helper kernels. Each X() has the kernel's constant FXA__GPU_..., its member of fxa__gpu_args and the type of this
 * member. The kernel is called fxa_gpu_ followed by the constant in lower case. */
#define FXA__GPU_KERNELS(X)                                                                                            \
    X(COPY, copy, FxaGpuCopy)                                                                                          \
    X(BATCH_BOUNDS, batch_bounds, FxaGpuBatchBounds)                                                                   \
    X(STATISTICS, statistics, FxaGpuStatistics)                                                                        \
    X(JOIN, join, FxaGpuJoin)                                                                                          \
    X(SINK, sink, FxaGpuSink)                                                                                          \
    X(PLACES, places, FxaGpuPlaces)                                                                                    \
    X(INVERSE, inverse, FxaGpuInverse)

/* clang-format off */
typedef enum fxa__gpu_kernel {
#define FXA__GPU_KERNEL_ENUM(name, text, type) FXA__GPU_##name,
    FXA__GPU_KERNELS(FXA__GPU_KERNEL_ENUM)
#undef FXA__GPU_KERNEL_ENUM
    FXA__GPU_KERNEL_COUNT
} fxa__gpu_kernel;
/* clang-format on */

typedef union fxa__gpu_args {
#define FXA__GPU_KERNEL_ARGS(name, text, type) type text;
    FXA__GPU_KERNELS(FXA__GPU_KERNEL_ARGS)
#undef FXA__GPU_KERNEL_ARGS
} fxa__gpu_args;

typedef struct fxa__gpu_module {
    void *module;
    void *function[FXA__GPU_KERNEL_COUNT];
} fxa__gpu_module;

/* Loads the PTX of the helper kernels; the driver compiles it and caches the code on disk. On failure nothing needs
 * closing. */
fxa_status fxa__gpu_module_open(const fxa__gpu *gpu, fxa__gpu_module *module, fxa_error *err);
void fxa__gpu_module_close(const fxa__gpu *gpu, const fxa__gpu_module *module);

/* Loads the helper kernels of an engine's instance, unless they are loaded already. The kernels are freed with the
 * instance. Loading does not invalidate stream captures of other threads. */
fxa_status fxa__gpu_helpers_load(fxa__gpu *gpu, fxa_error *err);
/* Returns the loaded helper kernels; NULL before fxa__gpu_helpers_load has loaded them. */
const fxa__gpu_module *fxa__gpu_helpers(const fxa__gpu *gpu);
void fxa__gpu_helpers_free(fxa__gpu *gpu);

/* Launches a kernel with the device's context current; returns the driver's result. With `early`, uses programmatic
 * dependent launch if device and driver support it: the kernel may then start before the preceding kernel of the same
 * run has ended, and must wait for that kernel itself (launch_wait in engine/cuda/kernels/common/ptx.cuh). Launches can
 * be captured into a CUDA graph. */
typedef struct fxa__gpu_dim {
    unsigned x, y, z;
} fxa__gpu_dim;
int fxa__gpu_start(const fxa__gpu *gpu, void *function, fxa__gpu_dim grid, unsigned threads, unsigned shared_bytes,
                   bool early, void *stream, void **params);

/* Launches a helper kernel with the device's context current. `work`: number of elements, each computed by one
 * thread; for kernels in which one CTA computes a row or a head, number of rows or heads. The grid has a maximum size:
 * if `work` is larger, a thread computes several elements, or a CTA several rows or heads. */
fxa_status fxa__gpu_launch(const fxa__gpu *gpu, const fxa__gpu_module *module, fxa__gpu_kernel kernel,
                           const fxa__gpu_args *args, int64_t work, void *stream, fxa_error *err);

#endif
