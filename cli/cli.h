/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the command: one `cli` per process, exit codes, errors, memory, output.
 *
 * A command writes its report to cli.out, as text or as JSON with --json. main prints the report when the command ends,
 * so standard output has either the entire report or nothing. Memory and library objects belong to the cli and are
 * freed together at the end; commands need no cleanup. Functions that can fail return an exit code: CLI_OK on success,
 * any other code after they have printed a message.
 */
#ifndef FXA_CLI_CLI_H
#define FXA_CLI_CLI_H

#include "fxattn/fxattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

enum { CLI_OK = 0, CLI_CHECK_FAILED = 1, CLI_BAD_INPUT = 2, CLI_UNSUPPORTED = 3, CLI_FAILURE = 4 };

/* ---- Growing text (io/text.c) ------------------------------------------------------------------------------------ */

typedef struct cli_buf {
    char *data;      /* NUL-terminated; NULL = empty */
    size_t size;     /* bytes without the NUL */
    size_t capacity; /* bytes allocated */
} cli_buf;
/* Adds bytes. */
void buf_add(cli_buf *b, const void *data, size_t size);
/* Adds a string. */
void buf_text(cli_buf *b, const char *text);
/* Adds formatted text. */
void buf_printf(cli_buf *b, const char *format, ...) CLI_PRINTF(2, 3);
/* Adds text with every line indented by `columns`. */
void buf_indented(cli_buf *b, int columns, const char *text);
/* Adds text broken at spaces before column 100. Every line, the first included, starts at column `indent`. */
void buf_wrapped(cli_buf *b, int indent, const char *text);
/* Frees the text and empties the buffer. */
void buf_free(cli_buf *b);

/* ---- Options (opts.c, table in opts.def) ------------------------------------------------------------------------- */

typedef enum cli_command_id {
#define CMD(id, name, operands, about) CMD_##id,
#define OPT(id, group, name, value, kind, commands, about)
#include "opts.def"
#undef CMD
#undef OPT
    CMD_COUNT
} cli_command_id;

typedef enum cli_option_id {
#define CMD(id, name, operands, about)
#define OPT(id, group, name, value, kind, commands, about) OPT_##id,
#include "opts.def"
#undef CMD
#undef OPT
    OPT_COUNT
} cli_option_id;

/* FLAG: without a value; ONE: given at most once; MANY: repeatable. */
typedef enum cli_option_kind { CLI_FLAG, CLI_ONE, CLI_MANY } cli_option_kind;

typedef struct cli_command_info {
    const char *name;     /* "explain" */
    const char *operands; /* operands in the usage line, "[NAME]"; "" = none */
    const char *about;    /* description in help, one sentence */
} cli_command_info;
typedef struct cli_option_info {
    const char *group;    /* heading in help, "Program" */
    const char *name;     /* name without the dashes, "param" */
    const char *value;    /* placeholder of the value, "NAME=VALUE"; "" = a flag */
    cli_option_kind kind; /* number of times that the option can be given */
    uint32_t commands;    /* bit i = command i accepts the option */
    const char *about;    /* description in help, one sentence */
} cli_option_info;
extern const cli_command_info cli_commands[CMD_COUNT];
extern const cli_option_info cli_options[OPT_COUNT];

typedef struct cli_given {
    cli_option_id id;
    const char *value; /* NULL = a flag */
} cli_given;

#define CLI_MAX_GIVEN 1024
#define CLI_MAX_OPERANDS 8
#define CLI_MAX_WARNINGS 64

/* ---- The process ------------------------------------------------------------------------------------------------- */

typedef struct cli_owned cli_owned;
typedef struct cli {
    cli_command_id command;
    cli_given given[CLI_MAX_GIVEN]; /* [n_given] options in the order of the command line */
    size_t n_given;
    const char *operands[CLI_MAX_OPERANDS]; /* [n_operands] words that are not options */
    size_t n_operands;
    bool json;                              /* --json */
    fxa_context *ctx;                       /* created after the options have been read; NULL before */
    cli_buf out;                            /* report of the command */
    cli_owned *owned;                       /* list of memory and objects to free */
    const char *warnings[CLI_MAX_WARNINGS]; /* [n_warnings] texts of cli_warn, for --json */
    size_t n_warnings;
    fxa_error error;        /* last failure, for --json */
    const char *error_name; /* file or option of the failure; NULL = none */
} cli;

