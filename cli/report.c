/* SPDX-License-Identifier: Apache-2.0
 *
 * Failures: said on standard error, kept for --json, turned into exit codes. */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int cli_exit_code(fxa_status status) {
    int family = (int)status / 100;
    return status == FXA_OK                           ? CLI_OK
           : family == 1 && status != FXA_E_WORKSPACE ? CLI_BAD_INPUT
           : family == 2                              ? CLI_UNSUPPORTED
           : family == 3                              ? CLI_BAD_INPUT
                                                      : CLI_FAILURE;
}

static int report_say(cli *c, int code) {
    fprintf(stderr, "fxattn: %s%s%s\n", c->error_name ? c->error_name : "", c->error_name ? ": " : "", c->error.text);
    return code;
}

int cli_fail(cli *c, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    memset(&c->error, 0, sizeof c->error);
    c->error.status = code == CLI_BAD_INPUT     ? FXA_E_ARGUMENT
                      : code == CLI_UNSUPPORTED ? FXA_E_UNSUPPORTED
                                                : FXA_E_SYSTEM;
    if (vsnprintf(c->error.text, sizeof c->error.text, format, args) >= (int)sizeof c->error.text)
        memcpy(c->error.text + sizeof c->error.text - 4, "...", 4);
    va_end(args);
    c->error_name = NULL;
    return report_say(c, code);
}

void cli_warn(cli *c, const char *format, ...) {
    char text[sizeof c->error.text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fxattn: warning: %s\n", text);
    if (c->n_warnings < CLI_MAX_WARNINGS) c->warnings[c->n_warnings++] = cli_format(c, "%s", text);
}

int cli_fail_library(cli *c, const fxa_error *err, const char *what) {
    c->error = *err;
    c->error_name = what;
    return report_say(c, cli_exit_code(err->status));
}

int cli_fail_place(cli *c, const fxa_error *err, const char *name, const char *source, size_t size) {
    c->error = *err;
    c->error_name = name;
    size_t need = fxa_error_render(err, name, source, size, NULL, 0);
    char *text = cli_alloc(c, need + 1);
    fxa_error_render(err, name, source, size, text, need + 1);
    fprintf(stderr, "%s%s", text, need && text[need - 1] == '\n' ? "" : "\n");
    return cli_exit_code(err->status);
}
