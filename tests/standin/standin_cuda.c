/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the CUDA driver: a library with the functions that src/gpu and tests call, two devices whose memory is
 * host memory, and streams that execute immediately. Calls that can fail are counted, and call number
 * standin_cuda.fail_at fails. Tests find this library first in LD_LIBRARY_PATH. Device memory is filled with NaN and
 * ends, up to the alignment of 256 bytes, at an inaccessible page; another inaccessible page precedes it. The padding
 * is checked after every launch on the GPU emulator (tests/model) and when memory is freed. Modules and launches are in
 * standin_launch.c.
 */
#include "standin_driver.h"
#include "gpu/gpu.h"
#include "model/model.h"
#include "support/memory/guard.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STANDIN_DEVICES = 2, STANDIN_BLOCKS = 4096, STANDIN_SPARE = 16, STANDIN_ALIGN = 256 };
enum { STANDIN_KEPT = 16 << 20 };            /* maximum bytes of a spare block */
#define STANDIN_TOTAL ((size_t)150109880320) /* bytes of a device */

standin_state standin_cuda;

typedef struct standin_block {
    guard memory; /* memory of the block; data NULL = unused block */
    int device;
} standin_block;

static pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
/* Held by threads that access device memory or hide it. */
static pthread_rwlock_t standin_shown = PTHREAD_RWLOCK_INITIALIZER;
static standin_block standin_blocks[STANDIN_BLOCKS];
static guard standin_spare[STANDIN_SPARE]; /* freed blocks, inaccessible until they are reused */
static int standin_next_spare;
static _Thread_local int standin_stack[16], standin_depth;

int standin_fails(void) {
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

/* Returns true if the range is device memory. */
static bool standin_holds(uintptr_t at, size_t size) {
    pthread_mutex_lock(&standin_lock);
    const standin_block *b = standin_find(at);
    bool ok = b && size <= b->memory.size - (at - (uintptr_t)b->memory.data);
    pthread_mutex_unlock(&standin_lock);
    return ok;
}

/* Stores a message for tests and prints it on stderr. The caller holds the lock. */
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

/* Returns true if the padding of a block is unchanged. Reports each change once. */
static bool standin_is_whole(standin_block *b) {
    ptrdiff_t at;
    if (!b->memory.data || !guard_stray(&b->memory, &at)) return true;
    standin_say("byte %td of device memory of %zu bytes was written; ", at, b->memory.size);
    guard_mend(&b->memory);
    return false;
}

/* Reports the address at which a kernel faulted, and the nearest block of memory. */
static void standin_say_fault(uintptr_t at) {
    for (int i = 0; i < STANDIN_BLOCKS; i++) {
        const guard *g = &standin_blocks[i].memory;
        if (!g->data || at - (uintptr_t)g->map >= g->mapped) continue;
        standin_say("it is byte %td of device memory of %zu bytes; ", (ptrdiff_t)(at - (uintptr_t)g->data), g->size);
    }
}

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
    const char *other = getenv("FXA_MODEL_ARCH");
    const int arch = standin_cuda.arch ? standin_cuda.arch : other ? atoi(other) : 0;
    if (attribute == 75 && arch) *value = arch / 10;
    if (attribute == 76 && arch) *value = arch % 10;
    /* a small number of processors gives a CTA several tiles of a small problem */
    const char *few = getenv("FXA_MODEL_PROCESSORS");
    if (attribute == 16 && few && atoi(few) > 0) *value = atoi(few);
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
    if (status) standin_cuda.context_lost = true; /* written on failure only, since other threads may be running */
    if (!status) standin_stack[standin_depth++ & 15] = (int)(uintptr_t)context;
    if (!status) atomic_fetch_add(&standin_cuda.entered, 1);
    return status;
}

STANDIN(cuCtxPopCurrent_v2)(void **context);
STANDIN(cuCtxPopCurrent_v2)(void **context) {
    if (!standin_depth) {
        atomic_fetch_add(&standin_cuda.mistakes, 1);
        return STANDIN_INVALID;
    }
    atomic_fetch_sub(&standin_cuda.entered, 1);
    *context = (void *)(uintptr_t)standin_stack[--standin_depth & 15];
    return 0;
}

/* Called first by every function that needs a context. Returns a failure if there is none, or if this call should
 * fail. */
int standin_enter(void) {
    if (standin_depth > 0) return standin_fails();
    atomic_fetch_add(&standin_cuda.mistakes, 1);
    return STANDIN_INVALID;
}

STANDIN(cuCtxSynchronize)(void);
STANDIN(cuCtxSynchronize)(void) {
    standin_cuda.waits++;
    return standin_enter();
}

/* standin_take and standin_give require that the caller holds the lock. */
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

/* Stream-ordered allocation; the stream has no pending work, so it allocates at once. */
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

/* Capture mode of this thread. The driver's default is 0 (global); mode 2 allows allocation during captures. */
static _Thread_local int standin_mode;

STANDIN(cuThreadExchangeStreamCaptureMode)(int *mode);
STANDIN(cuThreadExchangeStreamCaptureMode)(int *mode) {
    int status = standin_enter(), had = standin_mode;
    if (!status) standin_mode = *mode, *mode = had;
    return status;
}

STANDIN(standin_cuda_mode)(void);
STANDIN(standin_cuda_mode)(void) { return standin_mode; }

/* As in the driver, the call succeeds for memory that is not CUDA's, with type 0. */
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

STANDIN(cuGetErrorString)(int status, const char **text);
STANDIN(cuGetErrorString)(int status, const char **text) {
    *text = status == STANDIN_UNKNOWN ? "the stand-in fails" : "the stand-in does not like it";
    return 0;
}

/* ---- Effects of launches on memory (standin_driver.h) ------------------------------------------------------------ */

void standin_know_all(void) {
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < STANDIN_BLOCKS; i++)
        if (standin_blocks[i].memory.data)
            model_know_written(standin_blocks[i].memory.data, standin_blocks[i].memory.size);
    pthread_mutex_unlock(&standin_lock);
}

void standin_hide(bool hidden) {
    if (hidden) pthread_rwlock_wrlock(&standin_shown);
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < STANDIN_BLOCKS; i++)
        if (standin_blocks[i].memory.data) guard_hide(&standin_blocks[i].memory, hidden);
    pthread_mutex_unlock(&standin_lock);
    if (!hidden) pthread_rwlock_unlock(&standin_shown);
}

bool standin_look(const char *wrong, const void *fault) {
    pthread_mutex_lock(&standin_lock);
    bool ok = !wrong;
    standin_cuda.words[0] = 0;
    if (wrong) standin_say("%s; ", wrong);
    if (fault) standin_say_fault((uintptr_t)fault);
    for (int i = 0; i < STANDIN_BLOCKS; i++) ok = standin_is_whole(&standin_blocks[i]) && ok;
    pthread_mutex_unlock(&standin_lock);
    return ok;
}
