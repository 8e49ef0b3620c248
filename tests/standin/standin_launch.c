/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, kernels, tensor maps, and launches of the driver stand-in (standin_cuda.c), with the driver's checks.
 */
#include "standin_driver.h"
#include "gpu/gpu.h"
#include "model/model.h"
#include "standin_kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCH_PLAIN_SHARED = 48 * 1024 }; /* bytes of shared memory of a kernel without the attribute for more */

static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list of functions */

/* Stores a tensor map's parameters, with the driver's checks. */
STANDIN(cuTensorMapEncodeTiled)
(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size, const uint64_t *stride_bytes,
 const uint32_t *box, const uint32_t *element_stride, int interleave, int swizzle, int promotion, int fill);
STANDIN(cuTensorMapEncodeTiled)
(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size, const uint64_t *stride_bytes,
 const uint32_t *box, const uint32_t *element_stride, int interleave, int swizzle, int promotion, int fill) {
    bool ok = (type == 6 || type == 9) && rank == 4 && data % 16 == 0 && !interleave && swizzle == 3 && !fill;
    uint64_t words[16] = {data, (uint64_t)type, (uint64_t)promotion};
    for (int i = 0; i < 4; i++) {
        ok = ok && size[i] && size[i] <= UINT32_MAX && box[i] && box[i] <= 256 && element_stride[i] == 1;
        words[3 + i] = size[i];
        words[10 + i] = box[i];
    }
    for (int i = 0; i < 3; i++) {
        ok = ok && stride_bytes[i] && stride_bytes[i] % 16 == 0 && stride_bytes[i] < UINT64_C(1) << 40;
        words[7 + i] = stride_bytes[i];
    }
    if (ok) memcpy(map, words, sizeof words);
    return ok ? standin_fails() : STANDIN_INVALID;
}

/* Kinds of modules. Kernels of src/gpu and of tests/model are compiled for the host; kernels of other cubins do
 * nothing. */
typedef enum standin_source { STANDIN_PTX, STANDIN_CUBIN, STANDIN_MODEL } standin_source;

typedef struct standin_module {
    standin_source source;
    model_module *model;
} standin_module;

/* A kernel of a module: from src/gpu, from the emulator, or without effect. */
typedef struct standin_function {
    struct standin_function *next; /* next in the list of all functions */
    const standin_module *module;
    void *kernel;
    int shared_bytes; /* maximum bytes of dynamic shared memory */
    int most;         /* maximum threads of a CTA by the kernel's launch bounds; 0 = no bounds */
    char name[64];
} standin_function;

static standin_function *launch_functions;

/* Like standin_enter, for calls that load code: records their numbers in standin_cuda.loads. */
static int launch_enter(void) {
    size_t *loads = standin_cuda.loads;
    int status = standin_enter();
    pthread_mutex_lock(&launch_lock);
    loads[1] = standin_cuda.calls;
    if (!loads[0]) loads[0] = loads[1];
    pthread_mutex_unlock(&launch_lock);
    return status;
}

STANDIN(cuModuleLoadData)(void **module, const void *image);
STANDIN(cuModuleLoadData)(void **module, const void *image) {
    bool text = image && !strncmp(image, ".version", 8), cubin = image && !memcmp(image, "\177ELF", 4);
    bool modelled = cubin && model_is_module(image);
    int status = text || cubin ? launch_enter() : STANDIN_INVALID;
    standin_module *m = status ? NULL : malloc(sizeof *m);
    if (!m) return status ? status : STANDIN_MEMORY;
    m->model = modelled ? model_load(image) : NULL;
    m->source = modelled ? STANDIN_MODEL : cubin ? STANDIN_CUBIN : STANDIN_PTX;
    if (modelled && !m->model) {
        free(m);
        return STANDIN_INVALID;
    }
    *module = m;
    atomic_fetch_add(&standin_cuda.held, 1);
    return 0;
}

/* Unloads a module and frees its functions. */
STANDIN(cuModuleUnload)(void *module);
STANDIN(cuModuleUnload)(void *module) {
    standin_module *m = module;
    pthread_mutex_lock(&launch_lock);
    for (standin_function **at = &launch_functions, *f; (f = *at) != NULL;) {
        if (f->module != m) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        free(f);
    }
    pthread_mutex_unlock(&launch_lock);
    if (m->model) model_unload(m->model);
    free(m);
    atomic_fetch_sub(&standin_cuda.held, 1);
    return 0;
}

