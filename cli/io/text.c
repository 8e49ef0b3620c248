/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing text buffer. A command collects its report in a buffer, which is printed when the command ends.
 */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void buf_reserve(cli_buf *b, size_t more) {
    if (more > SIZE_MAX / 4 || b->size > SIZE_MAX / 4) cli_out_of_memory((double)more);
    size_t need = b->size + more + 1;
    if (need <= b->capacity) return;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity < need) capacity *= 2;
    char *data = realloc(b->data, capacity);
    if (!data) cli_out_of_memory((double)capacity);
    b->data = data;
    b->capacity = capacity;
}

void buf_add(cli_buf *b, const void *data, size_t size) {
    buf_reserve(b, size);
    if (size) memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
}

void buf_text(cli_buf *b, const char *text) { buf_add(b, text, strlen(text)); }

void buf_printf(cli_buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return;
    buf_reserve(b, (size_t)n);
    va_start(args, format);
    vsnprintf(b->data + b->size, (size_t)n + 1, format, args);
    va_end(args);
    b->size += (size_t)n;
}

void buf_indented(cli_buf *b, int columns, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        buf_printf(b, "%*s%.*s\n", n ? columns : 0, "", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

void buf_wrapped(cli_buf *b, int indent, const char *text) {
    int room = 100 - indent;
    while ((int)strlen(text) > room) {
        int n = room;
        while (n > 0 && text[n] != ' ') n--;
        if (n == 0) break;
        buf_printf(b, "%.*s\n%*s", n, text, indent, "");
        text += n + 1;
    }
    buf_printf(b, "%s\n", text);
}

void buf_free(cli_buf *b) {
    free(b->data);
    *b = (cli_buf){0};
}
