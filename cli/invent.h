/* SPDX-License-Identifier: Apache-2.0
 *
 * What a command made up, or took from the program because the command line does not say it, and telling it. */
#ifndef FXA_CLI_INVENT_H
#define FXA_CLI_INVENT_H

#include "job.h"
#include "json.h"

/* Gives values at random to what the command line left open, in both programs, and notes them and the sizes that
 * --shape does not say. For a picture values are chosen that show something: a cap that bends, a quarter of the length
 * for ints, documents of equal length for int tensors of rank 1. Returns the names, "tensor slopes, param w", or "". */
const char *invent_fill(cli *c, cli_job *job, cli_random *random, bool picture);
/* "default: param cap = 20; invented: param w = 0.7; tensor slopes, f32[64] and its size, values at random, -1 to 1;
 * size b = 1", or "". */
const char *invent_text(cli *c, const cli_job *job);
void invent_json(json *j, const cli_job *job);          /* members "defaults" and "invented" */
void invent_json_defaults(json *j, const cli_job *job); /* of a command that makes nothing up */

#endif
