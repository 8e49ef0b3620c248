/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the cuDNN engine computes, on the stand-ins: whose memory it is given, two devices, streams that are recorded,
 * and fxa_merge there.
 */
#include "cudnn_rig.h"

/* Pointers of the other device, and of none. */
TEST(whose_memory_it_is) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    fxa_error err;
    attn_data x;
    attn_call call;
    fxa_plan *plan = NULL;
    if (!data_make(&x, ctx)) return;
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA;
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    static char workspace[1 << 16];
    call.args.workspace = workspace + (64 - (uintptr_t)workspace % 64),
    call.args.workspace_size = fxa_plan_workspace(plan);
    T_STATUS(fxa_plan_run(plan, &call.args, &err), FXA_E_BINDING);
    T_HAS(err.text, "slot Q is 0x");
    T_HAS(err.text, "no memory of device cuda 0");
    fxa_plan_destroy(plan);
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* The same on both devices, in one context: each with its own memory, and neither takes the other's. */
TEST(two_devices) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    fxa_error err;
    attn_data x;
    attn_kept want = {{NULL}};
    fxa_plan *plan = NULL;
    fxa__gpu other;
    attn_call call;
    void *there = NULL;
    if (!data_make(&x, ctx)) return;
    T_OK(data_run(&x, ctx, FXA_FORWARD, &err));
    attn_keep(&x, FXA_FORWARD, &want);
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.p.ordinal = 1;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    T_CHECK(!attn_other_bits(&x, FXA_FORWARD, &want));
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    fxa_problem seen = FXA_PROBLEM_INIT;
    fxa_plan_problem(plan, &seen);
    T_CHECK(seen.device == FXA_CUDA && seen.ordinal == 1);
    T_OK(fxa__gpu_open(&other, 0, &err));
    T_OK(fxa__gpu_alloc(&other, 1 << 16, &there, &err));
    for (int i = FXA_SLOT_Q; i <= FXA_SLOT_LSE; i++) call.args.slot[i] = there;
    call.args.slot[FXA_SLOT_O] = (char *)there + (1 << 15), call.args.slot[FXA_SLOT_LSE] = (char *)there + (3 << 14);
    call.args.workspace = (char *)there + (7 << 13), call.args.workspace_size = fxa_plan_workspace(plan);
    T_STATUS(fxa_plan_run(plan, &call.args, &err), FXA_E_BINDING);
    T_HAS(err.text, "slot Q is 0x");
    T_HAS(err.text, "of device cuda 0; the problem is on device cuda 1");
    fxa__gpu_give(&other, there);
    fxa__gpu_close(&other);
    fxa_plan_destroy(plan);
    attn_data_free(&x);
    attn_drop(&want);
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* A stream that is recorded into a graph: what waits is refused before it has done anything there. */
TEST(a_stream_that_is_recorded) {
    NEEDS_STANDIN;
    fxa_context *ctx = context_new();
    fxa_error err;
    attn_data x;
    attn_call call;
    int stream;
    if (!data_make(&x, ctx)) return;
    T_OK(data_run(&x, ctx, FXA_FORWARD, &err));
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.args.stream = &stream;
    standin[0]->recorded = &stream;
    size_t held = standin[0]->held;
    standin_arm(0, 0);
    T_STATUS(fxa_attention(ctx, &call.p, &call.args, &err), FXA_E_BINDING);
    T_HAS(err.text, "is being recorded into a graph");
    T_INT(standin[0]->calls, 2); /* the context, the question; nothing that would end the recording */
    T_INT(standin[0]->held, held);
    standin[0]->recorded = NULL;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
    attn_data_free(&x);
    fxa_context_destroy(ctx);
    standin_check_end();
}

/* fxa_merge on the device, each call of the driver failing in turn. */
TEST(a_merge_fails_at_every_call) {
    NEEDS_STANDIN;
    fxa_error err;
    size_t k = 1;
    for (bool more = true; more; k++) {
        float o[2][16], lse[2][2] = {{0.5f, -1}, {1, 2}}, *there = NULL;
        for (int i = 0; i < 32; i++) o[i / 16][i % 16] = (float)i;
        fxa_context *ctx = context_new();
        fxa__gpu gpu;
        fxa_merge_args a = FXA_MERGE_ARGS_INIT;
        T_OK(fxa__gpu_open(&gpu, 0, &err));
        T_OK(fxa__gpu_alloc(&gpu, sizeof o + sizeof lse, (void **)&there, &err));
        T_OK(fxa__gpu_copy_to(&gpu, there, o, sizeof o, NULL, &err));
        T_OK(fxa__gpu_copy_to(&gpu, there + 32, lse, sizeof lse, NULL, &err));
        a.b = a.h = 1, a.s = 2, a.d = 8, a.ctx = ctx, a.device = FXA_CUDA;
        a.o_a.dtype = a.o_b.dtype = a.lse_a.dtype = a.lse_b.dtype = FXA_F32;
        a.o_a_data = there, a.o_b_data = there + 16, a.lse_a_data = there + 32, a.lse_b_data = there + 34;
        err.text[0] = '\0';
        standin_arm(0, k);
        fxa_status status = fxa_merge(&a, &err);
        more = standin[0]->failures > 0;
        standin_arm(0, 0);
        T_CHECK(more ? status != FXA_OK : status == FXA_OK);
        if (more && !err.text[0]) T_FAIL("call %zu has no words\n", k);
        float got[16];
        T_OK(fxa__gpu_copy_from(&gpu, got, there, sizeof got, NULL, &err));
        if (!more) T_CHECK(got[0] > o[0][0] && got[0] < o[1][0]);
        fxa__gpu_give(&gpu, there);
        fxa__gpu_close(&gpu);
        fxa_context_destroy(ctx);
        standin_check_end();
    }
    T_CHECK(k > 15);
}

T_MAIN
