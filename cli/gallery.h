/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs of examples/programs inside the command: `--program @NAME`, `fxattn gallery`, completion. The table is
 * written when the command is built (cmake/embed_gallery.cmake), by name. */
#ifndef FXA_CLI_GALLERY_H
#define FXA_CLI_GALLERY_H

#include "cli.h"

typedef struct gallery_program {
    const char *name, *text;
} gallery_program;
extern const gallery_program gallery_programs[];
extern const size_t gallery_count;

/* NULL: there is none of that name. */
const gallery_program *gallery_find(const char *name);
/* Fails because there is no program `name`; tells the nearest ones. */
int gallery_fail(cli *c, const char *name);

#endif