/* Reads argv into c. Returns CLI_OK, or CLI_BAD_INPUT after a message. */
int cli_parse(cli *c, int argc, char **argv);
/* Returns the value of an option of kind ONE, "" for a given flag; NULL if the option was not given. */
const char *opt_get(const cli *c, cli_option_id id);
/* Returns true if an option was given. */
bool opt_has(const cli *c, cli_option_id id);
/* Returns the next value of a repeatable option; NULL at the end. The caller sets *at to 0 before the first call. */
const char *opt_next(const cli *c, cli_option_id id, size_t *at);

/* Returns the name with the smallest edit distance to `word`; NULL if none is similar. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* ---- Failures (messages.c) --------------------------------------------------------------------------------------- */

/* Prints "fxattn: text" on standard error, records the text for --json, and returns code. */
int cli_fail(cli *c, int code, const char *format, ...) CLI_PRINTF(3, 4);
/* Prints "fxattn: what: text" for a library error, with library flags in `text` replaced by the options that set them.
 * what may be NULL. Returns the exit code of the status. */
int cli_fail_library(cli *c, const fxa_error *err, const char *what);
/* Prints an error in a program text as "name:line:column: error: text" with the source line and a marker. Returns the
 * exit code of the status. */
int cli_fail_place(cli *c, const fxa_error *err, const char *name, const char *source, size_t size);
/* Returns the exit code for a status of the library. */
int cli_exit_code(fxa_status status);
/* Prints "fxattn: warning: text" on standard error and records the text for --json. */
void cli_warn(cli *c, const char *format, ...) CLI_PRINTF(2, 3);

/* ---- Memory (cleanup.c) ------------------------------------------------------------------------------------------ */

/* Returns zeroed memory, aligned to 64 bytes and owned by c. Never returns NULL: if memory runs out, the process
 * ends. */
void *cli_alloc(cli *c, size_t size);
/* Returns zeroed memory for an array, like cli_alloc; a size that overflows counts as out of memory. */
void *cli_alloc_array(cli *c, int64_t count, size_t size);
/* Returns formatted text, owned by c. */
char *cli_format(cli *c, const char *format, ...) CLI_PRINTF(2, 3);
/* Prints that memory is exhausted, removes temporary files and exits with CLI_FAILURE. bytes: size of the request. */
void cli_out_of_memory(double bytes) __attribute__((noreturn));
/* Gives c the caller's reference to the program and returns the program. */
fxa_program *cli_own_program(cli *c, fxa_program *program);
/* Gives c the caller's reference to the plan and returns the plan. */
fxa_plan *cli_own_plan(cli *c, fxa_plan *plan);
/* Frees everything that c owns. */
void cli_release(cli *c);

/* ---- Numbers, elements, random numbers (input/numbers.c) --------------------------------------------------------- */

/* Returns the length of the UTF-8 sequence at s; 0 if it is invalid (overlong sequences and surrogates included). */
size_t utf8_length(const unsigned char *s);
/* Reads a float; returns false if the text is not a float. Overflow gives infinity, underflow 0. */
bool read_double(const char *text, double *out);
/* Returns true if read_double overflowed or underflowed: the value is infinite or 0, but the text is not. */
bool word_is_out_of_range(const char *text, double value);
/* Reads a decimal int of 64 bits; returns false if the text is not an int. */
bool read_int(const char *text, int64_t *out);
/* Reads an unsigned int of 64 bits, decimal, octal (0...) or hexadecimal (0x...); returns false if the text is no such
 * number. */
bool read_uint(const char *text, uint64_t *out);
/* Reads the int value of an option, which must be between lo and hi. *out is unchanged if the option was not given.
 * Returns an exit code. */
