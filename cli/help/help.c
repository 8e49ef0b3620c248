/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints --help and `help COMMAND`, generated from opts.def.
 */
#include "help/help.h"

#include <string.h>

void help_welcome(cli *c) {
    buf_text(&c->out, "fxattn: fused attention with your own score function inside. Try:\n\n"
                      "  fxattn plot --program @softcap_causal_window --shape s=256\n"
                      "  fxattn explain --score '20 * tanh(score / 20)' --causal --shape b=2,h=8,s=4096,d=64\n"
                      "  fxattn check --program @alibi_symmetric\n\n"
                      "'fxattn help' lists the commands, 'fxattn help language' the language of programs,\n"
                      "'fxattn gallery' programs to start from.\n");
}

static void help_overview(cli *c) {
    cli_buf *out = &c->out;
    buf_text(out, "fxattn: fused attention with your own score function inside\n\nusage: fxattn COMMAND [OPTIONS]\n\n");
    for (int i = 0; i < CMD_COUNT; i++) {
        buf_printf(out, "  %-12s", cli_commands[i].name);
        buf_wrapped(out, 14, cli_commands[i].about);
    }
    buf_text(out,
             "\n'fxattn help COMMAND' lists the options of a command, 'fxattn help language' describes the language\n"
             "of programs. For example:\n\n"
             "  fxattn explain --score '20 * tanh(score / 20)' --causal --shape b=2,h=8,s=4096,d=64\n"
             "  fxattn run --q q.npy --k k.npy --v v.npy --mask 'k <= q' --out o.npy\n\n"
             "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 unsupported, 4 other failures.\n");
}

enum { HELP_COLUMNS = 98 }; /* maximum width of an option with its value; longer lists continue on the next line */

static void help_option(cli *c, const cli_option_info *o) {
    const char *left = cli_format(c, "  --%s%s%s", o->name, *o->value ? " " : "", o->value);
    while (strlen(left) > HELP_COLUMNS) {
        int n = HELP_COLUMNS;
        while (n > 0 && left[n - 1] != '|') n--;
        if (n == 0) break;
        buf_printf(&c->out, "%.*s\n", n, left);
        left = cli_format(c, "    %s", left + n);
    }
    buf_printf(&c->out, "%-28s", left);
    if (strlen(left) > 27) buf_printf(&c->out, "\n%28s", "");
    buf_wrapped(&c->out, 28, o->about);
}

static void help_command_text(cli *c, cli_command_id id) {
    const cli_command_info *command = &cli_commands[id];
    cli_buf *out = &c->out;
    const char *group = "";
    buf_wrapped(out, 0, cli_format(c, "fxattn %s: %s", command->name, command->about));
    buf_printf(out, "\nusage: fxattn %s%s%s [OPTIONS]\n", command->name, *command->operands ? " " : "",
               command->operands);
    for (int i = 0; i < OPT_COUNT; i++) {
        const cli_option_info *o = &cli_options[i];
        if (!(o->commands & (1u << id))) continue;
        if (strcmp(group, o->group) != 0) buf_printf(out, "\n%s\n", group = o->group);
        help_option(c, o);
    }
}

static void help_json(cli *c, int only) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_open(&j, "commands", '[');
    for (int i = 0; i < CMD_COUNT; i++) {
        if (only >= 0 && i != only) continue;
        json_open(&j, NULL, '{');
        json_string(&j, "name", cli_commands[i].name);
        json_string(&j, "operands", cli_commands[i].operands);
        json_string(&j, "about", cli_commands[i].about);
        json_open(&j, "options", '[');
        for (int k = 0; k < OPT_COUNT; k++) {
            if (!(cli_options[k].commands & (1u << i))) continue;
            json_open(&j, NULL, '{');
            json_string(&j, "group", cli_options[k].group);
            json_string(&j, "name", cli_options[k].name);
            json_string(&j, "value", cli_options[k].value);
            json_bool(&j, "repeats", cli_options[k].kind == CLI_MANY);
            json_string(&j, "about", cli_options[k].about);
            json_close(&j, '}');
        }
        json_close(&j, ']');
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

void help_command(cli *c, cli_command_id id) {
    if (c->json)
        help_json(c, (int)id);
    else
        help_command_text(c, id);
}

int cmd_help(cli *c) {
    const char *names[CMD_COUNT + 1] = {NULL}, *word = c->n_operands ? c->operands[0] : NULL;
    int id = -1;
    for (int i = 0; i < CMD_COUNT; i++) {
        names[i] = cli_commands[i].name;
        if (word && strcmp(word, names[i]) == 0) id = i;
    }
    names[CMD_COUNT] = "language";
    if (c->n_operands > 1) return cli_fail(c, CLI_BAD_INPUT, "'help' takes one command, not %zu", c->n_operands);
    bool language = word && strcmp(word, "language") == 0;
    if (word && id < 0 && !language) {
        const char *near = cli_nearest(word, names, CMD_COUNT + 1);
        return cli_fail(c, CLI_BAD_INPUT, "there is no command '%.64s'%s%s%s", word,
                        near ? "; did you mean '" : "; try 'fxattn help'", near ? near : "", near ? "'?" : "");
    }
    if (language && c->json)
        help_language_json(c);
    else if (language)
        help_language(c);
    else if (id >= 0)
        help_command(c, (cli_command_id)id);
    else if (c->json)
        help_json(c, -1);
    else
        help_overview(c);
    return CLI_OK;
}
