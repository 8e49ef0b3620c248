/* SPDX-License-Identifier: Apache-2.0
 *
 * What a mask leaves to do, counted by pairs. Every value of the program must be there. */
#ifndef FXA_CLI_PAIRS_H
#define FXA_CLI_PAIRS_H

#include "job.h"

/* Pairs of all batch entries and heads that the mask leaves, and the score does not select -inf for. *exact is false,
 * and *count all pairs, when the mask depends on the score or the exact count would take too long. program: the one
 * that runs. */
int pairs_count(cli *c, const cli_job *job, const fxa_program *program, uint64_t *count, bool *exact);
/* The same for one batch entry and head. */
int pairs_count_one(cli *c, const cli_job *job, int64_t b, int64_t h, uint64_t *count, bool *exact);
/* False: no score of the program selects -inf, so that those counts are of the mask alone. */
bool pairs_may_select(cli *c, const fxa_program *program);

#endif
