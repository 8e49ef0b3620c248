/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of the cuDNN engine, on the stand-ins: ownership of memory, two devices, captured streams, fxa_merge.
 */
#include "cudnn_fixture.h"

#include "base/dtype.h"

#include <math.h>

/* Pointers of the other device, and of no device, are refused. */
STANDIN_TEST(whose_memory_it_is) {
    attn_owned x = {0};
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
}

/* An unchecked run makes no driver query: host memory, which is the stand-in's only memory, is accepted as device
 * memory. A checked run queries the context, the stream and each pointer. */
STANDIN_TEST(trusted_memory_is_not_asked_about) {
    attn_owned x = {0};
    attn_call call;
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    fxa_plan *plan = NULL;
    if (!data_make(&x, ctx)) return;
    T_OK(data_run(&x, ctx, FXA_FORWARD, &err));
    attn_keep(&x, FXA_FORWARD, &want);
    attn_call_make(&x, FXA_FORWARD, &call);
    call.p.engine = "cudnn", call.p.device = FXA_CUDA;
    T_OK(fxa_plan_create(ctx, &call.p, &plan, &err));
    size_t size = fxa_plan_workspace(plan);
    char *workspace = calloc(1, size + 64);
    call.args.workspace = workspace + (64 - (uintptr_t)workspace % 64), call.args.workspace_size = size;
    T_STATUS(fxa_plan_run(plan, &call.args, &err), FXA_E_BINDING);
    call.args.flags = FXA_SKIP_POINTER_CHECKS;
    memset(call.args.slot[FXA_SLOT_O], 0, 64);
    T_OK(fxa_plan_run(plan, &call.args, &err));
    T_CHECK(!attn_other_bits(&x, FXA_FORWARD, &want));
    call.args.workspace = NULL;
    T_STATUS(fxa_plan_run(plan, &call.args, &err), FXA_E_WORKSPACE);
    free(workspace);
    fxa_plan_destroy(plan);
}

/* Two devices in one context: each uses only its own memory. */
STANDIN_TEST(two_devices) { /* */
    attn_data x;
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
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
}

/* A stream that is captured into a CUDA graph: a call that waits is refused before it has done anything. */
STANDIN_TEST(a_stream_that_is_recorded) {
    attn_owned x = {0};
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
    T_INT(standin[0]->calls, 2); /* the calls for context and capture state, none that would invalidate the capture */
    T_INT(standin[0]->held, held);
    standin[0]->recorded = NULL;
    T_OK(fxa_attention(ctx, &call.p, &call.args, &err));
}

/* fxa_merge on the device, with each call of the driver failing in turn. */
TEST(a_merge_fails_at_every_call) {
    NEEDS_STANDIN;
    size_t k = 1;
    for (bool more = true; more; k++) {
        float o[2][16], lse[2][2] = {{0.5f, -1}, {1, 2}}, *there = NULL;
        for (int i = 0; i < 32; i++) o[i / 16][i % 16] = (float)i;
        fxa_context *ctx = t_context();
        fxa__gpu gpu;
        fxa_merge_args a = FXA_MERGE_ARGS_INIT;
        T_OK(fxa__gpu_open(&gpu, 0, &err));
        T_OK(fxa__gpu_alloc(&gpu, sizeof o + sizeof lse, (void **)&there, &err));
        T_OK(fxa__gpu_memory.copy_to(&gpu, there, o, sizeof o, NULL, &err));
        T_OK(fxa__gpu_memory.copy_to(&gpu, there + 32, lse, sizeof lse, NULL, &err));
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
        T_OK(fxa__gpu_memory.copy_from(&gpu, got, there, sizeof got, NULL, &err));
        if (!more) T_CHECK(got[0] > o[0][0] && got[0] < o[1][0]);
        fxa__gpu_give(&gpu, there);
        fxa__gpu_close(&gpu);
        fxa_context_destroy(ctx);
        standin_check_end();
    }
    T_CHECK(k > 15);
}

/* ---- Merging as on the host -------------------------------------------------------------------------------------- */

enum { PLACES_B = 2, PLACES_H = 2, PLACES_S = 5, PLACES_D = 7 };
enum { PLACES_ROWS = PLACES_B * PLACES_H * PLACES_S, PLACES_ALL = PLACES_ROWS * PLACES_D };

typedef struct places_side {
    uint32_t dtype;
    int64_t n;
    double host[PLACES_ALL]; /* room for elements of any dtype */
    void *device;
} places_side;

/* Draws O_a, LSE_a, O_b, LSE_b, with rows that attend to no key on one side or on both, and rows whose LSE is NaN. */
static void places_draw(places_side side[4], t_rng *rng) {
    static const double lse[] = {0.5, -2, -INFINITY, 40, -INFINITY, NAN};
    for (int i = 0; i < 4; i++) {
        bool row = i & 1;
        side[i].dtype = (uint32_t)(row ? t_int(rng, FXA_F64, FXA_F32) : t_int(rng, FXA_F64, FXA_BF16));
        side[i].n = row ? PLACES_ROWS : PLACES_ALL;
        for (int64_t j = 0; j < side[i].n; j++)
            fxa__store_f64(side[i].host, side[i].dtype, j, row ? lse[t_int(rng, 0, 5)] : t_real(rng, -3, 3));
    }
}

