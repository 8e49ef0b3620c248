/* SPDX-License-Identifier: Apache-2.0
 *
 * Emitted text compiled as C by the build's compiler: many functions in one shared object, loaded and called. The flags
 * preserve every bit: no contraction, no folding of calls to <math.h>.
 */
#ifndef FXA_TESTS_EMIT_FIXTURE_H
#define FXA_TESTS_EMIT_FIXTURE_H

#include "lower_fixture.h"

#include "lower/emit.h"

#include <dlfcn.h>
#include <unistd.h>

/* Argument `a` of emitted functions: the same in both widths except f. */
typedef struct emit_tensor {
    const void *data;
    long long stride[FXA_MAX_RANK];
    int size[FXA_MAX_RANK];
} emit_tensor;
typedef struct emit_args {
    const void *f; /* double or float elements */
    const int *i;
    const emit_tensor *tensor;
    int *const *ranges; /* for test_interval.c */
} emit_args;
#define EMIT_ARGS_TEXT                                                                                                 \
    "typedef struct { const void *data; long long stride[5]; int size[5]; } tensor_t;\n"                               \
    "typedef struct { const real *f; const int *i; const tensor_t *tensor; int *const *ranges; } args_t;\n"

typedef struct emit_data {
    double f64[RIG_PARAMS];
    float f32[RIG_PARAMS];
    int ints[RIG_PARAMS];
    emit_tensor tensors[RIG_TENSORS];
} emit_data;

/* Returns a rig's params and views as arguments. */
__attribute__((unused)) static emit_args emit_bind(const rig *r, const fxa_program *p, bool narrow, emit_data *d) {
    for (int32_t i = 0; i < p->n_params; i++) {
        int32_t at = fxa__lower_emit_param(p, i);
        if (p->params[i].type == FXA_INT) {
            d->ints[at] = fxa__toint(r->params[i]);
            continue;
        }
        d->f64[at] = r->params[i];
        d->f32[at] = (float)r->params[i];
    }
    for (int32_t t = 0; t < p->n_tensors; t++) {
        d->tensors[t].data = r->views[t].data;
        for (int k = 0; k < r->views[t].rank; k++) {
            d->tensors[t].stride[k] = r->views[t].stride[k];
            d->tensors[t].size[k] = (int)r->views[t].size[k];
        }
    }
    return (emit_args){narrow ? (const void *)d->f32 : d->f64, d->ints, d->tensors, NULL};
}

/* Permutes strides and sizes of the same cells: axes in any order, reversed, stride 0, empty. */
__attribute__((unused)) static void emit_twist(rig *r, const fxa_program *p) {
    for (int32_t t = 0; t < p->n_tensors; t++) {
        fxa_view *v = &r->views[t];
        size_t element = fxa_dtype_size(v->dtype);
        for (int d = 0; d < v->rank; d++) {
            int other = (int)t_int(&r->rng, 0, v->rank - 1);
            int64_t stride = v->stride[d];
            v->stride[d] = v->stride[other];
            v->stride[other] = stride;
        }
        for (int d = 0; d < v->rank; d++) {
            int64_t how = t_int(&r->rng, 0, 9);
            if (how == 0) v->stride[d] = 0;
            if (how == 1) v->size[d] = t_int(&r->rng, 0, RIG_SIDE - 1);
            if (how > 3) continue;
            v->data = (char *)v->data + (v->size[d] ? v->size[d] - 1 : 0) * v->stride[d] * (int64_t)element;
            v->stride[d] = -v->stride[d];
        }
    }
}

typedef struct emit_object {
    char folder[64];
    void *handle;
} emit_object;

__attribute__((unused)) static void emit_unload(emit_object *o) {
    char command[128];
    if (o->handle) dlclose(o->handle);
    (void)snprintf(command, sizeof command, "rm -rf %s", o->folder);
    if (*o->folder) T_INT(system(command), 0);
}

static bool emit_write(const emit_object *o, int number, const fxa__writer *w) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/text%d.c", o->folder, number);
    FILE *file = fopen(path, "w");
    if (!file) return false;
    bool ok = !w->failed && fwrite(w->data, 1, w->size, file) == w->size;
    return fclose(file) == 0 && ok;
}

/* Compiles and loads the texts. Returns false if they do not compile, and shows why. Unload in either case. */
__attribute__((unused)) static bool emit_load(const fxa__writer *texts, int n, emit_object *o) {
    char command[1024], path[128];
    *o = (emit_object){.folder = "/tmp/fxa-emit-XXXXXX"};
    if (!mkdtemp(o->folder)) return false;
    for (int i = 0; i < n; i++)
        if (!emit_write(o, i, &texts[i])) return false;
    (void)snprintf(command, sizeof command,
                   "%s -std=c11 -O0 -fno-builtin -ffp-contract=off -shared -fPIC "
                   "-Werror=implicit-function-declaration -I%s/src -I%s/src/lower -o %s/text.so %s/text*.c -lm",
                   FXA_TEST_CC, FXA_SOURCE_DIR, FXA_SOURCE_DIR, o->folder, o->folder);
    if (system(command) != 0) return false;
    (void)snprintf(path, sizeof path, "%s/text.so", o->folder);
    o->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!o->handle) printf("  %s\n", dlerror());
    return o->handle != NULL;
}

/* Returns true if there is a C++ compiler for the machine that this test runs on. */
__attribute__((unused)) static bool emit_has_cpp(void) {
    return system(FXA_TEST_CXX " --version >/dev/null 2>&1") == 0;
}

/* Compiles and loads one text as C++. Requires emit_has_cpp(). */
__attribute__((unused)) static bool emit_load_cpp(const fxa__writer *text, emit_object *o) {
    char command[1024], path[128];
    *o = (emit_object){.folder = "/tmp/fxa-emit-XXXXXX"};
    if (!mkdtemp(o->folder) || !emit_write(o, 0, text)) return false;
    (void)snprintf(command, sizeof command,
                   FXA_TEST_CXX
                   " -std=c++17 -x c++ -O0 -fno-builtin -ffp-contract=off -shared -fPIC -w -I%s/src -I%s/src/lower "
                   "-I%s/src/program -I%s/src/engine/cuda/kernels -o %s/text.so %s/text0.c",
                   FXA_SOURCE_DIR, FXA_SOURCE_DIR, FXA_SOURCE_DIR, FXA_SOURCE_DIR, o->folder, o->folder);
    if (system(command) != 0) return false;
    (void)snprintf(path, sizeof path, "%s/text.so", o->folder);
    o->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!o->handle) printf("  %s\n", dlerror());
    return o->handle != NULL;
}

/* Sets a function pointer, whose type the caller knows, to a function of the object. */
__attribute__((unused)) static void emit_find(const emit_object *o, const char *name, void *pointer) {
    void *found = dlsym(o->handle, name);
    if (!found) T_FAIL("%s is not there\n", name);
    memcpy(pointer, &found, sizeof found);
}

#endif
