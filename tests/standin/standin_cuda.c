/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the CUDA driver where there is none: a library with the functions that src/gpu and tests call, two
 * devices whose memory is the host's, and streams that are done at once. Calls that can fail count, and the one with
 * the number standin_cuda.fail_at does. Tests find it where the loader looks first (LD_LIBRARY_PATH).
 *
 * Memory of a device is filled with NaN, and lies between pages that are not there: its end against the one behind it,
 * up to the alignment of 256 bytes. What is left around it is looked at after every launch of the model (tests/model),
 * and when the memory is given back.
 */
#include "standin.h"
#include "gpu/gpu.h"
#include "model/model.h"
#include "standin_kernels.h"
#include "support/guard.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STANDIN_DEVICES = 2, STANDIN_BLOCKS = 4096, STANDIN_SPARE = 16, STANDIN_ALIGN = 256 };
enum { STANDIN_KEPT = 16 << 20, STANDIN_PLAIN_SHARED = 48 * 1024 }; /* bytes of a spare one, of shared memory */
enum { STANDIN_INVALID = 1, STANDIN_MEMORY = 2, STANDIN_LOST = 719, STANDIN_UNKNOWN = 999 };
#define STANDIN_TOTAL ((size_t)150109880320) /* bytes of a device */

__attribute__((visibility("default"))) standin_state standin_cuda;

typedef struct standin_block {
    guard memory; /* without data: there is none */
    int device;
} standin_block;

static pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t standin_shown = PTHREAD_RWLOCK_INITIALIZER; /* held by who touches memory, or hides it */
static standin_block standin_blocks[STANDIN_BLOCKS];
static guard standin_spare[STANDIN_SPARE]; /* given back: a fault to touch until it is memory again */
static int standin_next_spare;
static _Thread_local int standin_stack[16], standin_depth;

static int standin_fails(void) {
    if (atomic_fetch_add(&standin_cuda.calls, 1) + 1 != standin_cuda.fail_at) return 0;
    atomic_fetch_add(&standin_cuda.failures, 1);
    return STANDIN_UNKNOWN;
}

static standin_block *standin_find(uintptr_t at) {
    for (int i = 0; i < STANDIN_BLOCKS; i++) {
        standin_block *b = &standin_blocks[i];
        if (b->memory.data && at - (uintptr_t)b->memory.data < b->memory.size) return b;
    }
    return NULL;
}

/* Whether so many bytes there are memory of a device. */
static bool standin_holds(uintptr_t at, size_t size) {
    pthread_mutex_lock(&standin_lock);
    const standin_block *b = standin_find(at);
    bool ok = b && size <= b->memory.size - (at - (uintptr_t)b->memory.data);
    pthread_mutex_unlock(&standin_lock);
    return ok;
}

/* For who looks at what is printed, and for tests; under the lock. */
static void standin_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void standin_say(const char *format, ...) {
    char *words = standin_cuda.words;
    size_t n = strlen(words);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(words + n, sizeof standin_cuda.words - n, format, args);
    va_end(args);
    if (!standin_cuda.quiet) fprintf(stderr, "stand-in: %s\n", words + n);
}

/* Whether nobody wrote around it; else says so, once. */
static bool standin_is_whole(standin_block *b) {
    ptrdiff_t at;
    if (!b->memory.data || !guard_stray(&b->memory, &at)) return true;
    standin_say("byte %td of device memory of %zu bytes was written; ", at, b->memory.size);
    guard_mend(&b->memory);
    return false;
}

/* What a kernel has touched that is not there: of which memory, if it is close to some. */
static void standin_say_fault(uintptr_t at) {
    for (int i = 0; i < STANDIN_BLOCKS; i++) {
        const guard *g = &standin_blocks[i].memory;
        if (!g->data || at - (uintptr_t)g->map >= g->mapped) continue;
        standin_say("it is byte %td of device memory of %zu bytes; ", (ptrdiff_t)(at - (uintptr_t)g->data), g->size);
    }
}

