/* SPDX-License-Identifier: Apache-2.0
 *
 * Stack use is bounded (docs/ownership.md): runs and all other calls on threads with exactly the documented stack,
 * above an inaccessible page. Skipped with sanitizers, which enlarge every frame.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_ANONYMOUS, pthread_attr_setstack */
#endif
#include "support/fixtures/isa.h"
#include "t.h"

#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define STACK_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_SANITIZED 1
#endif

enum { STACK_RUN = 128 << 10, STACK_REST = 256 << 10, STACK_PAGE = 4096 }; /* as documented */

/* Runs fn(arg) on a thread with that stack; using more faults. */
static void stack_call(size_t size, void *(*fn)(void *), void *arg) {
    pthread_attr_t attr;
    pthread_t thread;
    char *memory = mmap(NULL, size + STACK_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    T_REQUIRE(memory != MAP_FAILED && mprotect(memory, STACK_PAGE, PROT_NONE) == 0);
    T_REQUIRE(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, memory + STACK_PAGE, size) == 0);
    T_REQUIRE(pthread_create(&thread, &attr, fn, arg) == 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    munmap(memory, size + STACK_PAGE);
}

static fxa_context *stack_ctx;

static void stack_open(void) {
    fxa_error err;
    fxa_context_config c = FXA_CONTEXT_CONFIG_INIT;
    c.threads = 1; /* runs everything in the calling thread */
    T_OK(fxa_context_create(&c, &stack_ctx, &err));
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

enum { STACK_H = 2, STACK_S = 96, STACK_D = 512, STACK_N = STACK_H * STACK_S * STACK_D };

typedef struct stack_run {
    fxa_plan *plan;
    fxa_args args;
    fxa_status status;
    fxa_error err;
} stack_run;

static double stack_data[9][STACK_N], stack_lse[STACK_H * STACK_S], stack_dparams[1];
static float stack_bias[STACK_S * STACK_S], stack_dbias[STACK_S * STACK_S];

static void *stack_plan_run(void *arg) {
    stack_run *r = arg;
    r->status = fxa_plan_run(r->plan, &r->args, &r->err);
    return NULL;
}

static void stack_bind(stack_run *r, bool backward) {
    static const double params[1] = {30};
    static const void *const tensors[1] = {stack_bias};
    static void *const dtensors[1] = {stack_dbias};
    r->args = (fxa_args)FXA_ARGS_INIT;
    for (int i = 0; i < 4; i++) r->args.slot[FXA_SLOT_Q + i] = stack_data[i];
    r->args.slot[FXA_SLOT_LSE] = stack_lse;
    r->args.params = params, r->args.n_params = 1, r->args.tensors = tensors, r->args.n_tensors = 1;
    if (!backward) return;
    for (int i = 0; i < 3; i++) r->args.slot[FXA_SLOT_DQ + i] = stack_data[4 + i];
    r->args.slot[FXA_SLOT_DO] = stack_data[7];
    r->args.dtensors = dtensors, r->args.n_dtensors = 1, r->args.dparams = stack_dparams, r->args.n_dparams = 1;
}

static void stack_run_pass(const fxa_program *program, const char *engine, uint32_t dtype, int64_t sq, int64_t d,
                           bool backward) {
    fxa_capture capture = {.size = {STACK_S, STACK_S}, .grad = backward};
    fxa_problem p = FXA_PROBLEM_INIT;
    static stack_run r;
    fxa_error err;
    p.b = 1, p.hq = STACK_H, p.sq = sq, p.sk = STACK_S, p.d_qk = d, p.q.dtype = dtype;
    p.engine = engine, p.program = program, p.captures = &capture, p.n_captures = 1;
    p.pass = backward ? FXA_BACKWARD : FXA_FORWARD;
    p.flags = FXA_DROPOUT | (backward ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : FXA_RETURN_LSE);
    p.dropout_p = 0.25, p.param_grads = backward;
    if (sq == 1) p.flags |= FXA_BOUNDS_CHECK;
    T_OK(fxa_plan_create(stack_ctx, &p, &r.plan, &err));
    T_REQUIRE(r.plan != NULL);
    stack_bind(&r, backward);
    size_t size = fxa_plan_workspace(r.plan);
    r.args.workspace = aligned_alloc(FXA_WORKSPACE_ALIGN, (size + 63) / 64 * 64 + 64);
    r.args.workspace_size = size;
    stack_call(STACK_RUN, stack_plan_run, &r);
    if (r.status != FXA_OK) T_FAIL("%s: %s\n", engine, r.err.text);
    free(r.args.workspace);
    fxa_plan_destroy(r.plan);
}

/* A mask with many terms, so that range analysis has much to do. */
static const char stack_text[] =
    "param cap: float\ntensor bias: f32[2]\nscore = cap * tanh((score + bias[q, k]) / cap)\n"
    "mask = any(i, 6, abs(q - k - 8 * i) < 4 && (q // 8 + i) % 3 != k // 8 % 3) || k <= q && q - k < 40 || k == 0\n";

static void stack_run_all(const char *engine) {
    t_program *program = NULL;
    fxa_error err;
    stack_open();
    T_OK(fxa_program_parse(stack_ctx, stack_text, SIZE_MAX, &program, &err));
    for (uint32_t dtype = FXA_F64; dtype <= FXA_BF16; dtype++)
        for (int n = 0; n < 8; n++)
            stack_run_pass(program, engine, dtype, n & 1 ? 1 : STACK_S, n & 2 ? STACK_D : 64, n & 4);
    fxa_context_destroy(stack_ctx);
}

static void stack_run_set(const char *isa) {
    (void)isa;
    stack_run_all("cpu");
}

TEST(runs_need_a_bounded_stack) { /* */
#ifdef STACK_SANITIZED
    T_SKIP("sanitizers need stack of their own");
#endif
    isa_each(stack_run_set);
    stack_run_all("ref");
}

/* ---- All else: programs as deep as they may be ------------------------------------------------------------------- */

static char deep_text[1 << 16];

static void deep_add(const char *part, int times) {
    for (; times > 0; times--) strcat(deep_text, part);
}

static void *deep_calls(void *arg) { /* calls every query about a program, a plan and its run */
    static char bytes[1 << 20];
    fxa_program *p = NULL, *derivative = NULL, *again = NULL;
    fxa_plan *plan = NULL;
    fxa_error err;
    fxa_properties properties;
    fxa_tile_counts counts;
    size_t n = 0, count = 8;
    fxa_support reports[8];
    static const float x[64];
    static float o[64];
    *(bool *)arg = false;
    T_OK(fxa_program_parse(stack_ctx, deep_text, SIZE_MAX, &p, &err));
    if (!p) return NULL;
    T_OK(fxa_program_print(p, bytes, sizeof bytes, &n, &err));
    T_OK(fxa_program_parse(stack_ctx, bytes, n, &again, &err));
    T_OK(fxa_program_derivative(p, &derivative, &err));
    fxa_program_destroy(again);
    T_OK(fxa_program_save(p, bytes, sizeof bytes, &n, &err));
    T_OK(fxa_program_load(stack_ctx, bytes, n, &again, &err));
    fxa_program_properties(p, &properties);
    fxa_problem problem = FXA_PROBLEM_INIT;
    problem.b = problem.hq = 1, problem.sq = problem.sk = 8, problem.d_qk = 8, problem.program = p;
    T_OK(fxa_tiles_count(stack_ctx, &problem, 0, 0, 2, 4, NULL, NULL, &counts, &err));
    T_OK(fxa_support_query(stack_ctx, &problem, reports, &count, &err));
    T_OK(fxa_plan_create(stack_ctx, &problem, &plan, &err));
    T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &n, &err));
    fxa_plan_destroy(plan);
    T_OK(fxa_plan_load(stack_ctx, bytes, n, &plan, &err));
    fxa_args args = FXA_ARGS_INIT;
    for (int i = 0; i < 3; i++) args.slot[FXA_SLOT_Q + i] = (void *)(uintptr_t)x;
    args.slot[FXA_SLOT_O] = o;
    T_OK(fxa_attention(stack_ctx, &problem, &args, &err));
    fxa_plan_destroy(plan);
    fxa_program_destroy(again);
    fxa_program_destroy(derivative);
    fxa_program_destroy(p);
    *(bool *)arg = true;
    return NULL;
}

