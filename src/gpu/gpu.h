/* SPDX-License-Identifier: Apache-2.0
 *
 * What every CUDA engine needs, once: the driver as a table of functions, a device with its primary context, memory,
 * copies, waits, and whose a pointer is. The driver is looked for when a device is opened; everything declared here is
 * our own, just what is called.
 *
 * Calls between fxa__gpu_enter and fxa__gpu_leave have the device's context; where nothing else is said, the functions
 * below enter by themselves.
 */
#ifndef FXA_GPU_GPU_H
#define FXA_GPU_GPU_H

#include "../base/device_memory.h"
#include "../base/host.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* CUlaunchConfig and its attributes, as the driver declares them. */
typedef struct fxa__cuda_launch_attribute {
    int id, unused;
    union {
        int flag;
        uint64_t room[8];
    } value;
} fxa__cuda_launch_attribute;

typedef struct fxa__cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    fxa__cuda_launch_attribute *attributes;
    unsigned n_attributes;
} fxa__cuda_launch;

/* The driver's functions, as it declares them; CUdeviceptr is a uintptr_t here. */
typedef struct fxa__cuda {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*device_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*device_name)(char *name, int size, int device);
    int (*device_memory)(size_t *bytes, int device);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*context_wait)(void);
    int (*alloc)(uintptr_t *out, size_t size);
    int (*give)(uintptr_t ptr);
    int (*copy_to)(uintptr_t to, const void *from, size_t size, void *stream);
    int (*copy_from)(void *to, uintptr_t from, size_t size, void *stream);
    int (*fill)(uintptr_t to, unsigned value, size_t words, void *stream); /* 32 bits each */
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*stream_recorded)(void *stream, int *status);
    int (*recording_mode)(int *mode); /* of this thread: given and taken */
    /* What graphs keep, since 11.3; NULL: the driver is older. drop is called by a thread of the driver's. */
    int (*stream_graph)(void *stream, int *status, uint64_t *id, void **graph, const void ***last, size_t *n_last);
    int (*object_create)(void **object, void *what, void (*drop)(void *what), unsigned refs, unsigned flags);
    int (*object_release)(void *object, unsigned refs);
    int (*graph_keep)(void *graph, void *object, unsigned refs, unsigned flags);
    int (*pointer_attributes)(unsigned n, int *attributes, void **values, uintptr_t ptr);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*function_attribute)(void *function, int attribute, int value);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra);
    int (*launch_with)(const fxa__cuda_launch *config, void *function, void **params, void **extra); /* or NULL */
    /* Of a tensor of 16 bits for TMA, 128 bytes of map; NULL: the driver is too old for it. */
    int (*tensor_map)(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size,
                      const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride, int interleave,
                      int swizzle, int promotion, int fill);
    int (*error_string)(int status, const char **text);
} fxa__cuda;

/* The driver's result for what it has: cudaErrorNotReady and the like are no success. */
#define FXA__CUDA_OK 0

#define FXA__GPU_NAME 96

typedef struct fxa__gpu {
    fxa__cuda driver;
    void *library;
    void *context; /* primary */
    int32_t ordinal;
    int device;
    int driver_version; /* 13000: 13.0 */
    int arch;           /* 90: compute capability 9.0 */
    int processors;
    char name[FXA__GPU_NAME];
    fxa__host *host;                           /* of the engine, who sets it: memory for the next */
    _Atomic(struct fxa__gpu_module *) helpers; /* gpu_launch.h: NULL until something needs them */
} fxa__gpu;

/* E_UNAVAILABLE with the reason: no driver, no such device. On failure there is nothing to close. */
fxa_status fxa__gpu_open(fxa__gpu *gpu, int32_t ordinal, fxa_error *err);
void fxa__gpu_close(fxa__gpu *gpu);
/* The same without a context: to ask for attributes of the device, and nothing else. */
fxa_status fxa__gpu_find(fxa__gpu *gpu, int32_t ordinal, fxa_error *err);
void fxa__gpu_forget(fxa__gpu *gpu);

fxa_status fxa__gpu_enter(const fxa__gpu *gpu, fxa_error *err);
void fxa__gpu_leave(const fxa__gpu *gpu);
/* What the driver said, in words, of `call`: E_MEMORY where it has none left, else E_ENGINE. OK for success. */
fxa_status fxa__gpu_status(const fxa__gpu *gpu, int status, const char *call, fxa_error *err);

fxa_status fxa__gpu_alloc(const fxa__gpu *gpu, size_t size, void **out, fxa_error *err);
void fxa__gpu_give(const fxa__gpu *gpu, void *ptr);
fxa_status fxa__gpu_copy_to(const fxa__gpu *gpu, void *device, const void *from, size_t size, void *stream,
                            fxa_error *err);
fxa_status fxa__gpu_copy_from(const fxa__gpu *gpu, void *to, const void *device, size_t size, void *stream,
                              fxa_error *err);
fxa_status fxa__gpu_wait(const fxa__gpu *gpu, void *stream, fxa_error *err);
/* The same as a table, for engines whose instance begins with the fxa__gpu. */
extern const fxa__memory fxa__gpu_memory;
/* Until the device has nothing left to do for this context. */
void fxa__gpu_wait_all(const fxa__gpu *gpu);
/* The next two between enter and leave, which several of them share: they are asked in every run.
 * E_BINDING unless the pointer is memory of this device, or the host's that the device maps (managed, pinned). */
fxa_status fxa__gpu_check(const fxa__gpu *gpu, const char *kind, const char *name, const void *ptr, fxa_error *err);
/* E_BINDING if the stream is being recorded into a graph, unless that is meant. To be asked before anything that a
 * recording does not allow (allocating, waiting), which would end it. */
fxa_status fxa__gpu_check_stream(const fxa__gpu *gpu, void *stream, bool recorded, fxa_error *err);
/* Where the stream is being recorded, drop(what) is called when the graph and all that was made of it are gone, by a
 * thread that must not call the device; *tied: it will be. It will not be with drivers older than 11.3. */
fxa_status fxa__gpu_tie(const fxa__gpu *gpu, void *stream, void (*drop)(void *what), void *what, bool *tied,
                        fxa_error *err);
/* What allocates after the first and before the second, on this thread, ends nobody's recording, neither that of its
 * own stream nor those of other threads. */
fxa_status fxa__gpu_recording_allow(const fxa__gpu *gpu, int *before, fxa_error *err);
fxa_status fxa__gpu_recording_restore(const fxa__gpu *gpu, int before, fxa_error *err);
/* Work of the library's own, which no caller's stream waits for: begun by `begin` on a stream made for it, in the
 * device's context and beside recordings as above, and ended when this returns. */
fxa_status fxa__gpu_aside(const fxa__gpu *gpu, fxa_status (*begin)(void *user, void *stream, fxa_error *err),
                          void *user, fxa_error *err);

/* A switch of the environment: 1 is on; 0, nothing and no such variable are off; anything else is FXA_E_UNAVAILABLE, so
 * that nobody believes that he has asked for what was not heard. */
fxa_status fxa__gpu_switch_read(const char *variable, bool *on, fxa_error *err);

#endif
