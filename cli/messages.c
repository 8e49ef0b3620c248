/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles failures: prints them on standard error, records them for --json, and converts them to exit codes.
 */
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

/* Prints text that may quote a file. Invalid UTF-8 and control characters are printed as \xNN. */
static void message_print_text(const char *text) {
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        bool command = (*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7F || (*s == 0xC2 && s[1] < 0xA0);
        if (n && !command)
            fwrite(s, 1, n, stderr), s += n;
        else
            fprintf(stderr, "\\x%02x", *s++);
    }
}

static int message_print(cli *c, int code) {
    fputs("fxattn: ", stderr);
    if (c->error_name) message_print_text(c->error_name), fputs(": ", stderr);
    message_print_text(c->error.text);
    fputs("\n", stderr);
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
    return message_print(c, code);
}

void cli_warn(cli *c, const char *format, ...) {
    char text[sizeof c->error.text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("fxattn: warning: ", stderr);
    message_print_text(text);
    fputs("\n", stderr);
    if (c->n_warnings < CLI_MAX_WARNINGS) c->warnings[c->n_warnings++] = cli_format(c, "%s", text);
}

/* Option that sets a flag of the library. word: value with which the option sets the flag; NULL = any. */
typedef struct message_flag {
    const char *flag;
    cli_option_id option;
    const char *word;
} message_flag;
static const message_flag message_flags[] = {
    {"FXA_CAUSAL", OPT_CAUSAL, NULL},
    {"FXA_WINDOW", OPT_WINDOW, NULL},
    {"FXA_BOTTOM_RIGHT", OPT_DECODE, NULL},
    {"FXA_BOTTOM_RIGHT", OPT_BOTTOM_RIGHT, NULL},
    {"FXA_PADDING", OPT_VARLEN, "padded"},
    {"FXA_PADDING", OPT_K_LENGTHS, NULL},
    {"FXA_PADDING", OPT_Q_LENGTHS, NULL},
    {"FXA_VARLEN", OPT_VARLEN, "packed"},
    {"FXA_VARLEN", OPT_CU_Q, NULL},
    {"FXA_PAGED", OPT_PAGES, NULL},
    {"FXA_PAGED", OPT_PAGE_SIZE, NULL},
    {"FXA_SINK_ZERO", OPT_SINK_ZERO, NULL},
    {"FXA_SINKS", OPT_ASSUME, "sinks"},
    {"FXA_SINKS", OPT_SINKS, NULL},
    {"FXA_DROPOUT", OPT_DROPOUT_P, NULL},
    {"FXA_Q_START", OPT_ASSUME, "q-start"},
    {"FXA_Q_START", OPT_Q_START, NULL},
    {"FXA_SCALED", OPT_ASSUME, "scales"},
    {"FXA_BOUNDS_CHECK", OPT_BOUNDS_CHECK, NULL},
};

/* Returns the row of the flag with this name of `length` bytes if its option is on the command line; else NULL. */
static const message_flag *message_find_flag(const cli *c, const char *flag, size_t length) {
    for (size_t i = 0; i < sizeof message_flags / sizeof *message_flags; i++) {
        const message_flag *row = &message_flags[i];
        if (strlen(row->flag) != length || strncmp(row->flag, flag, length) != 0) continue;
        for (size_t g = 0; g < c->n_given; g++)
            if (c->given[g].id == row->option && (!row->word || strcmp(c->given[g].value, row->word) == 0)) return row;
    }
    return NULL;
}

/* Replaces names of library flags in a message by the options that set the flags, because users know the options. */
static void message_name_options(const cli *c, char *text, size_t capacity) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    cli_buf b = {0};
    for (const char *at = text; *at;) {
        size_t said = strncmp(at, "flags FXA_", 10) == 0 ? 6 : strncmp(at, "flag FXA_", 9) == 0 ? 5 : 0;
        size_t length = strspn(at + said, letters);
        bool begins = at == text || !strchr(letters, at[-1]);
        const message_flag *row = begins && length ? message_find_flag(c, at + said, length) : NULL;
        if (!row) {
            buf_add(&b, at++, 1);
            continue;
        }
        buf_printf(&b, "--%s%s%s", cli_options[row->option].name, row->word ? " " : "", row->word ? row->word : "");
        at += said + length;
    }
    if (b.size) snprintf(text, capacity, "%.*s", (int)b.size, b.data);
    buf_free(&b);
}

int cli_fail_library(cli *c, const fxa_error *err, const char *what) {
    c->error = *err;
    message_name_options(c, c->error.text, sizeof c->error.text);
    c->error_name = what;
    return message_print(c, cli_exit_code(err->status));
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
