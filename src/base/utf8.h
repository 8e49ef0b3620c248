/* SPDX-License-Identifier: Apache-2.0
 *
 * Characters of UTF-8, as columns of error messages count them: a byte that continues a character belongs to what is
 * before it, every other one begins one. So all bytes have a place, also those that are no UTF-8.
 */
#ifndef FXA_BASE_UTF8_H
#define FXA_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline bool fxa__utf8_begins(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

/* Bytes of the byte order mark that a text may begin with; no column counts it. */
static inline size_t fxa__utf8_mark(const char *text, size_t n) {
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* How many characters begin in text[n]. */
static inline size_t fxa__utf8_count(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += fxa__utf8_begins(text[i]);
    return count;
}

/* Bytes of the first `count` characters of text[n], n when it has fewer. */
static inline size_t fxa__utf8_bytes(const char *text, size_t n, size_t count) {
    size_t i = 0;
    if (count == 0) return 0;
    while (i < n && (count > 0 || !fxa__utf8_begins(text[i]))) count -= fxa__utf8_begins(text[i++]);
    return i;
}

#endif
