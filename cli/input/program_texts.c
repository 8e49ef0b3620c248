/* SPDX-License-Identifier: Apache-2.0
 *
 * Collects program texts from files, the gallery, standard input and options.
 */
#include "input/gallery.h"
#include "input/job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXTS_MAX_FILE (64u << 20) /* bytes of a file; far above FXA_MAX_TEXT, an excess that the library reports */

static int texts_read_stream(cli *c, FILE *f, const char *name, cli_text *out) {
    cli_buf b = {0};
    char chunk[16384];
    size_t n;
    while (b.size <= TEXTS_MAX_FILE && (n = fread(chunk, 1, sizeof chunk, f)) > 0) buf_add(&b, chunk, n);
    bool failed = ferror(f), large = b.size > TEXTS_MAX_FILE;
    char *text = cli_alloc(c, b.size + 1);
    if (b.size) memcpy(text, b.data, b.size);
    *out = (cli_text){name, text, b.size, FXA_TEXT_STATEMENTS};
    buf_free(&b);
    if (failed) return cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s", name, strerror(errno));
    if (large)
        return cli_fail(c, CLI_BAD_INPUT, "%.300s is larger than a program may be (%u bytes)", name, FXA_MAX_TEXT);
    return CLI_OK;
}

static int texts_get_gallery(cli *c, const char *path, bool score, cli_text *out) {
    const gallery_program *p = gallery_find(path + 1);
    if (!score) return cli_fail(c, CLI_BAD_INPUT, "%.100s: the gallery has score programs only, for --program", path);
    if (!path[1])
        return cli_fail(c, CLI_BAD_INPUT,
                        "@ stands before a name of the gallery, as in --program @%s; 'fxattn "
                        "gallery' lists them",
                        gallery_programs[0].name);
    if (!p) return gallery_fail(c, path + 1);
    *out = (cli_text){path, p->text, strlen(p->text), FXA_TEXT_STATEMENTS};
    return CLI_OK;
}

static int texts_read_file(cli *c, const char *path, cli_text *out) {
    if (strcmp(path, "-") == 0) return texts_read_stream(c, stdin, "<stdin>", out);
    FILE *f = fopen(path, "rb");
    if (f) cli_input_note(c, path, fileno(f));
    if (!f)
        return cli_fail(c, CLI_BAD_INPUT, "%.300s cannot be read: %s%s%s", path, strerror(errno),
                        gallery_find(path) ? "; the gallery's program of that name is @" : "",
                        gallery_find(path) ? path : "");
    int rc = texts_read_stream(c, f, path, out);
    fclose(f);
    return rc;
}

static cli_text texts_expression(const char *name, const char *text, fxa_text_kind kind) {
    return (cli_text){name, text, strlen(text), kind};
}

/* Adds the built-in masks of a decoding step as text, because flags would align only the mask, while --decode also
 * shifts q. job_read_flags reports an invalid --window. */
static int texts_add_masks(cli *c, cli_texts *out) {
    const char *window = opt_get(c, OPT_WINDOW);
    int64_t side[2];
    if (!opt_has(c, OPT_DECODE)) return CLI_OK;
    if (out->n + 2 > CLI_MAX_TEXTS) return cli_fail(c, CLI_BAD_INPUT, "more than %d program texts", CLI_MAX_TEXTS - 2);
    if (opt_has(c, OPT_CAUSAL)) out->list[out->n++] = texts_expression("--causal", "k <= q", FXA_TEXT_MASK);
    if (!window || read_int_list(window, side, 2) != 2) return CLI_OK;
    const char *left = side[0] < 0 ? "true" : cli_format(c, "q - k <= %" PRId64, side[0]);
    const char *right = side[1] < 0 ? "true" : cli_format(c, "k - q <= %" PRId64, side[1]);
    out->list[out->n++] = texts_expression("--window", cli_format(c, "%s && %s", left, right), FXA_TEXT_MASK);
    return CLI_OK;
}

