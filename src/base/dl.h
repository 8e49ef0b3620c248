/* SPDX-License-Identifier: Apache-2.0
 *
 * A shared library that may be on this machine or not (a driver, a compiler), as a table of its functions. It is looked
 * for when an engine opens, under several names; that it is not there, or lacks a function, is a reason and no crash.
 */
#ifndef FXA_BASE_DL_H
#define FXA_BASE_DL_H

#include "fxattn/fxattn.h"

#include <stdbool.h>
#include <stddef.h>

/* A function of the library, and the pointer to it in the caller's table. */
typedef struct fxa__dl_symbol {
    const char *name;
    size_t offset; /* of a function pointer in the table */
    bool optional; /* NULL there when the library lacks it; else that is a failure */
} fxa__dl_symbol;

typedef struct fxa__dl_spec {
    const char *what;         /* for messages: "the CUDA driver" */
    const char *const *names; /* files, as the system looks for them, the best first; ends with NULL */
    const fxa__dl_symbol *symbols;
    size_t n_symbols;
} fxa__dl_spec;

/* Loads the first of the names that is there and has all functions, and fills the table, of table_size bytes: those
 * that no symbol is for become 0. Of names without a folder those that the process has loaded already come first.
 * *handle keeps the library loaded. E_UNAVAILABLE: none of them can be used, and the text says why of each; the table
 * is all 0 and the handle NULL, as nothing is loaded. */
fxa_status fxa__dl_open(const fxa__dl_spec *spec, void *table, size_t table_size, void **handle, fxa_error *err);
/* Takes NULL. The functions are gone with it. */
void fxa__dl_close(void *handle);
/* The folder that a function's library was loaded from, and that of this library (or the program it is part of); false:
 * nobody knows. */
bool fxa__dl_folder_of(void (*function)(void), char *out, size_t capacity);
bool fxa__dl_own_folder(char *out, size_t capacity);

#endif
