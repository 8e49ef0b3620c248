/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds and loads cuDNN, in the order of gpu/library_search.h, with FXA_CUDNN_PATH as the first folder. If
 * FXA_CUDNN_PATH has none of the libraries, opening fails, even if they exist in other folders.
 *
 * cuDNN aborts the process if it cannot find cuBLASLt or its own part libcudnn_graph. Both are therefore loaded before
 * the first call of cuDNN, and stay loaded as long as cuDNN. If one is missing, opening the instance fails with the
 * reason.
 */
#include "api.h"

#include "../../base/dl.h"
#include "../../gpu/library_search.h"

#include <stdio.h>
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
    {"cudnnGraphVersionCheck", offsetof(fxa__cudnn_api, graph_check), true},
};

typedef struct cudnn_blas {
    size_t (*version)(void);
} cudnn_blas;
static const fxa__dl_symbol cudnn_blas_symbols[] = {{"cublasLtGetVersion", offsetof(cudnn_blas, version), false}};

typedef struct cudnn_compiler {
    int (*version)(int *major, int *minor);
} cudnn_compiler;
static const fxa__dl_symbol cudnn_compiler_symbols[] = {{"nvrtcVersion", offsetof(cudnn_compiler, version), false}};

typedef struct cudnn_part {
    int (*check)(void);
} cudnn_part;
static const fxa__dl_symbol cudnn_part_symbols[] = {{"cudnnGraphVersionCheck", offsetof(cudnn_part, check), false}};

/* Folders below site-packages/nvidia that may contain cuBLASLt, NVRTC and cuDNN. */
static const char *const cudnn_packages[] = {"/cu13/lib", "/cublas/lib", NULL};
static const char *const cudnn_compilers[] = {"/cu13/lib", "/cuda_nvrtc/lib", NULL};
static const char *const cudnn_package[] = {"/cudnn/lib", NULL};

/* Prepares a search for `files`. `folder`: searched first; NULL = none. */
static fxa_status cudnn_search_make(fxa__gpu_search *s, const char *folder, const char *const *packages,
                                    const char *const *files, fxa_error *err) {
    const fxa__gpu_wanted wanted = {"FXA_CUDNN_PATH", folder, packages, files, NULL};
    return fxa__gpu_search_make(s, &wanted, err);
}

static fxa_status cudnn_check_folder(const char *folder, fxa_error *err) {
    static const char *const files[] = {"libcudnn.so.9", "libcublasLt.so.13", "libcublasLt.so.12"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (length < 0 || length >= (int)sizeof path || access(path, F_OK) == 0)
            return FXA_OK; /* the file exists, or its path is too long, which opening the library will report */
    }
    return fxa__fail(err, FXA_E_UNAVAILABLE, "FXA_CUDNN_PATH is %.200s: no folder with libcudnn.so.9 or libcublasLt",
                     folder);
}

/* Loads cuBLASLt, and fails unless it can then be loaded by its file name alone, as cuDNN does. cuDNN aborts the
 * process if that fails, for example because the file's SONAME is another name. */
static fxa_status cudnn_blas_open(fxa__gpu_search *s, const char *folder, void **handle, fxa_error *err) {
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    const fxa__dl_spec spec = {"cuBLASLt, which cuDNN needs (FXA_CUDNN_PATH may name its folder),", s->names,
                               cudnn_blas_symbols, 1};
    const fxa__dl_spec named = {"cuBLASLt, which cuDNN needs and looks for by its name,", files, cudnn_blas_symbols, 1};
    cudnn_blas table;
    void *by_name;
    FXA_TRY(cudnn_search_make(s, folder, cudnn_packages, files, err));
    FXA_TRY(fxa__dl_open(&spec, &table, sizeof table, handle, err));
    fxa_status status = fxa__dl_open(&named, &table, sizeof table, &by_name, err);
    if (status != FXA_OK) fxa__dl_close(*handle);
    fxa__dl_close(by_name);
    return status;
}

/* Loads NVRTC and returns its handle, or NULL if it is not found, which cuDNN reports itself. While the handle is open,
 * cuDNN does not load and unload NVRTC twice in each support query, which takes ten times as long as the query. */
static void *cudnn_compiler_open(fxa__gpu_search *s, const char *folder) {
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    const fxa__dl_spec spec = {"NVRTC", s->names, cudnn_compiler_symbols, 1};
    cudnn_compiler table;
    void *handle = NULL;
    if (cudnn_search_make(s, folder, cudnn_compilers, files, NULL) != FXA_OK) return NULL;
    return fxa__dl_open(&spec, &table, sizeof table, &handle, NULL) == FXA_OK ? handle : NULL;
}

/* If cuDNN consists of several libraries, loads its part libcudnn_graph, from cuDNN's folder or by the loader's search
 * path. Must be called before the first call of cuDNN. */
static fxa_status cudnn_graph_open(fxa__gpu_search *s, fxa__cudnn_library *library, fxa_error *err) {
    static const char *const files[] = {"libcudnn_graph.so.9", NULL}, *const no_packages[] = {NULL};
    const fxa__dl_spec spec = {"libcudnn_graph, a part of cuDNN,", s->names, cudnn_part_symbols, 1};
    char folder[FXA__SEARCH_PATH / 2];
    cudnn_part table;
    if (!library->api.graph_check) return FXA_OK;
    bool known = fxa__dl_folder_of((void (*)(void))library->api.graph_check, folder, sizeof folder);
    FXA_TRY(cudnn_search_make(s, known ? folder : NULL, no_packages, files, err));
    return fxa__dl_open(&spec, &table, sizeof table, &library->graph, err);
}

static fxa_status cudnn_open_both(fxa__gpu_search *s, const char *folder, fxa__cudnn_library *out, fxa_error *err) {
    static const char *const files[] = {"libcudnn.so.9", NULL};
    const fxa__dl_spec spec = {"cuDNN (FXA_CUDNN_PATH may name its folder)", s->names, cudnn_symbols,
                               sizeof cudnn_symbols / sizeof *cudnn_symbols};
    FXA_TRY(cudnn_blas_open(s, folder, &out->blas, err));
    fxa_status status = cudnn_search_make(s, folder, cudnn_package, files, err);
    if (status == FXA_OK) status = fxa__dl_open(&spec, &out->api, sizeof out->api, &out->handle, err);
    if (status == FXA_OK) status = cudnn_graph_open(s, out, err);
    if (status != FXA_OK) {
        fxa__dl_close(out->handle);
        fxa__dl_close(out->blas);
        return status;
    }
    out->version = (int64_t)out->api.version();
    out->compiler = cudnn_compiler_open(s, folder);
    return FXA_OK;
}

fxa_status fxa__cudnn_library_open(fxa__host *host, const char *folder, fxa__cudnn_library *out, fxa_error *err) {
    *out = (fxa__cudnn_library){.version = 0};
    fxa__gpu_search *s = fxa__alloc(host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "the search for cuDNN");
    folder = folder && *folder ? folder : NULL;
    fxa_status status = folder ? cudnn_check_folder(folder, err) : FXA_OK;
    if (status == FXA_OK) status = cudnn_open_both(s, folder, out, err);
    fxa__free(host, s, sizeof *s);
    return status;
}

void fxa__cudnn_library_close(fxa__cudnn_library *library) {
    fxa__dl_close(library->compiler);
    fxa__dl_close(library->handle);
    fxa__dl_close(library->graph);
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