#define STANDIN(name) __attribute__((visibility("default"))) int name

STANDIN(cuInit)(unsigned flags);
STANDIN(cuInit)(unsigned flags) { return flags ? STANDIN_INVALID : standin_fails(); }

STANDIN(cuDriverGetVersion)(int *version);
STANDIN(cuDriverGetVersion)(int *version) {
    *version = 13000;
    return standin_fails();
}

STANDIN(cuDeviceGetCount)(int *count);
STANDIN(cuDeviceGetCount)(int *count) {
    *count = standin_cuda.devices_gone ? 0 : STANDIN_DEVICES;
    return standin_fails();
}

STANDIN(cuDeviceGet)(int *device, int ordinal);
STANDIN(cuDeviceGet)(int *device, int ordinal) {
    *device = 100 + ordinal;
    return ordinal < 0 || ordinal >= STANDIN_DEVICES ? STANDIN_INVALID : standin_fails();
}

STANDIN(cuDeviceGetAttribute)(int *value, int attribute, int device);
STANDIN(cuDeviceGetAttribute)(int *value, int attribute, int device) {
    static const int h200[][2] = {{1, 1024},  {2, 1024},   {3, 1024},     {4, 64},        {5, 2147483647}, {6, 65535},
                                  {7, 65535}, {8, 49152},  {10, 32},      {12, 65536},    {13, 1980000},   {16, 132},
                                  {34, 6},    {35, 0},     {36, 3201000}, {38, 62914560}, {39, 2048},      {75, 9},
                                  {76, 0},    {82, 65536}, {95, 1},       {97, 232448},   {106, 32},       {111, 1024}};
    *value = -1;
    for (size_t i = 0; i < sizeof h200 / sizeof *h200; i++)
        if (h200[i][0] == attribute) *value = h200[i][1];
    if (attribute == 75 && standin_cuda.family) *value = standin_cuda.family;
    return device < 100 ? STANDIN_INVALID : standin_fails();
}

STANDIN(cuDeviceGetName)(char *name, int size, int device);
STANDIN(cuDeviceGetName)(char *name, int size, int device) {
    (void)snprintf(name, (size_t)size, "stand-in %d", device - 100);
    return standin_fails();
}

STANDIN(cuDeviceTotalMem_v2)(size_t *bytes, int device);
STANDIN(cuDeviceTotalMem_v2)(size_t *bytes, int device) {
    *bytes = STANDIN_TOTAL;
    return device < 100 ? STANDIN_INVALID : standin_fails();
}

STANDIN(cuDevicePrimaryCtxRetain)(void **context, int device);
STANDIN(cuDevicePrimaryCtxRetain)(void **context, int device) {
    int status = standin_fails();
    if (status) return status;
    *context = (void *)(uintptr_t)device;
    atomic_fetch_add(&standin_cuda.held, 1);
    return 0;
}

STANDIN(cuDevicePrimaryCtxRelease_v2)(int device);
STANDIN(cuDevicePrimaryCtxRelease_v2)(int device) {
    (void)device;
    atomic_fetch_sub(&standin_cuda.held, 1);
    return 0;
}

STANDIN(cuCtxPushCurrent_v2)(void *context);
STANDIN(cuCtxPushCurrent_v2)(void *context) {
    int status = standin_fails();
    if (status) standin_cuda.context_lost = true; /* written by no thread that succeeds: others may run */
    if (!status) standin_stack[standin_depth++ & 15] = (int)(uintptr_t)context;
    return status;
}

STANDIN(cuCtxPopCurrent_v2)(void **context);
STANDIN(cuCtxPopCurrent_v2)(void **context) {
    if (!standin_depth) {
        atomic_fetch_add(&standin_cuda.mistakes, 1);
        return STANDIN_INVALID;
    }
    *context = (void *)(uintptr_t)standin_stack[--standin_depth & 15];
    return 0;
}

