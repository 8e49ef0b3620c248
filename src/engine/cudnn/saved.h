/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled plans of cuDNN as bytes.
 */
#ifndef FXA_ENGINE_CUDNN_SAVED_H
#define FXA_ENGINE_CUDNN_SAVED_H

#include "../../base/bytes.h"
#include "api.h"

/* Writes the plan, or nothing where cuDNN does not give it. */
void fxa__dnn_saved_write(const fxa__cudnn_api *api, void *plan, fxa__host *host, fxa__writer *w);
/* A plan of such bytes, to be destroyed. E_BYTES: they are none; E_VERSION: cuDNN does not take them here. */
fxa_status fxa__dnn_saved_read(const fxa__cudnn_api *api, void *profile, fxa__reader *r, void **plan,
                               int64_t *workspace, fxa_error *err);

#endif
