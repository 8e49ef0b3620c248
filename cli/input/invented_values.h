/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that the command line does not give: a command invents them or takes the program's defaults, and reports
 * both.
 */
#ifndef FXA_CLI_INVENTED_VALUES_H
#define FXA_CLI_INVENTED_VALUES_H

#include "input/job.h"
#include "io/json.h"

/* Fills params, tensors and sizes that have no value, in both programs, and records the invented values. With
 * `picture`, values are chosen for a clear plot: a soft cap of 2, a quarter of the length for ints, 4 documents of
 * equal length for int tensors of rank 1. Otherwise they are random. Returns the names of what was invented, "tensor
 * slopes, param w", or "". */
const char *invented_fill(cli *c, cli_job *job, cli_random *random, bool picture);
/* Returns a line such as "default: param cap = 20; invented: param w = 0.7; tensor slopes, f32[64] and its size, values
 * at random, -1 to 1; size b = 1"; "" if the command line gives everything. */
const char *invented_text(cli *c, const cli_job *job);
void invented_json(json *j, const cli_job *job); /* Adds the members "defaults" and "invented" to the open object. */
void invented_json_defaults(json *j,
                            const cli_job *job); /* Adds the member "defaults", for commands that invent no values. */

#endif
