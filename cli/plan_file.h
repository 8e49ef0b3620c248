/* SPDX-License-Identifier: Apache-2.0
 *
 * What the bytes of a plan say by themselves, without an engine that could load them. */
#ifndef FXA_CLI_PLAN_FILE_H
#define FXA_CLI_PLAN_FILE_H

#include "job.h"
#include "json.h"

typedef struct plan_file {
    uint8_t key[16];
    const char *library, *engine, *identity; /* identity: of the engine where the plan was made */
    uint32_t engine_version;
    uint64_t code;       /* bytes of compiled code */
    fxa_problem problem; /* pass, flags, page_size and sizes; where it is known also windows, dropout and operands */
    bool known;          /* the format of the problem is */
    fxa_program *program, *bprop;          /* NULL: it has none; owned by c */
    fxa_capture captures[FXA_MAX_TENSORS]; /* of the problem, which points here */
} plan_file;

/* False: they are no plan, or one of another format. Texts are owned by c. */
bool plan_file_read(cli *c, const void *bytes, size_t size, plan_file *out);

/* Members of an open object, and lines: flags, programs and operands of p. program, bprop: their texts, or NULL. */
void plan_show_json(json *j, const fxa_problem *p, const char *program, const char *bprop);
void plan_show_text(cli *c, const fxa_problem *p, const char *program, const char *bprop);
/* All that a plan says that cannot be loaded here, for the reason `why`. Workspace is the engine's to tell. */
int plan_show_file(cli *c, const char *path, const plan_file *f, size_t size, const fxa_error *why);

#endif
