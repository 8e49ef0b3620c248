/* SPDX-License-Identifier: Apache-2.0
 *
 * An optional shared library (a driver, a compiler) as a table of its functions. The library is searched under several
 * names when an engine opens. If the library is missing, or lacks a function, the engine is unavailable for that
 * reason.
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
    /* true = the pointer is NULL if the library lacks the function; false = a library without the function is
     * refused */
    bool optional;
} fxa__dl_symbol;

typedef struct fxa__dl_spec {
    const char *what;         /* name of the library in messages, such as "the CUDA driver" */
    const char *const *names; /* file names or paths for dlopen, in order of preference; NULL-terminated */
    const fxa__dl_symbol *symbols;
    size_t n_symbols;
} fxa__dl_spec;

/* Loads the first library of spec->names that exists and has all required functions, and writes pointers to the
 * functions to `table`, which has table_size bytes; bytes of the table that belong to no symbol become 0. A library
 * that the process has loaded already is preferred, if its name has no folder. *handle keeps the library loaded.
 *
 * Fails with E_UNAVAILABLE and the reason for each name; the table is then all 0, *handle is NULL and nothing stays
 * loaded. */
fxa_status fxa__dl_open(const fxa__dl_spec *spec, void *table, size_t table_size, void **handle, fxa_error *err);
/* Unloads the library; its functions must not be called afterwards. NULL is accepted. */
void fxa__dl_close(void *handle);
/* fxa__dl_folder_of writes the folder of the library or program that contains `function`; fxa__dl_own_folder writes the
 * folder of the library or program that contains fxattn. Both return false if the folder is unknown. */
bool fxa__dl_folder_of(void (*function)(void), char *out, size_t capacity);
bool fxa__dl_own_folder(char *out, size_t capacity);

#endif
