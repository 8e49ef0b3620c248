/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes and reads compiled plans, as cuDNN's own text of a plan, which contains the machine code. Loading takes
 * milliseconds. cuDNN loads a plan only if the device, or the device description, has the same relevant properties as
 * the one for which the plan was compiled; otherwise loading fails with E_VERSION, and the plan is compiled again.
 *
 * Only cuDNN can check the meaning of the text. Checksums ensure that the bytes are undamaged; the caller is
 * responsible for the bytes coming from a trusted source (docs/gpu.md).
 */
#include "saved.h"

enum { SAVED_FORMAT = 1 };
#define SAVED_MAX_BYTES ((size_t)256 << 20) /* maximum size of a saved cuDNN plan */

void fxa__dnn_saved_write(const fxa__cudnn_api *api, void *plan, fxa__host *host, fxa__writer *w) {
    int64_t n = 0;
    const int name = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    if (api->get(plan, name, CUDNN_TYPE_CHAR, 0, &n, NULL) != CUDNN_STATUS_SUCCESS || n < 1 ||
        (size_t)n > SAVED_MAX_BYTES)
        return;
    size_t room = (size_t)n;
    char *text = fxa__alloc(host, room);
    if (text && api->get(plan, name, CUDNN_TYPE_CHAR, n, &n, text) == CUDNN_STATUS_SUCCESS && (size_t)n == room) {
        fxa__write_u32(w, SAVED_FORMAT);
        fxa__write_u64(w, room);
        fxa__write_bytes(w, text, room);
    }
    fxa__free(host, text, room);
}

/* Makes a plan of cuDNN from its saved text and reads its workspace size. Returns a status of cuDNN. */
static int saved_restore(const fxa__cudnn_api *api, void *profile, const uint8_t *text, size_t n, void *plan,
                         int64_t *workspace) {
    int64_t count = 0;
    int status = api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)n, text);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &profile);
    if (status == CUDNN_STATUS_SUCCESS) status = api->finalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, workspace);
    return status;
}

fxa_status fxa__dnn_saved_read(const fxa__cudnn_api *api, void *profile, fxa__reader *r, void **plan,
                               int64_t *workspace, fxa_error *err) {
    fxa_error why = {.status = FXA_OK};
    uint32_t format = fxa__read_u32(r);
    uint64_t n = fxa__read_u64(r);
    const uint8_t *text = n >= 1 && n <= SAVED_MAX_BYTES ? fxa__read_bytes(r, (size_t)n) : NULL;
    *plan = NULL;
    if (format != SAVED_FORMAT || !text || text[0] != '{')
        return fxa__fail(err, FXA_E_BYTES, "a saved plan of cuDNN of format %u and %llu bytes: that is none", format,
                         (unsigned long long)n);
    int status = api->descriptor_create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan);
    if (status != CUDNN_STATUS_SUCCESS) return fxa__cudnn_fail(api, status, "a saved plan is begun", err);
    status = saved_restore(api, profile, text, (size_t)n, *plan, workspace);
    if (status == CUDNN_STATUS_SUCCESS) return FXA_OK;
    (void)fxa__cudnn_fail(api, status, "a saved plan is read", &why);
    (void)api->descriptor_destroy(*plan);
    *plan = NULL;
    return fxa__fail(err, FXA_E_VERSION, "%s", why.text);
}
