/* SPDX-License-Identifier: Apache-2.0
 *
 * Serialization of cuDNN's compiled plans.
 */
#ifndef FXA_ENGINE_CUDNN_SAVED_H
#define FXA_ENGINE_CUDNN_SAVED_H

#include "../../base/bytes.h"
#include "api.h"

/* Writes the plan; writes nothing if cuDNN does not return its text. */
void fxa__dnn_saved_write(const fxa__cudnn_api *api, void *plan, fxa__host *host, fxa__writer *w);
/* Reads a plan; the caller destroys *plan. Fails with E_BYTES if the bytes are not a plan, and with E_VERSION if cuDNN
 * cannot load the plan on this device. */
fxa_status fxa__dnn_saved_read(const fxa__cudnn_api *api, void *profile, fxa__reader *r, void **plan,
                               int64_t *workspace, fxa_error *err);

#endif
