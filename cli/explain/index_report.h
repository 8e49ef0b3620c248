/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports of indices that leave their captured tensors, for run, check and explain.
 */
#ifndef FXA_CLI_INDEX_REPORT_H
#define FXA_CLI_INDEX_REPORT_H

#include "input/job.h"
#include "io/json.h"

typedef struct index_report {
    fxa_bounds_report *list;
    size_t n;
} index_report;

int index_report_find(cli *c, const fxa_problem *p, const fxa_args *args, index_report *out);
/* Returns a text such as "tensor bias, axis 0: indices 32 to 63 are outside (32 elements: -32 to 31) ..."; owned by
 * c. */
const char *index_report_text(cli *c, const cli_job *job, const fxa_bounds_report *r);
void index_report_json(json *j, const cli_job *job, const index_report *x); /* Adds a member "indices_outside". */

#endif
