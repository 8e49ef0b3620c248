/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements status names, error texts and their rendering, and two conventions of all public functions: input structs
 * that start with struct_size, and output with the arguments (out, capacity, needed).
 */
#include "error.h"

#include "utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char *fxa_status_name(fxa_status status) {
    switch (status) {
#define STATUS_NAME(name, value, text)                                                                                 \
    case FXA_##name: return "FXA_" #name;
        FXA_STATUS_MAP(STATUS_NAME)
    default: return "unknown status";
    }
}

const char *fxa_status_text(fxa_status status) {
    switch (status) {
#define STATUS_TEXT(name, value, text)                                                                                 \
    case FXA_##name: return text;
        FXA_STATUS_MAP(STATUS_TEXT)
    default: return "unknown status";
    }
}

void fxa__text_cut(char *text, size_t room) {
    static const char more[] = "...";
    size_t most = room - sizeof more - 1, n = most;
    while (n > most / 2 && text[n] != ' ') n--;
    bool word = text[n] == ' '; /* false = no space is near: the text is cut inside a long word, such as a path */
    if (!word) n = most;
    while (n > 0 && !fxa__utf8_begins(text[n])) n--;
    (void)snprintf(text + n, room - n, "%s%s", word ? " " : "", more);
}

fxa_status fxa__vfail(fxa_error *err, fxa_status status, const char *format, va_list list) {
    if (!err) return status;
    memset(err, 0, sizeof *err);
    err->status = status;
    int n = vsnprintf(err->text, sizeof err->text, format, list);
    if (n >= (int)sizeof err->text) fxa__text_cut(err->text, sizeof err->text);
    return status;
}

fxa_status fxa__fail(fxa_error *err, fxa_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)fxa__vfail(err, status, format, list);
    va_end(list);
    return status;
}

fxa_status fxa__fail_memory(fxa_error *err, const char *what) {
    return fxa__fail(err, FXA_E_MEMORY, "out of memory while making %s", what);
}

fxa_status fxa__ok(fxa_error *err) {
    if (err) memset(err, 0, sizeof *err);
    return FXA_OK;
}

fxa_status fxa__struct_read(void *to, size_t to_size, size_t min_size, const void *from, const char *name,
                            fxa_error *err) {
    if (!from) return fxa__fail(err, FXA_E_ARGUMENT, "%s is NULL", name);
    uint32_t given;
    memcpy(&given, from, sizeof given);
    if (given < min_size)
        return fxa__fail(err, FXA_E_STRUCT,
                         "%s.struct_size is %u; this library takes %zu or more (start from the INIT macro)", name,
                         given, min_size);
    if (given > FXA_MAX_STRUCT)
        return fxa__fail(err, FXA_E_STRUCT,
                         "%s.struct_size is %u; this library uses %zu bytes and accepts at most %u from a newer caller "
                         "(start from the INIT macro)",
                         name, given, to_size, FXA_MAX_STRUCT);
    if (given % sizeof(void *)) /* the struct may end inside a pointer: half of a pointer must not be used */
        return fxa__fail(err, FXA_E_STRUCT,
                         "%s.struct_size is %u; in every version it is a multiple of %zu (start from the INIT macro)",
                         name, given, sizeof(void *));
    memcpy(to, from, given < to_size ? given : to_size);
    uint32_t ours = (uint32_t)to_size;
    memcpy(to, &ours, sizeof ours);
    return FXA_OK;
}

fxa_status fxa__bytes_out(const void *data, size_t size, void *out, size_t capacity, size_t *needed, fxa_error *err) {
    if (needed) *needed = size;
    if (!out) return needed ? fxa__ok(err) : fxa__fail(err, FXA_E_ARGUMENT, "both out and needed are NULL");
    if (capacity < size) return fxa__fail(err, FXA_E_ARGUMENT, "capacity is %zu bytes, %zu are needed", capacity, size);
    if (size) memcpy(out, data, size);
    return fxa__ok(err);
}

/* ---- Rendering --------------------------------------------------------------------------------------------------- */

/* Output text of bounded capacity; `size` also counts the bytes that do not fit. */
typedef struct render_out {
    char *data;
    size_t capacity, size;
} render_out;

static void render_put(render_out *out, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++, out->size++)
        if (out->size + 1 < out->capacity) out->data[out->size] = s[i];
}

/* Finds line `number` (from 1) of source, without its \n or \r\n and without a byte order mark. Returns false if source
 * has fewer lines. */
static bool render_find_line(const char *source, size_t size, int32_t number, const char **line, size_t *length) {
    size_t at = fxa__utf8_mark(source, size);
    for (int32_t n = 1; n < number; n++) {
        const char *end = memchr(source + at, '\n', size - at);
        if (!end) return false;
        at = (size_t)(end - source) + 1;
    }
    const char *end = at < size ? memchr(source + at, '\n', size - at) : NULL;
    *line = source + at;
    *length = (end ? (size_t)(end - source) : size) - at;
    if (*length && (*line)[*length - 1] == '\r') --*length;
    return true;
}

#define RENDER_WIDTH 160 /* characters shown of a source line; longer lines are cut around the error */

static void render_excerpt(render_out *out, const fxa_error *err, const char *line, size_t length) {
    size_t width = fxa__utf8_count(line, length), column = err->column > 0 ? (size_t)err->column - 1 : 0, first = 0;
    if (column > width) column = width;
    if (width > RENDER_WIDTH && column > RENDER_WIDTH / 2) first = column - RENDER_WIDTH / 2;
    /* width, column, first and last count characters; length, from, to and at count bytes */
    size_t last = width - first > RENDER_WIDTH ? first + RENDER_WIDTH : width;
    size_t from = fxa__utf8_bytes(line, length, first), to = fxa__utf8_bytes(line, length, last);
    size_t at = fxa__utf8_bytes(line, length, column);
    render_put(out, "\n  ", 3);
    for (size_t i = from; i < to; i++) { /* control bytes could change the terminal's state and are shown as '?' */
        unsigned char c = (unsigned char)line[i];
        char shown = (c < 0x20 && c != '\t') || c == 0x7f ? '?' : (char)c;
        render_put(out, &shown, 1);
    }
    render_put(out, "\n  ", 3);
    for (size_t i = from; i < at; i++)
        if (fxa__utf8_begins(line[i])) render_put(out, line[i] == '\t' ? "\t" : " ", 1);
    size_t marks = err->length > 1 ? (size_t)err->length : 1;
    if (column + marks > last) marks = last > column ? last - column : 1;
    for (size_t i = 0; i < marks; i++) render_put(out, "^", 1);
}

size_t fxa_error_render(const fxa_error *err, const char *name, const char *source, size_t size, char *out,
                        size_t capacity) {
    render_out o = {out, out ? capacity : 0, 0};
    char place[64];
    if (err) {
        if (name) render_put(&o, name, strlen(name)), render_put(&o, ":", 1);
        if (err->line > 0) {
            int n = snprintf(place, sizeof place, "%d:%d:", err->line, err->column);
            render_put(&o, place, (size_t)n);
        }
        if (o.size) render_put(&o, " ", 1);
        render_put(&o, "error: ", 7);
        render_put(&o, err->text, strlen(err->text));
        const char *line;
        size_t length;
        if (source && size == SIZE_MAX) size = strlen(source);
        if (source && err->line > 0 && render_find_line(source, size, err->line, &line, &length))
            render_excerpt(&o, err, line, length);
    }
    if (o.capacity) o.data[o.size < o.capacity ? o.size : o.capacity - 1] = '\0';
    return o.size;
}
