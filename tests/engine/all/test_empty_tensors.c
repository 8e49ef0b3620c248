/* SPDX-License-Identifier: Apache-2.0
 *
 * Captured tensors without elements, whose other sizes may be huge: loads give 0, gradients receive nothing, and no
 * engine computes with missing elements. Also tests user-written backward programs next to sums of the derivative.
 */
#include "support/fixtures/attn_data.h"
#include "t.h"

enum { EMPTY_S = 6, EMPTY_D = 4, EMPTY_N = EMPTY_S * EMPTY_D };

typedef struct empty_run {
    float in[4][EMPTY_N], o[EMPTY_N], lse[EMPTY_S], grad[3][EMPTY_N], t[4], dt[4];
    double params[1], dparams[1];
} empty_run;

static void empty_fill(empty_run *x) {
    t_rng rng = {t_seed()};
    memset(x, 0, sizeof *x);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < EMPTY_N; j++) x->in[i][j] = (float)t_real(&rng, -1, 1);
    for (int i = 0; i < 4; i++) x->t[i] = 0.5f * (float)(i + 1);
    x->params[0] = 0.75;
}

/* Runs both passes, with every gradient. */
static void empty_pass(fxa_context *ctx, const char *engine, const fxa_program *program, const fxa_program *bprop,
                       const fxa_capture *capture, empty_run *x) {
    const void *tensors[1] = {x->t};
    void *dtensors[1] = {x->dt};
    fxa_capture own = *capture;
    for (int backward = 0; backward < 2; backward++) {
        fxa_problem p = FXA_PROBLEM_INIT;
        fxa_args a = FXA_ARGS_INIT;
        fxa_error err;
        p.b = p.hq = 1, p.sq = p.sk = EMPTY_S, p.d_qk = EMPTY_D, p.program = program;
        p.engine = engine, p.device = attn_device(engine);
        own.grad = (uint32_t)backward;
        p.captures = &own, p.n_captures = 1;
        p.flags = backward ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE;
        p.pass = backward ? FXA_BACKWARD : FXA_FORWARD;
        p.param_grads = backward && fxa_program_param_count(program);
        p.bprop = backward ? bprop : NULL;
        for (int i = 0; i < 3; i++) a.slot[FXA_SLOT_Q + i] = x->in[i];
        a.slot[FXA_SLOT_O] = x->o, a.slot[FXA_SLOT_LSE] = x->lse;
        a.tensors = tensors, a.n_tensors = 1;
        a.params = x->params, a.n_params = fxa_program_param_count(program);
        if (backward) {
            a.slot[FXA_SLOT_DO] = x->in[3];
            for (int i = 0; i < 3; i++) a.slot[FXA_SLOT_DQ + i] = x->grad[i];
            a.dtensors = dtensors, a.n_dtensors = 1, a.dparams = x->dparams, a.n_dparams = a.n_params;
        }
        T_OK(fxa_attention(ctx, &p, &a, &err));
    }
}

CONTEXT_TEST(sizes_beside_an_empty_axis_do_not_count) {
    t_program *program = NULL, *plain = NULL;
    const int64_t large = (int64_t)1 << 40;
    const fxa_capture empty = {
        .size = {0, large, large}, .stride = {1, 1, 1}, .grad_stride = {1, 1, 1}, .strided = 1, .grad_strided = 1};
    const fxa_capture none = {.size = {0}};
    T_OK(fxa_program_parse(ctx, "tensor t : f32[3]\nscore = score * 2.0 + t[q, k, 3]", SIZE_MAX, &program, &err));
    T_OK(fxa_program_parse(ctx, "tensor t : f32[1]\nscore = score * 2.0 + t[q]", SIZE_MAX, &plain, &err));
    for (size_t e = 0; engine_here(e) && program && plain; e++) {
        static empty_run x, want;
        empty_fill(&x), empty_fill(&want);
        empty_pass(ctx, engine_here(e), program, NULL, &empty, &x);
        empty_pass(ctx, engine_here(e), plain, NULL, &none, &want);
        T_CHECK(memcmp(&x, &want, sizeof x) == 0 && x.o[0] != 0 && x.grad[0][0] != 0);
    }
}

/* A user-written backward replaces dscore only: gradients of tensors and params come from the derivative. */
CONTEXT_TEST(sums_beside_a_users_backward) {
    t_program *program = NULL, *bprop = NULL;
    fxa_text one = {NULL, "dscore = dscore * 3.0", SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    const fxa_capture capture = {.size = {4}};
    config.kind = FXA_PROGRAM_BPROP, config.texts = &one, config.n_texts = 1;
    T_OK(fxa_program_parse(ctx, "param c : float\ntensor t : f32[1]\nscore = c * score + t[k % 4]", SIZE_MAX, &program,
                           &err));
    T_OK(fxa_program_parse_texts(ctx, &config, &bprop, &err));
    for (size_t e = 0; engine_here(e) && program && bprop; e++) {
        static empty_run with, without;
        empty_fill(&with), empty_fill(&without);
        empty_pass(ctx, engine_here(e), program, bprop, &capture, &with);
        empty_pass(ctx, engine_here(e), program, NULL, &capture, &without);
        for (int i = 0; i < 4; i++) T_NEAR(with.dt[i], without.dt[i], 1e-5);
        T_NEAR(with.dparams[0], without.dparams[0], 1e-5);
        T_CHECK(without.dt[0] != 0 && without.dparams[0] != 0);
        for (int i = 0; i < EMPTY_N; i++) /* 3 instead of c */
            T_NEAR(with.grad[0][i], without.grad[0][i] * 4.0, 1e-4);
    }
}

T_MAIN
