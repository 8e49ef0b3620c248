/* SPDX-License-Identifier: Apache-2.0
 *
 * gallery: lists the programs that `--program @NAME` accepts, or prints the text of one.
 */
#include "input/gallery.h"
#include "io/json.h"

#include <string.h>

#define GALLERY_NEAREST 5

const gallery_program *gallery_find(const char *name) {
    for (size_t i = 0; i < gallery_count; i++)
        if (strcmp(gallery_programs[i].name, name) == 0) return &gallery_programs[i];
    return NULL;
}

/* Lists similar spellings first, then names that contain the word or are contained in it. */
int gallery_fail(cli *c, const char *name) {
    const char **names = cli_alloc_array(c, (int64_t)gallery_count, sizeof *names);
    cli_buf near = {0};
    int n = 0;
    for (size_t i = 0; i < gallery_count; i++) names[i] = gallery_programs[i].name;
    const char *nearest = cli_nearest(name, names, gallery_count);
    if (nearest) buf_printf(&near, "@%s", nearest), n++;
    for (size_t i = 0; i < gallery_count && n < GALLERY_NEAREST && strlen(name) > 2; i++)
        if (names[i] != nearest && (strstr(names[i], name) || strstr(name, names[i])))
            buf_printf(&near, "%s@%s", n++ ? ", " : "", names[i]);
    int rc = cli_fail(c, CLI_BAD_INPUT, "the gallery has no program '%.64s'; %s%s%s'fxattn gallery' lists all", name,
                      n > 1 ? "did you mean one of "
                      : n   ? "did you mean "
                            : "",
                      n ? near.data : "", n ? "? " : "");
    buf_free(&near);
    return rc;
}

/* Returns the first sentence of the comment at the start of the program, in one line. */
static const char *gallery_about(cli *c, const gallery_program *p) {
    cli_buf b = {0};
    for (const char *line = p->text; *line == '#'; line += line[0] == '\n') {
        size_t n = strcspn(line, "\n");
        buf_printf(&b, "%s%.*s", b.size ? " " : "", (int)n - (n > 1 ? 2 : 1), line + (n > 1 ? 2 : 1));
        line += n;
    }
    const char *end = b.size ? strstr(b.data, ". ") : NULL;
    char *about = cli_format(c, "%.*s", end ? (int)(end + 1 - b.data) : (int)b.size, b.size ? b.data : "");
    buf_free(&b);
    return about;
}

static void gallery_json(cli *c, const gallery_program *only) {
    json j = json_begin(&c->out);
    json_open(&j, NULL, '{');
    json_open(&j, "programs", '[');
    for (size_t i = 0; i < gallery_count; i++) {
        const gallery_program *p = &gallery_programs[i];
        if (only && p != only) continue;
        json_open(&j, NULL, '{');
        json_string(&j, "name", p->name);
        json_string(&j, "about", gallery_about(c, p));
        json_string(&j, "text", p->text);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

int cmd_gallery(cli *c) {
    const char *name = c->n_operands ? c->operands[0] : NULL;
    const gallery_program *only = NULL;
    int width = 0;
    if (c->n_operands > 1) return cli_fail(c, CLI_BAD_INPUT, "'gallery' takes one name, not %zu", c->n_operands);
    if (name) {
        name += *name == '@';
        only = gallery_find(name);
        if (!only) return gallery_fail(c, name);
    }
    if (c->json) {
        gallery_json(c, only);
        return CLI_OK;
    }
    if (only) {
        buf_text(&c->out, only->text);
        return CLI_OK;
    }
    for (size_t i = 0; i < gallery_count; i++)
        if ((int)strlen(gallery_programs[i].name) > width) width = (int)strlen(gallery_programs[i].name);
    buf_text(&c->out, "programs for --program @NAME; 'fxattn gallery NAME' prints one\n\n");
    for (size_t i = 0; i < gallery_count; i++) {
        buf_printf(&c->out, "  @%-*s  ", width, gallery_programs[i].name);
        buf_wrapped(&c->out, width + 5, gallery_about(c, &gallery_programs[i]));
    }
    return CLI_OK;
}
