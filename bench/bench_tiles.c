/* SPDX-License-Identifier: Apache-2.0
 *
 * How long it takes to classify all 128 x 128 tiles of a sequence of 1,048,576 tokens under a causal window. One line,
 * or JSON with --json.
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

/* The best of a few runs, in seconds; negative: failed. */
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

int main(int argc, char **argv) {
    const char *text = "mask = k <= q && q - k < 4096";
    const int64_t tokens = 1048576, tile = 128;
    int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    fxa_tile_counts c;
    double seconds = -1;
    if (fxa_context_create(NULL, &ctx, &err) != FXA_OK) goto done;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &program, &err) != FXA_OK) goto done;
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.b = problem.hq = 1;
    problem.sq = problem.sk = tokens;
    problem.d = 64;
    seconds = bench_count(ctx, &problem, tile, &c, &err);
    if (seconds < 0) goto done;
    printf(json ? "{\"bench\": \"tiles\", \"tokens\": %lld, \"tile\": %lld, \"seconds\": %.6f, \"empty\": %llu, "
                  "\"mixed\": %llu, \"full\": %llu}\n"
                : "tiles: %lld tokens in tiles of %lld: %.6f s (%llu empty, %llu mixed, %llu full)\n",
           (long long)tokens, (long long)tile, seconds, (unsigned long long)c.empty, (unsigned long long)c.mixed,
           (unsigned long long)c.full);
done:
    if (seconds < 0) fprintf(stderr, "bench_tiles: %s\n", err.text);
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return seconds < 0;
}