/* Returns the function object of a kernel; equal calls return the same object. */
static standin_function *launch_function(const standin_module *module, void *kernel, const char *name) {
    pthread_mutex_lock(&launch_lock);
    standin_function *f = launch_functions;
    while (f && (f->module != module || f->kernel != kernel)) f = f->next;
    if (!f && (f = malloc(sizeof *f)) != NULL) {
        *f = (standin_function){launch_functions, module, kernel, LAUNCH_PLAIN_SHARED, 0, ""};
        f->most = module->model ? model_bound(module->model, name) : 0;
        (void)snprintf(f->name, sizeof f->name, "%s", name);
        launch_functions = f;
    }
    pthread_mutex_unlock(&launch_lock);
    return f;
}

STANDIN(cuModuleGetFunction)(void **function, void *module, const char *name);
STANDIN(cuModuleGetFunction)(void **function, void *module, const char *name) {
    const standin_module *m = module;
    void *kernel = m->source == STANDIN_PTX ? standin_kernel_find(name) : m->model ? model_find(m->model, name) : NULL;
    if (!kernel && m->source != STANDIN_CUBIN) return STANDIN_INVALID;
    *function = launch_function(m, kernel, name);
    return *function ? launch_enter() : STANDIN_MEMORY;
}

STANDIN(cuFuncSetAttribute)(void *function, int attribute, int value);
STANDIN(cuFuncSetAttribute)(void *function, int attribute, int value) {
    /* the only attribute, 8, is the maximum size of dynamic shared memory */
    bool ok = function && attribute == 8 && value >= 0 && value <= MODEL_SHARED;
    int status = ok ? launch_enter() : STANDIN_INVALID;
    if (!status) ((standin_function *)function)->shared_bytes = value;
    return status;
}

/* Runs a kernel on the GPU emulator and prints a message if it fails. */
static int launch_on_model(const standin_function *f, model_dim grid, model_dim block, unsigned shared_bytes,
                           bool early, void **params) {
    bool ok = model_launch(f->kernel, grid, block, shared_bytes, early ? standin_hide : NULL, params);
    return standin_look(ok ? NULL : model_error(), ok ? NULL : model_fault()) ? 0 : STANDIN_LOST;
}

/* Returns false, with a message, if a CTA has more threads than the kernel's launch bounds. */
static bool launch_is_bound(const standin_function *f, model_dim block) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!f->most || threads <= (uint64_t)f->most) return true;
    char words[160];
    (void)snprintf(words, sizeof words, "%s is compiled for %d threads at most, and a launch has %d", f->name, f->most,
                   (int)threads);
    return standin_look(words, NULL);
}

static int launch_kernel(const standin_function *f, model_dim grid, model_dim block, unsigned shared_bytes, bool early,
                         void **params) {
    const standin_source source = f->module->source;
    bool line = grid.y * grid.z * block.y * block.z == 1;
    bool ok = grid.x && grid.x <= INT32_MAX && grid.y && grid.y <= UINT16_MAX && grid.z && grid.z <= UINT16_MAX &&
              block.x && block.y && block.z && block.z <= 64 &&
              (uint64_t)block.x * block.y * block.z <= MODEL_THREADS && shared_bytes <= (unsigned)f->shared_bytes &&
              (line || source != STANDIN_PTX) && launch_is_bound(f, block);
    int status = ok ? standin_enter() : STANDIN_INVALID;
    if (!status && !(f->module->model && model_checks(f->module->model))) standin_know_all();
    if (!status && source == STANDIN_PTX) standin_kernel_run(f->kernel, params[0]);
    if (!status && source == STANDIN_MODEL) status = launch_on_model(f, grid, block, shared_bytes, early, params);
    return status;
}

STANDIN(cuLaunchKernel)
(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra);
STANDIN(cuLaunchKernel)
(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra) {
    (void)stream, (void)extra;
    return launch_kernel(function, (model_dim){grid_x, grid_y, grid_z}, (model_dim){block_x, block_y, block_z},
                         shared_bytes, false, params);
}

/* Supports one attribute, which lets a kernel start before the preceding kernel has ended. */
STANDIN(cuLaunchKernelEx)(const fxa__gpu_launch_config *config, void *function, void **params, void **extra);
STANDIN(cuLaunchKernelEx)(const fxa__gpu_launch_config *config, void *function, void **params, void **extra) {
    const unsigned *g = config->grid, *b = config->block;
    (void)extra;
    if (config->n_attributes != 1 || config->attributes->id != 6 || config->attributes->value.flag != 1)
        return STANDIN_INVALID;
    return launch_kernel(function, (model_dim){g[0], g[1], g[2]}, (model_dim){b[0], b[1], b[2]}, config->shared_bytes,
                         true, params);
}