int texts_collect(cli *c, fxa_program_kind kind, cli_texts *out) {
    bool score = kind == FXA_PROGRAM_SCORE, stdin_read = false;
    for (size_t i = 0; i < c->n_given; i++) {
        const cli_given *g = &c->given[i];
        cli_text *s = &out->list[out->n];
        bool file = g->id == (score ? OPT_PROGRAM : OPT_BPROP);
        if (!file && g->id != (score ? OPT_SCORE : OPT_DSCORE) && !(score && g->id == OPT_MASK)) continue;
        if (out->n == CLI_MAX_TEXTS) return cli_fail(c, CLI_BAD_INPUT, "more than %d program texts", CLI_MAX_TEXTS);
        if (file && strcmp(g->value, "-") == 0 && stdin_read)
            return cli_fail(c, CLI_BAD_INPUT, "standard input (-) can be read only once");
        stdin_read = stdin_read || (file && strcmp(g->value, "-") == 0);
        if (g->id == OPT_SCORE)
            *s = texts_expression("--score", g->value, FXA_TEXT_SCORE);
        else if (g->id == OPT_DSCORE)
            *s = texts_expression("--dscore", g->value, FXA_TEXT_DSCORE);
        else if (g->id == OPT_MASK)
            *s = texts_expression("--mask", g->value, FXA_TEXT_MASK);
        else if ((*g->value == '@' ? texts_get_gallery(c, g->value, score, s) : texts_read_file(c, g->value, s)) !=
                 CLI_OK)
            return CLI_BAD_INPUT;
        out->n++;
    }
    return score ? texts_add_masks(c, out) : CLI_OK;
}

/* Appends the option that would declare an undeclared name to the error about this name. */
static void texts_add_option(const cli *c, fxa_error *err) {
    static const char *const kinds[][3] = {{"declare it, for example: tensor ", "--tensor ", "=FILE"},
                                           {"declare it, for example: param ", "--param ", "=VALUE"}};
    char name[FXA_MAX_NAME + 1];
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(err->text, kinds[i][0]);
        size_t used = strlen(err->text);
        if (!at || sscanf(at + strlen(kinds[i][0]), "%63s", name) != 1) continue;
        size_t next = 0, length = strlen(name);
        const char *sized;
        while ((sized = opt_next(c, OPT_TENSOR_SIZE, &next)) && (strncmp(sized, name, length) || sized[length] != '='))
            continue;
        if (sized)
            snprintf(err->text + used, sizeof err->text - used, "; or give its dtype: --tensor-size %s:f32%.64s", name,
                     sized + length);
        else
            snprintf(err->text + used, sizeof err->text - used, "; or give %s%s%s", kinds[i][1], name, kinds[i][2]);
    }
}

int texts_parse(cli *c, const cli_texts *s, fxa_program_kind kind, const fxa_declaration *declarations, size_t n,
                fxa_program **out) {
    fxa_text texts[CLI_MAX_TEXTS];
    uint32_t kinds[CLI_MAX_TEXTS];
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_error err;
    for (size_t i = 0; i < s->n; i++) {
        texts[i] = (fxa_text){s->list[i].name, s->list[i].text, s->list[i].size};
        kinds[i] = s->list[i].kind;
    }
    config.kind = (uint32_t)kind;
    config.texts = texts;
    config.text_kinds = kinds;
    config.n_texts = s->n;
    config.declarations = declarations;
    config.n_declarations = n;
    if (fxa_program_parse_texts(c->ctx, &config, out, &err) == FXA_OK) {
        cli_own_program(c, *out);
        return CLI_OK;
    }
    if (err.line < 1 || err.part < 0 || (size_t)err.part >= s->n)
        return cli_fail_library(c, &err, err.status == FXA_E_ARGUMENT ? "--param, --tensor" : NULL);
    const cli_text *at = &s->list[err.part];
    texts_add_option(c, &err);
    return cli_fail_place(c, &err, at->name, at->text, at->size);
}

static bool texts_is_word(char x) {
    return x == '_' || (x >= '0' && x <= '9') || (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z');
}

bool texts_mention(const cli_texts *s, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < s->n; i++) {
        const char *text = s->list[i].text;
        size_t size = s->list[i].size;
        for (size_t k = 0; n && k + n <= size; k++)
            if (memcmp(text + k, name, n) == 0 && (k == 0 || !texts_is_word(text[k - 1])) &&
                (k + n == size || !texts_is_word(text[k + n])))
                return true;
    }
    return false;
}
