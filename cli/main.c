/* SPDX-License-Identifier: Apache-2.0
 *
 * The command fxattn: reads the command line, runs one command, prints its report, and returns the exit code.
 */
#include "help/help.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static int main_dispatch(cli *c) {
    switch (c->command) {
    case CMD_EXPLAIN: return cmd_explain(c);
    case CMD_RUN: return cmd_run(c);
    case CMD_CHECK: return cmd_check(c);
    case CMD_PLOT: return cmd_plot(c);
    case CMD_BENCH: return cmd_bench(c);
    case CMD_RANDOM: return cmd_random(c);
    case CMD_PLAN: return cmd_plan(c);
    case CMD_GALLERY: return cmd_gallery(c);
    case CMD_ENGINES: return cmd_engines(c);
    case CMD_DEVICE: return cmd_device(c);
    case CMD_VERSION: return cmd_version(c);
    case CMD_COMPLETION: return cmd_completion(c);
    default: return cmd_help(c);
    }
}

static int main_run(cli *c, int argc, char **argv) {
    fxa_error err;
    if (argc < 2) {
        help_welcome(c);
        return CLI_OK;
    }
    int rc = cli_parse(c, argc, argv);
    if (rc != CLI_OK) return rc;
    if (opt_has(c, OPT_HELP)) {
        help_command(c, c->command);
        return CLI_OK;
    }
    int64_t threads = 0;
    rc = opt_int(c, OPT_THREADS, 1, FXA_MAX_THREADS, &threads);
    if (rc != CLI_OK) return rc;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = (uint32_t)threads;
    if (fxa_context_create(&config, &c->ctx, &err) != FXA_OK) return cli_fail_library(c, &err, NULL);
    return main_dispatch(c);
}

/* Replaces the report by an error object for --json, so that standard output is always one object. */
static void main_report_failure(cli *c, int rc) {
    c->out.size = 0;
    if (!c->json) return;
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_open(&j, "error", '{');
    json_int(&j, "exit_code", rc);
    json_string(&j, "status", fxa_status_name(c->error.status));
    json_string(&j, "text", c->error.text);
    if (c->error_name) json_string(&j, "name", c->error_name);
    if (c->error.line > 0) {
        json_int(&j, "line", c->error.line);
        json_int(&j, "column", c->error.column);
        json_int(&j, "length", c->error.length);
    }
    json_close(&j, '}');
    json_close(&j, '}');
}

int main(int argc, char **argv) {
    static cli c; /* static because it is too large for the stack; all zeroes */
    signal(SIGPIPE, SIG_IGN);
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit then fails, as with a full disk */
#endif
    cli_outputs_guard();
    int rc = main_run(&c, argc, argv);
    progress_end();
    if (rc == CLI_OK || rc == CLI_CHECK_FAILED) {
        int committed = cli_outputs_commit(&c);
        if (committed != CLI_OK) rc = committed;
    }
    cli_outputs_abandon();
    if (rc > CLI_CHECK_FAILED) main_report_failure(&c, rc);
    if (c.out.size && fwrite(c.out.data, 1, c.out.size, stdout) != c.out.size) rc = CLI_FAILURE;
    if (fflush(stdout) != 0) rc = CLI_FAILURE;
    if (rc == CLI_FAILURE && ferror(stdout) && errno != EPIPE) /* a pipe closed by the reader is no error */
        fprintf(stderr, "fxattn: standard output: %s\n", strerror(errno));
    cli_release(&c);
    return rc;
}
