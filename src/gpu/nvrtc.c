/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds and calls NVRTC: see nvrtc.h. NVRTC is searched in the order of library_search.h; the environment variable
 * FXA_NVRTC_PATH names the folder. NVRTC may be called by several threads at the same time with different programs.
 */
#include "nvrtc.h"

#include "../base/dl.h"
#include "../base/invariant.h"
#include "library_search.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* ---- Search for the library -------------------------------------------------------------------------------------- */

/* Returns true if one of the folders in *s contains a file of NVRTC. */
static bool nvrtc_is_somewhere(const fxa__gpu_search *s) {
    for (size_t i = 0; s->names[i]; i++)
        if (strchr(s->names[i], '/') && access(s->names[i], F_OK) == 0) return true;
    return false;
}

static fxa_status nvrtc_load(fxa__gpu_search *s, const char *folder, fxa__nvrtc *out, fxa_error *err) {
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    static const char *const packages[] = {"/cu13/lib", "/cuda_nvrtc/lib", NULL};
    const fxa__gpu_wanted wanted = {"FXA_NVRTC_PATH", folder, packages, files, "/usr/local/cuda/lib64"};
    const fxa__dl_spec spec = {"NVRTC (FXA_NVRTC_PATH may name its folder)", s->names, nvrtc_symbols,
                               sizeof nvrtc_symbols / sizeof *nvrtc_symbols};
    FXA_TRY(fxa__gpu_search_make(s, &wanted, err));
    fxa_status status = fxa__dl_open(&spec, &out->api, sizeof out->api, &out->library, err);
    if (status != FXA_E_UNAVAILABLE || !folder || !*folder || nvrtc_is_somewhere(s)) return status;
    return fxa__fail(err, status,
                     "FXA_NVRTC_PATH is %.100s: no folder with libnvrtc.so.13 or libnvrtc.so.12, and NVRTC is not "
                     "found elsewhere",
                     folder);
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

/* ---- Compilation of one job -------------------------------------------------------------------------------------- */

/* Copies to `out` the first line of the compiler's log that contains "error", or the first line of the log. */
static void nvrtc_first_error(const char *log, char *out, size_t capacity) {
    const char *from = strstr(log, "error");
    while (from && from > log && from[-1] != '\n') from--;
    size_t n = 0;
    FXA__ASSERT(capacity > 0 && (!from || from >= log));
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

static fxa_status nvrtc_take(const fxa__nvrtc *nvrtc, fxa__host *host, fxa__nvrtc_job *job, fxa_error *err) {
    size_t n = 0;
    if (!job->created) return nvrtc_status(nvrtc, job->status, "nvrtcCreateProgram", err);
    if (job->status == NVRTC_COMPILATION) return nvrtc_refuse(nvrtc, host, job->program, job->name, err);
    FXA_TRY(nvrtc_status(nvrtc, job->status, "nvrtcCompileProgram", err));
    FXA_TRY(nvrtc_status(nvrtc, nvrtc->api.cubin_size(job->program, &n), "nvrtcGetCUBINSize", err));
    if (n == 0) return fxa__fail(err, FXA_E_ENGINE, "NVRTC %d.%d made no code", nvrtc->major, nvrtc->minor);
    FXA__ASSERT(!job->cubin); /* the assignment below would leak earlier code */
    job->cubin = fxa__alloc(host, n);
    if (!job->cubin) return fxa__fail_memory(err, "compiled kernels");
    job->size = n;
    return nvrtc_status(nvrtc, nvrtc->api.cubin(job->program, (char *)job->cubin), "nvrtcGetCUBIN", err);
}

/* ---- Compilation of several jobs in parallel --------------------------------------------------------------------- */

enum { NVRTC_THREADS = 16 };
#define NVRTC_STACK ((size_t)8 << 20) /* 8 MiB, like a main thread's stack, because the compiler recurses */

typedef struct nvrtc_queue {
    const fxa__nvrtc *nvrtc;
    fxa__nvrtc_job *jobs; /* [n] */
    int n;
    atomic_int next; /* index of the next job */
} nvrtc_queue;

/* Thread function: compiles jobs until the queue is empty. Does not use the host's allocator. */
static void *nvrtc_worker(void *user) {
    nvrtc_queue *q = user;
    const fxa__nvrtc_api *api = &q->nvrtc->api;
    for (int i; (i = atomic_fetch_add(&q->next, 1)) < q->n;) {
        fxa__nvrtc_job *j = &q->jobs[i];
        j->status = api->create(&j->program, j->source, j->name, j->n_headers, j->headers, j->header_names);
        j->created = j->status == NVRTC_OK;
        if (j->created) j->status = api->compile(j->program, j->n_options, j->options);
    }
    return NULL;
}

/* Starts up to n threads with all signals blocked; returns how many were started. */
static int nvrtc_threads_start(nvrtc_queue *q, int n, pthread_t threads[NVRTC_THREADS]) {
    sigset_t all, before;
    pthread_attr_t attr;
    int started = 0;
    if (n <= 0 || pthread_attr_init(&attr) != 0) return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_attr_setstacksize(&attr, NVRTC_STACK) == 0)
        while (started < n && pthread_create(&threads[started], &attr, nvrtc_worker, q) == 0) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return started;
}

fxa_status fxa__nvrtc_compile(const fxa__nvrtc *nvrtc, fxa__host *host, fxa__nvrtc_job *jobs, int n, int32_t width,
                              fxa_error *err) {
    pthread_t threads[NVRTC_THREADS];
    nvrtc_queue q = {.nvrtc = nvrtc, .jobs = jobs, .n = n};
    atomic_init(&q.next, 0);
    int most = width < n ? width : n;
    int started = nvrtc_threads_start(&q, (most < NVRTC_THREADS ? most : NVRTC_THREADS) - 1, threads);
    (void)nvrtc_worker(&q);
    for (int i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
    /* each of the started + 1 threads has found the queue empty once, so all jobs are done */
    FXA__ASSERT(started < NVRTC_THREADS && atomic_load(&q.next) == n + started + 1);
    fxa_status status = FXA_OK;
    for (int i = 0; i < n; i++) {
        if (status == FXA_OK) status = nvrtc_take(nvrtc, host, &jobs[i], err);
        if (jobs[i].created) (void)nvrtc->api.destroy(&jobs[i].program);
    }
    for (int i = 0; status != FXA_OK && i < n; i++) {
        fxa__free(host, jobs[i].cubin, jobs[i].size);
        jobs[i].cubin = NULL;
    }
    return status;
}
