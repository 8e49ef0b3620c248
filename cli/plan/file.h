/* SPDX-License-Identifier: Apache-2.0
 *
 * Contents of plan bytes that can be read without the plan's engine.
 */
#ifndef FXA_CLI_PLAN_FILE_H
#define FXA_CLI_PLAN_FILE_H

#include "input/job.h"
#include "io/json.h"

typedef struct plan_file {
    uint8_t key[16];
    const char *library, *engine, *identity; /* identity: the machine or device for which the engine compiled */
    uint32_t engine_version;
    uint64_t code;                /* bytes of compiled code */
    fxa_problem problem;          /* pass, flags, page_size and sizes; only if `known`: windows, dropout and operands */
    bool known;                   /* true = the format version of the problem is one of this library */
    fxa_program *program, *bprop; /* owned by c; NULL = none */
    fxa_capture captures[FXA_MAX_TENSORS]; /* captures of `problem`, which points to this array */
} plan_file;

/* Returns false if the bytes are not a plan or have another format. Texts are owned by c. */
bool plan_file_read(cli *c, const void *bytes, size_t size, plan_file *out);

/* Add flags, programs and operands of p to a report: plan_show_json as members of the open object, plan_show_text as
 * lines. program, bprop: texts of the programs, or NULL. */
void plan_show_json(json *j, const fxa_problem *p, const char *program, const char *bprop);
void plan_show_text(cli *c, const fxa_problem *p, const char *program, const char *bprop);
/* Reports the contents of a plan that cannot be loaded here for the reason `why`, without the workspace, which only the
 * engine computes. Returns an exit code. */
int plan_show_file(cli *c, const char *path, const plan_file *f, size_t size, const fxa_error *why);

#endif
