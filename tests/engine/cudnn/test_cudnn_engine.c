/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuDNN engine on stand-ins for the driver and cuDNN (tests/standin): when it opens, failures of every driver and
 * library call in turn, memory, threads. Refusals are tested in test_cudnn_programs.c, graphs in test_cudnn_lowering.c,
 * devices and streams in test_cudnn_places.c, plan bytes in test_cudnn_saved.c.
 */
#include "cudnn_fixture.h"
#include "standin/standin_profile.h"
#include "support/memory/fail_alloc.h"

#include <float.h>
#include <pthread.h>

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* With or without a GPU, plan creation succeeds or fails with the reason of the support report. */
CONTEXT_TEST(on_whatever_this_machine_has) { /* */
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    fxa_support said = answer_of(ctx, &p);
    t_plan *plan = NULL;
    T_CHECK(said.supported ? !said.reason[0] : said.reason[0] != 0);
    T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), said.supported ? FXA_OK : FXA_E_UNSUPPORTED);
    if (!said.supported) T_HAS(err.text, said.reason);
}

TEST(reasons_not_to_open) {
    NEEDS_STANDIN;
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    fxa_context *ctx = t_context();
    p.ordinal = 2;
    T_HAS(answer_of(ctx, &p).reason, "ordinal is 2: the CUDA driver has 2 devices");
    fxa_context_destroy(ctx);
    p.ordinal = 0;
    standin[0]->arch = 89;
    static const char *const untried[][2] = {/* the engine was never run on these devices */
                                             {"0", "on sm_90 alone (here: cuDNN 91901, sm_89); FXA_CUDNN_UNTRIED=1"},
                                             {"on", "FXA_CUDNN_UNTRIED is \"on\"; accepted are 0 and 1"},
                                             {"1", ""}};
    for (size_t i = 0; i < sizeof untried / sizeof *untried; i++) {
        setenv("FXA_CUDNN_UNTRIED", untried[i][0], 1);
        ctx = t_context();
        fxa_support said = answer_of(ctx, &p);
        T_INT(said.supported, !untried[i][1][0]);
        T_HAS(said.reason, untried[i][1]);
        fxa_context_destroy(ctx);
    }
    unsetenv("FXA_CUDNN_UNTRIED");
    standin[0]->arch = 0;
    standin[0]->devices_gone = true;
    ctx = t_context();
    T_HAS(answer_of(ctx, &p).reason, "the CUDA driver has 0 devices");
    fxa_context_destroy(ctx);
    standin[0]->devices_gone = false;
    standin_check_end();
}

static bool library_is_loaded(const char *file) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", getenv("FXA_TEST_STANDIN"), file);
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library) dlclose(library);
    return library != NULL;
}

/* cuBLASLt is opened by path and by name: both handles are closed with the engine, so that the system unloads the
 * library. */
TEST(libraries_go_with_the_engine) {
    NEEDS_STANDIN;
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    for (int again = 0; again < 2; again++) {
        fxa_context *ctx = t_context();
        T_CHECK(!library_is_loaded("libcublasLt.so.13"));
        T_INT(answer_of(ctx, &p).supported, 1);
        T_CHECK(library_is_loaded("libcublasLt.so.13"));
        fxa_context_destroy(ctx);
        T_CHECK(!library_is_loaded("libcublasLt.so.13"));
    }
    standin_check_end();
}

/* cuDNN reads a device description in three calls. One that fails leaves no library loaded. */
TEST(libraries_go_with_a_failed_target) {
    NEEDS_STANDIN;
    for (size_t k = 1; k <= 3; k++) {
        fxa_context *ctx = t_context();
        fxa_problem p = problem_of(&spec, FXA_FORWARD);
        p.target = profile;
        standin_arm(1, k);
        T_HAS(answer_of(ctx, &p).reason, "does not read this target");
        T_INT(standin[1]->failures, 1);
        standin_arm(1, 0);
        fxa_context_destroy(ctx);
        T_CHECK(!library_is_loaded("libcublasLt.so.13"));
        standin_check_end();
    }
}

STANDIN_TEST(plans_for_a_device_that_is_not_here) {
    fxa_plan *plan = NULL;
    fxa_problem p = problem_of(&spec, FXA_BACKWARD);
    p.target = profile;
    T_CHECK(answer_of(ctx, &p).supported && answer_of(ctx, &p).seconds > 0);
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    T_HAS(fxa_plan_description(plan), "cuDNN 9.19.1, sm_90, products");
    fxa_plan_destroy(plan);
    char other[sizeof profile];
    memcpy(other, profile, sizeof other);
    memcpy(strstr(other, "900"), "800", 3); /* a plan for a family that was never tested reports this */
    p.target = other;
    T_OK(fxa_plan_create(ctx, &p, &plan, &err));
    T_HAS(fxa_plan_description(plan), "sm_80 (there with FXA_CUDNN_UNTRIED=1 alone), products");
    T_CHECK(answer_of(ctx, &p).seconds == 0); /* automatic selection prefers any other engine */
    fxa_plan_destroy(plan);
    p.target = "{}";
    T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), FXA_E_PROBLEM);
    T_HAS(err.text, "target has \"}\" where a \"key\": is to be");
    for (size_t count = 0, n = 0; n < 2; n++) { /* the query refuses as plan creation does, also when repeated */
        T_STATUS(fxa_support_query(ctx, &p, NULL, &count, &err), FXA_E_PROBLEM);
        T_HAS(err.text, "target has \"}\" where a \"key\": is to be");
    }
}

