/* SPDX-License-Identifier: Apache-2.0
 *
 * A problem of the cuda engine and the kernels that the engine chooses for it before compilation, for
 * test_cuda_choice.c, test_cuda_assumptions.c and test_cuda_keys.c. Needs neither a device nor NVRTC.
 */
#ifndef FXA_TESTS_CUDA_CHOICE_FIXTURE_H
#define FXA_TESTS_CUDA_CHOICE_FIXTURE_H

#include "../all/cuda_families.h"
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "support/fixtures/own_context.h"

typedef struct choice_case {
    fxa_problem p;
    fxa_program *program;
    fxa_capture captures[FXA_MAX_TENSORS];
} choice_case;

static const fxa__cuda_self choice_hopper = {.arch = 90, .processors = 132};

static void choice_start(choice_case *c, fxa_pass pass, const char *text) {
    fxa_error err;
    memset(c, 0, sizeof *c);
    c->p = (fxa_problem)FXA_PROBLEM_INIT;
    c->p.pass = (uint32_t)pass, c->p.b = 2, c->p.hq = 4, c->p.hkv = 2, c->p.sq = 300, c->p.sk = 500, c->p.d_qk = 64;
    c->p.q.dtype = FXA_BF16, c->p.alignment = 16, c->p.device = FXA_CUDA;
    c->p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE;
    if (text) T_OK(own_parse(FXA_PROGRAM_SCORE, text, strlen(text), &c->program, &err));
    c->p.program = c->program, c->p.captures = c->captures;
    c->p.n_captures = text ? fxa_program_tensor_count(c->program) : 0;
    for (size_t i = 0; i < c->p.n_captures; i++)
        for (int d = 0; d < FXA_MAX_RANK; d++) c->captures[i].size[d] = 512;
}

/* Returns the status of the choice and writes the choice or the reason of a refusal. Frees the case's program. */
static fxa_status choice_end(choice_case *c, const fxa__cuda_self *self, fxa__cuda_choice *out, fxa__cuda_program *g,
                             fxa_error *err) {
    fxa__problem *p = NULL;
    fxa__cuda_program own = {.program = NULL};
    fxa_status status = fxa__problem_create(fxa__context_host(ctx), &c->p, &p, err);
    if (status != FXA_OK) T_FAIL("no problem: %s\n", err->text);
    if (status == FXA_OK) status = fxa__cuda_choose(self, p, out, g ? g : &own, err);
    fxa__cuda_program_free(&own);
    if (p) fxa__problem_release(p);
    fxa_program_destroy(c->program);
    return status;
}

#endif
