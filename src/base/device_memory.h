/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a device as a table of functions, which engines of devices provide (engine.h). src/plan copies data with
 * these functions (host_copies.c, merge_device.c). `self` is the engine's instance.
 */
#ifndef FXA_BASE_DEVICE_MEMORY_H
#define FXA_BASE_DEVICE_MEMORY_H

#include "error.h"

#include <stddef.h>

/* Functions for memory and copies of a device. `stream`: the stream of the run. */
typedef struct fxa__memory {
    /* Called before the other functions. Returns FXA_OK if the stream permits copies and waiting; fails while the
     * stream is being captured into a CUDA graph. NULL = every stream permits both. */
    fxa_status (*begin)(void *self, void *stream, fxa_error *err);
    /* allocates size > 0 bytes, aligned to 256 bytes */
    fxa_status (*alloc)(void *self, size_t size, void **out, fxa_error *err);
    void (*give)(void *self, void *ptr, size_t size); /* frees memory of alloc */
    fxa_status (*copy_to)(void *self, void *device, const void *from, size_t size, void *stream, fxa_error *err);
    fxa_status (*copy_from)(void *self, void *to, const void *device, size_t size, void *stream, fxa_error *err);
    /* waits until all work of the stream is complete or has failed */
    fxa_status (*wait)(void *self, void *stream, fxa_error *err);
} fxa__memory;

#endif
