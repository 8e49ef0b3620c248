/* SPDX-License-Identifier: Apache-2.0
 *
 * Failures while the cuda engine makes a plan, on stand-ins for the driver and NVRTC: every call of both and every
 * allocation in turn, compilers that fail or are missing, environment variables.
 */
#include "cuda_engine_fixture.h"
#include "support/memory/fail_alloc.h"

/* Each call of the driver and of NVRTC fails once while a plan is made, and once while a plan is loaded. */
TEST(every_call_fails) {
    NEEDS_BOX;
    static unsigned char bytes[1 << 18];
    standin_state *const both[] = {box_driver, box_nvrtc};
    fxa_plan *first = NULL;
    size_t n = 0;
    box b;
    box_start(&b, FXA_BACKWARD, NULL);
    fxa_context *saver = box_context();
    box_arm(box_driver, 0);
    box_driver->loads[0] = 0;
    T_OK(fxa_plan_create(saver, &b.p, &first, &err));
    T_OK(fxa_plan_save(first, bytes, sizeof bytes, &n, &err));
    const size_t loads[2] = {box_driver->loads[0], box_driver->loads[1]};
    T_CHECK(loads[0] > 5 && loads[1] > loads[0] + 10);
    fxa_plan_destroy(first);
    fxa_context_destroy(saver);
    for (int which = 0; which < 4; which++) {
        standin_state *s = both[which % 2];
        size_t k = 1;
        for (bool more = true; more; k++) {
            fxa_context *ctx = box_context();
            fxa_plan *plan = NULL;
            err.text[0] = '\0';
            box_arm(s, k);
            box_driver->waits = 0;
            fxa_status status =
                which < 2 ? fxa_plan_create(ctx, &b.p, &plan, &err) : fxa_plan_load(ctx, bytes, n, &plan, &err);
            more = s->failures > 0;
            box_arm(s, 0);
            if (!more) T_INT(status, FXA_OK);
            if (status != FXA_OK && !err.text[0]) T_FAIL("call %zu: no words\n", k);
            if (status == FXA_OK && which % 2 == 0 && k >= loads[0] && k <= loads[1])
                T_FAIL("call %zu, which loads code, fails, and the plan does not\n", k);
            T_INT(box_driver->waits, 0); /* no work was started, so no call waits */
            fxa_plan_destroy(plan);
            fxa_context_destroy(ctx);
            box_check_end();
        }
        T_CHECK(which == 3 ? k == 2 : k > 15); /* loading plan bytes needs no compiler */
    }
    box_end(&b);
}

TEST(every_allocation_fails) {
    NEEDS_BOX;
    box b;
    box_start(&b, FXA_BACKWARD, NULL);
    size_t k = 1;
    for (bool more = true; more; k += 1 + k / 64) {
        fail_alloc f = FAIL_ALLOC_INIT;
        fxa_context *ctx = fail_alloc_context(&f);
        fxa_plan *plan = NULL;
        fail_alloc_arm(&f, k, k % 2);
        fxa_status status = ctx ? fxa_plan_create(ctx, &b.p, &plan, &err) : FXA_E_MEMORY;
        more = f.failures > 0;
        fail_alloc_arm(&f, 0, false);
        if (!more) T_INT(status, FXA_OK);
        if (more && status != FXA_OK && status != FXA_E_MEMORY) T_FAIL("allocation %zu: %s\n", k, err.text);
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        T_INT(f.live_bytes, 0);
        T_INT(f.mistakes, 0);
        box_check_end();
    }
    T_CHECK(k > 50);
    box_end(&b);
}

/* The compiler's message becomes the reason of a refusal, and kernels with wrong shapes are not run. */
TEST(compilers_that_say_no) {
    NEEDS_BOX;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    for (int i = 0; i < 2; i++) {
        fxa_context *ctx = box_context();
        fxa_plan *plan = NULL;
        box_nvrtc->no_engine = i == 0, box_other_shapes = i == 1;
        T_STATUS(fxa_plan_create(ctx, &b.p, &plan, &err), i ? FXA_E_VERSION : FXA_E_ENGINE);
        T_HAS(err.text, i ? "this library expects" : "program.cuh(7): error: the stand-in does not like it");
        box_nvrtc->no_engine = box_other_shapes = false;
        fxa_context_destroy(ctx);
        box_check_end();
    }
    box_end(&b);
}

static void box_expect_reason(const char *variable, const char *value, const char *why) {
    char before[4096] = "";
    fxa_support report = {.engine = NULL};
    size_t count = 1;
    fxa_error err;
    box b;
    if (getenv(variable)) (void)snprintf(before, sizeof before, "%s", getenv(variable));
    box_start(&b, FXA_FORWARD, NULL);
    setenv(variable, value, 1);
    fxa_context *ctx = box_context();
    T_OK(fxa_support_query(ctx, &b.p, &report, &count, &err));
    if (why)
        T_HAS(report.reason, why);
    else
        T_INT(report.supported, 1);
    fxa_context_destroy(ctx);
    if (before[0])
        setenv(variable, before, 1);
    else
        unsetenv(variable);
    box_end(&b);
    box_check_end();
}

TEST(environment) {
    NEEDS_BOX;
    box_expect_reason("FXA_CUDA_FAMILY", "sm75", "FXA_CUDA_FAMILY is \"sm75\"; accepted are sm80 and simt");
    box_expect_reason("FXA_CUDA_FAMILY", "simt", NULL);
    box_expect_reason("FXA_FAST_MATH", "1", NULL);
    box_expect_reason("FXA_FAST_MATH", "", NULL);
    box_expect_reason("FXA_FAST_MATH", "yes", "FXA_FAST_MATH is \"yes\"; accepted are 0 and 1");
    box_expect_reason("FXA_CUDA_LINES", "1", NULL);
    box_driver->arch = 75;
    box_expect_reason("FXA_FAST_MATH", "0", "from sm_80 on, and this is sm_75");
    box_driver->arch = 0;
}

/* A missing compiler is noticed when something is compiled, and the failure is cached. */
TEST(compilers_that_are_not_there) {
    NEEDS_BOX;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    for (int i = 0; i < 2; i++) {
        fxa_context *ctx = box_context();
        fxa_plan *plan = NULL;
        box_driver->arch = i ? 130 : 0;
        box_arm(box_nvrtc, i ? 0 : 1);
        for (int again = 0; again < 2; again++) {
            size_t before = box_nvrtc->calls;
            b.p.sq = 300 + again;
            T_STATUS(fxa_plan_create(ctx, &b.p, &plan, &err), FXA_E_UNSUPPORTED);
            T_HAS(err.text, i ? "NVRTC 13.0 makes no code for sm_130" : "nvrtcVersion: 11, the stand-in fails");
            if (again) T_INT(box_nvrtc->calls, before);
        }
        fxa_support report = {.engine = NULL};
        size_t count = 1;
        b.p.sq = 400; /* not queried before */
        T_OK(fxa_support_query(ctx, &b.p, &report, &count, &err));
        T_INT(report.supported, 0);
        T_HAS(report.reason, i ? "makes no code" : "nvrtcVersion");
        box_driver->arch = 0;
        box_arm(box_nvrtc, 0);
        fxa_context_destroy(ctx);
        box_check_end();
    }
    box_end(&b);
}

T_MAIN
