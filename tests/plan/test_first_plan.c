/* SPDX-License-Identifier: Apache-2.0
 *
 * R-93 on the host: the first plan of a new program, and a plan from saved bytes in a new context, take milliseconds of
 * processor time. (On a GPU the time is that of NVRTC and of the driver, which only a machine with both shows; that
 * saved bytes are loaded without a compiler is shown by test_cuda_engine.)
 */
#include "support/fixtures/attn_data.h"
#include "t.h"

#include <time.h>

enum { FIRST_PLANS = 10, FIRST_BYTES = 1 << 16 };
#define FIRST_MOST 0.02 /* seconds; 0.0005 where this was written */

static double first_now(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Makes plan i of an engine from its text, and again from its bytes. Lowers seconds[] to the times of both. */
static void first_plan(fxa_context *ctx, const char *engine, int i, double seconds[2]) {
    static unsigned char bytes[FIRST_BYTES];
    char text[256];
    size_t size = 0;
    fxa_error err;
    t_ctx *other = attn_context(1);
    t_program *program = NULL;
    t_plan *plan = NULL, *loaded = NULL;
    fxa_capture capture = {.size = {8, 4096}, .grad = 1};
    const attn_spec s = {.b = 2, .hq = 8, .hkv = 2, .sq = 4096, .sk = 4096, .d = 64};
    snprintf(text, sizeof text,
             "param cap : float\ntensor bias : f32[2]\n"
             "score = cap * tanh((score + %d * bias[h, q - k]) / cap)\nmask = q >= k && q - k < 300",
             i + 2);
    T_REQUIRE(other);
    double start = first_now();
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    fxa_problem p = attn_spec_problem(&s);
    p.pass = FXA_BACKWARD, p.flags = FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V, p.param_grads = 1;
    p.program = program, p.captures = &capture, p.n_captures = 1, p.engine = engine;
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    seconds[0] = fmin(seconds[0], first_now() - start);
    T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err));
    start = first_now();
    T_OK(fxa_plan_load(other, bytes, size, &loaded, &err));
    seconds[1] = fmin(seconds[1], first_now() - start);
}

TEST(first_plans_take_milliseconds) {
    t_ctx *ctx = attn_context(1);
    T_REQUIRE(ctx);
    for (size_t e = 0; engine_here(e); e++) {
        double seconds[2] = {INFINITY, INFINITY};
        for (int i = 0; i < FIRST_PLANS; i++) first_plan(ctx, engine_here(e), i, seconds);
        for (int i = 0; i < 2; i++)
            if (!(seconds[i] < FIRST_MOST))
                T_FAIL("%s: a plan from %s takes %.3g s\n", engine_here(e), i ? "bytes" : "text", seconds[i]);
    }
}

T_MAIN
