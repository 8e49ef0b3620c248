/* SPDX-License-Identifier: Apache-2.0
 *
 * Cost of score programs as row bytecode: nanoseconds per score, in place on rows in the L1 cache, for every
 * instruction set of this machine; and the cost as a share of an attention row with head dim 64 (256 operations per
 * score) at the FMA rate measured in the same run. Prints one line per case, or JSON with --json.
 */
#include "../src/engine/cpu/bytecode/tape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BENCH_ROWS = 12, BENCH_COLUMNS = 256, BENCH_KEY = 1024, BENCH_LENGTH = 2048 };

typedef struct bench_tape_case {
    const char *name, *text;
    bool derivative;
} bench_tape_case;

static const bench_tape_case bench_tape_cases[] = {
    {"causal", "mask = k <= q", false},
    {"window", "param w : int\nmask = k <= q && q - k < w", false},
    {"document", "tensor doc : i32[1]\nmask = doc[q] == doc[k]", false},
    {"alibi", "tensor slope : f32[1]\nscore = score - slope[h] * (q - k)", false},
    {"softcap", "param cap : float\nscore = cap * tanh(score / cap)", false},
    {"dense bias", "tensor bias : f32[3]\nscore = score + bias[h, q, k]", false},
    {"relative", "tensor bias : f32[2]\nscore = score + bias[h, clamp(q - k, -64, 64) + 64]", false},
    {"relative far", "tensor bias : f32[2]\nscore = score + bias[h, clamp(q - k, -2000, 2000) + 2000]", false},
    {"low rank",
     "tensor u : f32[3]\ntensor v : f32[3]\nscore = score + u[h,q,0]*v[h,k,0] + u[h,q,1]*v[h,k,1] + "
     "u[h,q,2]*v[h,k,2] + u[h,q,3]*v[h,k,3]",
     false},
    {"d softcap", "param cap : float\nscore = cap * tanh(score / cap)", true},
    {"d dense bias", "tensor bias : f32[3]\nscore = score + bias[h, q, k]", true},
};

static double bench_tape_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bench_tape_data {
    float score[BENCH_ROWS][BENCH_COLUMNS], dscore[BENCH_ROWS][BENCH_COLUMNS];
    float floats[8 * BENCH_LENGTH];
    int32_t ints[BENCH_LENGTH], h[BENCH_ROWS], q[BENCH_ROWS], k[BENCH_COLUMNS];
    double sums[8 * BENCH_LENGTH], params[4], dparams[4];
} bench_tape_data;

/* Returns a tensor for any of the programs. All heads and rows read the same elements, so memory is not measured. */
static fxa_view bench_tape_view(const bench_tape_data *d, const fxa__decl *decl) {
    fxa_view v = {.data = decl->type == FXA_FLOAT ? (const void *)d->floats : d->ints, .dtype = (fxa_dtype)decl->dtype};
    v.rank = decl->rank;
    for (int i = 0; i < v.rank; i++) v.size[i] = 2 * BENCH_LENGTH;
    v.stride[v.rank - 1] = 1;
    return v;
}

static void bench_tape_fill(bench_tape_data *d) {
    for (int r = 0; r < BENCH_ROWS; r++)
        for (int i = 0; i < BENCH_COLUMNS; i++) {
            d->score[r][i] = (float)((r * 37 + i * 11) % 200 - 100) * 0.1f;
            d->dscore[r][i] = (float)((r * 31 + i * 7) % 100 - 50) * 0.01f;
        }
}

