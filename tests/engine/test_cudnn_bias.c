/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of a captured tensor in the cuDNN engine, on the stand-ins or a device: of those that cuDNN has
 * (cudnn_bias.c), against the reference; and the reason for all others that the program says (test_cudnn_support.c has
 * those of the problem).
 */
#include "cudnn_rig.h"

enum { BIAS_B = 2, BIAS_H = 2, BIAS_Q = 64, BIAS_K = 128 };

/* As in test_cudnn_bprop.c: results are rounded to bf16, 2^-9 of themselves, and what they are made of is the same. */
#define BIAS_FAR 0x1p-6

typedef struct bias_case {
    const char *text, *says; /* says: of a refusal; NULL: it is right */
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

static void bias_call(attn_data *x, fxa_pass pass, const char *engine, attn_call *call) {
    attn_call_make(x, pass, call);
    call->p.engine = engine, call->p.device = attn_device(engine);
    call->p.flags &= ~(uint32_t)FXA_GRAD_LSE, call->args.slot[FXA_SLOT_DLSE] = NULL;
}

static void bias_compare(attn_data *x, fxa_context *ctx, const bias_case *c) {
    attn_kept want = {{NULL}};
    attn_call call;
    fxa_error err;
    bias_call(x, FXA_FORWARD, "ref", &call);
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    bias_call(x, FXA_BACKWARD, "ref", &call);
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_keep(x, FXA_BACKWARD, &want);
    bias_call(x, FXA_BACKWARD, "cudnn", &call);
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    for (int i = 0; i < 4; i++) { /* dQ, dK, dV, the tensor's */
        attn_off off = attn_tensor_off(attn_output(x, FXA_BACKWARD, i), want.memory[i]);
        if (!(off.rms <= BIAS_FAR) || off.odd || off.size == 0)
            T_FAIL("%s: output %d is off by %g, %d odd, size %g\n", c->text, i, off.rms, (int)off.odd, off.size);
    }
    attn_drop(&want);
}

static void bias_try(const bias_case *c) {
    attn_spec s = spec;
    fxa_context *ctx = context_new();
    fxa_error err;
    attn_data x;
    attn_call call;
    s.b = BIAS_B, s.hq = s.hkv = BIAS_H, s.sq = BIAS_Q, s.sk = BIAS_K, s.text = c->text;
    memcpy(s.tensor[0], c->size, sizeof c->size);
    T_OK(attn_data_make(&x, ctx, &s, 77, &err));
    x.problem.alignment = 16;
    bias_call(&x, FXA_BACKWARD, "cudnn", &call);
    call.p.engine = NULL;
    const fxa_support answer = answer_of(ctx, &call.p);
    if (answer.supported != !c->says) T_FAIL("%s: %s\n", c->text, answer.supported ? "yes" : answer.reason);
    if (c->says)
        T_HAS(answer.reason, c->says);
    else
        T_CHECK(answer.deterministic);
    if (!c->says) bias_compare(&x, ctx, c);
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    if (standin_ready()) standin_check_end();
}

TEST(gradients_of_what_is_added) {
    NEEDS_CUDNN;
    for (size_t i = 0; i < sizeof bias_cases / sizeof *bias_cases; i++) bias_try(&bias_cases[i]);
}

T_MAIN