/* A valid device description that the installed cuDNN rejects because of its version, with cuDNN's message. */
TEST(profiles_that_cudnn_does_not_read) {
    NEEDS_STANDIN;
    fxa_problem p = problem_of(&spec, FXA_FORWARD);
    int said = 0;
    p.target = profile;
    for (size_t k = 1; k <= 4 && !said; k++) {
        fxa_context *ctx = t_context();
        standin_arm(1, k);
        fxa_support answer = answer_of(ctx, &p);
        standin_arm(1, 0);
        if (strstr(answer.reason, "cuDNN 9.19.1 does not read this target (9.14 to 9.26 do): cuDNN says ")) said++;
        fxa_context_destroy(ctx);
        standin_check_end();
    }
    T_CHECK(said > 0);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Tests that fail each call in turn have a single thread, so ThreadSanitizer would take half a minute and find
 * nothing. */
#if defined(__SANITIZE_THREAD__)
#define NEEDS_NO_TSAN T_SKIP("ThreadSanitizer has nothing to say of one thread")
#else
#define NEEDS_NO_TSAN (void)0
#endif

/* Each call of the driver, then of cuDNN, fails once: the result is an error with a message, no output is written, and
 * nothing leaks. */
static void fail_each(int which, fxa_pass pass) {
    size_t k = 1, failed = 0;
    for (;; k++) {
        fxa_context *ctx = t_context();
        fxa_error err;
        attn_data x;
        if (!data_make(&x, ctx)) return;
        standin_arm(which, k);
        memset(&err, 0, sizeof err);
        fxa_status status = data_run(&x, ctx, pass, &err);
        bool fired = standin[which]->failures > 0;
        standin_arm(which, 0);
        failed += fired;
        if (status != FXA_OK) {
            T_CHECK(err.status == status && err.text[0]);
            const unsigned char *o = (const unsigned char *)attn_output(&x, pass, 0)->origin;
            T_CHECK(o[0] == 0xff && o[1] == 0xff); /* NaN, as before */
        }
        if (!fired && status != FXA_OK) T_FAIL("%s\n", err.text);
        if (fired && status == FXA_OK && k < 3) T_FAIL("call %zu failed, and nobody noticed\n", k);
        attn_data_free(&x);
        fxa_context_destroy(ctx);
        standin_check_end();
        T_CHECK(!library_is_loaded("libcublasLt.so.13"));
        if (!fired) break;
    }
    T_CHECK(failed > 20);
}

TEST(every_call_of_the_driver_fails) {
    NEEDS_STANDIN;
    NEEDS_NO_TSAN;
    fail_each(0, FXA_FORWARD);
    fail_each(0, FXA_BACKWARD);
}

TEST(every_call_of_cudnn_fails) { /* */
    NEEDS_STANDIN;
    NEEDS_NO_TSAN;
    fail_each(1, FXA_FORWARD);
    fail_each(1, FXA_BACKWARD);
}

/* Every allocation of the library fails once. */
TEST(every_allocation_fails) {
    NEEDS_STANDIN;
    NEEDS_NO_TSAN;
    for (size_t k = 1; k < 5000; k++) {
        fail_alloc memory = FAIL_ALLOC_INIT;
        fxa_context *ctx = fail_alloc_context(&memory);
        fxa_plan *plan = NULL;
        fxa_problem p = problem_of(&spec, FXA_BACKWARD);
        fxa_program *program = NULL;
        T_OK(fxa_program_parse(ctx, spec.text, SIZE_MAX, &program, &err));
        p.program = program;
        fail_alloc_arm(&memory, k, false);
        memset(&err, 0, sizeof err);
        fxa_status status = fxa_plan_create(ctx, &p, &plan, &err);
        bool fired = memory.failures > 0;
        fail_alloc_arm(&memory, 0, false);
        if (fired) T_CHECK(status == FXA_E_MEMORY || status == FXA_OK);
        if (!fired) T_INT(status, FXA_OK);
        fxa_plan_destroy(plan);
        fxa_program_destroy(program);
        fxa_context_destroy(ctx);
        T_INT(memory.blocks, 0);
        standin_check_end();
        if (!fired) break;
    }
}

/* Bounds of masks that are params: the full range of 32 bits, although 32-bit values are added to them. */
STANDIN_TEST(bounds_of_any_size) {
    static const char *const texts[] = {"param w : int\nmask = k - q <= w", "param w : int\nmask = q - k < w",
                                        "param w : int\nmask = k - q <= -w", "param w : int\nmask = k < w",
                                        "param w : int\nmask = k - q <= w || k < 2"};
    static const double bounds[] = {INT32_MAX, INT32_MIN, INT32_MIN + 1, 1 << 24, -(1 << 24), 5, 0, -5};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t j = 0; j < sizeof bounds / sizeof *bounds; j++) {
            attn_spec s = spec;
            attn_data x;
            T_ENDED(attn_drop) attn_kept want = {{NULL}};
            s.text = texts[i], s.sq = 12;
            T_OK(attn_data_make(&x, ctx, &s, 5, &err));
            x.problem.alignment = 16, x.params[0] = bounds[j];
            T_OK(attn_data_run(&x, ctx, "ref", FXA_FORWARD, &err));
            attn_keep(&x, FXA_FORWARD, &want);
            memset(&err, 0, sizeof err);
            fxa_status status = data_run(&x, ctx, FXA_FORWARD, &err);
            if (status != FXA_OK) T_FAIL("%s, w = %g: %s\n", texts[i], bounds[j], err.text);
            const attn_off off = attn_tensor_off(attn_output(&x, FXA_FORWARD, 0), want.memory[0]);
            if (status == FXA_OK && (off.odd || off.worst > 0.02)) /* P has a rounding error of 2^-9 */
                T_FAIL("%s, w = %g: off by %g, %d odd\n", texts[i], bounds[j], off.worst, (int)off.odd);
            attn_data_free(&x);
        }
}

