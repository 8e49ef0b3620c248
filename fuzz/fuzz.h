/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzz targets share: the entry point, and a check that stops the process, which is how a fuzzer sees a
 * finding.
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

/* Everything that must hold for any program that came into being: it prints, parses back to the same hash and text,
 * saves and loads, has facts, can be classified and, if it is a score program, derived. */
void fuzz_check_program(fxa_context *ctx, const fxa_program *program);

#endif
