/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes JSON in one line.
 */
#include "io/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

json json_begin(cli_buf *out) {
    json j = {out, 0, {false}};
    return j;
}

static void json_quote(cli_buf *out, const char *text) {
    buf_text(out, "\"");
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        if (*s == '"' || *s == '\\')
            buf_printf(out, "\\%c", *s);
        else if (*s == '\n')
            buf_text(out, "\\n");
        else if (*s == '\t')
            buf_text(out, "\\t");
        else if (*s < 0x20 || *s == 0x7F)
            buf_printf(out, "\\u%04x", *s);
        else if (!n)
            buf_text(out, "\\ufffd");
        else
            buf_add(out, s, n);
        s += n ? n : 1;
    }
    buf_text(out, "\"");
}

static void json_lead(json *j, const char *key) {
    if (j->some[j->depth]) buf_text(j->out, ", ");
    j->some[j->depth] = true;
    if (!key) return;
    json_quote(j->out, key);
    buf_text(j->out, ": ");
}

void json_open(json *j, const char *key, char bracket) {
    json_lead(j, key);
    buf_add(j->out, &bracket, 1);
    j->some[++j->depth] = false;
}

void json_close(json *j, char bracket) {
    buf_add(j->out, &bracket, 1);
    if (--j->depth == 0) buf_text(j->out, "\n");
}

void json_string(json *j, const char *key, const char *text) {
    json_lead(j, key);
    json_quote(j->out, text);
}

void json_number(json *j, const char *key, double value) {
    if (!isfinite(value)) {
        json_null(j, key);
        return;
    }
    json_lead(j, key);
    buf_printf(j->out, "%.17g", value);
}

void json_int(json *j, const char *key, int64_t value) {
    json_lead(j, key);
    buf_printf(j->out, "%" PRId64, value);
}

void json_uint(json *j, const char *key, uint64_t value) {
    json_lead(j, key);
    buf_printf(j->out, "%" PRIu64, value);
}

void json_bool(json *j, const char *key, bool value) {
    json_lead(j, key);
    buf_text(j->out, value ? "true" : "false");
}

void json_null(json *j, const char *key) {
    json_lead(j, key);
    buf_text(j->out, "null");
}

void json_warnings(json *j, const cli *c) {
    json_open(j, "warnings", '[');
    for (size_t i = 0; i < c->n_warnings; i++) json_string(j, NULL, c->warnings[i]);
    json_close(j, ']');
}
