/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader and writer of little-endian bytes, used for all serialized forms. A reader that passes its end, or whose
 * `failed` is set, stays failed and returns zeroes. A writer that runs out of memory stays failed. Callers therefore
 * check `failed` once, after the last call.
 */
#ifndef FXA_BASE_BYTES_H
#define FXA_BASE_BYTES_H

#include "error.h"
#include "host.h"

#include <stdbool.h>

typedef struct fxa__writer {
    fxa__host *host; /* allocator; NULL = the writer stores nothing and only counts bytes */
    uint8_t *data;
    size_t size, capacity; /* size: bytes written, or only counted; capacity: bytes allocated */
    bool failed;           /* true = memory ran out */
} fxa__writer;

void fxa__write_bytes(fxa__writer *w, const void *data, size_t size);
void fxa__write_u8(fxa__writer *w, uint8_t x);
void fxa__write_u32(fxa__writer *w, uint32_t x);
void fxa__write_u64(fxa__writer *w, uint64_t x);
void fxa__write_i64(fxa__writer *w, int64_t x);
void fxa__write_f64(fxa__writer *w, double x); /* the bits of x */
/* writes a u32 length and the bytes of s; NULL is written as "" */
void fxa__write_string(fxa__writer *w, const char *s);
/* Writes formatted text without a NUL, cut after 255 bytes. */
void fxa__write_format(fxa__writer *w, const char *format, ...) FXA__PRINTF(2, 3);
void fxa__writer_free(fxa__writer *w);

typedef struct fxa__reader {
    const uint8_t *data;
    size_t size, at; /* size: bytes of data; at: offset of the next byte to read */
    bool failed;     /* true = a read went past the end */
} fxa__reader;

const uint8_t *fxa__read_bytes(fxa__reader *r, size_t size); /* returns a pointer into the bytes; NULL if failed */
uint8_t fxa__read_u8(fxa__reader *r);
uint32_t fxa__read_u32(fxa__reader *r);
uint64_t fxa__read_u64(fxa__reader *r);
int64_t fxa__read_i64(fxa__reader *r);
double fxa__read_f64(fxa__reader *r);
/* Copies a string into out[capacity], NUL-terminated. The reader fails if the string does not fit or contains a NUL. */
void fxa__read_string(fxa__reader *r, char *out, size_t capacity);
bool fxa__reader_done(const fxa__reader *r); /* returns true if nothing failed and all bytes were read */

#endif