/* Returns nanoseconds per score, the best of many runs; a negative number on failure. */
static double bench_tape_run(const bench_tape_case *c, fxa_context *ctx, const fxa__cpu_kernels *kernels,
                             bench_tape_data *d) {
    fxa_program *program = NULL, *derived = NULL;
    fxa__tape *tape = NULL;
    fxa_error err;
    fxa_view views[FXA_MAX_TENSORS];
    fxa__tape_sum sums[FXA_MAX_TENSORS];
    size_t bytes;
    double best = -1;
    if (fxa_program_parse(ctx, c->text, SIZE_MAX, &program, &err) != FXA_OK) goto done;
    if (c->derivative && fxa_program_derivative(program, &derived, &err) != FXA_OK) goto done;
    const fxa_program *p = derived ? derived : program;
    uint32_t flags = derived ? FXA__TAPE_GRADS : FXA__TAPE_MASK;
    if (fxa__tape_create(fxa__context_host(ctx), p, flags, kernels, &tape, &err) != FXA_OK) goto done;
    for (int i = 0; i < p->n_tensors; i++) {
        views[i] = bench_tape_view(d, &p->tensors[i]);
        sums[i] = (fxa__tape_sum){.view = views[i], .sum = d->sums};
    }
    if (!fxa__tape_scratch(tape, BENCH_ROWS, BENCH_COLUMNS, &bytes)) goto done;
    void *scratch = aligned_alloc(64, bytes);
    fxa__tape_run run = {.tape = tape, .params = d->params, .tensors = views, .dparams = d->dparams, .sums = sums};
    run.scratch = scratch, run.max_rows = BENCH_ROWS, run.max_columns = BENCH_COLUMNS;
    fxa__tape_batch(&run, 0, BENCH_LENGTH, BENCH_LENGTH, 8);
    fxa__tape_rows(&run, BENCH_ROWS, d->h, d->q, 0, BENCH_ROWS);
    fxa__tape_columns(&run, BENCH_COLUMNS, d->k, 0);
    for (int round = 0; round < 200; round++) {
        bench_tape_fill(d);
        double start = bench_tape_now();
        for (int again = 0; again < 8; again++)
            for (int r = 0; r < BENCH_ROWS; r++)
                fxa__tape_row(&run, r, 0, BENCH_COLUMNS, d->score[r], derived ? d->dscore[r] : NULL,
                              derived ? d->dscore[r] : d->score[r]);
        double ns = (bench_tape_now() - start) * 1e9 / (8.0 * (BENCH_ROWS * BENCH_COLUMNS));
        if (best < 0 || ns < best) best = ns;
    }
    free(scratch);
done:
    if (best < 0) fprintf(stderr, "bench_tape: %s: %s\n", c->name, err.text);
    fxa__tape_destroy(tape);
    fxa_program_destroy(derived);
    fxa_program_destroy(program);
    return best;
}

/* Returns the GFLOP/s of the instruction set's own matrix kernel on panels in the L1 cache. */
static double bench_tape_rate(const fxa__cpu_kernels *kernels, bench_tape_data *d) {
    const int64_t depth = 64, m = kernels->mr, n = kernels->nr;
    double best = 0;
    memset(d->floats, 0, sizeof d->floats);
    for (int round = 0; round < 300; round++) {
        double start = bench_tape_now();
        for (int i = 0; i < 20; i++)
            kernels->micro.gemm(m, n, depth, d->floats, 1, m, d->floats + 2048, depth * n, d->floats + 8192, n, NULL);
        double rate = 20.0 * 2 * (double)(m * n * depth) * 1e-9 / (bench_tape_now() - start);
        if (rate > best) best = rate;
    }
    return best;
}

int main(int argc, char **argv) {
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0, usable = false;
    bench_tape_data *d = calloc(1, sizeof *d);
    fxa_context *ctx = NULL;
    fxa_error err;
    const fxa__cpu_kernels *k;
    if (!d || fxa_context_create(NULL, &ctx, &err) != FXA_OK) return 1;
    for (int i = 0; i < BENCH_ROWS; i++) d->q[i] = BENCH_KEY + BENCH_COLUMNS / 2 + i;
    for (int i = 0; i < BENCH_COLUMNS; i++) d->k[i] = BENCH_KEY + i;
    for (int i = 0; i < 4; i++) d->params[i] = 50;
    for (size_t i = 0; (k = fxa__cpu_set(i, sizeof(float), &usable)); i++) {
        if (!usable) continue;
        double rate = bench_tape_rate(k, d);
        for (size_t c = 0; c < sizeof bench_tape_cases / sizeof *bench_tape_cases; c++) {
            double ns = bench_tape_run(&bench_tape_cases[c], ctx, k, d), part = ns * rate / 256;
            if (json)
                printf("{\"isa\": \"%s\", \"case\": \"%s\", \"ns_per_score\": %.4f, \"fma_gflops\": %.1f, "
                       "\"part_of_d64\": %.4f}\n",
                       k->isa, bench_tape_cases[c].name, ns, rate, part);
            else
                printf("%-7s %-13s %7.4f ns per score, %5.1f %% of a row of head size 64 at %.0f GFLOP/s\n", k->isa,
                       bench_tape_cases[c].name, ns, 100 * part, rate);
        }
    }
    fxa_context_destroy(ctx);
    free(d);
    return 0;
}
