/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan bytes for tests: some saved plans, and a reader and a writer of the format, implemented only from its
 * description in src/plan/plan_save.c.
 */
#ifndef FXA_TESTS_PLAN_BYTES_H
#define FXA_TESTS_PLAN_BYTES_H

#include "fxattn/fxattn.h"

#include <stdbool.h>

enum { BLOB_CAPACITY = 16384, BLOB_CASES = 4 };

typedef struct blob_bytes {
    uint8_t data[BLOB_CAPACITY];
    size_t size;
} blob_bytes;

/* A plan of the reference engine to save. `make` returns a failure of the library with its text. */
typedef struct blob_case {
    const char *name;
    fxa_status (*make)(fxa_context *ctx, blob_bytes *out, fxa_error *err);
} blob_case;
extern const blob_case blob_cases[BLOB_CASES];
enum { BLOB_IDENTITY, BLOB_TINY_FORWARD, BLOB_TINY_BACKWARD, BLOB_RICH_BACKWARD };

typedef struct blob_parts {
    uint32_t format;
    uint8_t key[16];
    char library[32], engine[32], identity[160];
    uint32_t engine_version;
    uint32_t n_sections;
    uint32_t id[4];
    blob_bytes section[4];
} blob_parts;

bool blob_parts_read(const blob_bytes *b, blob_parts *p);  /* returns false if bytes and description differ */
void blob_parts_write(const blob_parts *p, blob_bytes *b); /* computes all sizes, offsets and checksums */
void blob_reseal(blob_bytes *b);                           /* updates the header's checksum after a change */

/* Writes p as bytes and loads them. A plan that was loaded is destroyed again. */
fxa_status blob_parts_load(fxa_context *ctx, const blob_parts *p, fxa_error *err);

#endif
