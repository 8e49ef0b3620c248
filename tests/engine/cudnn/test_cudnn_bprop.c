/* SPDX-License-Identifier: Apache-2.0
 *
 * User-written backward programs in the cuDNN engine, on the stand-ins: programs that are not the derivative of the
 * forward program, with their own params and captured tensors, compared with ref; refusals; the device of their
 * tensors. Random programs are in test_cudnn_lowering.c.
 */
#include "cudnn_fixture.h"
#include "plan/plan.h"
#include "support/conformance/conf_case.h"

typedef struct bprop_case {
    const char *text, *own; /* score program and user-written backward program */
    int64_t tensor[ATTN_TENSORS][FXA_MAX_RANK], own_tensor[ATTN_TENSORS][FXA_MAX_RANK];
    uint32_t flags;
} bprop_case;

#define BPROP_CAP "param cap : float\nscore = cap * tanh(score / cap)\nmask = k <= q + 3"
static const bprop_case bprop_cases[] = {
    {BPROP_CAP, "dscore = dscore", {{0}}, {{0}}, 0},
    {BPROP_CAP, "dscore = dscore * 0.5", {{0}}, {{0}}, FXA_DETERMINISTIC},
    {BPROP_CAP, "dscore = clamp(dscore, -0.01, 0.01)", {{0}}, {{0}}, 0},
    {BPROP_CAP, "dscore = abs(score) < 0.5 ? dscore : 0.0", {{0}}, {{0}}, 0},
    {NULL, "dscore = dscore * score", {{0}}, {{0}}, 0},
    {"mask = k <= q + 3", "dscore = dscore * (1.0 - tanh(score) ** 2)", {{0}}, {{0}}, 0},
    /* Transformer Engine's soft cap: tanh of the score over the cap, and its derivative times dscore. */
    {BPROP_CAP,
     "param cap : float\nparam gain : float\nlet t = tanh(score / (2.0 * cap))\ndscore = gain * dscore * (1.0 - t * t)",
     {{0}},
     {{0}},
     0},
    {BPROP_CAP, "param cap : float\ndscore = dscore * cap * tanh(score)", {{0}}, {{0}}, FXA_SCALARS_IN_MEMORY},
    {BPROP_CAP, "tensor u : f32[1]\nparam a : float\ndscore = dscore * (a + u[h])", {{0}}, {{4}}, 0},
    {BPROP_CAP, "tensor u : f16[2]\ndscore = dscore * u[q, k]", {{0}}, {{9, 12}}, 0},
    {"tensor t : f32[2]\nscore = score + t[q, k]",
     "tensor u : bf16[2]\ntensor v : f64[1]\ndscore = dscore * u[q, k] + dscore * v[h]",
     {{9, 12}},
     {{9, 12}, {4}},
     0},
    /* Masked pairs contribute nothing, even if dscore is not proportional to the incoming gradient. */
    {BPROP_CAP, "dscore = dscore + 0.25 * tanh(score)", {{0}}, {{0}}, 0},
    {BPROP_CAP, "dscore = dscore + 0.01 * (k - q)", {{0}}, {{0}}, 0},
    {BPROP_CAP, "dscore = 0.1 * score", {{0}}, {{0}}, 0},
    {BPROP_CAP, "dscore = 0.125", {{0}}, {{0}}, FXA_DETERMINISTIC},
};

static attn_spec bprop_spec(const bprop_case *c) {
    attn_spec s = spec;
    s.text = c->text, s.bprop_text = c->own;
    memcpy(s.tensor, c->tensor, sizeof s.tensor);
    memcpy(s.bprop_tensor, c->own_tensor, sizeof s.bprop_tensor);
    return s;
}

/* Makes a call without the gradients that the engine does not support. */
static void bprop_call(attn_data *x, fxa_pass pass, const char *engine, attn_call *call) {
    attn_call_make(x, pass, call);
    call->p.engine = engine, call->p.device = attn_device(engine), call->p.param_grads = 0;
    call->args.dparams = NULL, call->args.n_dparams = 0;
    call->args.dtensors = NULL, call->args.n_dtensors = 0;
    for (size_t i = 0; i < x->n_tensors; i++) call->captures[i].grad = 0;
}

