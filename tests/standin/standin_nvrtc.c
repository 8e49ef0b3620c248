/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for NVRTC: it accepts sources and options like the real NVRTC, checks that included headers are given, and
 * makes cubins with the kernels' names and shapes but no code. Tests set the shapes. Calls that can fail are counted,
 * and call number standin_nvrtc.fail_at fails.
 */
#include "standin_nvrtc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NV_MEMORY = 1,
    NV_INPUT = 3,
    NV_COMPILATION = 6,
    NV_INTERNAL = 11,
    NV_SYMBOLS = 8,
    NV_STRINGS = 512,
    NV_SHAPE = 8
};

__attribute__((visibility("default"))) standin_state standin_nvrtc;
__attribute__((visibility("default"))) standin_nvrtc_shape standin_nvrtc_shape_of;
__attribute__((visibility("default"))) char standin_nvrtc_options[STANDIN_NVRTC_OPTIONS];
static atomic_flag nv_options_lock = ATOMIC_FLAG_INIT; /* a plan's compilations are on several threads */

/* An ELF file: header, data (shapes), names, symbols, section headers. */
typedef struct nv_cubin {
    uint8_t header[64];
    uint8_t data[NV_SYMBOLS][4 * NV_SHAPE];
    char strings[NV_STRINGS];
    uint8_t symbols[NV_SYMBOLS][24];
    uint8_t sections[4][64];
} nv_cubin;

typedef struct nv_program {
    char source[32], kernels[4][32];
    bool has_shape[4]; /* [kernel] true: the source defines the constant KERNEL_shape */
    int n_kernels;
    bool complete; /* true: all included headers are given */
    bool made;
    nv_cubin cubin;
} nv_program;

static int nv_fails(void) {
    if (atomic_fetch_add(&standin_nvrtc.calls, 1) + 1 != standin_nvrtc.fail_at) return 0;
    atomic_fetch_add(&standin_nvrtc.failures, 1);
    return NV_INTERNAL;
}

#define STANDIN_NV(name) __attribute__((visibility("default"))) int name

STANDIN_NV(nvrtcVersion)(int *major, int *minor);
STANDIN_NV(nvrtcVersion)(int *major, int *minor) {
    *major = 13, *minor = 0;
    return nv_fails();
}

__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int status);
const char *nvrtcGetErrorString(int status) { return status ? "the stand-in fails" : "success"; }

static const int nv_archs[] = {75, 80, 86, 87, 89, 90, 100, 103, 120};
enum { NV_ARCHS = sizeof nv_archs / sizeof *nv_archs };

STANDIN_NV(nvrtcGetNumSupportedArchs)(int *count);
STANDIN_NV(nvrtcGetNumSupportedArchs)(int *count) {
    *count = NV_ARCHS;
    return nv_fails();
}

STANDIN_NV(nvrtcGetSupportedArchs)(int *archs);
STANDIN_NV(nvrtcGetSupportedArchs)(int *archs) {
    memcpy(archs, nv_archs, sizeof nv_archs);
    return nv_fails();
}

/* Returns true if every file that a text includes by #include "name" is among the headers. */
static bool nv_is_complete(const char *text, int n, const char *const *names) {
    for (const char *at = text; (at = strstr(at, "\n#include \"")); at++) {
        const char *from = at + strlen("\n#include \""), *end = strchr(from, '"');
        bool found = false;
        for (int i = 0; end && i < n; i++)
            found = found || (strlen(names[i]) == (size_t)(end - from) && !strncmp(names[i], from, strlen(names[i])));
        if (!found) return false;
    }
    return true;
}

/* Collects the kernel names of a text: the word before the parenthesis of a line extern "C" __global__ void. */
static void nv_kernels(nv_program *p, const char *text) {
    for (const char *at = text; (at = strstr(at, "__global__ void")) && p->n_kernels < 4; at++) {
        const char *name = strstr(at, "fxa_"), *end = name ? strchr(name, '(') : NULL;
        if (!end || end - name > 31) continue;
        char *kernel = p->kernels[p->n_kernels], shape[48];
        memcpy(kernel, name, (size_t)(end - name));
        kernel[end - name] = '\0';
        (void)snprintf(shape, sizeof shape, " %s_shape ", kernel);
        p->has_shape[p->n_kernels++] = strstr(text, shape) != NULL;
    }
}

STANDIN_NV(nvrtcCreateProgram)
(void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names);
STANDIN_NV(nvrtcCreateProgram)
(void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names) {
    int status = nv_fails();
    nv_program *p = status ? NULL : calloc(1, sizeof *p);
    if (!p) return status ? status : NV_MEMORY;
    (void)snprintf(p->source, sizeof p->source, "%s", name);
    p->complete = nv_is_complete(source, n, names);
    for (int i = 0; i < n; i++) p->complete = p->complete && nv_is_complete(headers[i], n, names);
    nv_kernels(p, source);
    atomic_fetch_add(&standin_nvrtc.held, 1);
    *program = p;
    return 0;
}

