/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the fuzz targets: the entry point, and a check that aborts, which fuzzers report as a finding.
 */
#ifndef FXA_FUZZ_FUZZ_H
#define FXA_FUZZ_FUZZ_H

#include "fxattn/fxattn.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(cond)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond);                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Checks a valid program: it prints, parses to the same hash and text, saves and loads, has properties, can be
 * classified and, if it is a score program, differentiated. */
void fuzz_check_program(fxa_context *ctx, const fxa_program *program);

#endif
