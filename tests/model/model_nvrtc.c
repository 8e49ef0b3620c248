/* SPDX-License-Identifier: Apache-2.0
 *
 * NVRTC of the model (model.h): a unit is compiled by the C++ compiler of this machine, and its cubin is the object
 * file, in which kernels and their shapes are found by name as in a real one. Headers are written into a folder as they
 * are given, but for ptx*.cuh, in whose place those of this folder (MODEL_FOLDER) are included.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MN_MEMORY = 1, MN_INPUT = 3, MN_COMPILATION = 6, MN_PATH = 256, MN_LOG = 8192, MN_COMMAND = 4096 };

typedef struct mn_program {
    char folder[40];
    char log[MN_LOG];
    char *cubin;
    size_t size;
} mn_program;

#define MODEL_NV(name) __attribute__((visibility("default"))) int name

MODEL_NV(nvrtcVersion)(int *major, int *minor);
MODEL_NV(nvrtcVersion)(int *major, int *minor) { return *major = 13, *minor = 0, 0; }

__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int status);
const char *nvrtcGetErrorString(int status) { return status ? "the model's compiler fails" : "success"; }

MODEL_NV(nvrtcGetNumSupportedArchs)(int *count);
MODEL_NV(nvrtcGetNumSupportedArchs)(int *count) { return *count = 2, 0; }

MODEL_NV(nvrtcGetSupportedArchs)(int *archs);
MODEL_NV(nvrtcGetSupportedArchs)(int *archs) { return archs[0] = 80, archs[1] = 90, 0; }

static FILE *mn_open(const mn_program *p, const char *name, const char *mode) {
    char path[MN_PATH];
    (void)snprintf(path, sizeof path, "%s/%s", p->folder, name);
    return fopen(path, mode);
}

static bool mn_put(const mn_program *p, const char *name, const char *text) {
    FILE *f = mn_open(p, name, "w");
    bool ok = f && fputs(text, f) >= 0;
    return f && fclose(f) == 0 && ok;
}

/* ptx_sm80.cuh is model_ptx_sm80.h of this folder. */
static bool mn_put_header(const mn_program *p, const char *name, const char *text) {
    char other[MN_PATH];
    if (strncmp(name, "ptx", 3) != 0) return mn_put(p, name, text);
    (void)snprintf(other, sizeof other, "#include \"model_%.*s.h\"\n", (int)(strcspn(name, ".")), name);
    return mn_put(p, name, other);
}

/* extern __shared__ __align__(16) u8 name[]; becomes a pointer to the machine's. */
static const char *mn_put_shared(FILE *f, const char *at) {
    const char *end = strstr(at, "[];"), *name = end;
    while (name > at && name[-1] != ' ') name--;
    fprintf(f, "u8 *const %.*s = model->shared;", (int)(end - name), name);
    return end + 3;
}

/* A kernel, and behind it what the machine calls, under the same conditions of the preprocessor. */
static const char *mn_put_kernel(FILE *f, const char *at) {
    const char *name = strstr(at, "fxa_"), *end = strstr(at, "\n}\n") + 3;
    int n = (int)strcspn(name, "(");
    const char *dynamic = strstr(at, "extern __shared__");
    if (dynamic && dynamic < end) {
        fprintf(f, "%.*s", (int)(dynamic - at), at);
        at = mn_put_shared(f, dynamic);
    }
    fprintf(f, "%.*s", (int)(end - at), at);
    fprintf(f, "extern \"C\" void model_run_%.*s(void **params) { model_call(%.*s, params); }\n", n, name, n, name);
    return end;
}

static void mn_put_source(FILE *f, const char *text) {
    for (const char *at; (at = strstr(text, "extern \"C\" __global__")) != NULL;) {
        fprintf(f, "%.*s", (int)(at - text), text);
        text = mn_put_kernel(f, at);
    }
    fprintf(f, "%s\nmodel_machine *model;\n", text);
}

MODEL_NV(nvrtcDestroyProgram)(void **program);
MODEL_NV(nvrtcDestroyProgram)(void **program) {
    mn_program *p = *program;
    char command[64];
    (void)snprintf(command, sizeof command, "rm -rf %s", p->folder);
    int status = *p->folder ? system(command) : 0;
    free(p->cubin);
    free(p);
    *program = NULL;
    return status ? MN_INPUT : 0;
}