/* Every call that needs a context begins so. */
static int standin_enter(void) {
    if (standin_depth > 0) return standin_fails();
    atomic_fetch_add(&standin_cuda.mistakes, 1);
    return STANDIN_INVALID;
}

STANDIN(cuCtxSynchronize)(void);
STANDIN(cuCtxSynchronize)(void) {
    standin_cuda.waits++;
    return standin_enter();
}

/* Under the lock, both. */
static guard standin_take(size_t size) {
    if (size > STANDIN_TOTAL) return (guard){0};
    for (int i = 0; i < STANDIN_SPARE; i++) {
        guard *g = &standin_spare[i], taken = *g;
        if (!guard_again(&taken, size, STANDIN_ALIGN, true)) continue;
        *g = (guard){0};
        return taken;
    }
    return guard_try(size, STANDIN_ALIGN, true);
}

static void standin_give(guard *memory) {
    guard *spare = &standin_spare[standin_next_spare++ % STANDIN_SPARE];
    if (memory->mapped > STANDIN_KEPT || !guard_shut(memory)) {
        guard_drop(memory);
        return;
    }
    guard_drop(spare);
    *spare = *memory;
    *memory = (guard){0};
}

STANDIN(cuMemAlloc_v2)(uintptr_t *out, size_t size);
STANDIN(cuMemAlloc_v2)(uintptr_t *out, size_t size) {
    int status = size ? standin_enter() : STANDIN_INVALID;
    if (status) return status;
    status = STANDIN_MEMORY;
    pthread_mutex_lock(&standin_lock);
    guard memory = standin_take(size);
    for (int i = 0; i < STANDIN_BLOCKS && status && memory.data; i++)
        if (!standin_blocks[i].memory.data) {
            standin_blocks[i] = (standin_block){memory, standin_stack[(standin_depth - 1) & 15] - 100};
            model_know_memory(memory.map, memory.mapped);
            status = 0;
        }
    pthread_mutex_unlock(&standin_lock);
    *out = (uintptr_t)memory.data;
    if (status)
        guard_drop(&memory);
    else
        atomic_fetch_add(&standin_cuda.held, 1);
    return status;
}

STANDIN(cuMemFree_v2)(uintptr_t ptr);
STANDIN(cuMemFree_v2)(uintptr_t ptr) {
    pthread_rwlock_rdlock(&standin_shown);
    pthread_mutex_lock(&standin_lock);
    standin_block *b = standin_find(ptr);
    bool ours = b && (uintptr_t)b->memory.data == ptr, whole = !ours || standin_is_whole(b);
    if (ours) model_know_nothing(b->memory.map, b->memory.mapped);
    if (ours) standin_give(&b->memory);
    pthread_mutex_unlock(&standin_lock);
    pthread_rwlock_unlock(&standin_shown);
    atomic_fetch_add(&standin_cuda.mistakes, !ours || !whole);
    if (ours) atomic_fetch_sub(&standin_cuda.held, 1);
    return ours ? 0 : STANDIN_INVALID;
}

/* In the order of a stream, all of whose work is done. */
STANDIN(cuMemAllocAsync)(uintptr_t *out, size_t size, void *stream);
STANDIN(cuMemAllocAsync)(uintptr_t *out, size_t size, void *stream) {
    (void)stream;
    return cuMemAlloc_v2(out, size);
}

STANDIN(cuMemFreeAsync)(uintptr_t ptr, void *stream);
STANDIN(cuMemFreeAsync)(uintptr_t ptr, void *stream) {
    (void)stream;
    return cuMemFree_v2(ptr);
}

STANDIN(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total);
STANDIN(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total) {
    *total = *free_bytes = STANDIN_TOTAL;
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < STANDIN_BLOCKS; i++) *free_bytes -= standin_blocks[i].memory.size;
    pthread_mutex_unlock(&standin_lock);
    return standin_enter();
}

