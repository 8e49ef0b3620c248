/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts attended pairs as tiles of one pair each. fxa_tiles_count counts such tiles exactly, also for scores that
 * select -inf, and gives up if that would take long.
 */
#include "explain/mask_pairs.h"

#include <string.h>

#define PAIR_SECONDS 3 /* maximum seconds for all heads together; the library limits each single count */

int pair_count_one(cli *c, const cli_job *job, int64_t b, int64_t h, uint64_t *count, bool *exact) {
    const fxa_problem *p = &job->problem;
    fxa_tile_counts tiles;
    fxa_error err;
    if (fxa_tiles_count(c->ctx, p, b, h, 1, 1, binding_params(&job->bind), binding_ranges(c, &job->bind), &tiles,
                        &err) != FXA_OK)
        return cli_fail_library(c, &err, NULL);
    *exact = tiles.mixed + tiles.unknown == 0;
    *count = *exact ? tiles.full : (uint64_t)p->sq * (uint64_t)p->sk;
    return CLI_OK;
}

bool pair_may_select(cli *c, const fxa_program *program) {
    const char *text = program_text(c, program);
    return !text || strstr(text, "inf");
}

/* Returns the inputs that may decide whether a pair is attended. */
static uint32_t pair_depend(cli *c, const fxa_program *program) {
    fxa_properties properties;
    fxa_program_properties(program, &properties);
    return properties.mask_depends | (pair_may_select(c, program) ? properties.score_depends : 0);
}

int pair_count_all(cli *c, const cli_job *job, const fxa_program *program, uint64_t *count, bool *exact) {
    const fxa_problem *p = &job->problem;
    uint32_t depends = pair_depend(c, program);
    int64_t b_count = depends >> FXA_INPUT_B & 1 ? p->b : 1, h_count = depends >> FXA_INPUT_H & 1 ? p->hq : 1;
    uint64_t all = (uint64_t)p->sq * (uint64_t)p->sk * (uint64_t)p->b * (uint64_t)p->hq, left = 0;
    double start = cli_seconds();
    *exact = true;
    *count = all;
    for (int64_t i = 0; all && *exact && i < b_count * h_count; i++) {
        uint64_t one;
        int rc = pair_count_one(c, job, i / h_count, i % h_count, &one, exact);
        if (rc != CLI_OK) return rc;
        if (cli_seconds() - start > PAIR_SECONDS && i + 1 < b_count * h_count) *exact = false;
        left += one;
    }
    if (all && *exact) *count = left * (uint64_t)(p->b / b_count) * (uint64_t)(p->hq / h_count);
    return CLI_OK;
}
