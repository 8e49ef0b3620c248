/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens shared libraries with dlopen; see dl.h. A library that lacks a function is closed before the next name is
 * tried.
 */
#define _GNU_SOURCE /* for dladdr, RTLD_NOLOAD */
#include "dl.h"

#include "error.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef void (*dl_function)(void);
_Static_assert(sizeof(dl_function) == sizeof(void *), "what dlsym gives is kept as a pointer to a function");

/* Text with the reason why each library of a list cannot be used; reasons that do not fit are left out. Each reason
 * starts with the library's name, once, even if the system's message also has the name. */
typedef struct dl_reasons {
    char text[sizeof((fxa_error *)0)->text];
    size_t at; /* bytes written */
} dl_reasons;

static void dl_add_reason(dl_reasons *r, const char *name, const char *verb, const char *reason) {
    size_t length = strlen(name);
    if (r->at >= sizeof r->text) return;
    if (strncmp(reason, name, length) == 0 && strncmp(reason + length, ": ", 2) == 0) reason += length + 2;
    int n = snprintf(r->text + r->at, sizeof r->text - r->at, "%s%s %s%s", r->at ? "; " : "", name, verb, reason);
    if (n > 0) r->at += (size_t)n;
}

/* Writes the library's function pointers to the caller's table. Returns false, and adds the reason to *reasons, if a
 * required function is missing. */
static bool dl_fill(void *library, const char *name, const fxa__dl_spec *spec, char *table, dl_reasons *reasons) {
    for (size_t i = 0; i < spec->n_symbols; i++) {
        const fxa__dl_symbol *symbol = &spec->symbols[i];
        void *function = dlsym(library, symbol->name);
        if (!function && !symbol->optional) {
            dl_add_reason(reasons, name, "has no ", symbol->name);
            return false;
        }
        memcpy(table + symbol->offset, &function, sizeof function);
    }
    return true;
}

#ifdef RTLD_NOLOAD
/* Returns a handle of a library that the process has loaded already; NULL if no loaded library has the required
 * functions. A second copy of the library would not share the state of the first. */
static void *dl_find_loaded(const fxa__dl_spec *spec, void *table, size_t table_size) {
    for (const char *const *name = spec->names; *name; name++) {
        dl_reasons unused = {.at = 0};
        void *library = strchr(*name, '/') ? NULL : dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        memset(table, 0, table_size);
        if (library && dl_fill(library, *name, spec, table, &unused)) return library;
        if (library) (void)dlclose(library);
        (void)dlerror();
    }
    return NULL;
}
#else
static void *dl_find_loaded(const fxa__dl_spec *spec, void *table, size_t table_size) {
    (void)spec, (void)table, (void)table_size;
    return NULL;
}
#endif

bool fxa__dl_folder_of(void (*function)(void), char *out, size_t capacity) {
    Dl_info info;
    void *address;
    memcpy(&address, &function, sizeof address);
    if (!dladdr(address, &info) || !info.dli_fname) return false;
    char program[4096];
    const char *path = info.dli_fname;
    if (*path != '/') { /* dladdr returns argv[0] for the program itself, which need not be a path */
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        if (length <= 0) return false;
        program[length] = '\0';
        path = program;
    }
    const char *end = strrchr(path, '/');
    size_t n = end ? (size_t)(end - path) : 0;
    if (!end || n >= capacity) return false;
    memcpy(out, path, n);
    out[n] = '\0';
    return true;
}

bool fxa__dl_own_folder(char *out, size_t capacity) {
    return fxa__dl_folder_of((dl_function)fxa_version, out, capacity);
}

fxa_status fxa__dl_open(const fxa__dl_spec *spec, void *table, size_t table_size, void **handle, fxa_error *err) {
    dl_reasons reasons = {.at = 0};
    *handle = dl_find_loaded(spec, table, table_size);
    if (*handle) return FXA_OK;
    for (const char *const *name = spec->names; *name; name++) {
        memset(table, 0, table_size);
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *why = dlerror();
            dl_add_reason(&reasons, *name, "is not loaded: ", why ? why : "the system does not say why");
            continue;
        }
        if (dl_fill(library, *name, spec, table, &reasons)) {
            *handle = library;
            return FXA_OK;
        }
        (void)dlclose(library);
    }
    memset(table, 0, table_size);
    return fxa__fail(err, FXA_E_UNAVAILABLE, "%s cannot be used: %s", spec->what,
                     reasons.at ? reasons.text : "no file is known for it");
}

void fxa__dl_close(void *handle) {
    if (handle) (void)dlclose(handle);
}
