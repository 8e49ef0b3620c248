/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a device as a table of functions, which engines of devices have (engine.h): what src/plan takes data
 * there and back with (stage.c, merge_device.c). `self` is the engine's instance.
 */
#ifndef FXA_BASE_DEVICE_MEMORY_H
#define FXA_BASE_DEVICE_MEMORY_H

#include "error.h"

#include <stddef.h>

/* Memory of a device, for callers who have theirs on the host. A stream is a run's. */
typedef struct fxa__memory {
    /* May a call that waits take data there and back on the stream now? Asked before anything else. NULL: yes. */
    fxa_status (*begin)(void *self, void *stream, fxa_error *err);
    fxa_status (*alloc)(void *self, size_t size, void **out, fxa_error *err); /* size > 0; a multiple of 256 */
    void (*give)(void *self, void *ptr, size_t size);                         /* what alloc gave, back */
    fxa_status (*copy_to)(void *self, void *device, const void *from, size_t size, void *stream, fxa_error *err);
    fxa_status (*copy_from)(void *self, void *to, const void *device, size_t size, void *stream, fxa_error *err);
    fxa_status (*wait)(void *self, void *stream, fxa_error *err); /* until all that was begun is done, or has failed */
} fxa__memory;

#endif
