/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded little-endian bytes: the only way the library reads or writes its serialized forms. A reader that runs past
 * its end (or is told to fail) stays failed and gives zeroes; a writer that runs out of memory stays failed. So code
 * reads or writes straight through and asks once at the end.
 */
#ifndef FXA_BASE_BYTES_H
#define FXA_BASE_BYTES_H

#include "error.h"
#include "host.h"

#include <stdbool.h>

typedef struct fxa__writer {
    fxa__host *host; /* NULL: counts only */
    uint8_t *data;
    size_t size, capacity;
    bool failed;
} fxa__writer;

void fxa__write_bytes(fxa__writer *w, const void *data, size_t size);
void fxa__write_u8(fxa__writer *w, uint8_t x);
void fxa__write_u32(fxa__writer *w, uint32_t x);
void fxa__write_u64(fxa__writer *w, uint64_t x);
void fxa__write_i64(fxa__writer *w, int64_t x);
void fxa__write_f64(fxa__writer *w, double x);         /* its bits */
void fxa__write_string(fxa__writer *w, const char *s); /* u32 length and bytes; NULL is written as "" */
/* Text without a terminator, of at most 255 bytes: more is cut off. */
void fxa__write_format(fxa__writer *w, const char *format, ...) FXA__PRINTF(2, 3);
void fxa__writer_free(fxa__writer *w);

typedef struct fxa__reader {
    const uint8_t *data;
    size_t size, at;
    bool failed;
} fxa__reader;

const uint8_t *fxa__read_bytes(fxa__reader *r, size_t size); /* NULL when failed */
uint8_t fxa__read_u8(fxa__reader *r);
uint32_t fxa__read_u32(fxa__reader *r);
uint64_t fxa__read_u64(fxa__reader *r);
int64_t fxa__read_i64(fxa__reader *r);
double fxa__read_f64(fxa__reader *r);
/* Terminated copy into out[capacity]; fails when it does not fit or holds a NUL byte. */
void fxa__read_string(fxa__reader *r, char *out, size_t capacity);
bool fxa__reader_done(const fxa__reader *r); /* not failed and nothing left */

#endif
