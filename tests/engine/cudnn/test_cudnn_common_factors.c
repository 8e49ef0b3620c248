/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that the cuDNN engine leaves out (score/common_factors.c): operations of the graphs are counted, and
 * results are compared with ref where a wrong omission would show, with factors of 0 or NaN.
 */
#include "cudnn_fixture.h"
#include "plan/plan.h"

typedef struct reuse_case {
    const char *text, *own;
    int tanhs, selects, quotients; /* expected counts in the backward graph: TANH_FWD, selects of floats by ints, DIV */
} reuse_case;

#define REUSE_CAP "param cap : float\nscore = cap * tanh(score / cap)"
static const reuse_case reuse_cases[] = {
    /* A soft cap evaluates tanh once, for the score and for dscore (1 - t t). */
    {REUSE_CAP, NULL, 1, 0, 0},
    {"score = 30.0 * tanh(score / 30.0)", NULL, 1, 0, 0},
    {"param c : float\nscore = c * tanh(score / c) + 0.5 * tanh(score / c)", NULL, 1, 2, 1},
    {"param a : float\nparam c : float\nscore = a * tanh(score / c)", NULL, 1, 2, 1},
    /* If the score has another use, the quotient stays. */
    {"param c : float\nscore = c * tanh(score / c) + score", NULL, 1, 0, 1},
    {"param c : float\nscore = c * tanh(score / c) + sin(score / c)", NULL, 1, 3, 2},
    {"param c : float\nmask = tanh(score / c) > 0.1", NULL, 1, 1, 1},
    {"param c : float\nscore = with_grad(score, c * tanh(score / c))", NULL, 1, 0, 1},
    {"param c : float\nscore = c * exp(score / c)", NULL, 0, 1, 1}, /* exp may be infinite */
    /* A backward program reuses values of the score program, but only those made from constants, because the params of
     * both programs are separate. */
    {"score = 8.0 * tanh(score / 8.0)", "let t = tanh(score / 8.0)\ndscore = dscore * (1.0 - t * t)", 1, 1, 1},
    {"score = 8.0 * tanh(score / 8.0)", "let t = tanh(score / 7.0)\ndscore = dscore * (1.0 - t * t)", 2, 1, 2},
    {REUSE_CAP, "param cap : float\nlet t = tanh(score / cap)\ndscore = dscore * (1.0 - t * t)", 2, 1, 2},
    {"score = tanh(score)", "dscore = dscore * tanh(score)", 2, 1, 0}, /* the new score has no other use */
};

static fxa__problem *reuse_problem(fxa_context *ctx, const reuse_case *c, attn_data *x, attn_call *call) {
    attn_spec s = spec;
    fxa__problem *checked = NULL;
    fxa_error err;
    s.text = c->text, s.bprop_text = c->own;
    T_OK(attn_data_make(x, ctx, &s, 77, &err));
    x->problem.alignment = 16;
    attn_call_make(x, FXA_BACKWARD, call);
    call->p.device = FXA_CUDA, call->p.param_grads = 0;
    T_OK(fxa__problem_create(fxa__context_host(ctx), &call->p, &checked, &err));
    return checked;
}

static int reuse_count(const fxa__dnn_graph *g, int mode) {
    int n = 0;
    for (size_t i = 0; i < g->n_ops; i++)
        n += g->ops[i].kind == FXA__DNN_POINTWISE && g->ops[i].mode == mode &&
             (mode != CUDNN_POINTWISE_BINARY_SELECT || g->tensors[g->ops[i].t].type == CUDNN_DATA_INT32);
    return n;
}

