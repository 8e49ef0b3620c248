/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts characters of UTF-8 for the columns of error messages: bytes 0x80 to 0xbf continue a character, every other
 * byte starts a character. The rule defines columns for invalid UTF-8 too.
 */
#ifndef FXA_BASE_UTF8_H
#define FXA_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline bool fxa__utf8_begins(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

/* Returns the length of the byte order mark at the start of a text, 3 or 0; columns do not count the mark. */
static inline size_t fxa__utf8_mark(const char *text, size_t n) {
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* Returns how many characters start in the n bytes of text. */
static inline size_t fxa__utf8_count(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += fxa__utf8_begins(text[i]);
    return count;
}

/* Returns the number of bytes of the first `count` characters in the n bytes of text; n if there are fewer. */
static inline size_t fxa__utf8_bytes(const char *text, size_t n, size_t count) {
    size_t i = 0;
    if (count == 0) return 0;
    while (i < n && (count > 0 || !fxa__utf8_begins(text[i]))) count -= fxa__utf8_begins(text[i++]);
    return i;
}

#endif
