/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs of examples/programs inside the command: `--program @NAME`, `fxattn gallery`, completion. The table is
 * sorted by name and written when the command is built (cmake/embed_gallery.cmake). */
#ifndef FXA_CLI_GALLERY_H
#define FXA_CLI_GALLERY_H

#include "cli.h"

typedef struct gallery_program {
    const char *name, *text;
} gallery_program;
extern const gallery_program gallery_programs[];
extern const size_t gallery_count;

/* Returns the program with this name; NULL if there is none. */
const gallery_program *gallery_find(const char *name);
/* Reports that there is no program `name`, with the nearest names. Returns CLI_BAD_INPUT. */
int gallery_fail(cli *c, const char *name);

#endif