typedef struct runner {
    fxa_context *ctx;
    attn_data x;
    attn_kept *want;
    bool ok;
} runner;

static void *runner_run(void *arg) {
    runner *r = arg;
    fxa_error err;
    r->ok = true;
    for (int i = 0; i < 10 && r->ok; i++)
        r->ok = data_run(&r->x, r->ctx, FXA_FORWARD, &err) == FXA_OK && !attn_other_bits(&r->x, FXA_FORWARD, r->want);
    return NULL;
}

/* cuDNN takes the maximum score before it multiplies by the scale, unless an operation is in between, so a scale of 0
 * or below needs one. */
STANDIN_TEST(a_scale_that_is_not_above_0) {
    static const double scales[] = {0.5, 0, -1};
    for (int i = 0; i < 6; i++) {
        attn_spec s = spec;
        attn_owned x = {0};
        attn_call call;
        s.text = i < 3 ? "mask = k <= q" : "score = tanh(score)\nmask = k <= q";
        T_OK(attn_data_make(&x, ctx, &s, 5, &err));
        x.problem.alignment = 16;
        attn_call_make(&x, FXA_FORWARD, &call);
        call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.args.scale = scales[i % 3];
        T_INT(fxa_attention(ctx, &call.p, &call.args, &err), i == 1 || i == 2 ? FXA_E_BINDING : FXA_OK);
        if (err.status != FXA_OK) T_HAS(err.text, "requires one above 0");
    }
}

/* The scale divided by the constant inside tanh is a float of the graph: the smallest normal float is supported,
 * smaller values are not. */
STANDIN_TEST(a_scale_below_all_floats) {
    static const struct {
        double cap, scale;
        fxa_status status;
    } rows[] = {{2, 2 * (double)FLT_MIN, FXA_OK},
                {2, 2 * (double)FLT_MIN * (1 - DBL_EPSILON), FXA_E_BINDING},
                {2, -2 * (double)FLT_MIN, FXA_OK},
                {2, -(double)FLT_MIN, FXA_E_BINDING},
                {2, 0, FXA_OK},
                {1e30, 1e-6, FXA_OK},
                {1e30, 1e-9, FXA_E_BINDING}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attn_owned x = {0};
        attn_call call;
        if (!data_make(&x, ctx)) return;
        x.params[0] = rows[i].cap;
        attn_call_make(&x, FXA_FORWARD, &call);
        call.p.engine = "cudnn", call.p.device = FXA_CUDA, call.args.scale = rows[i].scale;
        fxa_status status = fxa_attention(ctx, &call.p, &call.args, &err);
        if (status != rows[i].status)
            T_FAIL("scale %g, cap %g: %s\n", rows[i].scale, rows[i].cap, status == FXA_OK ? "taken" : err.text);
        if (rows[i].status != FXA_OK) T_HAS(err.text, "cuDNN computes with floats of at least");
    }
}

STANDIN_TEST(eight_threads_have_eight_handles) { /* */
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    static runner runners[THREADS];
    attn_kept want[THREADS];
    memset(want, 0, sizeof want);
    for (int i = 0; i < THREADS; i++) {
        runners[i].ctx = ctx, runners[i].want = &want[i];
        if (!data_make(&runners[i].x, ctx)) return;
        T_OK(data_run(&runners[i].x, ctx, FXA_FORWARD, &err));
        attn_keep(&runners[i].x, FXA_FORWARD, &want[i]);
    }
    for (int i = 0; i < THREADS; i++) T_INT(pthread_create(&threads[i], NULL, runner_run, &runners[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        T_CHECK(runners[i].ok);
        attn_data_free(&runners[i].x);
        attn_drop(&want[i]);
    }
}

T_MAIN
