/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads entire files into memory: saved plans, descriptions of devices, lists of shapes.
 */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int cli_read_file(cli *c, const char *path, const char *what, size_t max_size, char **data, size_t *size) {
    FILE *f = fopen(path, "rb");
    cli_buf bytes = {0};
    char chunk[65536];
    size_t n;
    if (!f) return cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s", path, strerror(errno));
    cli_input_note(c, path, fileno(f));
    while (bytes.size <= max_size && (n = fread(chunk, 1, sizeof chunk, f)) > 0) buf_add(&bytes, chunk, n);
    bool failed = ferror(f);
    int reason = errno;
    fclose(f);
    *data = cli_alloc(c, bytes.size + 1);
    *size = bytes.size;
    if (bytes.size) memcpy(*data, bytes.data, bytes.size);
    buf_free(&bytes);
    if (failed) return cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s", path, strerror(reason));
    if (*size > max_size) return cli_fail(c, CLI_BAD_INPUT, "%.300s is larger than %s may be", path, what);
    return CLI_OK;
}
