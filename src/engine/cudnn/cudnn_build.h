/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph as cuDNN's descriptors, and the plan that cuDNN makes of it. Every descriptor that is created is destroyed by
 * who created it, in the same call, but for the plan: it owns what it needs.
 */
#ifndef FXA_ENGINE_CUDNN_BUILD_H
#define FXA_ENGINE_CUDNN_BUILD_H

#include "cudnn_graph.h"

/* What cuDNN says of a graph without compiling it: the workspace of its best engine. profile: the descriptor of the
 * device. E_UNSUPPORTED: no engine takes it, and why; E_ENGINE: cuDNN failed otherwise. */
fxa_status fxa__dnn_probe(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, int64_t *workspace,
                          fxa_error *err);
/* Compiles it; *plan is to be destroyed. */
fxa_status fxa__dnn_compile(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, void **plan,
                            int64_t *workspace, fxa_error *err);

/* A plan as cuDNN writes it: no zero ends it. */
typedef struct fxa__dnn_text {
    const char *data;
    size_t size;
} fxa__dnn_text;
/* The text is memory of the host's, to be freed with its size. */
fxa_status fxa__dnn_plan_text(const fxa__cudnn_api *api, fxa__host *host, void *plan, fxa__dnn_text *out,
                              fxa_error *err);
/* Made again; *plan is to be destroyed. cuDNN ends the process over some texts that it did not write: see
 * fxa__dnn_text_sum. */
fxa_status fxa__dnn_restore(const fxa__cudnn_api *api, void *profile, const fxa__dnn_text *text, void **plan,
                            int64_t *workspace, fxa_error *err);
/* Of every byte: what was changed by accident is no text of cuDNN's. */
uint64_t fxa__dnn_text_sum(const fxa__dnn_text *text);

/* A device's profile from cuDNN's text of it, or from a handle. */
fxa_status fxa__dnn_profile_text(const fxa__cudnn_api *api, const char *text, void **profile, fxa_error *err);
fxa_status fxa__dnn_profile_handle(const fxa__cudnn_api *api, void *handle, void **profile, fxa_error *err);

/* One set of pointers for a run: unique ids, pointers, workspace. To be destroyed. */
fxa_status fxa__dnn_pack(const fxa__cudnn_api *api, int64_t n, const int64_t *ids, void *const *pointers,
                         void *workspace, void **pack, fxa_error *err);

#endif
