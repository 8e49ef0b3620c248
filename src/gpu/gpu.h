/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA driver API shared by the CUDA engines: the driver as a table of functions, a device with its primary context,
 * memory, copies, waits and pointer checks. The driver library is loaded when a device is opened. No CUDA header is
 * used: this file declares the driver functions that are called.
 *
 * fxa__gpu_enter makes the device's context current, and fxa__gpu_leave restores the previous context. The functions
 * below call both themselves unless their comment requires a current context.
 */
#ifndef FXA_GPU_GPU_H
#define FXA_GPU_GPU_H

#include "../base/device_memory.h"
#include "../base/host.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* CUlaunchConfig and CUlaunchAttribute, with the driver's layout. */
typedef struct fxa__gpu_launch_attribute {
    int id, unused;
    union {
        int flag;
        uint64_t room[8];
    } value;
} fxa__gpu_launch_attribute;

typedef struct fxa__gpu_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    fxa__gpu_launch_attribute *attributes;
    unsigned n_attributes;
} fxa__gpu_launch_config;

/* Functions of the CUDA driver, with the driver's signatures; CUdeviceptr is declared as uintptr_t. */
typedef struct fxa__gpu_driver {
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
    int (*fill)(uintptr_t to, unsigned value, size_t words, void *stream); /* words of 32 bits */
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*stream_capturing)(void *stream, int *status);
    int (*capture_mode)(int *mode); /* exchanges the capture mode of this thread */
    /* Functions for user objects of CUDA graphs; NULL if the driver is older than 11.3. A thread of the driver calls
     * `drop`. */
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
    /* cuLaunchKernelEx; NULL = driver older than 11.8. */
    int (*launch_with)(const fxa__gpu_launch_config *config, void *function, void **params, void **extra);
    /* Encodes the 128-byte TMA descriptor of a tensor of 16-bit elements; NULL = driver older than 12.0. */
    int (*tensor_map)(void *map, int type, unsigned rank, uintptr_t data, const uint64_t *size,
                      const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride, int interleave,
                      int swizzle, int promotion, int fill);
    int (*error_string)(int status, const char **text);
} fxa__gpu_driver;

/* CUDA_SUCCESS. fxattn treats every other value as a failure, also CUDA_ERROR_NOT_READY. */
#define FXA__CUDA_OK 0

#define FXA__GPU_NAME 96

typedef struct fxa__gpu {
    fxa__gpu_driver driver;
    void *library;
    void *context; /* primary context */
    int32_t ordinal;
    int device;
    int driver_version; /* 13000 = CUDA 13.0 */
    int arch;           /* 90 = compute capability 9.0 */
    int processors;     /* number of SMs */
    char name[FXA__GPU_NAME];
    fxa__host *host;                           /* allocator for `helpers`; set by the engine */
    _Atomic(struct fxa__gpu_module *) helpers; /* helper kernels (launch.h); NULL: not loaded yet */
} fxa__gpu;

/* Opens a device and retains its primary context. If there is no driver or no such device, fails with E_UNAVAILABLE and
 * the reason; then nothing needs closing. */
fxa_status fxa__gpu_open(fxa__gpu *gpu, int32_t ordinal, fxa_error *err);
void fxa__gpu_close(fxa__gpu *gpu);
/* Loads the driver and finds a device. Creates no context on the device: attributes can be queried without one. */
fxa_status fxa__gpu_find(fxa__gpu *gpu, int32_t ordinal, fxa_error *err);
/* Closes a device that fxa__gpu_find has found. */
void fxa__gpu_forget(fxa__gpu *gpu);

/* Makes the device's context current on this thread. */
fxa_status fxa__gpu_enter(const fxa__gpu *gpu, fxa_error *err);
/* Restores the context that was current before fxa__gpu_enter. */
void fxa__gpu_leave(const fxa__gpu *gpu);
/* Converts the result of the driver function `call`: FXA_OK, E_MEMORY for out of memory, else E_ENGINE with the
 * driver's text. */
fxa_status fxa__gpu_status(const fxa__gpu *gpu, int status, const char *call, fxa_error *err);

fxa_status fxa__gpu_alloc(const fxa__gpu *gpu, size_t size, void **out, fxa_error *err);
void fxa__gpu_give(const fxa__gpu *gpu, void *ptr);
/* Functions for memory, copies and waits, for engines whose instance begins with an fxa__gpu. */
extern const fxa__memory fxa__gpu_memory;
/* Waits until all work of the context has ended. */
void fxa__gpu_wait_all(const fxa__gpu *gpu);
/* Fails with E_BINDING unless ptr is memory of this device, or managed or pinned host memory that the device maps.
 * Requires that the device's context is current: a caller encloses all checks of a run in one fxa__gpu_enter and
 * fxa__gpu_leave. */
fxa_status fxa__gpu_check(const fxa__gpu *gpu, const char *kind, const char *name, const void *ptr, fxa_error *err);
/* Fails with E_BINDING if the stream is being captured into a CUDA graph and `capturing` is false. Requires that the
 * device's context is current. Must be called before any operation that invalidates a capture (allocation, wait). */
fxa_status fxa__gpu_check_stream(const fxa__gpu *gpu, void *stream, bool capturing, fxa_error *err);
/* If the stream is being captured into a CUDA graph, sets *tied to true and arranges that, when the graph and its
 * executables are destroyed, a thread that may not call the driver calls drop(what). Drivers older than 11.3 cannot do
 * this; *tied is then false. */
fxa_status fxa__gpu_tie(const fxa__gpu *gpu, void *stream, void (*drop)(void *what), void *what, bool *tied,
                        fxa_error *err);
/* Between fxa__gpu_capture_allow and fxa__gpu_capture_restore, allocations on this thread do not invalidate captures
 * that any thread has in progress. *before receives the mode to restore. */
fxa_status fxa__gpu_capture_allow(const fxa__gpu *gpu, int *before, fxa_error *err);
fxa_status fxa__gpu_capture_restore(const fxa__gpu *gpu, int before, fxa_error *err);
/* Creates a stream, calls begin(user, stream) and waits until the started work has ended. During the call the device's
 * context is current, and allocations do not invalidate captures (fxa__gpu_capture_allow). */
fxa_status fxa__gpu_run_on_own_stream(const fxa__gpu *gpu,
                                      fxa_status (*begin)(void *user, void *stream, fxa_error *err), void *user,
                                      fxa_error *err);

/* Reads a switch from the environment: "1" = on; "0", "" and unset = off; other values fail with E_UNAVAILABLE, so that
 * a misspelt switch is not ignored. */
fxa_status fxa__gpu_switch_read(const char *variable, bool *on, fxa_error *err);

#endif
