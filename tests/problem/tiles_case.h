/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of tiles: programs, problems without data, and counts compared with single tiles and pairs.
 */
#ifndef FXA_TESTS_TILES_CASE_H
#define FXA_TESTS_TILES_CASE_H

#include "problem/tiles.h"
#include "support/fixtures/attn_data.h"
#include "t.h"

__attribute__((unused)) static fxa_program *tiles_parse(fxa_context *ctx, const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", text, err.text);
    return p;
}

__attribute__((unused)) static fxa_problem tiles_problem(const fxa_program *program, int64_t sq, int64_t sk) {
    attn_spec s = {.b = 2, .hq = 4, .sq = sq, .sk = sk, .d = 8};
    fxa_problem p = attn_spec_problem(&s);
    p.program = program;
    return p;
}

/* Classifies a tile by evaluating every pair. */
__attribute__((unused)) static fxa_tile_class tiles_by_pairs(const fxa__problem *p, int64_t b, int64_t h, fxa__slice q,
                                                             fxa__slice k) {
    bool seen[2] = {false, false};
    fxa_error err;
    fxa__bound_args bound = {0};
    fxa__seq seq = fxa__seq_get(p, &bound, b);
    for (int64_t i = q.first; i <= q.last; i++)
        for (int64_t j = k.first; j <= k.last; j++) {
            double in[FXA_INPUT_COUNT] = {0}, value;
            int mask = 0;
            in[FXA_INPUT_B] = fxa__coord(p, NULL, FXA_INPUT_B, b);
            in[FXA_INPUT_H] = fxa__coord(p, NULL, FXA_INPUT_H, h);
            in[FXA_INPUT_Q] = fxa__row_coord(p, &bound, &seq, i);
            in[FXA_INPUT_K] = fxa__coord(p, NULL, FXA_INPUT_K, j);
            in[FXA_INPUT_Q_ROW] = (double)i, in[FXA_INPUT_K_ROW] = (double)j;
            in[FXA_INPUT_Q_LEN] = (double)(p->in.global_q_len ? p->in.global_q_len : p->in.sq);
            in[FXA_INPUT_K_LEN] = (double)(p->in.global_k_len ? p->in.global_k_len : p->in.sk);
            in[FXA_INPUT_HEADS] = (double)(p->in.global_heads ? p->in.global_heads : p->in.hq);
            T_OK(fxa_program_eval(p->program, in, NULL, NULL, &value, &mask, &err));
            seen[mask] = true;
        }
    return seen[0] && seen[1] ? FXA_TILE_MIXED : seen[1] ? FXA_TILE_FULL : FXA_TILE_EMPTY;
}

/* Compares counts of the library, by tile and by pair. exact = the last two must agree. */
__attribute__((unused)) static void tiles_check(fxa_context *ctx, const fxa_problem *problem, int64_t tile_q,
                                                int64_t tile_k, bool exact) {
    fxa_error err;
    fxa_tile_counts got, by_tile = {0};
    fxa__problem *p = NULL;
    T_OK(fxa_tiles_count(ctx, problem, 1, 2, tile_q, tile_k, NULL, NULL, &got, &err));
    T_OK(fxa__problem_create(fxa__context_host(ctx), problem, &p, &err));
    T_REQUIRE(p != NULL);
    for (int64_t q = 0; q < problem->sq; q += tile_q)
        for (int64_t k = 0; k < problem->sk; k += tile_k) {
            fxa__slice rows = {q, q + tile_q < problem->sq ? q + tile_q - 1 : problem->sq - 1};
            fxa__slice keys = {k, k + tile_k < problem->sk ? k + tile_k - 1 : problem->sk - 1};
            fxa__tile_grid grid = {.p = p, .program = p->program, .b = 1, .h = 2, .tile_q = tile_q, .tile_k = tile_k};
            fxa_tile_class tile = fxa__tile_class(&grid, rows, keys), truth = tiles_by_pairs(p, 1, 2, rows, keys);
            if (exact ? tile != truth : tile != FXA_TILE_MIXED && tile != truth)
                T_FAIL("tile at %d, %d is %d, truly %d\n", (int)q, (int)k, tile, truth);
            if (tile_q * tile_k <= FXA__TILE_MAX_PAIRS) tile = truth; /* a count evaluates the pairs of small tiles */
            by_tile.empty += tile == FXA_TILE_EMPTY;
            by_tile.mixed += tile == FXA_TILE_MIXED;
            by_tile.full += tile == FXA_TILE_FULL;
        }
    T_INT(got.empty, by_tile.empty);
    T_INT(got.mixed, by_tile.mixed);
    T_INT(got.full, by_tile.full);
    fxa__problem_release(p);
}

#endif
