/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser of the .npy dict: a Python literal with three keys in any order, each once.
 */
#include "io/npy_header.h"

#include <stdio.h>
#include <string.h>

typedef struct npy_cursor {
    const char *at;
    char *why;
    size_t capacity;
} npy_cursor;

static bool cursor_fail(npy_cursor *s, const char *why) {
    snprintf(s->why, s->capacity, "%s", why);
    return false;
}

static void cursor_blank(npy_cursor *s) { s->at += strspn(s->at, " \t\r\n"); }

static bool cursor_take(npy_cursor *s, char symbol) {
    cursor_blank(s);
    if (*s->at != symbol) return false;
    s->at++;
    return true;
}

/* Reads a quoted word without escapes. */
static bool cursor_word(npy_cursor *s, char *out, size_t capacity) {
    cursor_blank(s);
    char quote = *s->at;
    if (quote != '\'' && quote != '"') return cursor_fail(s, "the header is not a dict of names in quotes");
    const char *end = strchr(s->at + 1, quote);
    if (!end || (size_t)(end - s->at) > capacity)
        return cursor_fail(s, "a word in the header is too long or has no end");
    snprintf(out, capacity, "%.*s", (int)(end - s->at - 1), s->at + 1);
    s->at = end + 1;
    return true;
}

static bool cursor_descr(npy_cursor *s, npy_header *out) {
    cursor_blank(s);
    if (*s->at == '[') return cursor_fail(s, "the elements are records; plain numbers are expected");
    return cursor_word(s, out->descr, sizeof out->descr);
}

static bool cursor_order(npy_cursor *s, npy_header *out) {
    cursor_blank(s);
    out->fortran = strncmp(s->at, "True", 4) == 0;
    if (!out->fortran && strncmp(s->at, "False", 5) != 0)
        return cursor_fail(s, "fortran_order is neither True nor False");
    s->at += out->fortran ? 4 : 5;
    return true;
}

static bool cursor_size(npy_cursor *s, int64_t *out) {
    int64_t value = 0;
    cursor_blank(s);
    if (*s->at < '0' || *s->at > '9') return cursor_fail(s, "shape is not a tuple of whole numbers");
    for (; *s->at >= '0' && *s->at <= '9'; s->at++) {
        if (value > (INT64_MAX - 9) / 10) return cursor_fail(s, "a size in shape is too large");
        value = value * 10 + (*s->at - '0');
    }
    if (*s->at == 'L') s->at++; /* Python 2 wrote long ints with the suffix L */
    *out = value;
    return true;
}

static bool cursor_shape(npy_cursor *s, npy_header *out) {
    if (!cursor_take(s, '(')) return cursor_fail(s, "shape is not a tuple");
    for (out->rank = 0; !cursor_take(s, ')');) {
        if (out->rank == NPY_MAX_RANK) return cursor_fail(s, "more than 8 axes");
        if (!cursor_size(s, &out->shape[out->rank++])) return false;
        if (cursor_take(s, ',')) continue;
        if (!cursor_take(s, ')')) return cursor_fail(s, "shape is not a tuple of whole numbers");
        break;
    }
    return true;
}

bool npy_header_read(const char *text, npy_header *out, char *why, size_t capacity) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    npy_cursor s = {text, why, capacity};
    unsigned seen = 0;
    memset(out, 0, sizeof *out);
    if (!cursor_take(&s, '{')) return cursor_fail(&s, "the header is not a dict");
    while (!cursor_take(&s, '}')) {
        char key[24];
        unsigned which = 0;
        if (!cursor_word(&s, key, sizeof key)) return false;
        while (which < 3 && strcmp(key, keys[which]) != 0) which++;
        if (which == 3 || (seen & 1u << which))
            return cursor_fail(&s, "the header has a key that is unknown or given twice");
        seen |= 1u << which;
        if (!cursor_take(&s, ':')) return cursor_fail(&s, "a key of the header has no value");
        if (!(which == 0 ? cursor_descr(&s, out) : which == 1 ? cursor_order(&s, out) : cursor_shape(&s, out)))
            return false;
        if (cursor_take(&s, ',')) continue;
        if (!cursor_take(&s, '}')) return cursor_fail(&s, "the header is not a dict");
        break;
    }
    cursor_blank(&s);
    if (*s.at) return cursor_fail(&s, "something follows the dict of the header");
    if (seen != 7) return cursor_fail(&s, "the header lacks one of descr, fortran_order, shape");
    return true;
}
