/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules of the GPU emulator (model.h). model_nvrtc.c makes an object file of the host, in which kernel names are
 * found as in a cubin, followed by a shared library of the same code, which this file loads.
 */
#define _GNU_SOURCE
#include "model_machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODULE_OBJECT = 1, MODULE_LIBRARY = 3, MODULE_PATH = 4096 }; /* types of ELF files */

struct model_module {
    void *library;
};

static uint64_t module_number(const uint8_t *at, int bytes) {
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | at[i];
    return x;
}

/* Returns the size of an ELF file that ends with its section headers, of 64 bytes each; 0 if the file has another
 * type. */
static size_t module_size(const uint8_t *image, uint64_t type) {
    if (memcmp(image, "\177ELF", 4) != 0 || module_number(image + 0x10, 2) != type) return 0;
    return (size_t)(module_number(image + 0x28, 8) + module_number(image + 0x3c, 2) * 64);
}

/* Loads a library from a temporary file, which is removed after loading. */
static void *module_open(const void *data, size_t size) {
    char path[MODULE_PATH];
    const char *folder = getenv("TMPDIR");
    int n = snprintf(path, sizeof path, "%s/fxattn_model_XXXXXX", folder && *folder ? folder : "/tmp");
    int file = n > 0 && n < MODULE_PATH ? mkstemp(path) : -1;
    if (file < 0) return NULL;
    bool ok = true;
    for (size_t at = 0; ok && at < size;) {
        ssize_t more = write(file, (const char *)data + at, size - at);
        ok = more > 0;
        at += ok ? (size_t)more : 0;
    }
    void *library = ok ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) fprintf(stderr, "model: %s\n", ok ? dlerror() : "the library cannot be written");
    (void)unlink(path);
    (void)close(file);
    return library;
}

bool model_is_module(const void *image) { return module_size(image, MODULE_OBJECT) != 0; }

model_module *model_load(const void *image) {
    const uint8_t *bytes = image;
    const size_t before = module_size(bytes, MODULE_OBJECT);
    const size_t size = module_size(bytes + before, MODULE_LIBRARY);
    void *library = size ? module_open(bytes + before, size) : NULL;
    void *symbol = library ? dlsym(library, "model_meet_machine") : NULL;
    model_module *m = symbol ? malloc(sizeof *m) : NULL;
    if (!m) {
        if (library) dlclose(library);
        return NULL;
    }
    size_t (*meet)(model_machine * face);
    memcpy(&meet, &symbol, sizeof meet);
    m->library = library;
    if (meet(model_face()) == sizeof(model_machine)) return m;
    model_unload(m); /* compiled by another version of the emulator and cached on disk: the engine compiles it again */
    return NULL;
}

void model_unload(model_module *module) {
    dlclose(module->library);
    free(module);
}

static void *module_find(const model_module *module, const char *what, const char *kernel) {
    char name[128];
    int n = snprintf(name, sizeof name, "model_%s_%s", what, kernel);
    return n > 0 && n < (int)sizeof name ? dlsym(module->library, name) : NULL;
}

void *model_find(model_module *module, const char *kernel) { return module_find(module, "run", kernel); }

int model_bound(model_module *module, const char *kernel) {
    void *symbol = module_find(module, "bound", kernel);
    int (*bound)(void);
    memcpy(&bound, &symbol, sizeof bound);
    return symbol ? bound() : 0;
}

bool model_checks(const model_module *module) { return dlsym(module->library, "model_checked") != NULL; }
