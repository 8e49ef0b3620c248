/* SPDX-License-Identifier: Apache-2.0
 *
 * Indices that leave their captured tensors: asked of the library, told by run, check and explain. */
#ifndef FXA_CLI_INDICES_H
#define FXA_CLI_INDICES_H

#include "job.h"
#include "json.h"

typedef struct indices {
    fxa_bounds_report *list;
    size_t n;
} indices;

int indices_find(cli *c, const fxa_problem *p, const fxa_args *args, indices *out);
/* "tensor bias, axis 0: 32 to 63 are outside of 32 elements ..." */
const char *indices_text(cli *c, const cli_job *job, const fxa_bounds_report *r);
void indices_json(json *j, const cli_job *job, const indices *x); /* a member "indices_outside" */

#endif