MODEL_NV(nvrtcCreateProgram)
(void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names);
MODEL_NV(nvrtcCreateProgram)
(void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names) {
    (void)name;
    mn_program *p = calloc(1, sizeof *p);
    if (!p) return MN_MEMORY;
    (void)strcpy(p->folder, "/tmp/fxattn_model_XXXXXX");
    bool ok = mkdtemp(p->folder) != NULL;
    if (!ok) p->folder[0] = 0;
    for (int i = 0; i < n && ok; i++) ok = mn_put_header(p, names[i], headers[i]);
    FILE *f = ok ? mn_open(p, "unit.cc", "w") : NULL;
    if (f) {
        mn_put_source(f, source);
        ok = fclose(f) == 0;
    }
    *program = p;
    if (f && ok) return 0;
    return (void)nvrtcDestroyProgram(program), MN_INPUT;
}

static bool mn_read(const mn_program *p, const char *name, char **out, size_t *size) {
    FILE *f = mn_open(p, name, "rb");
    long end = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    bool ok = end > 0 && fseek(f, 0, SEEK_SET) == 0 && (*out = malloc((size_t)end)) != NULL;
    if (ok) ok = fread(*out, 1, (size_t)end, f) == (size_t)end;
    *size = ok ? (size_t)end : 0;
    if (f) (void)fclose(f);
    return ok;
}

static void mn_read_log(mn_program *p) {
    FILE *f = mn_open(p, "log", "r");
    size_t n = f ? fread(p->log, 1, sizeof p->log - 1, f) : 0;
    p->log[n] = 0;
    if (f) (void)fclose(f);
}

MODEL_NV(nvrtcCompileProgram)(void *program, int n, const char *const *options);
MODEL_NV(nvrtcCompileProgram)(void *program, int n, const char *const *options) {
    static const char arch[] = "--gpu-architecture=sm_";
    mn_program *p = program;
    char command[MN_COMMAND];
    size_t at = (size_t)snprintf(command, sizeof command,
                                 "cd %s && c++ -std=c++17 -O1 -ffp-contract=off -fno-strict-aliasing -w -fPIC -I. -I%s -include "
                                 "model_cuda.h -c unit.cc -o unit.o",
                                 p->folder, MODEL_FOLDER);
    for (int i = 0; i < n && at < sizeof command; i++)
        if (!strncmp(options[i], "-D", 2))
            at += (size_t)snprintf(command + at, sizeof command - at, " %s", options[i]);
        else if (!strncmp(options[i], arch, strlen(arch)))
            at += (size_t)snprintf(command + at, sizeof command - at, " -D__CUDA_ARCH__=%d0", atoi(options[i] + strlen(arch)));
    if (at < sizeof command) at += (size_t)snprintf(command + at, sizeof command - at, " > log 2>&1");
    if (at >= sizeof command) return MN_INPUT;
    int status = system(command);
    mn_read_log(p);
    if (status) fprintf(stderr, "model: %s\n%s\n", command, p->log);
    return status == 0 && mn_read(p, "unit.o", &p->cubin, &p->size) ? 0 : MN_COMPILATION;
}

MODEL_NV(nvrtcGetProgramLogSize)(void *program, size_t *size);
MODEL_NV(nvrtcGetProgramLogSize)(void *program, size_t *size) {
    return *size = strlen(((const mn_program *)program)->log) + 1, 0;
}

MODEL_NV(nvrtcGetProgramLog)(void *program, char *out);
MODEL_NV(nvrtcGetProgramLog)(void *program, char *out) {
    return (void)strcpy(out, ((const mn_program *)program)->log), 0;
}

MODEL_NV(nvrtcGetCUBINSize)(void *program, size_t *size);
MODEL_NV(nvrtcGetCUBINSize)(void *program, size_t *size) { return *size = ((const mn_program *)program)->size, 0; }

MODEL_NV(nvrtcGetCUBIN)(void *program, char *out);
MODEL_NV(nvrtcGetCUBIN)(void *program, char *out) {
    const mn_program *p = program;
    return (void)memcpy(out, p->cubin, p->size), 0;
}
