/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of captured tensors with one element per pair, compared with ref: the cpu engine adds to them in place,
 * without partial sums. Every dtype, contiguous and strided, with elements that no pair reads, overwritten or
 * accumulated; the workspace does not grow with the tensor.
 */
#include "t.h"
#include "base/dtype.h"

#include <stdlib.h>

enum { PAIRS_B = 2, PAIRS_H = 4, PAIRS_Q = 13, PAIRS_K = 70, PAIRS_D = 8, PAIRS_ROOM = 2 * 3 * 5 * 20 * 90 };

typedef struct pairs_case {
    fxa_dtype dtype;
    bool strided, add;
    const char *index;
    int rank;
    int64_t size[4];
} pairs_case;

static void pairs_draw(t_rng *rng, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)t_real(rng, -1, 1);
}

static fxa_capture pairs_capture(const pairs_case *c) {
    fxa_capture capture = {.grad = 1, .grad_dtype = (uint32_t)c->dtype, .grad_strided = c->strided};
    int64_t step = 3;
    for (int i = c->rank - 1; i >= 0; i--) {
        capture.size[i] = c->size[i];
        capture.grad_stride[i] = c->strided ? step : 0;
        step *= c->size[i] + 1;
    }
    return capture;
}

/* Runs forward by ref and backward by `engine`. The gradient's memory then holds its old contents plus the gradient, or
 * the gradient only. */
static size_t pairs_run(fxa_context *ctx, const pairs_case *c, const fxa_program *program, const char *engine,
                        uint64_t seed, void *gradient) {
    enum { ROWS = PAIRS_B * PAIRS_H * PAIRS_Q, KEYS = PAIRS_B * 2 * PAIRS_K };
    static float q[ROWS * PAIRS_D], dout[ROWS * PAIRS_D], o[ROWS * PAIRS_D], dq[ROWS * PAIRS_D], lse[ROWS];
    static float k[KEYS * PAIRS_D], v[KEYS * PAIRS_D], bias[PAIRS_ROOM];
    t_rng rng = {seed};
    fxa_error err;
    pairs_draw(&rng, q, ROWS * PAIRS_D);
    pairs_draw(&rng, dout, ROWS * PAIRS_D);
    pairs_draw(&rng, k, KEYS * PAIRS_D);
    pairs_draw(&rng, v, KEYS * PAIRS_D);
    pairs_draw(&rng, bias, PAIRS_ROOM);
    fxa_capture capture = pairs_capture(c);
    fxa_problem p = FXA_PROBLEM_INIT;
    p.program = program;
    p.b = PAIRS_B, p.hq = PAIRS_H, p.hkv = 2, p.sq = PAIRS_Q, p.sk = PAIRS_K, p.d_qk = PAIRS_D;
    p.captures = &capture, p.n_captures = 1;
    p.flags = FXA_RETURN_LSE;
    p.engine = "ref";
    const void *tensors[] = {bias};
    void *gradients[] = {gradient};
    fxa_args args = FXA_ARGS_INIT;
    args.slot[FXA_SLOT_Q] = q, args.slot[FXA_SLOT_K] = k, args.slot[FXA_SLOT_V] = v, args.slot[FXA_SLOT_O] = o;
    args.slot[FXA_SLOT_LSE] = lse;
    args.tensors = tensors, args.n_tensors = 1;
    capture.grad = 0, capture.grad_dtype = 0, capture.grad_strided = 0;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    capture = pairs_capture(c);
    p.pass = FXA_BACKWARD;
    p.engine = engine;
    p.flags = FXA_GRAD_Q | (c->add ? FXA_ACCUMULATE_DTENSORS : 0u);
    args.slot[FXA_SLOT_DO] = dout, args.slot[FXA_SLOT_DQ] = dq;
    args.dtensors = gradients, args.n_dtensors = 1;
    T_OK(fxa_attention(ctx, &p, &args, &err));
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    size_t workspace = fxa_plan_workspace(plan);
    fxa_plan_destroy(plan);
    return workspace;
}

static void pairs_check(fxa_context *ctx, const pairs_case *c, uint64_t seed) {
    static uint64_t memory[2][PAIRS_ROOM]; /* [0] results of ref, [1] of cpu */
    char text[128];
    t_program *program = NULL;
    fxa_error err;
    t_rng rng = {seed};
    snprintf(text, sizeof text, "tensor bias : f32[%d]\nscore = score + bias[%s]\nmask = k < 61 && k != q", c->rank,
             c->index);
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    for (int64_t i = 0; i < PAIRS_ROOM; i++) {
        double x = t_real(&rng, -1, 1);
        for (int e = 0; e < 2; e++) fxa__store_f64(memory[e], (uint32_t)c->dtype, i, x);
    }
    (void)pairs_run(ctx, c, program, "ref", seed, memory[0]);
    size_t workspace = pairs_run(ctx, c, program, "cpu", seed, memory[1]);
    T_CHECK(workspace < 4 << 20);
    double unit = c->dtype == FXA_BF16 ? 0x1p-8 : c->dtype == FXA_F16 ? 0x1p-11 : 0x1p-20;
    /* A gradient in the wrong element differs by far more than this tolerance; test_conformance checks the bound of the
     * arithmetic. */
    for (int64_t i = 0; i < PAIRS_ROOM; i++) {
        double want = fxa__load_f64(memory[0], (uint32_t)c->dtype, i);
        T_NEAR(fxa__load_f64(memory[1], (uint32_t)c->dtype, i), want, 2 * unit * (fabs(want) + 0x1p-4));
    }
}

CONTEXT_TEST(gradients_of_one_element_per_pair) { /* */
    static const struct {
        const char *index;
        int rank;
        int64_t size[4];
    } shapes[] = {
        {"b, h, q, k", 4, {PAIRS_B, PAIRS_H, PAIRS_Q, PAIRS_K}},
        {"k, h, b, q", 4, {PAIRS_K + 3, PAIRS_H, PAIRS_B, PAIRS_Q}}, /* more elements than keys */
        {"b, q, h, k", 4, {PAIRS_B, PAIRS_Q, PAIRS_H, 50}},          /* fewer elements than keys: other loads give 0 */
        {"h, q, k", 3, {PAIRS_H, PAIRS_Q, PAIRS_K, 0}}, /* batch entries share elements, so gradients are sums */
    };
    static const fxa_dtype dtypes[] = {FXA_F64, FXA_F32, FXA_F16, FXA_BF16};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
            for (int how = 0; how < 4; how++) {
                pairs_case c = {dtypes[t], how & 1, how & 2, shapes[s].index, shapes[s].rank, {0}};
                memcpy(c.size, shapes[s].size, sizeof c.size);
                pairs_check(ctx, &c, t_seed() + s);
            }
}

T_MAIN
