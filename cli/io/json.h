/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes JSON to a growing text. key: name of a member of an object; NULL for elements of an array. Numbers that JSON
 * lacks (inf, nan) become null; invalid UTF-8 becomes U+FFFD.
 */
#ifndef FXA_CLI_JSON_H
#define FXA_CLI_JSON_H

#include "cli.h"

typedef struct json {
    cli_buf *out;
    int depth;
    bool some[16]; /* [depth] true = the object or array has an element already */
} json;

/* Adds the member "warnings" with the texts of cli_warn. */
void json_warnings(json *j, const cli *c);
json json_begin(cli_buf *out);
void json_open(json *j, const char *key, char bracket); /* bracket: '{' or '[' */
void json_close(json *j, char bracket);                 /* bracket: '}' or ']' */
void json_string(json *j, const char *key, const char *text);
void json_number(json *j, const char *key, double value);
void json_int(json *j, const char *key, int64_t value);
void json_uint(json *j, const char *key, uint64_t value);
void json_bool(json *j, const char *key, bool value);
void json_null(json *j, const char *key);

#endif
