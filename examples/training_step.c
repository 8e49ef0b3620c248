/* SPDX-License-Identifier: Apache-2.0
 *
 * Training with a user-written score function: forward, backward, and the gradient of a captured tensor. Gradient
 * descent trains a bias per head and distance until attention copies the token three positions back. The backward pass
 * is derived from the program.
 */
#include "fxattn/fxattn.h"

#include <stdio.h>
#include <string.h>

enum { B = 1, H = 2, S = 16, D = 8, STEPS = 200, N = B * H * S * D, ROWS = B * H * S };

static const char *program_text = "tensor bias : f32[2]\n"
                                  "score = score + bias[h, q - k]\n"
                                  "mask = q >= k\n";

static float q[N], k[N], v[N], o[N], dout[N], lse[ROWS], bias[H * S], dbias[H * S];

static uint32_t train_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

/* Returns the loss, half the squared distance to the value three positions back, and fills dout. */
static double train_loss(void) {
    double loss = 0;
    for (int h = 0; h < H; h++)
        for (int s = 0; s < S; s++)
            for (int d = 0; d < D; d++) {
                int i = (h * S + s) * D + d;
                float want = s >= 3 ? v[i - 3 * D] : o[i];
                dout[i] = o[i] - want;
                loss += 0.5 * (double)dout[i] * (double)dout[i];
            }
    return loss;
}

int main(void) {
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    int code = 1;
    uint32_t state = 1;
    double first = 0, last = 0;
    for (int i = 0; i < N; i++) v[i] = (float)(train_random(&state) >> 8) / (1 << 23) - 1;

    if (fxa_context_create(NULL, &ctx, &err) || fxa_program_parse(ctx, program_text, SIZE_MAX, &program, &err))
        goto failed;
    fxa_capture shape = {.size = {H, S}, .grad = 1};
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.b = B, problem.hq = H, problem.sq = S, problem.sk = S, problem.d_qk = D;
    problem.captures = &shape, problem.n_captures = 1;

    const void *tensors[] = {bias};
    void *dtensors[] = {dbias};
    for (int step = 0; step < STEPS; step++) {
        fxa_args args = FXA_ARGS_INIT;
        args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = k, args.slot[FXA_SLOT_V] = v;
        args.slot[FXA_SLOT_O] = o, args.slot[FXA_SLOT_LSE] = lse;
        args.tensors = tensors, args.n_tensors = 1;
        problem.pass = FXA_FORWARD, problem.flags = FXA_RETURN_LSE, shape.grad = 0;
        if (fxa_attention(ctx, &problem, &args, &err)) goto failed;

        last = train_loss();
        if (step == 0) first = last;

        args.slot[FXA_SLOT_DO] = dout;
        args.dtensors = dtensors, args.n_dtensors = 1;
        problem.pass = FXA_BACKWARD, problem.flags = 0, shape.grad = 1;
        if (fxa_attention(ctx, &problem, &args, &err)) goto failed;
        for (int i = 0; i < H * S; i++) bias[i] -= 0.5f * dbias[i];
    }
    fxa_cache_stats stats;
    fxa_cache_get_stats(ctx, &stats);
    printf("loss %.4f -> %.4f in %d steps; head 0 bias by distance:", first, last, STEPS);
    for (int i = 0; i < 6; i++) printf(" %.2f", (double)bias[i]);
    printf("\nplans built: %d, runs: %d\n", (int)stats.builds, (int)stats.runs);
    code = !(last < 0.1 * first && stats.builds == 2);
    goto done;
failed:
    fprintf(stderr, "%s: %s\n", fxa_status_name(err.status), err.text);
done:
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return code;
}
