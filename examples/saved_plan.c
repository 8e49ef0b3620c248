/* SPDX-License-Identifier: Apache-2.0
 *
 * Saves a plan to bytes and loads it, as a service that restarts often would. The bytes contain the program, the
 * problem and the compiled code; they are validated when loaded.
 */
#include "fxattn/fxattn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 2, S = 8, D = 4, N = B * H * S * D };

static fxa_status run_plan(const fxa_plan *plan, float *q, float *o, fxa_error *err) {
    size_t size = fxa_plan_workspace(plan);
    void *workspace = size ? aligned_alloc(FXA_WORKSPACE_ALIGN, (size + 63) / 64 * 64) : NULL;
    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = q, args.slot[FXA_SLOT_V] = q, args.slot[FXA_SLOT_O] = o;
    args.workspace = workspace, args.workspace_size = size;
    fxa_status status = fxa_plan_run(plan, &args, err);
    free(workspace);
    return status;
}

int main(void) {
    fxa_error err;
    fxa_context *ctx = NULL, *later = NULL;
    fxa_program *program = NULL;
    fxa_plan *plan = NULL, *loaded = NULL, *damaged = NULL;
    unsigned char *bytes = NULL;
    size_t size = 0;
    int code = 1;
    float q[N], o[N], o2[N];
    for (int i = 0; i < N; i++) q[i] = (float)(i * 37 % 17) / 17;

    const char *text = "score = score - 0.1 * abs(q - k)\nmask = q // 4 == k // 4  # blocks of four\n";
    if (fxa_context_create(NULL, &ctx, &err) || fxa_program_parse(ctx, text, SIZE_MAX, &program, &err)) goto failed;
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.program = program;
    problem.b = B, problem.hq = H, problem.sq = S, problem.sk = S, problem.d_qk = D;
    if (fxa_plan_create(ctx, &problem, &plan, &err) || run_plan(plan, q, o, &err)) goto failed;

    if (fxa_plan_save(plan, NULL, 0, &size, &err)) goto failed;
    bytes = malloc(size);
    if (!bytes || fxa_plan_save(plan, bytes, size, NULL, &err)) goto failed;

    /* This part could run in another process. */
    if (fxa_context_create(NULL, &later, &err) || fxa_plan_load(later, bytes, size, &loaded, &err)) goto failed;
    if (run_plan(loaded, q, o2, &err)) goto failed;
    printf("saved %zu bytes, engine %s, results %s\n", size, fxa_plan_engine(loaded),
           memcmp(o, o2, sizeof o) == 0 ? "bit-equal" : "DIFFER");

    bytes[size / 2] ^= 1;
    fxa_status status = fxa_plan_load(later, bytes, size, &damaged, &err);
    printf("one bit flipped: %s: %s\n", fxa_status_name(status), err.text);
    code = memcmp(o, o2, sizeof o) != 0 || status == FXA_OK;
    goto done;
failed:
    fprintf(stderr, "%s: %s\n", fxa_status_name(err.status), err.text);
done:
    free(bytes);
    fxa_plan_destroy(damaged);
    fxa_plan_destroy(loaded);
    fxa_plan_destroy(plan);
    fxa_program_destroy(program);
    fxa_context_destroy(later);
    fxa_context_destroy(ctx);
    return code;
}
