/* SPDX-License-Identifier: Apache-2.0
 *
 * An optional shared library (a driver, a compiler) as a table of its functions. It is searched under several names
 * when an engine opens. If it is missing, or lacks a function, the engine is unavailable with that reason.
 */
#ifndef FXA_BASE_DL_H
#define FXA_BASE_DL_H

#include "fxattn/fxattn.h"

#include <stdbool.h>
#include <stddef.h>

/* One function of the library, and where its pointer is stored in the caller's table. */
typedef struct fxa__dl_symbol {
    const char *name;
    size_t offset; /* offset of the function pointer in the table */
    /* true = the pointer is NULL if the library lacks it; false = the library cannot be used without it */
    bool optional;
} fxa__dl_symbol;

typedef struct fxa__dl_spec {
    const char *what;         /* the library in messages: "the CUDA driver" */
    const char *const *names; /* files as the system searches them, in order of preference; NULL-terminated */
    const fxa__dl_symbol *symbols;
    size_t n_symbols;
} fxa__dl_spec;

/* Loads the first name that exists and has all functions, and fills the table of table_size bytes; bytes without a
 * symbol become 0. For names without a folder, libraries that the process has loaded already come first. *handle keeps
 * the library loaded.
 *
 * Fails with E_UNAVAILABLE and the reason for each name; the table is then all 0, *handle is NULL and nothing stays
 * loaded. */
fxa_status fxa__dl_open(const fxa__dl_spec *spec, void *table, size_t table_size, void **handle, fxa_error *err);
/* Unloads the library; its functions must not be called afterwards. NULL is accepted. */
void fxa__dl_close(void *handle);
/* Write the folder of the library that contains `function`, and of this library (or of the program that it is linked
 * into). Return false if the folder is unknown. */
bool fxa__dl_folder_of(void (*function)(void), char *out, size_t capacity);
bool fxa__dl_own_folder(char *out, size_t capacity);

#endif