TEST(other_calls_need_a_bounded_stack) {
#ifdef STACK_SANITIZED
    T_SKIP("sanitizers need stack of their own");
#endif
    static const struct {
        const char *before, *open, *middle, *close;
        int times;
    } shapes[] = {
        {"score = ", "(", "score", ")", 250},
        {"score = ", "exp(", "score", ")", 250},
        {"score = ", "min(score, ", "score", ")", 250},
        {"score = ", "q > 1 ? tanh(score) : ", "score", "", 250},
        {"score = ", "-", "score", "", 250},
        {"score = ", "score ** ", "score", "", 250},
        {"mask = ", "!", "(k < q)", "", 250},
        {"mask = ", "any(i, 1, ", "k < q", ")", 250},
        {"mask = ", "all(i, 2, q == i || ", "k < q", ")", 8},
        {"score = score + float(", "abs(q - ", "k", ")", 250},
    };
    stack_open();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bool done = false;
        snprintf(deep_text, sizeof deep_text, "%s", shapes[i].before);
        deep_add(shapes[i].open, shapes[i].times);
        deep_add(shapes[i].middle, 1);
        deep_add(shapes[i].close, shapes[i].times);
        if (strchr(shapes[i].before, '(')) deep_add(")", 1);
        stack_call(STACK_REST, deep_calls, &done);
        if (!done) T_FAIL("%s%s... did not come through\n", shapes[i].before, shapes[i].open);
    }
    fxa_context_destroy(stack_ctx);
}

T_MAIN