STANDIN_NV(nvrtcDestroyProgram)(void **program);
STANDIN_NV(nvrtcDestroyProgram)(void **program) {
    free(*program);
    *program = NULL;
    atomic_fetch_sub(&standin_nvrtc.held, 1);
    return 0;
}

static void nv_put(uint8_t *at, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(x >> 8 * i);
}

static void nv_section(nv_cubin *c, int i, uint32_t type, size_t offset, size_t size, uint32_t link) {
    nv_put(c->sections[i] + 4, type, 4);
    nv_put(c->sections[i] + 0x18, offset, 8);
    nv_put(c->sections[i] + 0x20, size, 8);
    nv_put(c->sections[i] + 0x28, link, 4);
}

static void nv_symbol(nv_cubin *c, int i, const char *name, const char *more, size_t *at) {
    nv_put(c->symbols[i], *at, 4);
    nv_put(c->symbols[i] + 6, 1, 2);
    nv_put(c->symbols[i] + 8, (uint64_t)i * sizeof c->data[0], 8);
    nv_put(c->symbols[i] + 16, sizeof c->data[0], 8);
    *at += (size_t)snprintf(c->strings + *at, NV_STRINGS - *at, "%s%s", name, more) + 1;
}

/* Stores the shape of kernel number i of a source, as little-endian ints. */
static void nv_shape(nv_program *p, int i) {
    int32_t shape[NV_SHAPE] = {0};
    if (standin_nvrtc_shape_of) standin_nvrtc_shape_of(p->source, shape);
    for (int j = 0; j < NV_SHAPE; j++) nv_put(p->cubin.data[2 * i + 1] + 4 * j, (uint32_t)shape[j], 4);
}

static void nv_make(nv_program *p) {
    nv_cubin *c = &p->cubin;
    size_t at = 1;
    memcpy(c->header, "\177ELF\2\1\1", 7);
    nv_put(c->header + 0x28, offsetof(nv_cubin, sections), 8);
    nv_put(c->header + 0x3a, 64, 2);
    nv_put(c->header + 0x3c, 4, 2);
    nv_section(c, 1, 1, offsetof(nv_cubin, data), sizeof c->data, 0);
    nv_section(c, 2, 3, offsetof(nv_cubin, strings), sizeof c->strings, 0);
    nv_section(c, 3, 2, offsetof(nv_cubin, symbols), sizeof c->symbols, 2);
    for (int i = 0; i < p->n_kernels; i++) {
        nv_symbol(c, 2 * i, p->kernels[i], "", &at);
        nv_symbol(c, 2 * i + 1, p->kernels[i], p->has_shape[i] ? "_shape" : "_none", &at);
        nv_shape(p, i);
    }
    p->made = true;
}

static void nv_note_options(int n, const char *const *options) {
    size_t at = 0;
    while (atomic_flag_test_and_set(&nv_options_lock)) {}
    for (int i = 0; i < n && at < STANDIN_NVRTC_OPTIONS; i++)
        at += (size_t)snprintf(standin_nvrtc_options + at, STANDIN_NVRTC_OPTIONS - at, "%s ", options[i]);
    atomic_flag_clear(&nv_options_lock);
}

STANDIN_NV(nvrtcCompileProgram)(void *program, int n, const char *const *options);
STANDIN_NV(nvrtcCompileProgram)(void *program, int n, const char *const *options) {
    nv_program *p = program;
    bool arch = false, columns = false;
    for (int i = 0; i < n; i++) {
        arch = arch || !strncmp(options[i], "--gpu-architecture=sm_", 22);
        columns = columns || !strncmp(options[i], "-DFXA_D=", 8);
    }
    nv_note_options(n, options);
    int status = nv_fails();
    if (status) return status;
    if (!arch || !columns) return NV_INPUT;
    if (!p->complete || !p->n_kernels || standin_nvrtc.no_engine) return NV_COMPILATION;
    nv_make(p);
    return 0;
}

static const char nv_log[] = "program.cuh(3): remark\nprogram.cuh(7): error: the stand-in does not like it\nmore\n";

STANDIN_NV(nvrtcGetProgramLogSize)(void *program, size_t *size);
STANDIN_NV(nvrtcGetProgramLogSize)(void *program, size_t *size) {
    (void)program;
    *size = sizeof nv_log;
    return nv_fails();
}

STANDIN_NV(nvrtcGetProgramLog)(void *program, char *out);
STANDIN_NV(nvrtcGetProgramLog)(void *program, char *out) {
    (void)program;
    memcpy(out, nv_log, sizeof nv_log);
    return nv_fails();
}

STANDIN_NV(nvrtcGetCUBINSize)(void *program, size_t *size);
STANDIN_NV(nvrtcGetCUBINSize)(void *program, size_t *size) {
    *size = ((const nv_program *)program)->made ? sizeof(nv_cubin) : 0;
    return nv_fails();
}

STANDIN_NV(nvrtcGetCUBIN)(void *program, char *out);
STANDIN_NV(nvrtcGetCUBIN)(void *program, char *out) {
    memcpy(out, &((const nv_program *)program)->cubin, sizeof(nv_cubin));
    return nv_fails();
}
