/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the pairs that a mask leaves, exactly: boxes that are all true or all false count whole, others are split
 * until they are small and then looked at pair by pair. */
#include "pairs.h"

#include <string.h>

#define PAIRS_LEAF 64          /* pairs looked at one by one */
#define PAIRS_BUDGET (1 << 23) /* single pairs, before the exact count is given up: a few seconds */

typedef struct pairs_box {
    int32_t q_lo, q_hi, k_lo, k_hi; /* inclusive */
} pairs_box;

typedef struct pairs_counter {
    const fxa_program *program;
    const cli_binding *bind;
    const fxa_tensor_range *ranges;
    const fxa_problem *problem;
    uint64_t count, looked_at;
} pairs_counter;

static int pairs_look(cli *c, pairs_counter *n, int64_t b, int64_t h, const pairs_box *box) {
    double in[FXA_INPUT_COUNT] = {0}, value;
    fxa_error err;
    in[FXA_INPUT_B] = (double)b;
    in[FXA_INPUT_H] = (double)h;
    in[FXA_INPUT_Q_LEN] = (double)n->problem->sq;
    in[FXA_INPUT_K_LEN] = (double)n->problem->sk;
    for (int64_t q = box->q_lo; q <= box->q_hi; q++)
        for (int64_t k = box->k_lo; k <= box->k_hi; k++) {
            int mask;
            in[FXA_INPUT_Q] = (double)(q + problem_row_shift(n->problem));
            in[FXA_INPUT_K] = (double)k;
            if (fxa_program_eval(n->program, in, n->bind->params, n->bind->views, &value, &mask, &err) != FXA_OK)
                return cli_fail_library(c, &err, NULL);
            n->count += mask != 0;
            n->looked_at++;
        }
    return CLI_OK;
}

/* Class of rows lo[0]..hi[0] by keys lo[1]..hi[1] (inclusive) of bh = {b, h}. */
static fxa_tile pairs_classify(const fxa_program *program, const fxa_problem *p, const cli_binding *bind,
                               const fxa_tensor_range *ranges, const int64_t *bh, const int64_t *lo,
                               const int64_t *hi) {
    fxa_box box;
    const int64_t shift = problem_row_shift(p), low[] = {0, bh[0], bh[1], lo[0] + shift, lo[1], p->sq, p->sk, 0},
                  high[] = {0, bh[0], bh[1], hi[0] + shift, hi[1], p->sq, p->sk, 0};
    for (int i = 0; i < FXA_INPUT_COUNT; i++) {
        box.lo[i] = (int32_t)low[i];
        box.hi[i] = (int32_t)high[i];
    }
    return fxa_program_classify(program, &box, binding_params(bind), ranges);
}

/* One (b, h): a stack of boxes, split along their longer side. */
static int pairs_count_head(cli *c, pairs_counter *n, int64_t b, int64_t h) {
    pairs_box stack[128];
    size_t depth = 0;
    int rc = CLI_OK;
    const int64_t bh[2] = {b, h};
    stack[depth++] = (pairs_box){0, (int32_t)n->problem->sq - 1, 0, (int32_t)n->problem->sk - 1};
    while (rc == CLI_OK && depth && n->looked_at < PAIRS_BUDGET) {
        pairs_box box = stack[--depth], half = box;
        int64_t rows = (int64_t)box.q_hi - box.q_lo + 1, keys = (int64_t)box.k_hi - box.k_lo + 1;
        const int64_t lo[2] = {box.q_lo, box.k_lo}, hi[2] = {box.q_hi, box.k_hi};
        fxa_tile tile = pairs_classify(n->program, n->problem, n->bind, n->ranges, bh, lo, hi);
        if (tile == FXA_TILE_FULL) n->count += (uint64_t)rows * (uint64_t)keys;
        if (tile != FXA_TILE_MIXED) continue;
        if (rows * keys <= PAIRS_LEAF)
            rc = pairs_look(c, n, b, h, &box);
        else {
            if (rows >= keys)
                half.q_lo = 1 + (box.q_hi = (int32_t)(box.q_lo + rows / 2 - 1));
            else
                half.k_lo = 1 + (box.k_hi = (int32_t)(box.k_lo + keys / 2 - 1));
            stack[depth++] = half;
            stack[depth++] = box;
        }
    }
    return rc;
}

int pairs_count(cli *c, const cli_job *job, const fxa_program *program, uint64_t *count, bool *exact) {
    const fxa_problem *p = &job->problem;
    pairs_counter n = {program, &job->bind, binding_ranges(c, &job->bind), p, 0, 0};
    fxa_facts facts;
    fxa_program_facts(program, &facts);
    uint64_t all = (uint64_t)p->sq * (uint64_t)p->sk * (uint64_t)p->b * (uint64_t)p->hq;
    int64_t b_count = facts.mask_depends >> FXA_INPUT_B & 1 ? p->b : 1,
            h_count = facts.mask_depends >> FXA_INPUT_H & 1 ? p->hq : 1;
    *exact = !(facts.mask_depends >> FXA_INPUT_SCORE & 1);
    *count = all;
    if (!*exact || all == 0) return CLI_OK;
    int rc = CLI_OK;
    for (int64_t b = 0; rc == CLI_OK && b < b_count; b++)
        for (int64_t h = 0; rc == CLI_OK && h < h_count; h++) rc = pairs_count_head(c, &n, b, h);
    *exact = n.looked_at < PAIRS_BUDGET;
    if (*exact) *count = n.count * (uint64_t)(p->b / b_count) * (uint64_t)(p->hq / h_count);
    return rc;
}

int pairs_count_one(cli *c, const cli_job *job, const fxa_program *program, int64_t b, int64_t h, uint64_t *count,
                    bool *exact) {
    const fxa_problem *p = &job->problem;
    pairs_counter n = {program, &job->bind, binding_ranges(c, &job->bind), p, 0, 0};
    fxa_facts facts;
    fxa_program_facts(program, &facts);
    *count = (uint64_t)p->sq * (uint64_t)p->sk;
    *exact = !(facts.mask_depends >> FXA_INPUT_SCORE & 1);
    if (!*exact) return CLI_OK;
    int rc = pairs_count_head(c, &n, b, h);
    *exact = n.looked_at < PAIRS_BUDGET;
    if (*exact) *count = n.count;
    return rc;
}