STANDIN(cuMemcpyHtoDAsync_v2)(uintptr_t to, const void *from, size_t size, void *stream);
STANDIN(cuMemcpyHtoDAsync_v2)(uintptr_t to, const void *from, size_t size, void *stream) {
    (void)stream;
    int status = standin_holds(to, size) ? standin_enter() : STANDIN_INVALID;
    pthread_rwlock_rdlock(&standin_shown);
    if (!status) memcpy((void *)to, from, size);
    if (!status) model_know_written((void *)to, size);
    pthread_rwlock_unlock(&standin_shown);
    return status;
}

STANDIN(cuMemcpyDtoHAsync_v2)(void *to, uintptr_t from, size_t size, void *stream);
STANDIN(cuMemcpyDtoHAsync_v2)(void *to, uintptr_t from, size_t size, void *stream) {
    (void)stream;
    int status = standin_holds(from, size) ? standin_enter() : STANDIN_INVALID;
    pthread_rwlock_rdlock(&standin_shown);
    if (!status) memcpy(to, (const void *)from, size);
    pthread_rwlock_unlock(&standin_shown);
    return status;
}

STANDIN(cuMemsetD32Async)(uintptr_t to, unsigned value, size_t words, void *stream);
STANDIN(cuMemsetD32Async)(uintptr_t to, unsigned value, size_t words, void *stream) {
    (void)stream;
    int status = standin_holds(to, 4 * words) ? standin_enter() : STANDIN_INVALID;
    pthread_rwlock_rdlock(&standin_shown);
    for (size_t i = 0; !status && i < words; i++) memcpy((char *)to + 4 * i, &value, 4);
    if (!status) model_know_written((void *)to, 4 * words);
    pthread_rwlock_unlock(&standin_shown);
    return status;
}

STANDIN(cuStreamCreate)(void **stream, unsigned flags);
STANDIN(cuStreamCreate)(void **stream, unsigned flags) {
    *stream = &standin_blocks;
    return flags > 1 ? STANDIN_INVALID : standin_enter();
}

STANDIN(cuStreamDestroy_v2)(void *stream);
STANDIN(cuStreamDestroy_v2)(void *stream) { return stream == &standin_blocks ? standin_enter() : STANDIN_INVALID; }

STANDIN(cuStreamSynchronize)(void *stream);
STANDIN(cuStreamSynchronize)(void *stream) {
    (void)stream;
    return standin_enter();
}

STANDIN(cuStreamIsCapturing)(void *stream, int *recorded);
STANDIN(cuStreamIsCapturing)(void *stream, int *recorded) {
    *recorded = standin_cuda.recorded && stream == standin_cuda.recorded;
    return standin_enter();
}

/* The driver's default is global, 0; what allocates is allowed beside recordings in mode 2 alone. */
static _Thread_local int standin_mode;

STANDIN(cuThreadExchangeStreamCaptureMode)(int *mode);
STANDIN(cuThreadExchangeStreamCaptureMode)(int *mode) {
    int status = standin_enter(), had = standin_mode;
    if (!status) standin_mode = *mode, *mode = had;
    return status;
}

STANDIN(standin_cuda_mode)(void);
STANDIN(standin_cuda_mode)(void) { return standin_mode; }

/* As the driver: what is no memory of a device is no failure, and has no type. */
STANDIN(cuPointerGetAttributes)(unsigned n, int *attributes, void **values, uintptr_t ptr);
STANDIN(cuPointerGetAttributes)(unsigned n, int *attributes, void **values, uintptr_t ptr) {
    int status = standin_enter();
    pthread_mutex_lock(&standin_lock);
    const standin_block *b = standin_find(ptr);
    bool pinned = ptr && ptr == standin_cuda.pinned, managed = ptr && ptr == standin_cuda.managed;
    for (unsigned i = 0; i < n && !status; i++) {
        int value = attributes[i] == 2   ? (pinned         ? 1
                                            : b || managed ? 2
                                                           : 0)
                    : attributes[i] == 8 ? managed
                    : attributes[i] == 9 ? (b         ? b->device
                                            : managed ? 1
                                                      : -2)
                                         : -1;
        memcpy(values[i], &value, sizeof value);
    }
    pthread_mutex_unlock(&standin_lock);
    return status;
}

