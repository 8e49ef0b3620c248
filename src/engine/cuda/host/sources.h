/* SPDX-License-Identifier: Apache-2.0
 *
 * Sources of the kernels as text, for NVRTC. cmake/embed_cuda.cmake writes them into a C file of the build.
 */
#ifndef FXA_ENGINE_CUDA_HOST_SOURCES_H
#define FXA_ENGINE_CUDA_HOST_SOURCES_H

#include <stddef.h>

typedef struct fxa__cuda_source {
    const char *name, *text;
} fxa__cuda_source;

extern const fxa__cuda_source fxa__cuda_sources[];
extern const size_t fxa__cuda_source_count;
/* Hash of all sources, 16 hex digits: the version of the kernel set. */
extern const char fxa__cuda_sources_hash[];

#endif
