/* SPDX-License-Identifier: Apache-2.0
 *
 * Time to classify all 128 x 128 tiles of 1,048,576 tokens under a causal window. Prints one line, or JSON with --json.
 */
#include "fxattn/fxattn.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the seconds to count tiles, the best of five runs; a negative number on failure. */
static double bench_count(fxa_context *ctx, const fxa_problem *problem, int64_t tile, fxa_tile_counts *counts,
                          fxa_error *err) {
    double best = -1;
    for (int i = 0; i < 5; i++) {
        double start = bench_now();
        if (fxa_tiles_count(ctx, problem, 0, 0, tile, tile, NULL, NULL, counts, err) != FXA_OK) return -1;
        double seconds = bench_now() - start;
        if (best < 0 || seconds < best) best = seconds;
    }
    return best;
}

/* Returns the seconds to count the tiles of one mask over `tokens` tokens; a negative number on failure. */
static double bench_mask(fxa_context *ctx, const char *text, int64_t tokens, int64_t tile, fxa_tile_counts *counts,
                         fxa_error *err) {
    fxa_program *program = NULL;
    fxa_problem problem = FXA_PROBLEM_INIT;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &program, err) != FXA_OK) return -1;
    problem.program = program;
    problem.b = problem.hq = 1;
    problem.sq = problem.sk = tokens;
    problem.d_qk = 64;
    double seconds = bench_count(ctx, &problem, tile, counts, err);
    fxa_program_destroy(program);
    return seconds;
}

int main(int argc, char **argv) {
    const int64_t tokens = 1048576, tile = 128;
    int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_tile_counts c, unused;
    double window = -1, blocks = -1;
    if (fxa_context_create(NULL, &ctx, &err) == FXA_OK) {
        window = bench_mask(ctx, "mask = k <= q && q - k < 4096", tokens, tile, &c, &err);
        if (window >= 0)
            blocks = bench_mask(ctx, "mask = k <= q && q // 5000 == k // 5000", tokens, tile, &unused, &err);
    }
    if (blocks < 0)
        fprintf(stderr, "bench_tiles: %s\n", err.text);
    else
        printf(json ? "{\"bench\": \"tiles\", \"tokens\": %lld, \"tile\": %lld, \"window_seconds\": %.6f, "
                      "\"blocks_seconds\": %.6f, \"empty\": %llu, \"mixed\": %llu, \"full\": %llu}\n"
                    : "tiles: %lld tokens in tiles of %lld: causal window %.6f s, causal blocks %.6f s (window: %llu "
                      "empty, %llu mixed, %llu full)\n",
               (long long)tokens, (long long)tile, window, blocks, (unsigned long long)c.empty,
               (unsigned long long)c.mixed, (unsigned long long)c.full);
    fxa_context_destroy(ctx);
    return blocks < 0;
}
