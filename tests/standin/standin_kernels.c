/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles the source of the device kernels for the host (standin_kernels.h); one thread executes everything.
 */
#include "standin_kernels.h"

#include "gpu/helper_kernels.cu"
#include "gpu/launch.h"

/* clang-format off */
#define STANDIN_RUN(name, text, type) static void run_##text(const void *args) { fxa_gpu_##text(*(const type *)args); }
FXA__GPU_KERNELS(STANDIN_RUN)
#undef STANDIN_RUN

static const struct standin_kernel {
    const char *name;
    void (*run)(const void *args);
} standin_kernels[] = {
#define STANDIN_ROW(name, text, type) {"fxa_gpu_" #text, run_##text},
    FXA__GPU_KERNELS(STANDIN_ROW)
#undef STANDIN_ROW
};
/* clang-format on */

void *standin_kernel_find(const char *name) {
    for (int i = 0; i < FXA__GPU_KERNEL_COUNT; i++)
        if (strcmp(standin_kernels[i].name, name) == 0) return (void *)&standin_kernels[i];
    return NULL;
}

void standin_kernel_run(void *kernel, const void *args) { ((const struct standin_kernel *)kernel)->run(args); }
