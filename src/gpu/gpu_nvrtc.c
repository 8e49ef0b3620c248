/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and calling NVRTC: see gpu_nvrtc.h. Looked for in the order of gpu_search.h, with FXA_NVRTC_PATH as the
 * folder. Calls with different programs may come from several threads at a time.
 */
#include "gpu_nvrtc.h"

#include "../base/dl.h"
#include "gpu_search.h"

#include <stdio.h>
#include <string.h>

enum { NVRTC_OK = 0, NVRTC_OUT_OF_MEMORY = 1, NVRTC_COMPILATION = 6 };

#define NVRTC_FUNCTION(name, field)                                                                                    \
    { name, offsetof(fxa__nvrtc_api, field), false }
static const fxa__dl_symbol nvrtc_symbols[] = {
    NVRTC_FUNCTION("nvrtcVersion", version),
    NVRTC_FUNCTION("nvrtcGetErrorString", error_string),
    NVRTC_FUNCTION("nvrtcGetNumSupportedArchs", archs_count),
    NVRTC_FUNCTION("nvrtcGetSupportedArchs", archs),
    NVRTC_FUNCTION("nvrtcCreateProgram", create),
    NVRTC_FUNCTION("nvrtcDestroyProgram", destroy),
    NVRTC_FUNCTION("nvrtcCompileProgram", compile),
    NVRTC_FUNCTION("nvrtcGetProgramLogSize", log_size),
    NVRTC_FUNCTION("nvrtcGetProgramLog", log),
    NVRTC_FUNCTION("nvrtcGetCUBINSize", cubin_size),
    NVRTC_FUNCTION("nvrtcGetCUBIN", cubin),
};

static fxa_status nvrtc_status(const fxa__nvrtc *nvrtc, int status, const char *call, fxa_error *err) {
    if (status == NVRTC_OK) return FXA_OK;
    const char *text = nvrtc->api.error_string(status);
    return fxa__fail(err, status == NVRTC_OUT_OF_MEMORY ? FXA_E_MEMORY : FXA_E_ENGINE, "%s: %d, %s", call, status,
                     text ? text : "NVRTC has no words for it");
}

/* ---- Finding it -------------------------------------------------------------------------------------------------- */

static fxa_status nvrtc_load(fxa__gpu_search *s, const char *folder, fxa__nvrtc *out, fxa_error *err) {
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    static const char *const packages[] = {"/cu13/lib", "/cuda_nvrtc/lib", NULL};
    const fxa__gpu_wanted wanted = {"FXA_NVRTC_PATH", folder, packages, files, "/usr/local/cuda/lib64"};
    const fxa__dl_spec spec = {"NVRTC (FXA_NVRTC_PATH may name its folder)", s->names, nvrtc_symbols,
                               sizeof nvrtc_symbols / sizeof *nvrtc_symbols};
    FXA_TRY(fxa__gpu_search_make(s, &wanted, err));
    return fxa__dl_open(&spec, &out->api, sizeof out->api, &out->library, err);
}

static fxa_status nvrtc_ask(fxa__nvrtc *out, fxa_error *err) {
    FXA_TRY(nvrtc_status(out, out->api.version(&out->major, &out->minor), "nvrtcVersion", err));
    FXA_TRY(nvrtc_status(out, out->api.archs_count(&out->n_archs), "nvrtcGetNumSupportedArchs", err));
    if (out->n_archs < 0 || out->n_archs > FXA__NVRTC_ARCHS)
        return fxa__fail(err, FXA_E_UNAVAILABLE, "NVRTC %d.%d says that it has code for %d architectures", out->major,
                         out->minor, out->n_archs);
    return nvrtc_status(out, out->api.archs(out->archs), "nvrtcGetSupportedArchs", err);
}

