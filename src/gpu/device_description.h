/* SPDX-License-Identifier: Apache-2.0
 *
 * Device descriptions. A description is a flat JSON object with the properties of a device that code depends on; the
 * keys are those of cuDNN. A problem with a description as `target` is compiled for that device, which need not be in
 * this machine. Every key and value of a description is checked before cuDNN reads the text, because cuDNN ends the
 * process on some malformed texts.
 */
#ifndef FXA_GPU_DESCRIPTION_H
#define FXA_GPU_DESCRIPTION_H

#include "../base/bytes.h"
#include "gpu.h"

typedef struct fxa__gpu_description {
    int64_t arch;       /* 90 = compute capability 9.0 */
    int64_t driver;     /* 13000 = CUDA 13.0 */
    int64_t processors; /* number of SMs */
    char name[FXA__GPU_NAME];
} fxa__gpu_description;

/* Parses a description. Fails with E_PROBLEM and a message that says what is wrong with the text. */
fxa_status fxa__gpu_description_parse(const char *text, fxa__gpu_description *out, fxa_error *err);
/* Writes the description of a device of this machine, without a terminator and without creating a context on it. Fails
 * with E_UNAVAILABLE if there is no such device. */
fxa_status fxa__gpu_description_write(int32_t ordinal, fxa__writer *w, fxa_error *err);

#endif
