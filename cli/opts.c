/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the command line by the table opts.def: the command, then options in any order as `--name value` or
 * `--name=value`, then `--` before operands that start with a dash. A misspelt word is reported with the nearest
 * correct word.
 */
#include "cli.h"

#include <stdio.h>
#include <string.h>

const cli_command_info cli_commands[CMD_COUNT] = {
#define CMD(id, name, operands, about) {name, operands, about},
#define OPT(id, group, name, value, kind, commands, about)
#include "opts.def"
#undef CMD
#undef OPT
};

const cli_option_info cli_options[OPT_COUNT] = {
#define CMD(id, name, operands, about)
#define OPT(id, group, name, value, kind, commands, about) {group, name, value, CLI_##kind, commands, about},
#include "opts.def"
#undef CMD
#undef OPT
};

/* Returns the edit distance of two words (insertions, deletions, replacements, swaps of neighbours); 99 for words above
 * 31 bytes. */
static size_t opts_distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b), row[3][33];
    if (n > 31 || m > 31) return 99;
    for (size_t j = 0; j <= m; j++) row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

const char *cli_nearest(const char *word, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t d = opts_distance(word, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

static int opts_find_command(cli *c, const char *word) {
    const char *names[CMD_COUNT];
    for (int i = 0; i < CMD_COUNT; i++) {
        names[i] = cli_commands[i].name;
        if (strcmp(word, names[i]) == 0) {
            c->command = (cli_command_id)i;
            return CLI_OK;
        }
    }
    const char *near = cli_nearest(word, names, CMD_COUNT);
    if (near) return cli_fail(c, CLI_BAD_INPUT, "there is no command '%.64s'; did you mean '%s'?", word, near);
    return cli_fail(c, CLI_BAD_INPUT, "there is no command '%.64s'; try 'fxattn help'", word);
}

static int opts_unknown(cli *c, const char *name, size_t size) {
    const char *names[OPT_COUNT], *command = cli_commands[c->command].name;
    char word[64];
    size_t n = 0;
    snprintf(word, sizeof word, "%.*s", (int)(size < sizeof word ? size : sizeof word - 1), name);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (cli_options[i].commands & (1u << c->command))
            names[n++] = cli_options[i].name;
        else if (strcmp(word, cli_options[i].name) == 0)
            return cli_fail(c, CLI_BAD_INPUT, "'%s' has no option --%s; see 'fxattn help %s'", command, word, command);
    }
    const char *near = cli_nearest(word, names, n);
    if (near) return cli_fail(c, CLI_BAD_INPUT, "there is no option --%s; did you mean --%s?", word, near);
    return cli_fail(c, CLI_BAD_INPUT, "there is no option --%s; see 'fxattn help %s'", word, command);
}

/* Reads the option at argv[*at]. If the option takes the next word as its value, increments *at. */
static int opts_read_one(cli *c, int argc, char **argv, int *at) {
    const char *name = argv[*at] + 2, *value = strchr(name, '=');
    size_t size = value ? (size_t)(value - name) : strlen(name);
    int id = 0;
    while (id < OPT_COUNT && !(strlen(cli_options[id].name) == size && memcmp(cli_options[id].name, name, size) == 0 &&
                               (cli_options[id].commands & (1u << c->command))))
        id++;
    if (id == OPT_COUNT) return opts_unknown(c, name, size);
    const cli_option_info *o = &cli_options[id];
    if (o->kind == CLI_FLAG && value) return cli_fail(c, CLI_BAD_INPUT, "--%s takes no value", o->name);
    if (o->kind != CLI_FLAG && value)
        value++;
    else if (o->kind != CLI_FLAG) {
        if (*at + 1 >= argc)
            return cli_fail(c, CLI_BAD_INPUT, "--%s needs a value: --%s %s", o->name, o->name, o->value);
        value = argv[++*at];
    }
    const char *file = strstr(o->value, "FILE");
    if (file && (!*value || (file > o->value && value[strlen(value) - 1] == '=')))
        return cli_fail(c, CLI_BAD_INPUT, "--%s '%.64s': the name of a file is missing", o->name, value);
    if (o->kind == CLI_ONE && opt_has(c, (cli_option_id)id))
        return cli_fail(c, CLI_BAD_INPUT, "--%s is given twice", o->name);
    c->given[c->n_given++] = (cli_given){(cli_option_id)id, value ? value : ""};
    return CLI_OK;
}

int cli_parse(cli *c, int argc, char **argv) {
    bool options = true;
    c->command = CMD_HELP;
    for (int i = 1; i < argc; i++) /* --json is searched first, so that all mistakes are reported as JSON */
        if (strcmp(argv[i], "--json") == 0) c->json = true;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return CLI_OK;
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        c->command = CMD_VERSION;
    else if (argv[1][0] == '-')
        return cli_fail(c, CLI_BAD_INPUT,
                        "the command comes before its options: fxattn COMMAND %.64s; see 'fxattn help'", argv[1]);
    else if (opts_find_command(c, argv[1]) != CLI_OK)
        return CLI_BAD_INPUT;
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i];
        int rc = CLI_OK;
        if (options && strcmp(word, "--") == 0)
            options = false;
        else if (options && strcmp(word, "-h") == 0)
            c->given[c->n_given++] = (cli_given){OPT_HELP, ""};
        else if (options && word[0] == '-' && word[1] == '-')
            rc = opts_read_one(c, argc, argv, &i);
        else if (options && word[0] == '-' && word[1])
            rc = cli_fail(c, CLI_BAD_INPUT, "there is no option %.64s; options begin with two dashes", word);
        else if (!*word || c->n_operands == CLI_MAX_OPERANDS || !cli_commands[c->command].operands[0])
            rc = cli_fail(c, CLI_BAD_INPUT, "'%s' does not take '%.64s'", cli_commands[c->command].name, word);
        else
            c->operands[c->n_operands++] = word;
        if (rc != CLI_OK) return rc;
        if (c->n_given == CLI_MAX_GIVEN) return cli_fail(c, CLI_BAD_INPUT, "too many options (%d)", CLI_MAX_GIVEN);
    }
    c->json = opt_has(c, OPT_JSON);
    return CLI_OK;
}

const char *opt_get(const cli *c, cli_option_id id) {
    for (size_t i = 0; i < c->n_given; i++)
        if (c->given[i].id == id) return c->given[i].value;
    return NULL;
}

bool opt_has(const cli *c, cli_option_id id) { return opt_get(c, id) != NULL; }

const char *opt_next(const cli *c, cli_option_id id, size_t *at) {
    while (*at < c->n_given) {
        const cli_given *g = &c->given[(*at)++];
        if (g->id == id) return g->value;
    }
    return NULL;
}
