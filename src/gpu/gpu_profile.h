/* SPDX-License-Identifier: Apache-2.0
 *
 * The profile of a device: a flat object of JSON with what code for it depends on, in the keys that cuDNN has. It is
 * what a problem's `target` is for engines of CUDA devices: with it they compile for a device that is not here.
 * Nothing is given to cuDNN that was not understood here first, every key with a value that a device can have, because
 * it ends the process over some texts that it cannot read.
 */
#ifndef FXA_GPU_PROFILE_H
#define FXA_GPU_PROFILE_H

#include "../base/bytes.h"
#include "gpu.h"

typedef struct fxa__gpu_profile {
    int64_t arch;   /* 90: 9.0 */
    int64_t driver; /* 13000: 13.0 */
    int64_t processors;
    char name[FXA__GPU_NAME];
} fxa__gpu_profile;

/* E_PROBLEM: what is wrong with the text. */
fxa_status fxa__gpu_profile_parse(const char *text, fxa__gpu_profile *out, fxa_error *err);
/* Writes that of a device which is here, without a terminator. Makes no context on it. E_UNAVAILABLE: there is none. */
fxa_status fxa__gpu_profile_write(int32_t ordinal, fxa__writer *w, fxa_error *err);

#endif
