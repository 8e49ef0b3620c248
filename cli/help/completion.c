/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion scripts for bash, zsh and fish, generated from opts.def. The value of an option is completed by its
 * placeholder: words between '|', file names if it contains FILE, engine names for --engine, gallery names for
 * --program.
 */
#include "input/gallery.h"
#include "io/json.h"

#include <string.h>

static const char *const completion_shells[] = {"bash", "zsh", "fish"};

static bool completion_has(int option, int command) { return cli_options[option].commands & (1u << command); }

/* Adds the words of "a|b|c", separated by blanks; nothing if there is no '|'. */
static void completion_words(cli_buf *out, const char *choices) {
    if (!strchr(choices, '|')) return;
    for (const char *s = choices; *s && *s != ' '; s++) buf_add(out, *s == '|' ? " " : s, 1);
}

static void completion_command_names(cli_buf *out) {
    for (int i = 0; i < CMD_COUNT; i++) buf_printf(out, "%s%s", i ? " " : "", cli_commands[i].name);
}

/* Adds the operands of the command help: commands and language. */
static void completion_topics(cli_buf *out) {
    completion_command_names(out);
    buf_text(out, " language");
}

static void completion_gallery(cli_buf *out, const char *before) {
    for (size_t i = 0; i < gallery_count; i++)
        buf_printf(out, "%s%s%s", i ? " " : "", before, gallery_programs[i].name);
}

/* Adds the script for bash. bash splits words at = and @, so the script joins the pieces again; completions of gallery
 * names include the @. */
