/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the command line share: one `cli` per process, exit codes, errors, memory, output.
 *
 * A command writes its report into cli.out (text, or JSON with --json), main prints it when the command is over:
 * standard output is all or nothing. Memory and library objects are owned by the cli and freed together at the end, so
 * commands need no cleanup of their own. Functions that can fail return an exit code, CLI_OK on success, after saying
 * why.
 */
#ifndef FXA_CLI_CLI_H
#define FXA_CLI_CLI_H

#include "fxattn/fxattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

enum { CLI_OK = 0, CLI_CHECK_FAILED = 1, CLI_BAD_INPUT = 2, CLI_UNSUPPORTED = 3, CLI_FAILURE = 4 };

/* ---- Growing text (buf.c) -------------------------------------------------------------------------------------- */

typedef struct cli_buf {
    char *data; /* terminated once anything was added */
    size_t size, capacity;
} cli_buf;
void buf_add(cli_buf *b, const void *data, size_t size);
void buf_text(cli_buf *b, const char *text);
void buf_printf(cli_buf *b, const char *format, ...) CLI_PRINTF(2, 3);
/* Adds text with every line indented. */
void buf_indented(cli_buf *b, int columns, const char *text);
/* Adds text broken at spaces so that lines end before column 100; it begins at column `indent`, as later lines do. */
void buf_wrapped(cli_buf *b, int indent, const char *text);
void buf_free(cli_buf *b);

/* ---- Options (opts.c, table in opts.def) ----------------------------------------------------------------------- */

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

typedef enum cli_option_kind { CLI_FLAG, CLI_ONE, CLI_MANY } cli_option_kind;

typedef struct cli_command_info {
    const char *name, *operands, *about;
} cli_command_info;
typedef struct cli_option_info {
    const char *group, *name, *value; /* value: its placeholder; "" for a flag */
    cli_option_kind kind;
    uint32_t commands; /* bit i: command i takes it */
    const char *about;
} cli_option_info;
extern const cli_command_info cli_commands[CMD_COUNT];
extern const cli_option_info cli_options[OPT_COUNT];

typedef struct cli_given {
    cli_option_id id;
    const char *value; /* NULL for a flag */
} cli_given;

#define CLI_MAX_GIVEN 1024
#define CLI_MAX_OPERANDS 8
#define CLI_MAX_WARNINGS 64

/* ---- The process ----------------------------------------------------------------------------------------------- */

typedef struct cli_owned cli_owned;
typedef struct cli {
    cli_command_id command;
    cli_given given[CLI_MAX_GIVEN]; /* in the order of the command line */
    size_t n_given;
    const char *operands[CLI_MAX_OPERANDS];
    size_t n_operands;
    bool json;
    fxa_context *ctx;
    cli_buf out;
    cli_owned *owned;
    const char *warnings[CLI_MAX_WARNINGS]; /* for --json */
    size_t n_warnings;
    fxa_error error;        /* the last failure, for --json */
    const char *error_name; /* file or option it belongs to */
} cli;

/* Reads argv into c: CLI_OK, or CLI_BAD_INPUT after a message. */
int cli_parse(cli *c, int argc, char **argv);
/* The value of an option given at most once, or NULL; a flag's is "". */
const char *opt_get(const cli *c, cli_option_id id);
bool opt_has(const cli *c, cli_option_id id);
/* The next value of a repeatable option: start with *at = 0; NULL at the end. */
const char *opt_next(const cli *c, cli_option_id id, size_t *at);

/* The nearest of n names (by the number of edits), or NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* ---- Failures (report.c) --------------------------------------------------------------------------------------- */

/* Says "fxattn: text" on standard error and returns code. */
int cli_fail(cli *c, int code, const char *format, ...) CLI_PRINTF(3, 4);
/* The same for a failure of the library; `what` (may be NULL) comes first: "what: text". */
int cli_fail_library(cli *c, const fxa_error *err, const char *what);
/* The same with the place in a text: name:line:column, the line, a caret. */
int cli_fail_place(cli *c, const fxa_error *err, const char *name, const char *source, size_t size);
int cli_exit_code(fxa_status status);
/* Says "fxattn: warning: text" on standard error. */
void cli_warn(cli *c, const char *format, ...) CLI_PRINTF(2, 3);

