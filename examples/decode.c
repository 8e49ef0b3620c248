/* SPDX-License-Identifier: Apache-2.0
 *
 * Serving with a KV cache: one call processes two prompts of different lengths, then tokens are decoded one at a time.
 * The program reads q - k and is the same in every call. Each call passes the position of its first row (FXA_Q_START)
 * and the number of keys of each sequence (FXA_PADDING). The results equal those of one pass over all tokens, dropout
 * included.
 */
#include "fxattn/fxattn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, H = 2, S = 16, D = 4, STEPS = 4, ROWS = B * H * S * D };

static float q[ROWS], k[ROWS], v[ROWS], whole[ROWS], served[ROWS];
static float cache_k[ROWS], cache_v[ROWS]; /* keys so far, [B,H,S,D] */

static const char *const text = "score = score - 0.25 * (q - k)\nmask = k <= q\n";

/* Attends rows position[b]..length[b]-1 of each sequence, at most n, to its first length[b] keys. Q and O are
 * [B,H,n,D]; k_data and v_data are [B,H,S,D]. */
static fxa_status attend(fxa_context *ctx, const fxa_program *program, int n, int32_t *position, int32_t *length,
                         float *q_data, float *k_data, float *v_data, float *o_data, fxa_error *err) {
    fxa_problem problem = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    int32_t rows[B];
    for (int b = 0; b < B; b++) rows[b] = length[b] - position[b];
    problem.program = program;
    problem.flags = FXA_Q_START | FXA_PADDING | FXA_DROPOUT;
    problem.dropout_p = 0.1;
    problem.b = B, problem.hq = H, problem.sq = n, problem.sk = S, problem.d_qk = D;
    args.seed = 7;
    args.slot[FXA_SLOT_Q] = q_data, args.slot[FXA_SLOT_K] = k_data, args.slot[FXA_SLOT_V] = v_data;
    args.slot[FXA_SLOT_O] = o_data;
    args.slot[FXA_SLOT_Q_START] = position, args.slot[FXA_SLOT_Q_LENGTHS] = rows,
    args.slot[FXA_SLOT_K_LENGTHS] = length;
    return fxa_attention(ctx, &problem, &args, err);
}

/* Returns a pointer to element (b, h, s, 0) of a [B,H,n,D] array. */
static float *row(float *x, int n, int b, int h, int s) { return x + ((b * H + h) * n + s) * D; }

/* Appends keys and values of rows position[b]..length[b]-1 to the cache and attends those rows to the cache. */
static fxa_status serve(fxa_context *ctx, const fxa_program *program, int n, int32_t *position, int32_t *length,
                        fxa_error *err) {
    static float q_now[ROWS], o_now[ROWS];
    const size_t size = D * sizeof(float);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int32_t s = position[b]; s < length[b]; s++) {
                memcpy(row(cache_k, S, b, h, s), row(k, S, b, h, s), size);
                memcpy(row(cache_v, S, b, h, s), row(v, S, b, h, s), size);
                memcpy(row(q_now, n, b, h, s - position[b]), row(q, S, b, h, s), size);
            }
    fxa_status status = attend(ctx, program, n, position, length, q_now, cache_k, cache_v, o_now, err);
    for (int b = 0; status == FXA_OK && b < B; b++)
        for (int h = 0; h < H; h++)
            for (int32_t s = position[b]; s < length[b]; s++)
                memcpy(row(served, S, b, h, s), row(o_now, n, b, h, s - position[b]), size);
    return status;
}

int main(void) {
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    int32_t position[B] = {0, 0}, length[B] = {S - STEPS, S - STEPS - 5}, all[B];
    int code = 1;
    for (int i = 0; i < ROWS; i++) {
        q[i] = (float)sin(i);
        k[i] = (float)cos(3 * i);
        v[i] = (float)sin(7 * i);
    }
    if (fxa_context_create(NULL, &ctx, &err) || fxa_program_parse(ctx, text, SIZE_MAX, &program, &err)) goto failed;

    for (int b = 0; b < B; b++) all[b] = length[b] + STEPS;
    /* reference: one pass over all tokens */
    if (attend(ctx, program, S, position, all, q, k, v, whole, &err)) goto failed;

    if (serve(ctx, program, S, position, length, &err)) goto failed; /* prompts */
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < B; b++) position[b] = length[b]++;
        if (serve(ctx, program, 1, position, length, &err)) goto failed;
    }

    double worst = 0;
    for (int i = 0; i < ROWS; i++) worst = fmax(worst, fabs((double)served[i] - (double)whole[i]));
    printf("prompts and %d steps against one pass: largest difference %.1e\n", STEPS, worst);
    code = !(worst < 1e-6);
    goto done;
failed:
    fprintf(stderr, "%s: %s\n", fxa_status_name(err.status), err.text);
done:
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return code;
}
