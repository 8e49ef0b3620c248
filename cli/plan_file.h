/* SPDX-License-Identifier: Apache-2.0
 *
 * What the bytes of a plan say by themselves, without an engine that could load them. */
#ifndef FXA_CLI_PLAN_FILE_H
#define FXA_CLI_PLAN_FILE_H

#include "cli.h"

typedef struct plan_file {
    uint8_t key[16];
    const char *library, *engine, *identity; /* identity: of the engine where the plan was made */
    uint32_t engine_version;
    uint64_t code;       /* bytes of compiled code */
    fxa_problem problem; /* pass, flags, page_size and sizes alone */
} plan_file;

/* False: they are no plan, or one of another format. Texts are owned by c. */
bool plan_file_read(cli *c, const void *bytes, size_t size, plan_file *out);

#endif
