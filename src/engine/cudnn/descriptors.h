/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph as cuDNN's descriptors, and the plan that cuDNN makes of it. Every descriptor that is created is destroyed by
 * who created it, in the same call, but for the plan: it owns what it needs.
 */
#ifndef FXA_ENGINE_CUDNN_BUILD_H
#define FXA_ENGINE_CUDNN_BUILD_H

#include "graph/graph.h"

/* What cuDNN says of a graph without compiling it: the workspace of its best engine. profile: the descriptor of the
 * device. E_UNSUPPORTED: no engine takes it, and why; E_ENGINE: cuDNN failed otherwise. */
fxa_status fxa__dnn_probe(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, int64_t *workspace,
                          fxa_error *err);
/* Compiles it; *plan is to be destroyed. */
fxa_status fxa__dnn_compile(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, void **plan,
                            int64_t *workspace, fxa_error *err);

/* A device's profile from cuDNN's text of it, or from a handle. */
fxa_status fxa__dnn_profile_text(const fxa__cudnn_api *api, const char *text, void **profile, fxa_error *err);
fxa_status fxa__dnn_profile_handle(const fxa__cudnn_api *api, void *handle, void **profile, fxa_error *err);

/* One set of pointers for a run: unique ids, pointers, workspace. To be destroyed. */
fxa_status fxa__dnn_pack(const fxa__cudnn_api *api, int64_t n, const int64_t *ids, void *const *pointers,
                         void *workspace, void **pack, fxa_error *err);

#endif