static fxa_program *bprop_parse(fxa_context *ctx, const char *text, fxa_program_kind kind) {
    const fxa_text source = {"text", text, SIZE_MAX};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    fxa_program *program = NULL;
    fxa_error err;
    config.kind = kind, config.texts = &source, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(ctx, &config, &program, &err));
    return program;
}

/* Compares both passes of cudnn with the reference, within the bounds of the arithmetic. */
static void bprop_compare(fxa_context *ctx, const bprop_case *c, uint64_t seed) {
    static conf_case x;
    const attn_shape shape = {2, 4, 2, 21, 30, 32, 32, 16, 1, 30, 0};
    conf_tally tally = {0};
    fxa_program *program = bprop_parse(ctx, c->text ? c->text : "", FXA_PROGRAM_SCORE);
    fxa_program *own = bprop_parse(ctx, c->own, FXA_PROGRAM_BPROP);
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    bool ok = conf_draw(&x, ctx, ATTN_GQA, &shape, program, "text", own, &tally, &seed);
    fxa_problem *p = &x.base.data.problem;
    p->alignment = 16, p->param_grads = 0;
    p->flags = (p->flags & ~(uint32_t)FXA_RETURN_ROW_MAX) | (c->flags & FXA_SCALARS_IN_MEMORY);
    x.base.data.backward_flags |= c->flags & FXA_DETERMINISTIC;
    for (size_t i = 0; i < x.n_tensors; i++) x.captures[i].grad = 0;
    ok = ok && conf_check_forward(&x, "cudnn") && !x.refused && !x.unsure;
    ok = ok && conf_check_backward(&x, "cudnn") && !x.refused && !x.unsure;
    if (!ok) T_FAIL("%s: %s%s\n", c->own, x.unsure ? "unsure " : "", x.why);
    conf_free(&x);
}

TEST(own_programs_are_those_of_the_reference) {
    NEEDS_CUDNN;
    for (size_t i = 0; i < sizeof bprop_cases / sizeof *bprop_cases; i++) {
        fxa_context *ctx = t_context();
        bprop_compare(ctx, &bprop_cases[i], 77 + i);
        fxa_context_destroy(ctx);
        if (standin_ready()) standin_check_end();
    }
}

/* Checks that the engine refuses a case with a reason that contains `says`. */
static void bprop_refused(const bprop_case *c, fxa_pass pass, const char *says) {
    const attn_spec s = bprop_spec(c);
    t_ctx *ctx = t_context();
    fxa_error err;
    attn_owned x = {0};
    attn_call call;
    T_OK(attn_data_make(&x, ctx, &s, 77, &err));
    x.problem.alignment = 16;
    bprop_call(&x, pass, "cudnn", &call);
    call.p.engine = NULL;
    const fxa_support answer = answer_of(ctx, &call.p);
    T_CHECK(!answer.supported);
    T_HAS(answer.reason, says);
}

