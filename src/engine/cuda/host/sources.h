/* SPDX-License-Identifier: Apache-2.0
 *
 * The sources of the kernels as text, for the compiler at run time: cmake/embed_cuda.cmake writes them into a C file of
 * the build.
 */
#ifndef FXA_ENGINE_CUDA_SOURCES_H
#define FXA_ENGINE_CUDA_SOURCES_H

#include <stddef.h>

typedef struct fxa__cu_source {
    const char *name, *text;
} fxa__cu_source;

extern const fxa__cu_source fxa__cu_sources[];
extern const size_t fxa__cu_source_count;
/* Of all of them, 16 digits: the version of the kernel set. */
extern const char fxa__cu_sources_hash[];

#endif
