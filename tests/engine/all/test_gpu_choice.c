/* SPDX-License-Identifier: Apache-2.0
 *
 * Choice between the two CUDA engines, on stand-ins for the driver, cuDNN and NVRTC: the faster engine if both support
 * the problem, the other one if one engine or its compiler refuses, the named one; and the costs in support reports.
 * test_cuda_keys.c tests the costs.
 */
#include "engine/cuda/cuda.h"
#include "engine/cudnn/cudnn.h"
#include "plan/plan.h"
#include "standin/standin_nvrtc.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <dlfcn.h>

static fxa__engine pick_cudnn, pick_cuda; /* copies of the engines that count calls of `analyze` */
static const fxa__engine *own_engines[OWN_ENGINES] = {&pick_cudnn, &pick_cuda};
static int pick_graphs, pick_texts;

static fxa_status pick_make_graph(void *self, const fxa__problem *p, void **derived, fxa_error *err) {
    pick_graphs++;
    return fxa__engine_cudnn.analyze(self, p, derived, err);
}

static fxa_status pick_make_text(void *self, const fxa__problem *p, void **derived, fxa_error *err) {
    pick_texts++;
    return fxa__engine_cuda.analyze(self, p, derived, err);
}

static standin_state *pick_nvrtc;
static fxa_context *pick_own; /* context for the stand-in's kernel shapes */
static fxa__problem *pick_problem;

static void pick_shape(const char *source, int32_t shape[8]) {
    const fxa__cuda_self self = {.arch = 90, .processors = 132};
    fxa__cuda_choice choice;
    fxa__cuda_program program;
    fxa_error err;
    T_OK(fxa__cuda_choose(&self, pick_problem, &choice, &program, &err));
    for (int unit = 0; unit < FXA__CUDA_UNIT_COUNT; unit++) {
        const char *file = fxa__cuda_unit_source(&choice, (fxa__cuda_unit)unit);
        if (!file || strncmp(source, file, strlen(file)) != 0 || source[strlen(file)] != '.') continue;
        struct FxaShape s = fxa__cuda_tile_shape(&choice, (fxa__cuda_unit)unit).launch;
        memcpy(shape, &s, sizeof s);
    }
    fxa__cuda_program_free(&program);
}

static bool pick_ready(void) {
    char path[4096];
    if (!getenv("FXA_TEST_STANDIN")) return false;
    if (pick_nvrtc) return true;
    pick_cudnn = fxa__engine_cudnn, pick_cudnn.analyze = pick_make_graph;
    pick_cuda = fxa__engine_cuda, pick_cuda.analyze = pick_make_text;
    (void)snprintf(path, sizeof path, "%s/nvrtc/libnvrtc.so.13", getenv("FXA_TEST_STANDIN"));
    void *nvrtc = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!nvrtc) return false;
    *(standin_nvrtc_shape *)dlsym(nvrtc, "standin_nvrtc_shape_of") = pick_shape;
    pick_nvrtc = dlsym(nvrtc, "standin_nvrtc");
    return fxa_context_create(NULL, &pick_own, NULL) == FXA_OK;
}

#define NEEDS_PICK                                                                                                     \
    do {                                                                                                               \
        if (!pick_ready()) T_SKIP("FXA_TEST_STANDIN does not say where the stand-ins are");                            \
    } while (0)

typedef struct pick {
    fxa_context *ctx;
    fxa_program *program;
    fxa_problem p;
} pick;

static void pick_start(pick *x, const char *text, int64_t s, int64_t d) {
    fxa_error err;
    memset(x, 0, sizeof *x);
    T_OK(fxa_context_create(NULL, &x->ctx, &err));
    if (text) T_OK(fxa_program_parse(x->ctx, text, SIZE_MAX, &x->program, &err));
    x->p = (fxa_problem)FXA_PROBLEM_INIT;
    x->p.program = x->program, x->p.device = FXA_CUDA, x->p.alignment = 16, x->p.q.dtype = FXA_BF16;
    x->p.b = 2, x->p.hq = 4, x->p.sq = x->p.sk = s, x->p.d_qk = d, x->p.flags = FXA_RETURN_LSE;
}

static void pick_end(pick *x) {
    fxa_program_destroy(x->program);
    fxa_context_destroy(x->ctx);
}

/* Returns the engine of the plan for *x; NULL, with the reason in *out, if there is none. */
static const char *pick_engine(pick *x, fxa_error *out) {
    fxa_plan *plan = NULL;
    fxa_error err;
    T_OK(fxa__problem_create(fxa__context_host(pick_own), &x->p, &pick_problem, &err));
    fxa_status status = fxa_plan_create(x->ctx, &x->p, &plan, out);
    const char *name = status == FXA_OK ? fxa_plan_engine(plan) : NULL;
    fxa_plan_destroy(plan);
    fxa__problem_release(pick_problem);
    return name ? name : "none";
}

