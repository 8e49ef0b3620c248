/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts a graph to cuDNN's descriptors, and compiles it to a plan. Each function destroys the descriptors that it
 * creates before it returns; only the plan stays, which needs no other descriptor.
 */
#ifndef FXA_ENGINE_CUDNN_BUILD_H
#define FXA_ENGINE_CUDNN_BUILD_H

#include "graph/graph.h"

/* Sets *workspace to the bytes that cuDNN's best engine for the graph needs; compiles nothing. `profile`: cuDNN's
 * descriptor of the device. Fails with E_UNSUPPORTED and cuDNN's reason if no engine supports the graph, and with
 * E_ENGINE after other failures of cuDNN. */
fxa_status fxa__dnn_probe(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, int64_t *workspace,
                          fxa_error *err);
/* Like fxa__dnn_probe, but also compiles the graph to *plan, which the caller destroys. */
fxa_status fxa__dnn_compile(const fxa__cudnn_api *api, void *profile, const fxa__dnn_graph *g, void **plan,
                            int64_t *workspace, fxa_error *err);

/* Set *profile to cuDNN's descriptor of a device, which the caller destroys: fxa__dnn_profile_text for the device that
 * a JSON text describes (gpu/device_description.h), fxa__dnn_profile_handle for the device of a cuDNN handle. */
fxa_status fxa__dnn_profile_text(const fxa__cudnn_api *api, const char *text, void **profile, fxa_error *err);
fxa_status fxa__dnn_profile_handle(const fxa__cudnn_api *api, void *handle, void **profile, fxa_error *err);

/* Sets *pack to a descriptor with the addresses of a run: n unique ids of tensors, their pointers, and the workspace.
 * The caller destroys the descriptor. */
fxa_status fxa__dnn_pack(const fxa__cudnn_api *api, int64_t n, const int64_t *ids, void *const *pointers,
                         void *workspace, void **pack, fxa_error *err);

#endif
