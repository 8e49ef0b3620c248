/* SPDX-License-Identifier: Apache-2.0
 *
 * Where NVIDIA's libraries are looked for. In this order: what the process has loaded already (base/dl.h); in a folder
 * that the environment names, and beside it as NVIDIA's packages for Python lie; in those packages, where this library
 * is part of one beside them; by the name alone, as the system's loader does; in folders of a toolkit.
 */
#ifndef FXA_GPU_SEARCH_H
#define FXA_GPU_SEARCH_H

#include "../base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { FXA__SEARCH_PATH = 4096, FXA__SEARCH_FILES = 2, FXA__SEARCH_FOLDERS = 6 };

/* What is looked for. Lists end with NULL. */
typedef struct fxa__gpu_wanted {
    const char *variable;        /* of the environment, for messages */
    const char *folder;          /* what it says; NULL: nothing */
    const char *const *packages; /* folders below `nvidia`, with a slash before: two at most */
    const char *const *files;    /* FXA__SEARCH_FILES at most, the best first */
    const char *toolkit;         /* a folder; NULL: none */
} fxa__gpu_wanted;

typedef struct fxa__gpu_search {
    char path[FXA__SEARCH_FOLDERS * FXA__SEARCH_FILES][FXA__SEARCH_PATH];
    const char *names[(FXA__SEARCH_FOLDERS + 1) * FXA__SEARCH_FILES + 1]; /* for a fxa__dl_spec */
    size_t n;
} fxa__gpu_search;

/* Fills names, which point into s. E_UNAVAILABLE: the folder is too long for a path. */
fxa_status fxa__gpu_search_make(fxa__gpu_search *s, const fxa__gpu_wanted *wanted, fxa_error *err);

#endif
