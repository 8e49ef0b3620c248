/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between tests and the NVRTC stand-in, in addition to its standin_state.
 */
#ifndef FXA_TESTS_STANDIN_NVRTC_H
#define FXA_TESTS_STANDIN_NVRTC_H

#include "standin.h"

/* Options of the last compilation, each with a space behind it: char standin_nvrtc_options[]. */
enum { STANDIN_NVRTC_OPTIONS = 1024 };

/* Writes the eight ints of FxaShape for the kernels of a source file. */
typedef void (*standin_nvrtc_shape)(const char *source, int32_t shape[8]);

#endif
