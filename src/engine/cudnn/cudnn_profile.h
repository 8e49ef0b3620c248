/* SPDX-License-Identifier: Apache-2.0
 *
 * The profile of a device, as cuDNN writes it: a flat object of JSON. cuDNN is given no text that was not understood
 * here first, every key with a value that a device can have, because it ends the process over some that it cannot read.
 */
#ifndef FXA_ENGINE_CUDNN_PROFILE_H
#define FXA_ENGINE_CUDNN_PROFILE_H

#include "../../base/error.h"

#include <stdint.h>

typedef struct fxa__dnn_profile {
    int64_t arch;   /* deviceVer: 900 is 9.0 */
    int64_t driver; /* driverVer: 13000 */
    int64_t processors;
    char name[64];
} fxa__dnn_profile;

/* E_UNAVAILABLE: what is wrong with the text. */
fxa_status fxa__dnn_profile_parse(const char *text, fxa__dnn_profile *out, fxa_error *err);

#endif
