/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the CUDA driver that tests on a device call and src/gpu does not: streams, stream-ordered memory,
 * graphs. On the stand-in driver these functions are NULL.
 */
#ifndef FXA_TESTS_DEVICE_DRIVER_H
#define FXA_TESTS_DEVICE_DRIVER_H

#include "base/dl.h"
#include "gpu/gpu.h"
#include "t.h"

typedef struct device_driver {
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*memory)(size_t *free, size_t *total);
    int (*alloc)(uintptr_t *out, size_t size, void *stream);
    int (*give)(uintptr_t ptr, void *stream);
    int (*record)(void *stream, int mode); /* starts a stream capture; NULL on the stand-in, like all members below */
    int (*record_end)(void *stream, void **graph);
    int (*graph_make)(void **made, void *graph, unsigned long long flags);
    int (*graph_launch)(void *made, void *stream);
    int (*made_destroy)(void *made);
    int (*graph_destroy)(void *graph);
} device_driver;

enum { DEVICE_RECORD_THREAD = 1 }; /* capture mode in which calls of other threads are allowed */

#define DEVICE_FUNCTION(name, field, optional)                                                                         \
    { name, offsetof(device_driver, field), optional }
static const fxa__dl_symbol device_symbols[] = {
    DEVICE_FUNCTION("cuStreamCreate", stream_create, false),
    DEVICE_FUNCTION("cuStreamDestroy_v2", stream_destroy, false),
    DEVICE_FUNCTION("cuMemGetInfo_v2", memory, false),
    DEVICE_FUNCTION("cuMemAllocAsync", alloc, false),
    DEVICE_FUNCTION("cuMemFreeAsync", give, false),
    DEVICE_FUNCTION("cuStreamBeginCapture_v2", record, true),
    DEVICE_FUNCTION("cuStreamEndCapture", record_end, true),
    DEVICE_FUNCTION("cuGraphInstantiateWithFlags", graph_make, true),
    DEVICE_FUNCTION("cuGraphLaunch", graph_launch, true),
    DEVICE_FUNCTION("cuGraphExecDestroy", made_destroy, true),
    DEVICE_FUNCTION("cuGraphDestroy", graph_destroy, true),
};

/* A device whose context is current, and the additional driver functions. */
typedef struct device {
    fxa__gpu gpu;
    device_driver more;
    void *library;
} device;

static bool device_open(device *d) {
    static const char *const names[] = {"libcuda.so.1", NULL};
    static const fxa__dl_spec spec = {"the CUDA driver", names, device_symbols,
                                      sizeof device_symbols / sizeof *device_symbols};
    fxa_error err;
    T_OK(fxa__gpu_open(&d->gpu, 0, &err));
    if (err.status != FXA_OK) return false;
    T_OK(fxa__dl_open(&spec, &d->more, sizeof d->more, &d->library, &err));
    if (err.status == FXA_OK) T_OK(fxa__gpu_enter(&d->gpu, &err));
    return err.status == FXA_OK;
}

static void device_close(device *d) {
    fxa__gpu_leave(&d->gpu);
    fxa__dl_close(d->library);
    fxa__gpu_close(&d->gpu);
}

#endif
