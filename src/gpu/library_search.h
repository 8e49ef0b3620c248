/* SPDX-License-Identifier: Apache-2.0
 *
 * Search order of NVIDIA's libraries:
 *   1. a library that the process has loaded already (base/dl.h)
 *   2. the folder that an environment variable names, and NVIDIA's Python packages installed next to that folder
 *   3. NVIDIA's Python packages next to the package that contains this library
 *   4. the system's loader, by file name
 *   5. the folder of a CUDA toolkit
 */
#ifndef FXA_GPU_SEARCH_H
#define FXA_GPU_SEARCH_H

#include "../base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { FXA__SEARCH_PATH = 4096, FXA__SEARCH_FILES = 2, FXA__SEARCH_FOLDERS = 6 };

/* A library to search for. Lists end with NULL. */
typedef struct fxa__gpu_wanted {
    const char *variable;        /* name of the environment variable for the folder, used in messages */
    const char *folder;          /* value of the environment variable; NULL = not set */
    const char *const *packages; /* folders below site-packages/nvidia, each starting with a slash; at most two */
    const char *const *files;    /* file names in order of preference; at most FXA__SEARCH_FILES */
    const char *toolkit;         /* folder of a CUDA toolkit; NULL = none */
} fxa__gpu_wanted;

typedef struct fxa__gpu_search {
    char path[FXA__SEARCH_FOLDERS * FXA__SEARCH_FILES][FXA__SEARCH_PATH];
    const char *names[(FXA__SEARCH_FOLDERS + 1) * FXA__SEARCH_FILES + 1]; /* file names to try, in order (base/dl.h) */
    size_t n;
} fxa__gpu_search;

/* Sets s->names to the file names to try. Some of these names point into *s, so *s must not be copied. Fails with
 * E_UNAVAILABLE if the folder is too long for a path. */
fxa_status fxa__gpu_search_make(fxa__gpu_search *s, const fxa__gpu_wanted *wanted, fxa_error *err);

#endif
