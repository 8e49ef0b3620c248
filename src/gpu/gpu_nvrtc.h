/* SPDX-License-Identifier: Apache-2.0
 *
 * NVIDIA's run-time compiler as a table of functions, looked for when an engine opens, and compilations by it: sources
 * and headers by name, nothing from files. It needs no device and no driver.
 */
#ifndef FXA_GPU_NVRTC_H
#define FXA_GPU_NVRTC_H

#include "../base/host.h"

#include <stdbool.h>
#include <stdint.h>

/* Its functions, as it declares them. */
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
    int archs[FXA__NVRTC_ARCHS]; /* that it makes code for: 80, 90, ..., ascending */
    int n_archs;
} fxa__nvrtc;

/* folder: what FXA_NVRTC_PATH says, or NULL. E_UNAVAILABLE with the reason; on failure there is nothing to close. */
fxa_status fxa__nvrtc_open(fxa__host *host, const char *folder, fxa__nvrtc *out, fxa_error *err);
void fxa__nvrtc_close(fxa__nvrtc *nvrtc);

/* The architecture to compile for so that a device of `arch` runs it: its own, else the newest before it of its family
 * (the same tens). 0: this compiler has none. */
int fxa__nvrtc_arch(const fxa__nvrtc *nvrtc, int arch);

/* One compilation. */
typedef struct fxa__nvrtc_job {
    const char *source, *name;
    const char *const *headers, *const *header_names; /* by #include "name" */
    int n_headers;
    const char *const *options;
    int n_options;
    uint8_t *cubin; /* what comes of it: `size` bytes of the host's, which the caller frees */
    size_t size;
    void *program; /* NVRTC's, on the way, and what it says of it */
    int status;
    bool created;
} fxa__nvrtc_job;

/* All of them, beside each other on up to `width` threads, of which the caller is one; as many of the others are
 * started as the system gives. Memory is the caller's thread's business alone. The error is that of the first job, in
 * their order, that has one, and then no job has a cubin: E_ENGINE with the first lines of the compiler's log;
 * E_MEMORY. */
fxa_status fxa__nvrtc_compile(const fxa__nvrtc *nvrtc, fxa__host *host, fxa__nvrtc_job *jobs, int n, int32_t width,
                              fxa_error *err);

#endif