/* ---- Memory (own.c): never NULL; when memory is out the process ends with CLI_FAILURE and no temporary files --- */

void *cli_alloc(cli *c, size_t size); /* zeroed, aligned to 64 bytes */
void *cli_alloc_array(cli *c, int64_t count, size_t size);
char *cli_format(cli *c, const char *format, ...) CLI_PRINTF(2, 3);
void cli_out_of_memory(double bytes) __attribute__((noreturn)); /* bytes: asked for, where that is much */
fxa_program *cli_own_program(cli *c, fxa_program *program);
fxa_plan *cli_own_plan(cli *c, fxa_plan *plan);
void cli_release(cli *c); /* everything */

/* ---- Numbers and names (words.c) ------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at s (shortest form, no surrogates), or 0. */
size_t utf8_length(const unsigned char *s);
/* *out is infinite for a number beyond the range of f64, and for "inf"; 0 for one too small for it, and for "0". */
bool read_double(const char *text, double *out);
/* Whether the word that gave the value says another number than that. */
bool word_is_out_of_range(const char *text, double value);
bool read_int(const char *text, int64_t *out);
bool read_uint(const char *text, uint64_t *out);
/* An option that holds one number, in a range; keeps *out when it is not given. */
int opt_int(cli *c, cli_option_id id, int64_t lo, int64_t hi, int64_t *out);
int opt_double(cli *c, cli_option_id id, double *out);
int opt_uint(cli *c, cli_option_id id, uint64_t *out);
/* "4,8" into at most max numbers; the count, or -1 when it is not such a list. */
int read_int_list(const char *text, int64_t *out, int max);
const char *plural(int64_t n);                            /* "s", or "" of one */
void hex_text(const uint8_t *bytes, size_t n, char *out); /* out: 2n + 1 */
/* Elements of any dtype as doubles, and back (rounded to nearest even; ints truncated). */
double element_get(fxa_dtype dtype, const void *data, int64_t index);
void element_set(fxa_dtype dtype, void *data, int64_t index, double value);
bool dtype_is_float(fxa_dtype dtype);

typedef struct cli_random {
    uint64_t state;
} cli_random;
uint64_t random_bits(cli_random *r);
double random_real(cli_random *r, double lo, double hi);

/* ---- Input files (infile.c) ------------------------------------------------------------------------------------ */

/* All of a file of at most so many bytes ("a plan"), with a terminator behind it; owned by c. */
int cli_read_file(cli *c, const char *path, const char *what, size_t most, char **data, size_t *size);

/* ---- Output files (outfile.c) ---------------------------------------------------------------------------------- */

/* Opens a temporary file beside `path`; nothing appears at `path` before cli_outputs_commit. Returns a handle >= 0, or
 * -1 after a message. */
int cli_output_open(cli *c, const char *path);
/* A file that is read is not one to write: opening it as an output is an error from here on. */
void cli_input_note(cli *c, const char *path, int fd);
int cli_output_write(cli *c, int handle, const void *data, size_t size);
int cli_outputs_commit(cli *c); /* all of them, or a failure */
void cli_outputs_abandon(void); /* removes what was not committed; safe in a signal handler */
void cli_outputs_guard(void);   /* abandons also on SIGINT, SIGTERM, SIGHUP */

/* ---- Progress (progress.c) ------------------------------------------------------------------------------------- */

/* Between begin and end a line on standard error tells how long it has taken (and how far it is, when total > 0): after
 * the first second, only when standard error is a terminal, and not with --json. They do not nest. */
void progress_begin(const cli *c, const char *what, uint64_t total);
void progress_step(uint64_t done);
fxa_progress_fn progress_hook(void); /* for a run that is one step of it: the share that is done counts; or NULL */
void progress_end(void);
void progress_wipe(void); /* takes the line away; safe in a signal handler */
double cli_seconds(void); /* a clock that only goes forward */

/* ---- Commands -------------------------------------------------------------------------------------------------- */

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
