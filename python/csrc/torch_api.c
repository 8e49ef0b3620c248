/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the functions of libtorch and libfxattn (torch_api.h). Libraries are opened by path and never closed: their
 * code is registered with PyTorch's dispatcher for the rest of the process.
 */
#include "torch_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

fxa__torch_functions fxa__torch;

/* Functions that only CUDA builds have, found at the first tensor on a CUDA device. */
typedef int32_t (*cuda_stream_fn)(int32_t index, void **stream);
typedef int (*cuda_capturing_fn)(void *stream, int *status);
static cuda_stream_fn cuda_stream;
static cuda_capturing_fn cuda_capturing;
static pthread_once_t cuda_found = PTHREAD_ONCE_INIT;
static char torch_folder[1024];

/* ISO C has no conversion from an object pointer to a function pointer; POSIX guarantees equal bits. */
static int symbol_find(void *library, const char *path, const char *name, void *out, char *text, size_t capacity) {
    void *found = dlsym(library, name);
    memcpy(out, &found, sizeof found);
    if (!found) {
        snprintf(text, capacity, "%s has no %s", path, name);
    }
    return found ? 0 : -1;
}

static void *library_open(const char *path, char *text, size_t capacity) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        snprintf(text, capacity, "%s cannot be opened: %s", path, why ? why : "no reason given");
    }
    return library;
}

int fxa__torch_resolve(const char *folder, const char *library, char *text, size_t capacity) {
    char path[1088];
    if (strlen(folder) >= sizeof torch_folder) {
        snprintf(text, capacity, "the path of PyTorch's libraries is longer than %zu bytes", sizeof torch_folder - 1);
        return -1;
    }
    strcpy(torch_folder, folder);
    snprintf(path, sizeof path, "%s/libtorch_cpu.so", folder);
    void *theirs = library_open(path, text, capacity);
    void *ours = theirs ? library_open(library, text, capacity) : NULL;
    if (!theirs || !ours) {
        return -1;
    }
#define FXA__TORCH_FIND(result, name, arguments)                                                                       \
    if (symbol_find(theirs, path, #name, &fxa__torch.name, text, capacity)) {                                          \
        return -1;                                                                                                     \
    }
    FXA__TORCH_MAP(FXA__TORCH_FIND)
#undef FXA__TORCH_FIND
#define FXA__TORCH_FIND(name)                                                                                          \
    if (symbol_find(ours, library, #name, &fxa__torch.name, text, capacity)) {                                         \
        return -1;                                                                                                     \
    }
    FXA__TORCH_LIBRARY_MAP(FXA__TORCH_FIND)
#undef FXA__TORCH_FIND
    return 0;
}

#define DTYPE_PAIRS(X)                                                                                                 \
    X(FXA_F64, float64)                                                                                                \
    X(FXA_F32, float32)                                                                                                \
    X(FXA_F16, float16)                                                                                                \
    X(FXA_BF16, bfloat16)                                                                                              \
    X(FXA_I64, int64)                                                                                                  \
    X(FXA_I32, int32)                                                                                                  \
    X(FXA_I16, int16)                                                                                                  \
    X(FXA_I8, int8)                                                                                                    \
    X(FXA_U8, uint8)                                                                                                   \
    X(FXA_B8, bool)                                                                                                    \
    X(FXA_E4M3, float8_e4m3fn)                                                                                         \
    X(FXA_E5M2, float8_e5m2)

fxa_dtype fxa__torch_dtype_ours(int32_t code) {
#define FXA__TORCH_DTYPE(ours, theirs)                                                                                 \
    if (code == fxa__torch.aoti_torch_dtype_##theirs()) {                                                              \
        return ours;                                                                                                   \
    }
    DTYPE_PAIRS(FXA__TORCH_DTYPE)
#undef FXA__TORCH_DTYPE
    return FXA_DTYPE_NONE;
}

int32_t fxa__torch_dtype_theirs(fxa_dtype dtype) {
#define FXA__TORCH_DTYPE(ours, theirs)                                                                                 \
    if (dtype == ours) {                                                                                               \
        return fxa__torch.aoti_torch_dtype_##theirs();                                                                 \
    }
    DTYPE_PAIRS(FXA__TORCH_DTYPE)
#undef FXA__TORCH_DTYPE
    return -1;
}

/* Stores a function of a library that is loaded already into *out, or NULL. */
static void loaded_find(const char *path, const char *name, void *out) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(out, &found, sizeof found);
}

const void *fxa__torch_core_find(const char *name) {
    const void *found = NULL;
#ifdef __linux__ /* tested on Linux only */
    char path[1088];
    snprintf(path, sizeof path, "%s/libc10.so", torch_folder);
    loaded_find(path, name, &found);
#else
    (void)name;
#endif
    return found;
}

static void cuda_find(void) {
    char path[1088];
    snprintf(path, sizeof path, "%s/libtorch_cuda.so", torch_folder);
    loaded_find(path, "aoti_torch_get_current_cuda_stream", &cuda_stream);
    loaded_find("libcuda.so.1", "cuStreamIsCapturing", &cuda_capturing);
}

int fxa__torch_cuda_stream(int32_t index, void **stream, bool *captured) {
    int status = 0;
    pthread_once(&cuda_found, cuda_find);
    *stream = NULL;
    *captured = false;
    if (!cuda_stream || cuda_stream(index, stream)) {
        return -1;
    }
    *captured = cuda_capturing && !cuda_capturing(*stream, &status) && status != 0;
    return 0;
}