int opt_int(cli *c, cli_option_id id, int64_t lo, int64_t hi, int64_t *out);
/* Reads the float value of an option. *out is unchanged if the option was not given. Returns an exit code. */
int opt_double(cli *c, cli_option_id id, double *out);
/* Reads the unsigned int value of an option. *out is unchanged if the option was not given. Returns an exit code. */
int opt_uint(cli *c, cli_option_id id, uint64_t *out);
/* Reads a list such as "4,8" of at most max ints. Returns the number of ints; -1 if the text is not such a list. */
int read_int_list(const char *text, int64_t *out, int max);
/* Returns "" for 1, else "s". */
const char *plural(int64_t n);
/* Writes bytes as hexadecimal text; out has 2n + 1 bytes. */
void hex_text(const uint8_t *bytes, size_t n, char *out);
/* Returns an element of any dtype as double. */
double element_get(fxa_dtype dtype, const void *data, int64_t index);
/* Stores a double as an element: floats are rounded to nearest even, ints truncated. */
void element_set(fxa_dtype dtype, void *data, int64_t index, double value);
/* Returns true for float dtypes, f8 included. */
bool dtype_is_float(fxa_dtype dtype);

typedef struct cli_random {
    uint64_t state; /* seed, later the state of splitmix64 */
} cli_random;
/* Returns 64 random bits. */
uint64_t random_bits(cli_random *r);
/* Returns a random float of lo <= x < hi. */
double random_real(cli_random *r, double lo, double hi);

/* ---- Input files (io/infile.c) ----------------------------------------------------------------------------------- */

/* Reads an entire file of at most max_size bytes, NUL-terminated, owned by c. what: kind of file for messages, "a
 * plan". Returns an exit code. */
int cli_read_file(cli *c, const char *path, const char *what, size_t max_size, char **data, size_t *size);

/* ---- Output files (io/outfile.c) --------------------------------------------------------------------------------- */

/* Opens a temporary file beside `path`; cli_outputs_commit renames the file to `path`. Returns a handle >= 0; -1 after
 * a message. */
int cli_output_open(cli *c, const char *path);
/* Records an input file: a later cli_output_open of this file fails. */
void cli_input_note(cli *c, const char *path, int fd);
/* Appends bytes to an open output. Returns an exit code. */
int cli_output_write(cli *c, int handle, const void *data, size_t size);
/* Renames all temporary files to the paths of their outputs. Returns an exit code. */
int cli_outputs_commit(cli *c);
/* Removes the outputs that were not committed. Safe in a signal handler. */
void cli_outputs_abandon(void);
/* Calls cli_outputs_abandon on SIGINT, SIGTERM and SIGHUP. */
void cli_outputs_guard(void);

/* ---- Progress (progress.c) --------------------------------------------------------------------------------------- */

/* Starts a progress line on standard error: elapsed time and, if total > 0, the share that is done. The line appears
 * after one second, only on a terminal and not with --json. Calls cannot be nested. */
void progress_begin(const cli *c, const char *what, uint64_t total);
/* Sets how many of `total` steps are done. */
void progress_step(uint64_t done);
/* Returns a progress function for a run that counts as one step; NULL if no progress line is shown. */
fxa_progress_fn progress_hook(void);
/* Ends the progress that progress_begin started, and removes the line. */
void progress_end(void);
/* Removes the progress line from the terminal. Safe in a signal handler. */
void progress_wipe(void);
/* Returns the seconds of a monotonic clock. */
double cli_seconds(void);

/* ---- Commands ---------------------------------------------------------------------------------------------------- */

int cmd_explain(cli *c);
int cmd_run(cli *c);
int cmd_check(cli *c);
int cmd_plot(cli *c);
int cmd_bench(cli *c);
int cmd_random(cli *c);
int cmd_plan(cli *c);
int cmd_gallery(cli *c);
int cmd_engines(cli *c);
int cmd_device(cli *c);
int cmd_version(cli *c);
int cmd_completion(cli *c);
int cmd_help(cli *c);

#endif
