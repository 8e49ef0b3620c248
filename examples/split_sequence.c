/* SPDX-License-Identifier: Apache-2.0
 *
 * Context parallelism in miniature: the keys of one sequence are split in two halves, each half is attended separately
 * (on two machines, for example), and the partial results are merged. A coordinate map gives each half its global key
 * positions, so the program, which reads q - k, is unchanged.
 */
#include "fxattn/fxattn.h"

#include <math.h>
#include <stdio.h>

enum { H = 2, S = 12, HALF = 6, D = 4, N = H * S * D };

static double q[N], k[N], v[N], whole[N], part[2][N], whole_lse[H * S], part_lse[2][H * S];

/* Attends all S queries to keys first..first+n-1. */
static fxa_status attend(fxa_context *ctx, const fxa_program *program, int first, int n, double *o, double *lse,
                         fxa_error *err) {
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.flags = FXA_RETURN_LSE;
    problem.b = 1, problem.hq = H, problem.sq = S, problem.sk = n, problem.d_qk = D;
    problem.q.dtype = FXA_F64;
    problem.map_k.base = first; /* local key i is global key first + i */
    problem.global_k_len = S;   /* value of the input k_len */
    fxa_operand keys = {FXA_F64, FXA_LAYOUT_STRIDED, {0, S * D, D, 1}};
    problem.k = keys, problem.v = keys;
    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = k + first * D, args.slot[FXA_SLOT_V] = v + first * D;
    args.slot[FXA_SLOT_O] = o, args.slot[FXA_SLOT_LSE] = lse;
    return fxa_attention(ctx, &problem, &args, err);
}

int main(void) {
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_program *program = NULL;
    int code = 1;
    for (int i = 0; i < N; i++) {
        q[i] = sin(i);
        k[i] = cos(3 * i);
        v[i] = sin(7 * i);
    }
    const char *text = "score = score - 0.2 * (q - k)\nmask = q >= k\n";
    if (fxa_context_create(NULL, &ctx, &err) || fxa_program_parse(ctx, text, SIZE_MAX, &program, &err)) goto failed;
    if (attend(ctx, program, 0, S, whole, whole_lse, &err) ||
        attend(ctx, program, 0, HALF, part[0], part_lse[0], &err) ||
        attend(ctx, program, HALF, HALF, part[1], part_lse[1], &err))
        goto failed;

    fxa_operand packed = {FXA_F64, FXA_LAYOUT_BHSD, {0}};
    fxa_merge_args merge = FXA_MERGE_ARGS_INIT;
    merge.b = 1, merge.h = H, merge.s = S, merge.d = D;
    merge.o_a = merge.o_b = merge.lse_a = merge.lse_b = packed;
    merge.o_a_data = part[0], merge.lse_a_data = part_lse[0];
    merge.o_b_data = part[1], merge.lse_b_data = part_lse[1];
    if (fxa_merge(&merge, &err)) goto failed;
    double worst = 0;
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs(part[0][i] - whole[i]));
    for (int i = 0; i < H * S; i++) worst = fmax(worst, fabs(part_lse[0][i] - whole_lse[i]));
    printf("two halves merged against the whole: largest difference %.1e\n", worst);
    code = !(worst < 1e-14);
    goto done;
failed:
    fprintf(stderr, "%s: %s\n", fxa_status_name(err.status), err.text);
done:
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
    return code;
}
