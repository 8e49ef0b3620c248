/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests say to the stand-in for NVRTC, beside its standin_state.
 */
#ifndef FXA_TESTS_STANDIN_NVRTC_H
#define FXA_TESTS_STANDIN_NVRTC_H

#include "standin.h"

/* Writes the eight ints of the FxaShape that kernels of a source file are to have. */
typedef void (*standin_nvrtc_shape)(const char *source, int32_t shape[8]);

#endif