/* A map that says what it is of; what the driver refuses is refused. */
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

STANDIN(cuGetErrorString)(int status, const char **text);
STANDIN(cuGetErrorString)(int status, const char **text) {
    *text = status == STANDIN_UNKNOWN ? "the stand-in fails" : "the stand-in does not like it";
    return 0;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Those of src/gpu are compiled for the host, and so are those of tests/model; kernels of other cubins do nothing. */
typedef enum standin_source { STANDIN_PTX, STANDIN_CUBIN, STANDIN_MODEL } standin_source;

typedef struct standin_module {
    standin_source source;
    model_module *model;
} standin_module;

/* A kernel of a module: of src/gpu, of the model, or nothing. */
typedef struct standin_function {
    struct standin_function *next; /* of all there are */
    const standin_module *module;
    void *kernel;
    int shared_bytes; /* of dynamic shared memory, at most */
    int most;         /* threads of a CTA, by its launch bounds; 0: any */
    char name[64];
} standin_function;

static standin_function *standin_functions;

STANDIN(cuModuleLoadData)(void **module, const void *image);
STANDIN(cuModuleLoadData)(void **module, const void *image) {
    bool text = image && !strncmp(image, ".version", 8), cubin = image && !memcmp(image, "\177ELF", 4);
    bool modelled = cubin && model_is_module(image);
    int status = text || cubin ? standin_enter() : STANDIN_INVALID;
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

/* Its functions go with it. */
STANDIN(cuModuleUnload)(void *module);
STANDIN(cuModuleUnload)(void *module) {
    standin_module *m = module;
    pthread_mutex_lock(&standin_lock);
    for (standin_function **at = &standin_functions, *f; (f = *at) != NULL;) {
        if (f->module != m) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        free(f);
    }
    pthread_mutex_unlock(&standin_lock);
    if (m->model) model_unload(m->model);
    free(m);
    atomic_fetch_sub(&standin_cuda.held, 1);
    return 0;
}

/* The same kernel of a module is the same function. */
static standin_function *standin_function_of(const standin_module *module, void *kernel, const char *name) {
    pthread_mutex_lock(&standin_lock);
    standin_function *f = standin_functions;
    while (f && (f->module != module || f->kernel != kernel)) f = f->next;
    if (!f && (f = malloc(sizeof *f)) != NULL) {
        *f = (standin_function){standin_functions, module, kernel, STANDIN_PLAIN_SHARED, 0, ""};
        f->most = module->model ? model_bound(module->model, name) : 0;
        (void)snprintf(f->name, sizeof f->name, "%s", name);
        standin_functions = f;
    }
    pthread_mutex_unlock(&standin_lock);
    return f;
}

STANDIN(cuModuleGetFunction)(void **function, void *module, const char *name);
STANDIN(cuModuleGetFunction)(void **function, void *module, const char *name) {
    const standin_module *m = module;
    void *kernel = m->source == STANDIN_PTX ? standin_kernel_find(name) : m->model ? model_find(m->model, name) : NULL;
    if (!kernel && m->source != STANDIN_CUBIN) return STANDIN_INVALID;
    *function = standin_function_of(m, kernel, name);
    return *function ? standin_enter() : STANDIN_MEMORY;
}

STANDIN(cuFuncSetAttribute)(void *function, int attribute, int value);
STANDIN(cuFuncSetAttribute)(void *function, int attribute, int value) {
    bool ok = function && attribute == 8 && value >= 0 && value <= MODEL_SHARED; /* dynamic shared memory */
    int status = ok ? standin_fails() : STANDIN_INVALID;
    if (!status) ((standin_function *)function)->shared_bytes = value;
    return status;
}

/* A kernel that does not tell what it writes may have written everything. */
static void standin_know_all(void) {
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < STANDIN_BLOCKS; i++)
        if (standin_blocks[i].memory.data)
            model_know_written(standin_blocks[i].memory.data, standin_blocks[i].memory.size);
    pthread_mutex_unlock(&standin_lock);
}

/* All memory of devices, from a kernel that begins too early for it. */
static void standin_hide(bool hidden) {
    if (hidden) pthread_rwlock_wrlock(&standin_shown);
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < STANDIN_BLOCKS; i++)
        if (standin_blocks[i].memory.data) guard_hide(&standin_blocks[i].memory, hidden);
    pthread_mutex_unlock(&standin_lock);
    if (!hidden) pthread_rwlock_unlock(&standin_shown);
}