TEST(the_cheaper_one_or_the_one_that_can) {
    NEEDS_PICK;
    static const struct {
        const char *text;
        int64_t s, d;
        fxa_dtype dtype;
        const char *engine, *want;
    } rows[] = {
        {NULL, 256, 128, FXA_BF16, NULL, "cuda"},
        {NULL, 256, 128, FXA_BF16, "cudnn", "cudnn"},
        {NULL, 256, 128, FXA_BF16, "cuda", "cuda"},
        {NULL, 256, 128, FXA_F32, NULL, "cuda"}, /* cudnn supports no 32-bit operands */
        {NULL, 256, 100, FXA_F16, NULL, "cuda"}, /* nor such columns */
        {"mask = (k * k + q) % 7 != 0", 256, 64, FXA_F16, NULL, "cuda"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pick x;
        pick_start(&x, rows[i].text, rows[i].s, rows[i].d);
        x.p.q.dtype = rows[i].dtype, x.p.engine = rows[i].engine;
        const char *name = pick_engine(&x, &err);
        if (strcmp(name, rows[i].want) != 0) T_FAIL("row %zu: %s, %s\n", i, name, err.text);
        pick_end(&x);
    }
}

/* Support reports contain the estimated times, and the plan is made by the engine with the shortest time. */
TEST(answers_tell_the_cost) {
    NEEDS_PICK;
    static const struct {
        const char *text;
        int64_t sq, sk, d;
    } rows[] = {{NULL, 4096, 4096, 128}, {"score = 30 * tanh(score / 30)", 4096, 4096, 64}, {NULL, 1, 8192, 128}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pick x;
        fxa_support s[OWN_ENGINES];
        size_t n = OWN_ENGINES;
        pick_start(&x, rows[i].text, rows[i].sk, rows[i].d);
        x.p.sq = rows[i].sq;
        T_OK(fxa_support_query(x.ctx, &x.p, s, &n, &err));
        T_INT(n, 2);
        T_CHECK(s[0].supported && s[1].supported && s[0].seconds > 0 && s[1].seconds > 0);
        T_STR(pick_engine(&x, &err), s[0].seconds <= s[1].seconds ? "cudnn" : "cuda");
        x.p.q.dtype = FXA_F32;
        T_OK(fxa_support_query(x.ctx, &x.p, s, &n, &err));
        T_CHECK(!s[0].supported && s[0].seconds == 0 && s[1].supported && s[1].seconds > 0);
        pick_end(&x);
    }
}

/* A plan makes cuDNN's graph and the text for NVRTC once, whichever engine is chosen, also with a disk cache; a plan of
 * another length makes the text again for its key, but no code; a repeated plan makes nothing. */
TEST(a_plan_makes_graph_and_text_once) {
    NEEDS_PICK;
    for (int way = 0; way < 6; way++) {
        pick x;
        char folder[] = "/tmp/fxa-pick-XXXXXX", command[64];
        bool disk = way & 1;
        const char *engine = way / 2 == 1 ? "cuda" : way / 2 == 2 ? "cudnn" : NULL;
        if (disk) T_REQUIRE(mkdtemp(folder));
        if (disk) setenv("FXA_CACHE_DIR", folder, 1);
        pick_start(&x, "score = 30 * tanh(score / 30)", 256, 64);
        unsetenv("FXA_CACHE_DIR");
        x.p.engine = engine;
        const int graphs = way / 2 != 1, texts = way / 2 != 2;
        for (int round = 0; round < 3; round++) {
            pick_graphs = pick_texts = 0;
            if (round == 2) x.p.sq = 200;
            T_CHECK(strcmp(pick_engine(&x, &err), "none") != 0);
            T_INT(pick_texts, round == 1 ? 0 : texts);
            if (round < 2) T_INT(pick_graphs, round == 1 ? 0 : graphs);
        }
        pick_end(&x);
        snprintf(command, sizeof command, "rm -rf '%s'", folder);
        if (disk) T_INT(system(command), 0);
    }
}

/* NVRTC fails at each of its calls: the other engine makes the plan if it can, else NVRTC's failure is the error. */
TEST(a_compiler_that_breaks) {
    NEEDS_PICK;
    int others = 0;
    for (size_t k = 1, more = 1; more; k++)
        for (int both = 0; both < 2; both++) {
            pick x;
            pick_start(&x, NULL, 256, 128);
            if (!both) x.p.q.dtype = FXA_F32;
            pick_nvrtc->calls = pick_nvrtc->failures = 0;
            pick_nvrtc->fail_at = k;
            const char *name = pick_engine(&x, &err);
            more = pick_nvrtc->failures;
            pick_nvrtc->fail_at = 0;
            if (!more) T_STR(name, "cuda");
            if (more) T_CHECK(strcmp(name, "cuda") == 0 || strcmp(name, both ? "cudnn" : "none") == 0);
            if (strcmp(name, "none") == 0) T_CHECK(err.status == FXA_E_ENGINE || err.status == FXA_E_UNSUPPORTED);
            others += strcmp(name, "cudnn") == 0;
            pick_end(&x);
        }
    T_CHECK(others > 3);
}

T_MAIN
