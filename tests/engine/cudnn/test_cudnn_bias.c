/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of a captured tensor in the cuDNN engine, on the stand-ins or a device: gradients that cuDNN supports
 * (attention/bias_gradient.c), compared with ref, and refusals that depend on the program (test_cudnn_support.c tests
 * those that depend on the problem).
 */
#include "cudnn_fixture.h"
#include "support/conformance/conf_case.h"

enum { BIAS_B = 2, BIAS_H = 2, BIAS_Q = 64, BIAS_K = 128 };

typedef struct bias_case {
    const char *text, *says; /* says: part of the reason of the refusal; NULL = supported */
    int64_t size[FXA_MAX_RANK];
} bias_case;

static const bias_case bias_cases[] = {
    {"tensor t : bf16[2]\nscore = score + t[q, k]", NULL, {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = t[q, k] + score\nmask = k <= q", NULL, {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[3]\nscore = score + t[h, q, k]", NULL, {BIAS_H, BIAS_Q, BIAS_K}},
    {"tensor t : bf16[3]\nscore = score + t[b, q, k]", NULL, {BIAS_B, BIAS_Q, BIAS_K}},
    {"tensor t : bf16[4]\nscore = score + t[b, h, q, k]\nmask = k <= q", NULL, {BIAS_B, BIAS_H, BIAS_Q, BIAS_K}},
    {"tensor t : bf16[4]\nscore = score + t[h, b, q, k]", "without gaps", {BIAS_H, BIAS_B, BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = score + t[k, q]", "without gaps", {BIAS_K, BIAS_Q}},
    {"tensor t : bf16[2]\nscore = score + t[q, k]", "of just these sizes", {BIAS_Q, BIAS_K + 1}},
    {"tensor t : bf16[2]\nscore = score + t[h, k]", "without gaps", {BIAS_H, BIAS_K}},
    {"tensor t : bf16[2]\nscore = score + 2.0 * t[q, k]", "added to the score once", {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = score + t[q, k] + t[0, 1]", "added to the score once", {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = tanh(score) + t[q, k]", "no function of the score", {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = tanh(score + t[q, k])", "no function of the score", {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = score + t[q, k]\nmask = k <= q + 1", "without a mask", {BIAS_Q, BIAS_K}},
    {"tensor t : bf16[2]\nscore = score + t[q, k]\nmask = k % 2 == 0", "without a mask", {BIAS_Q, BIAS_K}},
};

/* Queries a case and, if it is supported, compares its results with the reference, within the bounds of the
 * arithmetic. */
static void bias_try(const bias_case *c) {
    static conf_case x;
    const attn_shape shape = {BIAS_B, BIAS_H, BIAS_H, BIAS_Q, BIAS_K, 32, 32, 16, 1, BIAS_K, 0};
    fxa_context *ctx = t_context();
    fxa_program *program = NULL;
    conf_tally tally = {0};
    uint64_t rng = 77;
    fxa_error err;
    conf_call call;
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    T_OK(fxa_program_parse(ctx, c->text, SIZE_MAX, &program, &err));
    bool ok = conf_draw(&x, ctx, 0, &shape, program, "text", NULL, &tally, &rng);
    conf_resize(&x, 0, c->size, &rng);
    x.base.data.problem.alignment = 16, x.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    conf_call_make(&x, "cudnn", FXA_BACKWARD, false, &call);
    call.p.engine = NULL;
    const fxa_support answer = answer_of(ctx, &call.p);
    fxa_problem other = call.p;
    other.captures = NULL, other.n_captures = 0, other.program = NULL; /* the problem without a tensor's gradient */
    T_CHECK(!answer_of(ctx, &other).deterministic);
    other.flags |= FXA_DETERMINISTIC;
    T_CHECK(answer_of(ctx, &other).deterministic);
    if (answer.supported != !c->says) T_FAIL("%s: %s\n", c->text, answer.supported ? "yes" : answer.reason);
    if (c->says)
        T_HAS(answer.reason, c->says);
    else
        T_CHECK(answer.deterministic);
    if (!c->says) {
        ok = ok && conf_check_forward(&x, "cudnn") && !x.refused && !x.unsure;
        ok = ok && conf_check_backward(&x, "cudnn") && !x.refused && !x.unsure;
        if (!ok) T_FAIL("%s: %s\n", c->text, x.why);
    }
    conf_free(&x);
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

TEST(gradients_of_what_is_added) {
    NEEDS_CUDNN;
    for (size_t i = 0; i < sizeof bias_cases / sizeof *bias_cases; i++) bias_try(&bias_cases[i]);
}

T_MAIN
