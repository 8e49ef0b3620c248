/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding cuDNN. In this order: where FXA_CUDNN_PATH says (a folder), then by the name alone, which finds what the
 * process has loaded already and what the system's loader knows. cuDNN ends the process when it cannot find cuBLASLt by
 * itself, so that is loaded first, and its absence is a reason. It is kept for as long as cuDNN is.
 */
#include "cudnn_api.h"

#include "../../base/dl.h"

#include <stdio.h>
#include <string.h>

#define CUDNN_FUNCTION(name, field)                                                                                    \
    { name, offsetof(fxa__cudnn_api, field), false }
static const fxa__dl_symbol cudnn_symbols[] = {
    CUDNN_FUNCTION("cudnnGetVersion", version),
    CUDNN_FUNCTION("cudnnGetErrorString", error_string),
    CUDNN_FUNCTION("cudnnGetLastErrorString", last_error),
    CUDNN_FUNCTION("cudnnCreate", create),
    CUDNN_FUNCTION("cudnnDestroy", destroy),
    CUDNN_FUNCTION("cudnnSetStream", set_stream),
    CUDNN_FUNCTION("cudnnBackendCreateDescriptor", descriptor_create),
    CUDNN_FUNCTION("cudnnBackendDestroyDescriptor", descriptor_destroy),
    CUDNN_FUNCTION("cudnnBackendSetAttribute", set),
    CUDNN_FUNCTION("cudnnBackendGetAttribute", get),
    CUDNN_FUNCTION("cudnnBackendFinalize", finalize),
    CUDNN_FUNCTION("cudnnBackendExecute", execute),
};

typedef struct cudnn_blas {
    size_t (*version)(void);
} cudnn_blas;
static const fxa__dl_symbol cudnn_blas_symbols[] = {{"cublasLtGetVersion", offsetof(cudnn_blas, version), false}};

enum { CUDNN_PATH = 4096, CUDNN_NAMES = 2 };

/* The names to try: those in the folder, if there is one, then those that the loader looks for. */
typedef struct cudnn_search {
    char path[CUDNN_NAMES][CUDNN_PATH];
    const char *names[2 * CUDNN_NAMES + 1];
} cudnn_search;

static fxa_status cudnn_search_make(cudnn_search *s, const char *folder, const char *const *files, fxa_error *err) {
    size_t n = 0;
    for (size_t i = 0; folder && files[i]; i++) {
        int length = snprintf(s->path[i], CUDNN_PATH, "%s/%s", folder, files[i]);
        if (length < 0 || length >= CUDNN_PATH)
            return fxa__fail(err, FXA_E_UNAVAILABLE, "FXA_CUDNN_PATH has %zu bytes: at most %d are a path",
                             strlen(folder), CUDNN_PATH - 32);
        s->names[n++] = s->path[i];
    }
    for (size_t i = 0; files[i]; i++) s->names[n++] = files[i];
    s->names[n] = NULL;
    return FXA_OK;
}

static fxa_status cudnn_blas_open(cudnn_search *s, const char *folder, void **handle, fxa_error *err) {
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    const fxa__dl_spec spec = {"cuBLASLt, which cuDNN needs,", s->names, cudnn_blas_symbols, 1};
    cudnn_blas table;
    FXA_TRY(cudnn_search_make(s, folder, files, err));
    return fxa__dl_open(&spec, &table, sizeof table, handle, err);
}

static fxa_status cudnn_open_both(cudnn_search *s, const char *folder, fxa__cudnn_library *out, fxa_error *err) {
    static const char *const files[] = {"libcudnn.so.9", NULL};
    const fxa__dl_spec spec = {"cuDNN", s->names, cudnn_symbols, sizeof cudnn_symbols / sizeof *cudnn_symbols};
    FXA_TRY(cudnn_blas_open(s, folder, &out->blas, err));
    fxa_status status = cudnn_search_make(s, folder, files, err);
    if (status == FXA_OK) status = fxa__dl_open(&spec, &out->api, sizeof out->api, &out->handle, err);
    if (status != FXA_OK) {
        fxa__dl_close(out->blas);
        return status;
    }
    out->version = (int64_t)out->api.version();
    return FXA_OK;
}

fxa_status fxa__cudnn_library_open(fxa__host *host, const char *folder, fxa__cudnn_library *out, fxa_error *err) {
    *out = (fxa__cudnn_library){.version = 0};
    cudnn_search *s = fxa__alloc(host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "the search for cuDNN");
    fxa_status status = cudnn_open_both(s, folder && *folder ? folder : NULL, out, err);
    fxa__free(host, s, sizeof *s);
    return status;
}

void fxa__cudnn_library_close(fxa__cudnn_library *library) {
    fxa__dl_close(library->handle);
    fxa__dl_close(library->blas);
}

void fxa__cudnn_last(const fxa__cudnn_api *api, char *text, size_t size) {
    text[0] = '\0';
    api->last_error(text, size);
    text[size - 1] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
}

fxa_status fxa__cudnn_fail(const fxa__cudnn_api *api, int status, const char *doing, fxa_error *err) {
    char text[320];
    const char *name = api->error_string(status);
    fxa__cudnn_last(api, text, sizeof text);
    bool no = status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_NOT_SUPPORTED + CUDNN_SUPPORT_STATUSES;
    fxa_status kind = no                                                             ? FXA_E_UNSUPPORTED
                      : status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ? FXA_E_MEMORY
                                                                                     : FXA_E_ENGINE;
    return fxa__fail(err, kind, "cuDNN says %d (%s) when %s: %s", status, name ? name : "no name", doing, text);
}
