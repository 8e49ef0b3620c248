/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes little-endian bytes; see bytes.h.
 */
#include "bytes.h"

#include "invariant.h"
#include "num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void fxa__write_bytes(fxa__writer *w, const void *data, size_t size) {
    size_t end;
    if (w->failed || size == 0) return;
    if (!fxa__add_size(w->size, size, &end) || (w->host && !fxa__grow(w->host, &w->data, &w->capacity, end, 1))) {
        w->failed = true;
        return;
    }
    if (w->host) memcpy(w->data + w->size, data, size);
    w->size = end;
}

static void bytes_write_le(fxa__writer *w, uint64_t x, size_t size) {
    uint8_t b[8];
    for (size_t i = 0; i < size; i++) b[i] = (uint8_t)(x >> (8 * i));
    fxa__write_bytes(w, b, size);
}

void fxa__write_u8(fxa__writer *w, uint8_t x) { bytes_write_le(w, x, 1); }
void fxa__write_u32(fxa__writer *w, uint32_t x) { bytes_write_le(w, x, 4); }
void fxa__write_u64(fxa__writer *w, uint64_t x) { bytes_write_le(w, x, 8); }
void fxa__write_i64(fxa__writer *w, int64_t x) { bytes_write_le(w, (uint64_t)x, 8); }

void fxa__write_f64(fxa__writer *w, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bytes_write_le(w, bits, 8);
}

void fxa__write_string(fxa__writer *w, const char *s) {
    size_t n = s ? strlen(s) : 0;
    fxa__write_u32(w, (uint32_t)n);
    fxa__write_bytes(w, s, n);
}

void fxa__write_format(fxa__writer *w, const char *format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fxa__write_bytes(w, text, strlen(text));
}

void fxa__writer_free(fxa__writer *w) {
    if (w->host) fxa__free(w->host, w->data, w->capacity);
    w->data = NULL;
    w->size = w->capacity = 0;
}

const uint8_t *fxa__read_bytes(fxa__reader *r, size_t size) {
    FXA__ASSERT(r->at <= r->size);
    if (r->failed || size > r->size - r->at) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->data + r->at;
    r->at += size;
    return p;
}

static uint64_t bytes_read_le(fxa__reader *r, size_t size) {
    const uint8_t *p = fxa__read_bytes(r, size);
    uint64_t x = 0;
    for (size_t i = 0; p && i < size; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

uint8_t fxa__read_u8(fxa__reader *r) { return (uint8_t)bytes_read_le(r, 1); }
uint32_t fxa__read_u32(fxa__reader *r) { return (uint32_t)bytes_read_le(r, 4); }
uint64_t fxa__read_u64(fxa__reader *r) { return bytes_read_le(r, 8); }

int64_t fxa__read_i64(fxa__reader *r) {
    uint64_t bits = bytes_read_le(r, 8);
    int64_t x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double fxa__read_f64(fxa__reader *r) {
    uint64_t bits = bytes_read_le(r, 8);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void fxa__read_string(fxa__reader *r, char *out, size_t capacity) {
    uint32_t n = fxa__read_u32(r);
    if (n >= capacity) r->failed = true;
    const uint8_t *p = r->failed ? NULL : fxa__read_bytes(r, n);
    if (p && memchr(p, 0, n)) r->failed = true;
    size_t length = p && !r->failed ? n : 0;
    if (length) memcpy(out, p, length);
    out[length] = '\0';
}

bool fxa__reader_done(const fxa__reader *r) { return !r->failed && r->at == r->size; }
