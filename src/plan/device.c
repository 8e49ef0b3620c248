/* SPDX-License-Identifier: Apache-2.0
 *
 * Public functions about devices that need no problem: fxa_engine_device returns the device of an engine, and
 * fxa_device_description writes the properties of a device as JSON. The first engine of the device that has a
 * `describe` function writes the description.
 */
#include "plan.h"

int32_t fxa_engine_device(size_t index) {
    const fxa__engine *engine = fxa__engine_at(index);
    return engine ? (int32_t)engine->device : -1;
}

/* Returns the first engine of the device that has a `describe` function; NULL if there is none. */
static const fxa__engine *device_find(fxa_device device) {
    const fxa__engine *engine = NULL;
    for (size_t i = 0; (engine = fxa__engine_at(i)) != NULL; i++)
        if (engine->device == (uint32_t)device && engine->describe) break;
    return engine;
}

static fxa_status device_describe(fxa__host *host, fxa_device device, int32_t ordinal, fxa__writer *w, fxa_error *err) {
    const fxa__engine *engine = device_find(device);
    if (!engine)
        return fxa__fail(err, FXA_E_UNSUPPORTED, "no engine of this build has descriptions of device %s",
                         fxa_device_name(device));
    w->host = host;
    FXA_TRY(engine->describe(ordinal, w, err));
    fxa__write_u8(w, 0);
    return w->failed ? fxa__fail_memory(err, "a device description") : FXA_OK;
}

fxa_status fxa_device_description(fxa_context *ctx, fxa_device device, int32_t ordinal, char *out, size_t capacity,
                                  size_t *needed, fxa_error *err) {
    if (!ctx || (!out && !needed))
        return fxa__fail(err, FXA_E_ARGUMENT, ctx ? "both out and needed are NULL" : "ctx is NULL");
    if (!fxa_device_name(device))
        return fxa__fail(err, FXA_E_ARGUMENT, "device is %d: accepted are %d (host) and %d (cuda)", (int)device,
                         (int)FXA_HOST, (int)FXA_CUDA);
    if (ordinal < 0) return fxa__fail(err, FXA_E_ARGUMENT, "ordinal is %d: accepted are 0 and more", (int)ordinal);
    fxa__writer w = {.host = NULL};
    size_t size = 0;
    fxa_status status = device_describe(fxa__context_host(ctx), device, ordinal, &w, err);
    if (status == FXA_OK) {
        status = fxa__bytes_out(w.data, w.size, out, capacity, &size, err);
        if (needed) *needed = size - 1;
    }
    fxa__writer_free(&w);
    return status;
}