/* Runs a kernel on the model, with words where it goes wrong. */
static int standin_run_model(const standin_function *f, model_dim grid, model_dim block, unsigned shared_bytes,
                             bool early, void **params) {
    bool ok = model_launch(f->kernel, grid, block, shared_bytes, early ? standin_hide : NULL, params);
    pthread_mutex_lock(&standin_lock);
    standin_cuda.words[0] = 0;
    if (!ok) standin_say("%s; ", model_error());
    if (!ok && model_fault()) standin_say_fault((uintptr_t)model_fault());
    for (int i = 0; i < STANDIN_BLOCKS; i++) ok = standin_is_whole(&standin_blocks[i]) && ok;
    pthread_mutex_unlock(&standin_lock);
    return ok ? 0 : STANDIN_LOST;
}

/* More threads than a kernel is compiled for, as a driver refuses them: with words. */
static bool standin_is_bound(const standin_function *f, model_dim block) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!f->most || threads <= (uint64_t)f->most) return true;
    pthread_mutex_lock(&standin_lock);
    standin_cuda.words[0] = 0;
    standin_say("%s is compiled for %d threads at most, and a launch has %d; ", f->name, f->most, (int)threads);
    pthread_mutex_unlock(&standin_lock);
    return false;
}

static int standin_launch(const standin_function *f, model_dim grid, model_dim block, unsigned shared_bytes, bool early,
                          void **params) {
    const standin_source source = f->module->source;
    bool line = grid.y * grid.z * block.y * block.z == 1;
    bool ok = grid.x && grid.x <= INT32_MAX && grid.y && grid.y <= UINT16_MAX && grid.z && grid.z <= UINT16_MAX &&
              block.x && block.y && block.z && block.z <= 64 &&
              (uint64_t)block.x * block.y * block.z <= MODEL_THREADS && shared_bytes <= (unsigned)f->shared_bytes &&
              (line || source != STANDIN_PTX) && standin_is_bound(f, block);
    int status = ok ? standin_enter() : STANDIN_INVALID;
    if (!status && !(f->module->model && model_checks(f->module->model))) standin_know_all();
    if (!status && source == STANDIN_PTX) standin_kernel_run(f->kernel, params[0]);
    if (!status && source == STANDIN_MODEL) status = standin_run_model(f, grid, block, shared_bytes, early, params);
    return status;
}

STANDIN(cuLaunchKernel)
(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra);
STANDIN(cuLaunchKernel)
(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra) {
    (void)stream, (void)extra;
    return standin_launch(function, (model_dim){grid_x, grid_y, grid_z}, (model_dim){block_x, block_y, block_z},
                          shared_bytes, false, params);
}

/* The one attribute that is known: a launch that begins before the one before it has ended. */
STANDIN(cuLaunchKernelEx)(const fxa__cuda_launch *config, void *function, void **params, void **extra);
STANDIN(cuLaunchKernelEx)(const fxa__cuda_launch *config, void *function, void **params, void **extra) {
    const unsigned *g = config->grid, *b = config->block;
    (void)extra;
    if (config->n_attributes != 1 || config->attributes->id != 6 || config->attributes->value.flag != 1)
        return STANDIN_INVALID;
    return standin_launch(function, (model_dim){g[0], g[1], g[2]}, (model_dim){b[0], b[1], b[2]}, config->shared_bytes,
                          true, params);
}
