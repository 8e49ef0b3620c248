/* SPDX-License-Identifier: Apache-2.0
 *
 * Number of pairs that a mask keeps. All params and tensors of the program must have values.
 */
#ifndef FXA_CLI_PAIR_COUNT_H
#define FXA_CLI_PAIR_COUNT_H

#include "input/job.h"

/* Counts the attended pairs of all batch entries and heads: mask true and score not -inf by a select. If the mask
 * depends on the score, or exact counting would take too long, *exact is false and *count is the number of all pairs.
 * program: the program that runs. Returns an exit code. */
int pair_count_all(cli *c, const cli_job *job, const fxa_program *program, uint64_t *count, bool *exact);
/* Like pair_count_all, for one batch entry and head. */
int pair_count_one(cli *c, const cli_job *job, int64_t b, int64_t h, uint64_t *count, bool *exact);
/* Returns true if the program may select -inf as a score. If it cannot, the counts are those of the mask alone. */
bool pair_may_select(cli *c, const fxa_program *program);

#endif