TEST(own_programs_that_are_refused) {
    NEEDS_STANDIN;
    static const struct {
        const char *own, *says;
        int64_t size;
    } cases[] = {{"dscore = round(dscore)", "operation ROUND", 0},
                 {"tensor u : f32[1]\ndscore = dscore * u[q + k]", "index 0 of u is computed", 30},
                 {"tensor u : f32[1]\ndscore = dscore * u[7]", "axis 0 of u has 4 elements", 4},
                 {"dscore = dscore ** 1.5", "exponents 2, 3, 4", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bprop_case c = {BPROP_CAP, cases[i].own, {{0}}, {{cases[i].size}}, 0};
        bprop_refused(&c, FXA_BACKWARD, cases[i].says);
    }
}

/* The score program, or the user-written backward program, has more nodes than a run can evaluate. */
TEST(programs_that_are_too_large) {
    NEEDS_STANDIN;
    enum { SUMS = 1100 };
    static char text[2][64 * SUMS];
    for (int own = 0; own < 2; own++) {
        size_t n = (size_t)snprintf(text[own], 64, "%s = %s", own ? "dscore" : "score", own ? "dscore" : "score");
        for (int i = 0; i < SUMS; i++) n += (size_t)snprintf(text[own] + n, 64, " + %d.5 * tanh(score * %d.25)", i, i);
    }
    for (int which = 0; which < 3; which++) {
        fxa_pass pass = which ? FXA_BACKWARD : FXA_FORWARD;
        const bprop_case c = {which == 2 ? BPROP_CAP : text[0], which == 2 ? text[1] : NULL, {{0}}, {{0}}, 0};
        bprop_refused(&c, pass, which == 2 ? "bprop has" : "the program, with its derivative, has");
        bprop_refused(&c, pass, "this engine takes 1024");
    }
}

/* cuDNN recognises padding only if the masked score has no other use; a user-written backward program that reads the
 * original score is such a use. */
CONTEXT_TEST(a_padded_score_has_no_other_use) {
    const bprop_case c = {NULL, "dscore = dscore * score", {{0}}, {{0}}, 0};
    const attn_spec s = bprop_spec(&c);
    static fxa__dnn_attention a;
    fxa__problem *checked = NULL;
    attn_owned x = {0};
    attn_call call;
    int masks = 0;
    T_OK(attn_data_make(&x, ctx, &s, 77, &err));
    x.problem.alignment = 16;
    bprop_call(&x, FXA_BACKWARD, "cudnn", &call);
    T_OK(fxa__problem_create(fxa__context_host(ctx), &call.p, &checked, &err));
    T_OK(fxa__dnn_attention_make(checked, (fxa__dnn_level){91901, 90}, &a, &err));
    for (size_t i = 0; i < a.g.n_ops; i++) {
        const fxa__dnn_op *select = &a.g.ops[i];
        if (select->mode != CUDNN_POINTWISE_BINARY_SELECT || a.g.tensors[select->t].type != CUDNN_DATA_BOOLEAN)
            continue;
        masks++;
        for (size_t j = 0; j < a.g.n_ops; j++) {
            const fxa__dnn_op *op = &a.g.ops[j];
            bool index = op->kind == FXA__DNN_POINTWISE && op->mode == CUDNN_POINTWISE_GEN_INDEX;
            bool uses = op->x == select->x || op->b == select->x || op->t == select->x;
            if (uses && j != i && !index) T_FAIL("operation %zu has the score that %zu masks\n", j, i);
        }
    }
    T_INT(masks, 1);
    fxa__dnn_attention_free(&a);
    fxa__problem_release(checked);
}

/* A plan's listing has the names of the user-written backward program, whose tensors must be on the device. */
STANDIN_TEST(whose_tensors_they_are) {
    const bprop_case c = {
        BPROP_CAP, "tensor u : f32[1]\nparam own : float\ndscore = dscore * (own + u[h])", {{0}}, {{4}}, 0};
    const attn_spec s = bprop_spec(&c);
    fxa_plan *plan = NULL;
    fxa__gpu gpu;
    attn_owned x = {0};
    attn_call call;
    char text[8000];
    void *there = NULL, *workspace = NULL;
    T_OK(attn_data_make(&x, ctx, &s, 77, &err));
    x.problem.alignment = 16;
    bprop_call(&x, FXA_BACKWARD, "cudnn", &call);
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    T_OK(fxa_plan_dump(plan, text, sizeof text, NULL, &err));
    T_HAS(text, "own");
    T_HAS(text, "u)");
    T_OK(fxa__gpu_open(&gpu, 0, &err));
    T_OK(fxa__gpu_alloc(&gpu, 1 << 20, &there, &err));
    T_OK(fxa__gpu_alloc(&gpu, fxa_plan_workspace(plan) + 64, &workspace, &err));
    for (int i = 0; i < FXA_SLOT_COUNT; i++)
        if (call.args.slot[i]) call.args.slot[i] = (char *)there + (i << 14);
    call.args.workspace = workspace, call.args.workspace_size = fxa_plan_workspace(plan);
    T_STATUS(fxa_plan_run(plan, &call.args, &err), FXA_E_BINDING);
    T_HAS(err.text, "tensor of bprop u is 0x");
    T_HAS(err.text, "no memory of device cuda 0");
    fxa__gpu_give(&gpu, there);
    fxa__gpu_give(&gpu, workspace);
    fxa__gpu_close(&gpu);
    fxa_plan_destroy(plan);
}

T_MAIN
