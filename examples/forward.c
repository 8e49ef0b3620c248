/* SPDX-License-Identifier: Apache-2.0
 *
 * The shortest complete use of fxattn from C: a score program, a problem, one call.
 */
#include "fxattn/fxattn.h"

#include <stdio.h>
#include <stdlib.h>

enum { B = 1, H = 2, S = 6, D = 4 };

static const char *program_text = "param softcap : float\n"
                                  "tensor slopes : f32[1]\n"
                                  "let dist = q - k\n"
                                  "score = softcap * tanh((score - slopes[h] * dist) / softcap)\n"
                                  "mask = q >= k\n";

static int fail(const fxa_error *err) {
    fprintf(stderr, "%s: %s\n", fxa_status_name(err->status), err->text);
    return 1;
}

int main(void) {
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    int code = 1;
    float q[B * H * S * D], k[B * H * S * D], v[B * H * S * D], o[B * H * S * D], slopes[H] = {0.5f, 0.25f};
    for (int i = 0; i < B * H * S * D; i++) {
        q[i] = (float)(i % 7) / 7;
        k[i] = (float)(i % 5) / 5;
        v[i] = (float)(i % 3);
    }
    if (fxa_context_create(NULL, &ctx, &err) || fxa_program_parse(ctx, program_text, SIZE_MAX, &program, &err)) {
        fail(&err);
        goto done;
    }

    fxa_capture slopes_shape = {.size = {H}};
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.b = B, problem.hq = H, problem.sq = S, problem.sk = S, problem.d_qk = D;
    problem.captures = &slopes_shape, problem.n_captures = 1;

    const double params[] = {20.0};
    const void *tensors[] = {slopes};
    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = k, args.slot[FXA_SLOT_V] = v, args.slot[FXA_SLOT_O] = o;
    args.params = params, args.n_params = 1;
    args.tensors = tensors, args.n_tensors = 1;
    if (fxa_attention(ctx, &problem, &args, &err)) {
        fail(&err);
        goto done;
    }
    for (int s = 0; s < S; s++)
        printf("row %d of head 0: %6.3f %6.3f %6.3f %6.3f\n", s, o[s * D], o[s * D + 1], o[s * D + 2], o[s * D + 3]);
    code = 0;
done:
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return code;
}
