/* SPDX-License-Identifier: Apache-2.0
 *
 * NVRTC, NVIDIA's run-time compiler, as a table of functions, and parallel compilation with it. The library is loaded
 * when an engine opens; it needs neither a device nor a driver. Sources and headers are passed as texts, never as
 * files.
 */
#ifndef FXA_GPU_NVRTC_H
#define FXA_GPU_NVRTC_H

#include "../base/host.h"

#include <stdbool.h>
#include <stdint.h>

/* Functions of NVRTC, with NVRTC's signatures. */
typedef struct fxa__nvrtc_api {
    int (*version)(int *major, int *minor);
    const char *(*error_string)(int status);
    int (*archs_count)(int *count);
    int (*archs)(int *archs);
    int (*create)(void **program, const char *source, const char *name, int n_headers, const char *const *headers,
                  const char *const *names);
    int (*destroy)(void **program);
    int (*compile)(void *program, int n_options, const char *const *options);
    int (*log_size)(void *program, size_t *size);
    int (*log)(void *program, char *out);
    int (*cubin_size)(void *program, size_t *size);
    int (*cubin)(void *program, char *out);
} fxa__nvrtc_api;

enum { FXA__NVRTC_ARCHS = 64 };

typedef struct fxa__nvrtc {
    fxa__nvrtc_api api;
    void *library;
    int major, minor;
    int archs[FXA__NVRTC_ARCHS]; /* architectures that NVRTC compiles for, ascending: 80, 90, ... */
    int n_archs;
} fxa__nvrtc;

/* Loads NVRTC. folder: the value of FXA_NVRTC_PATH, or NULL. Fails with E_UNAVAILABLE and the reason; then nothing
 * needs closing. */
fxa_status fxa__nvrtc_open(fxa__host *host, const char *folder, fxa__nvrtc *out, fxa_error *err);
void fxa__nvrtc_close(fxa__nvrtc *nvrtc);

/* Returns the architecture to compile for so that a device of `arch` runs the code: `arch` if NVRTC supports it, else
 * the newest supported older one of the same major version, such as 80 for 86. Returns 0 if there is none. */
int fxa__nvrtc_arch(const fxa__nvrtc *nvrtc, int arch);

/* One compilation. */
typedef struct fxa__nvrtc_job {
    const char *source, *name;
    const char *const *headers, *const *header_names; /* texts of headers, and the names by which #include finds them */
    int n_headers;
    const char *const *options;
    int n_options;
    uint8_t *cubin; /* compiled code, in memory of the host; the caller frees it */
    size_t size;    /* bytes of cubin */
    void *program;  /* NVRTC's program object during compilation */
    int status;     /* NVRTC's result */
    bool created;   /* true: `program` exists */
} fxa__nvrtc_job;

/* Compiles all jobs in parallel on up to `width` threads, the caller's included, or on fewer if threads cannot be
 * created. Only the caller's thread calls the host's allocator. On failure no job has a cubin, and the error is that of
 * the first failing job in array order: E_ENGINE with the first error of the compiler's log, or E_MEMORY. */
fxa_status fxa__nvrtc_compile(const fxa__nvrtc *nvrtc, fxa__host *host, fxa__nvrtc_job *jobs, int n, int32_t width,
                              fxa_error *err);

#endif