static void completion_bash(cli_buf *out) {
    buf_text(out, "# bash completion for fxattn\n_fxattn() {\n"
                  "    local word=${COMP_WORDS[COMP_CWORD]#=} last=${COMP_WORDS[COMP_CWORD-1]} words= files=\n"
                  "    COMPREPLY=()\n    case $last in\n"
                  "    @|=@) word=@$word last=--program; compopt +o filenames 2>/dev/null ;;\n"
                  "    =) case ${COMP_WORDS[COMP_CWORD-2]} in --*) last=${COMP_WORDS[COMP_CWORD-2]} ;; esac ;;\n"
                  "    esac\n"
                  "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    completion_command_names(out);
    buf_text(out, "\"\n    else\n        case $last in\n        =) files=1 ;;\n");
    for (int i = 0; i < OPT_COUNT; i++) {
        const cli_option_info *o = &cli_options[i];
        if (o->kind == CLI_FLAG) continue;
        buf_printf(out, "        --%s) ", o->name);
        if (i == OPT_ENGINE)
            buf_text(out, "words=$(fxattn engines 2>/dev/null | cut -d \" \" -f 1) ;;\n");
        else if (i == OPT_PROGRAM) {
            buf_text(out, "files=1 words=\"");
            completion_gallery(out, "@");
            buf_text(out, "\" ;;\n");
        } else if (strstr(o->value, "FILE"))
            buf_text(out, "files=1 ;;\n");
        else {
            buf_text(out, "words=\"");
            completion_words(out, o->value);
            buf_text(out, "\" ;;\n");
        }
    }
    buf_text(out, "        *) case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < CMD_COUNT; i++) {
        buf_printf(out, "            %s) words=\"", cli_commands[i].name);
        if (i == CMD_HELP)
            completion_topics(out);
        else if (i == CMD_GALLERY)
            completion_gallery(out, "");
        else
            completion_words(out, cli_commands[i].operands);
        for (int k = 0; k < OPT_COUNT; k++)
            if (completion_has(k, i)) buf_printf(out, " --%s", cli_options[k].name);
        buf_printf(out, "\"%s ;;\n", strstr(cli_commands[i].operands, "FILE") ? " files=1" : "");
    }
    buf_text(out, "            esac ;;\n        esac\n    fi\n"
                  "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
                  "    [ -z \"$files\" ] || COMPREPLY+=($(compgen -f -- \"${word#*=}\"))\n}\n"
                  "complete -o filenames -F _fxattn fxattn\n");
}

/* Adds text that stands in single quotes, and escapes the characters that zsh and fish interpret there. */
static void completion_quoted(cli_buf *out, const char *text, const char *escape) {
    for (; *text; text++) {
        if (*text == '\'')
            buf_text(out, "'\\''");
        else if (strchr(escape, *text))
            buf_printf(out, "\\%c", *text);
        else
            buf_add(out, text, 1);
    }
}

static void completion_zsh_option(cli_buf *out, int id) {
    const cli_option_info *o = &cli_options[id];
    buf_printf(out, "        '%s--%s%s[", o->kind == CLI_MANY ? "*" : "", o->name, o->kind == CLI_FLAG ? "" : "=");
    completion_quoted(out, o->about, "[]:");
    buf_text(out, "]");
    if (o->kind != CLI_FLAG) {
        buf_text(out, ":");
        completion_quoted(out, o->value, "[]:");
        buf_text(out, ":");
        if (id == OPT_ENGINE)
            buf_text(out, "($(fxattn engines 2>/dev/null | cut -d \" \" -f 1))");
        else if (id == OPT_PROGRAM) {
            buf_text(out, "{_files; compadd -- ");
            completion_gallery(out, "@");
            buf_text(out, "}");
        } else if (strstr(o->value, "=FILE"))
            buf_text(out, "{compset -P \"*=\"; _files}");
        else if (strstr(o->value, "FILE"))
            buf_text(out, "_files");
        else if (strchr(o->value, '|')) {
            buf_text(out, "(");
            completion_words(out, o->value);
            buf_text(out, ")");
        }
    }
    buf_text(out, "'\n");
}

static void completion_zsh(cli_buf *out) {
    buf_text(out, "#compdef fxattn\n_fxattn() {\n    local -a commands options\n    commands=(\n");
    for (int i = 0; i < CMD_COUNT; i++) {
        buf_printf(out, "        '%s:", cli_commands[i].name);
        completion_quoted(out, cli_commands[i].about, ":");
        buf_text(out, "'\n");
    }
    buf_text(out, "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
                  "    case $words[2] in\n");
    for (int i = 0; i < CMD_COUNT; i++) {
        buf_printf(out, "    %s) options=(\n", cli_commands[i].name);
        for (int k = 0; k < OPT_COUNT; k++)
            if (completion_has(k, i)) completion_zsh_option(out, k);
        if (i == CMD_PLAN) {
            buf_text(out, "        '2:action:(");
            completion_words(out, cli_commands[i].operands);
            buf_text(out, ")'\n        '3:file:_files'\n");
        }
        if (i == CMD_COMPLETION) buf_text(out, "        '2:shell:(bash zsh fish)'\n");
        if (i == CMD_HELP || i == CMD_GALLERY) {
            buf_text(out, i == CMD_HELP ? "        '2:command:(" : "        '2:program:(");
            if (i == CMD_HELP)
                completion_topics(out);
            else
                completion_gallery(out, "");
            buf_text(out, ")'\n");
        }
        buf_text(out, "    ) ;;\n");
    }
    buf_text(out, "    esac\n    _arguments '1:command:' $options\n}\n"
                  "if [ \"$funcstack[1]\" = _fxattn ]; then _fxattn \"$@\"; else compdef _fxattn fxattn; fi\n");
}

static void completion_fish_option(cli_buf *out, int id) {
    const cli_option_info *o = &cli_options[id];
    buf_text(out, "complete -c fxattn -n '__fish_seen_subcommand_from");
    for (int i = 0; i < CMD_COUNT; i++)
        if (completion_has(id, i)) buf_printf(out, " %s", cli_commands[i].name);
    buf_printf(out, "' -l %s", o->name);
    if (o->kind != CLI_FLAG) buf_text(out, strstr(o->value, "FILE") ? " -r -F" : " -x");
    if (id == OPT_ENGINE)
        buf_text(out, " -a '(fxattn engines 2>/dev/null | cut -d \" \" -f 1)'");
    else if (id == OPT_PROGRAM) {
        buf_text(out, " -a '");
        completion_gallery(out, "@");
        buf_text(out, "'");
    } else if (strchr(o->value, '|')) {
        buf_text(out, " -a '");
        completion_words(out, o->value);
        buf_text(out, "'");
    }
    buf_text(out, " -d '");
    for (const char *s = o->about; *s; s++) {
        if (*s == '\'' || *s == '\\') buf_text(out, "\\");
        buf_add(out, s, 1);
    }
    buf_text(out, "'\n");
}

static void completion_fish(cli_buf *out) {
    buf_text(out, "# fish completion for fxattn\ncomplete -c fxattn -f\n");
    for (int i = 0; i < CMD_COUNT; i++) {
        buf_printf(out, "complete -c fxattn -n __fish_use_subcommand -a %s -d '", cli_commands[i].name);
        for (const char *s = cli_commands[i].about; *s; s++) {
            if (*s == '\'' || *s == '\\') buf_text(out, "\\");
            buf_add(out, s, 1);
        }
        buf_text(out, "'\n");
    }
    buf_text(out, "complete -c fxattn -n '__fish_seen_subcommand_from plan' -F -a '");
    completion_words(out, cli_commands[CMD_PLAN].operands);
    buf_text(out, "'\ncomplete -c fxattn -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n"
                  "complete -c fxattn -n '__fish_seen_subcommand_from help' -a '");
    completion_topics(out);
    buf_text(out, "'\ncomplete -c fxattn -n '__fish_seen_subcommand_from gallery' -a '");
    completion_gallery(out, "");
    buf_text(out, "'\n");
    for (int k = 0; k < OPT_COUNT; k++) completion_fish_option(out, k);
}

int cmd_completion(cli *c) {
    const char *shell = c->n_operands == 1 ? c->operands[0] : "";
    cli_buf script = {0};
    if (strcmp(shell, "bash") == 0)
        completion_bash(&script);
    else if (strcmp(shell, "zsh") == 0)
        completion_zsh(&script);
    else if (strcmp(shell, "fish") == 0)
        completion_fish(&script);
    else {
        const char *near = cli_nearest(shell, completion_shells, 3);
        return cli_fail(c, CLI_BAD_INPUT, "'completion' takes the name of a shell: bash, zsh or fish%s%s%s",
                        near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    if (c->json) {
        json j = json_begin(&c->out);
        json_open(&j, NULL, '{');
        json_string(&j, "shell", shell);
        json_string(&j, "script", script.data);
        json_close(&j, '}');
    } else
        buf_add(&c->out, script.data, script.size);
    buf_free(&script);
    return CLI_OK;
}
