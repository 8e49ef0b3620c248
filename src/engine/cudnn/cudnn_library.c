/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding cuDNN. In this order: what the process has loaded already; where FXA_CUDNN_PATH says (a folder); in NVIDIA's
 * packages for Python, where this library is part of one beside them; by the name alone, as the system's loader does.
 * cuDNN ends the process when it cannot find cuBLASLt by itself, so that is loaded first, and its absence is a reason.
 * It is kept for as long as cuDNN is.
 */
#include "cudnn_api.h"

#include "../../base/dl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

typedef struct cudnn_compiler {
    int (*version)(int *major, int *minor);
} cudnn_compiler;
static const fxa__dl_symbol cudnn_compiler_symbols[] = {{"nvrtcVersion", offsetof(cudnn_compiler, version), false}};

enum { CUDNN_PATH = 4096, CUDNN_NAMES = 2, CUDNN_FOLDERS = 3 };

/* Folders of NVIDIA's packages for Python, seen from that of a package with this library in it. */
static const char *const cudnn_packages[] = {"/../../nvidia/cu13/lib", "/../../nvidia/cublas/lib"};
static const char *const cudnn_compilers[] = {"/../../nvidia/cu13/lib", "/../../nvidia/cuda_nvrtc/lib"};
static const char *const cudnn_package[] = {"/../../nvidia/cudnn/lib"};

/* The names to try: those in folders, then those that the loader looks for. */
typedef struct cudnn_search {
    char path[CUDNN_FOLDERS * CUDNN_NAMES][CUDNN_PATH];
    const char *names[(CUDNN_FOLDERS + 1) * CUDNN_NAMES + 1];
    size_t n;
} cudnn_search;

/* False: a path that is too long. `there`: files that are not there are left out, and nothing is said of them. */
static bool cudnn_search_folder(cudnn_search *s, const char *folder, const char *more, bool there,
                                const char *const *files) {
    for (size_t i = 0; files[i]; i++) {
        int length = snprintf(s->path[s->n], CUDNN_PATH, "%s%s/%s", folder, more, files[i]);
        if (length < 0 || length >= CUDNN_PATH) return false;
        if (there && access(s->path[s->n], F_OK) != 0) continue;
        s->names[s->n] = s->path[s->n];
        s->n++;
    }
    return true;
}

/* folder: the caller's, or NULL. */
static fxa_status cudnn_search_make(cudnn_search *s, const char *folder, const char *const *packages, size_t n_packages,
                                    const char *const *files, fxa_error *err) {
    char own[CUDNN_PATH / 2];
    s->n = 0;
    if (folder && !cudnn_search_folder(s, folder, "", false, files))
        return fxa__fail(err, FXA_E_UNAVAILABLE, "FXA_CUDNN_PATH has %zu bytes: at most %d are a path", strlen(folder),
                         CUDNN_PATH - 32);
    for (size_t i = 0; i < n_packages && fxa__dl_own_folder(own, sizeof own); i++)
        (void)cudnn_search_folder(s, own, packages[i], true, files);
    for (size_t i = 0; files[i]; i++) s->names[s->n++] = files[i];
    s->names[s->n] = NULL;
    return FXA_OK;
}

/* cuDNN looks for it by its name alone, and ends the process over a file that does not call itself so. */
static fxa_status cudnn_blas_open(cudnn_search *s, const char *folder, void **handle, fxa_error *err) {
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    const fxa__dl_spec spec = {"cuBLASLt, which cuDNN needs,", s->names, cudnn_blas_symbols, 1};
    const fxa__dl_spec named = {"cuBLASLt, which cuDNN needs and looks for by its name,", files, cudnn_blas_symbols, 1};
    cudnn_blas table;
    void *by_name;
    FXA_TRY(cudnn_search_make(s, folder, cudnn_packages, 2, files, err));
    FXA_TRY(fxa__dl_open(&spec, &table, sizeof table, handle, err));
    fxa_status status = fxa__dl_open(&named, &table, sizeof table, &by_name, err);
    if (status != FXA_OK) fxa__dl_close(*handle);
    fxa__dl_close(by_name);
    return status;
}

/* cuDNN loads its compiler for every question, twice, and lets go of it, which takes ten times as long as the answer:
 * so it is kept. Where it is not found, cuDNN says so itself. */
static void *cudnn_compiler_open(cudnn_search *s, const char *folder) {
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    const fxa__dl_spec spec = {"NVRTC", s->names, cudnn_compiler_symbols, 1};
    cudnn_compiler table;
    void *handle = NULL;
    if (cudnn_search_make(s, folder, cudnn_compilers, 2, files, NULL) != FXA_OK) return NULL;
    return fxa__dl_open(&spec, &table, sizeof table, &handle, NULL) == FXA_OK ? handle : NULL;
}

static fxa_status cudnn_open_both(cudnn_search *s, const char *folder, fxa__cudnn_library *out, fxa_error *err) {
    static const char *const files[] = {"libcudnn.so.9", NULL};
    const fxa__dl_spec spec = {"cuDNN", s->names, cudnn_symbols, sizeof cudnn_symbols / sizeof *cudnn_symbols};
    FXA_TRY(cudnn_blas_open(s, folder, &out->blas, err));
    fxa_status status = cudnn_search_make(s, folder, cudnn_package, 1, files, err);
    if (status == FXA_OK) status = fxa__dl_open(&spec, &out->api, sizeof out->api, &out->handle, err);
    if (status != FXA_OK) {
        fxa__dl_close(out->blas);
        return status;
    }
    out->version = (int64_t)out->api.version();
    out->compiler = cudnn_compiler_open(s, folder);
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
    fxa__dl_close(library->compiler);
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
