/* SPDX-License-Identifier: Apache-2.0
 *
 * The helper kernels of gpu_kernels.cu on a device: loaded once, launched on a stream of the caller's. A launch only
 * begins; it allocates nothing and waits for nothing, so that it can be recorded into a graph.
 */
#ifndef FXA_GPU_LAUNCH_H
#define FXA_GPU_LAUNCH_H

#include "gpu.h"
#include "gpu_kernel_args.h"

/* X(KERNEL, arguments): the function fxa_gpu_kernel in small letters takes one such struct. */
#define FXA__GPU_KERNELS(X)                                                                                            \
    X(COPY, copy, FxaGpuCopy)                                                                                          \
    X(SPANS, spans, FxaGpuSpans)                                                                                       \
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

/* Compiles them for the device, by its driver, which keeps what it compiled on disk. On failure there is nothing to
 * close. */
fxa_status fxa__gpu_module_open(const fxa__gpu *gpu, fxa__gpu_module *module, fxa_error *err);
void fxa__gpu_module_close(const fxa__gpu *gpu, const fxa__gpu_module *module);

/* Those of an instance of an engine, loaded once something needs them and freed with it. What is recorded meanwhile, on
 * other threads, goes on. */
fxa_status fxa__gpu_helpers_load(fxa__gpu *gpu, fxa_error *err);
const fxa__gpu_module *fxa__gpu_helpers(const fxa__gpu *gpu);
void fxa__gpu_helpers_free(fxa__gpu *gpu);

/* A launch of any kernel, in the device's context; what the driver says. early: the stream's work before it is a kernel
 * of the same run, and this one waits for that by itself (launch_wait of engine/cuda/ptx.cuh): it may begin before that
 * one has ended, where device and driver have it, recorded into a graph too. */
typedef struct fxa__gpu_dim {
    unsigned x, y, z;
} fxa__gpu_dim;
int fxa__gpu_start(const fxa__gpu *gpu, void *function, fxa__gpu_dim grid, unsigned threads, unsigned shared_bytes,
                   bool early, void *stream, void **params);

/* In the device's context. `work`: elements, or blocks where the kernel has one for each. */
fxa_status fxa__gpu_launch(const fxa__gpu *gpu, const fxa__gpu_module *module, fxa__gpu_kernel kernel,
                           const fxa__gpu_args *args, int64_t work, void *stream, fxa_error *err);

#endif