fxa_status fxa__nvrtc_open(fxa__host *host, const char *folder, fxa__nvrtc *out, fxa_error *err) {
    *out = (fxa__nvrtc){.library = NULL};
    fxa__gpu_search *s = fxa__alloc(host, sizeof *s);
    if (!s) return fxa__fail_memory(err, "the search for NVRTC");
    fxa_status status = nvrtc_load(s, folder, out, err);
    fxa__free(host, s, sizeof *s);
    if (status != FXA_OK) return status;
    status = nvrtc_ask(out, err);
    if (status != FXA_OK) fxa__nvrtc_close(out);
    return status;
}

void fxa__nvrtc_close(fxa__nvrtc *nvrtc) {
    fxa__dl_close(nvrtc->library);
    nvrtc->library = NULL;
}

int fxa__nvrtc_arch(const fxa__nvrtc *nvrtc, int arch) {
    int best = 0;
    for (int i = 0; i < nvrtc->n_archs; i++) {
        int x = nvrtc->archs[i];
        if (x <= arch && x / 10 == arch / 10 && x > best) best = x;
    }
    return best;
}

/* ---- Compiling --------------------------------------------------------------------------------------------------- */

/* The beginning of the first error in a log, as one line. */
static void nvrtc_first_error(const char *log, char *out, size_t capacity) {
    const char *from = strstr(log, "error");
    while (from && from > log && from[-1] != '\n') from--;
    size_t n = 0;
    for (const char *c = from ? from : log; *c && *c != '\n' && n + 1 < capacity; c++) out[n++] = *c;
    out[n] = '\0';
}

static fxa_status nvrtc_refuse(const fxa__nvrtc *nvrtc, fxa__host *host, void *program, const char *name,
                               fxa_error *err) {
    char first[256] = "it wrote no log";
    size_t size = 0;
    char *log = nvrtc->api.log_size(program, &size) == NVRTC_OK && size ? fxa__alloc(host, size + 1) : NULL;
    if (log && nvrtc->api.log(program, log) == NVRTC_OK) nvrtc_first_error(log, first, sizeof first);
    fxa__free(host, log, size + 1);
    return fxa__fail(err, FXA_E_ENGINE, "NVRTC %d.%d does not compile %s: %s", nvrtc->major, nvrtc->minor, name, first);
}

static fxa_status nvrtc_take(const fxa__nvrtc *nvrtc, fxa__host *host, void *program, uint8_t **cubin, size_t *size,
                             fxa_error *err) {
    size_t n = 0;
    FXA_TRY(nvrtc_status(nvrtc, nvrtc->api.cubin_size(program, &n), "nvrtcGetCUBINSize", err));
    if (n == 0) return fxa__fail(err, FXA_E_ENGINE, "NVRTC %d.%d made no code", nvrtc->major, nvrtc->minor);
    uint8_t *bytes = fxa__alloc(host, n);
    if (!bytes) return fxa__fail_memory(err, "compiled kernels");
    fxa_status status = nvrtc_status(nvrtc, nvrtc->api.cubin(program, (char *)bytes), "nvrtcGetCUBIN", err);
    if (status != FXA_OK) {
        fxa__free(host, bytes, n);
        return status;
    }
    *cubin = bytes;
    *size = n;
    return FXA_OK;
}

fxa_status fxa__nvrtc_compile(const fxa__nvrtc *nvrtc, fxa__host *host, const fxa__nvrtc_job *job, uint8_t **cubin,
                              size_t *size, fxa_error *err) {
    void *program = NULL;
    int status = nvrtc->api.create(&program, job->source, job->name, job->n_headers, job->headers, job->header_names);
    FXA_TRY(nvrtc_status(nvrtc, status, "nvrtcCreateProgram", err));
    status = nvrtc->api.compile(program, job->n_options, job->options);
    fxa_status result = status == NVRTC_OK            ? nvrtc_take(nvrtc, host, program, cubin, size, err)
                        : status == NVRTC_COMPILATION ? nvrtc_refuse(nvrtc, host, program, job->name, err)
                                                      : nvrtc_status(nvrtc, status, "nvrtcCompileProgram", err);
    (void)nvrtc->api.destroy(&program);
    return result;
}