TEST(operations_that_are_left_out) {
    static fxa__dnn_attention a;
    for (size_t i = 0; i < sizeof reuse_cases / sizeof *reuse_cases; i++) {
        const reuse_case *c = &reuse_cases[i];
        t_ctx *ctx = t_context();
        attn_owned x = {0};
        attn_call call;
        fxa__problem *checked = reuse_problem(ctx, c, &x, &call);
        T_OK(fxa__dnn_attention_make(checked, (fxa__dnn_level){91900, 90}, &a, &err));
        int tanhs = reuse_count(&a.g, CUDNN_POINTWISE_TANH_FWD);
        int selects = reuse_count(&a.g, CUDNN_POINTWISE_BINARY_SELECT);
        int quotients = reuse_count(&a.g, CUDNN_POINTWISE_DIV);
        if (tanhs != c->tanhs || selects != c->selects || quotients != c->quotients)
            T_FAIL("%s: %d tanh, %d selects, %d quotients\n", c->text, tanhs, selects, quotients);
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
    }
}

/* cuDNN recognises lengths in one form only: the score that they mask has two indices and no other use. With an
 * unchanged score, the derivative may have a use that reads the score or its indices. */
TEST(scores_that_lengths_mask_have_no_other_use) {
    static fxa__dnn_attention a;
    static const reuse_case cases[] = {{"", NULL, 0, 0, 0},
                                       {"score = with_grad(score, 0.0)", NULL, 0, 0, 0},
                                       {"score = with_grad(score, score * float(k))", NULL, 0, 0, 0},
                                       {"score = with_grad(score, tanh(score))", NULL, 0, 0, 0},
                                       {"score = with_grad(tanh(score), tanh(score) * tanh(score))", NULL, 0, 0, 0},
                                       {"score = exp(score)", NULL, 0, 0, 0},
                                       {"", "dscore = dscore * float(k)", 0, 0, 0},
                                       {"mask = k != q", "dscore = dscore * score", 0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t_ctx *ctx = t_context();
        attn_owned x = {0};
        attn_call call;
        fxa__problem *checked = reuse_problem(ctx, &cases[i], &x, &call);
        T_OK(fxa__dnn_attention_make(checked, (fxa__dnn_level){91900, 90}, &a, &err));
        int32_t masked = -1;
        int uses = 0;
        for (size_t k = 0; k < a.g.n_ops; k++)
            if (a.g.ops[k].mode == CUDNN_POINTWISE_BINARY_SELECT && a.g.tensors[a.g.ops[k].t].type != CUDNN_DATA_INT32)
                masked = a.g.ops[k].x;
        for (size_t k = 0; k < a.g.n_ops; k++)
            uses += (a.g.ops[k].x == masked) + (a.g.ops[k].b == masked) + (a.g.ops[k].t == masked);
        if (masked < 0 || uses != 3) T_FAIL("%s: %d uses of %d\n", cases[i].text, uses, (int)masked);
        fxa__dnn_attention_free(&a);
        fxa__problem_release(checked);
    }
}

/* Masked keys that are 0: their scores divided by a cap of 0 are NaN, which no gradient may contain. */
TEST(pairs_that_are_masked_and_no_number) {
    NEEDS_CUDNN;
    attn_spec s = spec;
    fxa_context *ctx = t_context();
    attn_kept want = {{NULL}};
    attn_data x;
    attn_call call;
    s.text = REUSE_CAP "\nmask = k < 8";
    T_OK(attn_data_make(&x, ctx, &s, 77, &err));
    x.problem.alignment = 16, x.params[0] = 0;
    attn_tensor *k = &x.t[FXA_SLOT_K];
    for (int64_t b = 0; b < s.b; b++)
        for (int64_t h = 0; h < s.hkv; h++)
            for (int64_t i = 8; i < s.sk; i++)
                for (int64_t d = 0; d < s.d; d++) attn_tensor_set(k, (const int64_t[4]){b, h, i, d}, 0);
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "ref";
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_call_make(&x, FXA_BACKWARD, &call);
    call.p.engine = "ref", call.p.param_grads = 0, call.args.dparams = NULL, call.args.n_dparams = 0;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_keep(&x, FXA_BACKWARD, &want);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    for (int i = 0; i < 3; i++) {
        attn_off off = attn_tensor_off(attn_output(&x, FXA_BACKWARD, i), want.memory[i]);
        T_INT(off.odd, 0);
        if (i < 2) T_CHECK(off.worst == 0 && off.size == 0); /* tanh is 1 or -1 everywhere */
    }
    attn_drop(&want);
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

/* Runs forward by the reference and by cuDNN, with one param, which the text need not declare. Returns cuDNN's error
 * and sets *worst to the largest error of O relative to the largest expected value; infinite if only one of both is
 * finite. zero: a row of Q is 0. */
static fxa_error reuse_forward(fxa_context *ctx, const char *text, double param, bool zero, double *worst) {
    attn_spec s = spec;
    fxa_error err;
    attn_kept want = {{NULL}};
    attn_data x;
    attn_call call;
    s.text = text;
    T_OK(attn_data_make(&x, ctx, &s, 79, &err));
    x.problem.alignment = 16, x.params[0] = param;
    for (int64_t d = 0; d < s.d && zero; d++) attn_tensor_set(&x.t[FXA_SLOT_Q], (const int64_t[4]){0, 0, 1, d}, 0);
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "ref";
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_keep(&x, FXA_FORWARD, &want);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA;
    const fxa_status status = fxa_attention(ctx, &call.p, &call.args, &err);
    attn_off off = attn_tensor_off(attn_output(&x, FXA_FORWARD, 0), want.memory[0]);
    *worst = off.odd ? (double)INFINITY : off.size > 0 ? off.worst / off.size : off.worst;
    attn_drop(&want);
    attn_data_free(&x);
    T_INT(err.status, status);
    return err;
}

/* Returns the tolerance of O: its own rounding and that of the weights, with 8 bits, and twice the error of a new
 * score. */
static double reuse_allowed(double score_off) { return 3 * 0x1p-8 + 2 * score_off; }

/* The number that is part of the scale takes extreme values. The scores of the zero row of Q are 0 whatever they are
 * divided by, except by 0. cuDNN's tanh has a relative error of 2^-16 (conf_functions.c). */
TEST(caps_at_the_ends_of_floats) {
    NEEDS_CUDNN;
    static const struct {
        const char *text;
        double cap, most; /* most: the largest new score */
        bool refused;
    } cases[] = {{REUSE_CAP, 3, 3, false},
                 {REUSE_CAP, -3, 3, false},
                 {REUSE_CAP, 1e-42, 1e-42, false},
                 {REUSE_CAP, 0, 0, false},
                 {REUSE_CAP, 1e30, 30, false},
                 {REUSE_CAP, 3e38, 30, true},
                 {REUSE_CAP, (double)INFINITY, 0, false},
                 {"param cap : float\nscore = 2.0 * tanh(score * cap)", 3e38, 2, false},
                 {"param cap : float\nscore = 2.0 * tanh(score * cap)", -0.25, 2, false},
                 {"param cap : float\nscore = 2.0 * tanh(cap * score)", 1e-39, 2, true}};
    fxa_context *ctx = t_context();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double worst = 0;
        err = reuse_forward(ctx, cases[i].text, cases[i].cap, true, &worst);
        if (err.status != (cases[i].refused ? FXA_E_BINDING : FXA_OK)) T_FAIL("cap %g: %s\n", cases[i].cap, err.text);
        if (err.status == FXA_OK && !(worst <= reuse_allowed(cases[i].most * 0x1p-16)))
            T_FAIL("cap %g: off by %g\n", cases[i].cap, worst);
    }
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

/* Scores that are returned unchanged while the mask divides them by a number: the number must not become part of their
 * scale. */
TEST(scores_that_stay_as_they_are) {
    NEEDS_CUDNN;
    static const char *const texts[] = {"param c : float\nmask = tanh(score / c) > -0.1",
                                        "mask = tanh(score * 5.0) > -0.1 && k <= q + 3"};
    fxa_context *ctx = t_context();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        double worst = 0;
        err = reuse_forward(ctx, texts[i], -2, false, &worst);
        T_INT(err.status, FXA_OK);
        if (!(worst <= reuse_allowed(0))) T_FAIL("%s: off by %g\n", texts[i], worst);
    }
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

T_MAIN