static fxa_merge_args places_args(places_side side[4], bool on_device) {
    fxa_merge_args a = FXA_MERGE_ARGS_INIT;
    fxa_operand *const operands[] = {&a.o_a, &a.lse_a, &a.o_b, &a.lse_b};
    void *data[4];
    a.b = PLACES_B, a.h = PLACES_H, a.s = PLACES_S, a.d = PLACES_D;
    for (int i = 0; i < 4; i++) {
        operands[i]->dtype = side[i].dtype;
        operands[i]->layout = i < 2 ? FXA_LAYOUT_BSHD : FXA_LAYOUT_BHSD;
        data[i] = on_device ? side[i].device : side[i].host;
    }
    a.o_a_data = data[0], a.lse_a_data = data[1], a.o_b_data = data[2], a.lse_b_data = data[3];
    return a;
}

/* Returns true if both values differ by at most a unit in the last place of the dtype: both sides compute in f64, in
 * another order. */
static bool places_near(double got, double want, uint32_t dtype) {
    double unit = dtype == FXA_F64 ? 0x1p-50 : dtype == FXA_F32 ? 0x1p-23 : dtype == FXA_F16 ? 0x1p-10 : 0x1p-7;
    if (want != want) return got != got;
    return got == want || fabs(got - want) <= unit * fmax(fabs(want), 1e-3);
}

STANDIN_TEST(merges_are_those_of_the_host) {
    t_rng rng = {t_seed()};
    fxa__gpu gpu;
    T_OK(fxa__gpu_open(&gpu, 1, &err));
    for (int n = 0; n < t_scaled(200); n++) {
        static places_side side[4];
        static double got[PLACES_ALL];
        places_draw(side, &rng);
        for (int i = 0; i < 4; i++) {
            T_OK(fxa__gpu_alloc(&gpu, sizeof side[i].host, &side[i].device, &err));
            T_OK(fxa__gpu_memory.copy_to(&gpu, side[i].device, side[i].host, sizeof side[i].host, NULL, &err));
        }
        fxa_merge_args here = places_args(side, false), there = places_args(side, true);
        there.ctx = ctx, there.device = FXA_CUDA, there.ordinal = 1;
        T_OK(fxa_merge(&here, &err));
        T_OK(fxa_merge(&there, &err));
        for (int i = 0; i < 2; i++) {
            T_OK(fxa__gpu_memory.copy_from(&gpu, got, side[i].device, sizeof got, NULL, &err));
            for (int64_t j = 0; j < side[i].n; j++) {
                double x = fxa__load_f64(got, side[i].dtype, j), want = fxa__load_f64(side[i].host, side[i].dtype, j);
                if (!places_near(x, want, side[i].dtype)) T_FAIL("side %d, %d: %g, not %g\n", i, (int)j, x, want);
            }
        }
        there.o_b_data = side[2].host;
        T_STATUS(fxa_merge(&there, &err), FXA_E_BINDING);
        T_HAS(err.text, "argument o_b_data is 0x");
        for (int i = 0; i < 4; i++) fxa__gpu_give(&gpu, side[i].device);
    }
    fxa__gpu_close(&gpu);
}

/* A merge on a captured stream starts the kernel; the kernel must have been loaded before. */
STANDIN_TEST(a_merge_that_is_recorded) {
    fxa__gpu gpu;
    static places_side side[4];
    t_rng rng = {t_seed()};
    int stream;
    T_OK(fxa__gpu_open(&gpu, 0, &err));
    places_draw(side, &rng);
    for (int i = 0; i < 4; i++) {
        T_OK(fxa__gpu_alloc(&gpu, sizeof side[i].host, &side[i].device, &err));
        T_OK(fxa__gpu_memory.copy_to(&gpu, side[i].device, side[i].host, sizeof side[i].host, NULL, &err));
    }
    fxa_merge_args a = places_args(side, true);
    a.ctx = ctx, a.device = FXA_CUDA, a.stream = &stream;
    standin[0]->recorded = &stream;
    T_STATUS(fxa_merge(&a, &err), FXA_E_BINDING);
    T_HAS(err.text, "is being recorded");
    standin[0]->recorded = NULL;
    T_OK(fxa_merge(&a, &err));
    standin[0]->recorded = &stream;
    T_OK(fxa_merge(&a, &err));
    standin[0]->recorded = NULL;
    for (int i = 0; i < 4; i++) fxa__gpu_give(&gpu, side[i].device);
    fxa__gpu_close(&gpu);
}

T_MAIN
