/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA engine's instances and code, on stand-ins for the driver and for NVRTC: plans for a device and for a
 * profile, as bytes and back, with every call of both failing in turn and every allocation; cubins that are not what
 * they should be. What real NVRTC makes of the sources: test_cuda_builds.c; runs: test_cuda_run.c.
 */
#include "engine/cuda/cuda.h"
#include "plan/plan.h"
#include "standin/standin_nvrtc.h"
#include "support/fail_alloc.h"
#include "support/own_engines.h"
#include "t.h"

#include <dlfcn.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda};

static standin_state *box_driver, *box_nvrtc;
static fxa_context *box_ctx; /* for programs and what shapes are asked with */

/* ---- Stand-ins --------------------------------------------------------------------------------------------------- */

static fxa__cu_choice box_choice; /* of the problem that is compiled */
static fxa__cuda_program box_program;
static bool box_other_shapes;

static void box_shape(const char *source, int32_t shape[8]) {
    for (int unit = 0; unit < FXA__CU_UNIT_COUNT; unit++) {
        const char *file = fxa__cu_unit_file(&box_choice, (fxa__cu_unit)unit);
        if (!file || strncmp(source, file, strlen(file)) != 0 || source[strlen(file)] != '.') continue;
        struct FxaShape s = fxa__cu_shape(&box_choice, &box_program, (fxa__cu_unit)unit);
        memcpy(shape, &s, sizeof s);
    }
    shape[1] = 1024; /* of shared memory */
    shape[2] += box_other_shapes ? 64 : 0;
}

static void *box_open(const char *file) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", getenv("FXA_TEST_STANDIN"), file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static bool box_ready(void) {
    if (!getenv("FXA_TEST_STANDIN")) return false;
    if (box_driver) return true;
    void *driver = box_open("libcuda.so.1"), *nvrtc = box_open("nvrtc/libnvrtc.so.13");
    if (!driver || !nvrtc) return false;
    box_driver = dlsym(driver, "standin_cuda"), box_nvrtc = dlsym(nvrtc, "standin_nvrtc");
    standin_nvrtc_shape *shape = dlsym(nvrtc, "standin_nvrtc_shape_of");
    *shape = box_shape;
    return fxa_context_create(NULL, &box_ctx, NULL) == FXA_OK;
}

#define NEEDS_BOX                                                                                                      \
    do {                                                                                                               \
        if (!box_ready()) T_SKIP("FXA_TEST_STANDIN does not say where the stand-ins are");                             \
    } while (0)

static void box_arm(standin_state *s, size_t fail_at) {
    s->calls = s->failures = 0;
    s->fail_at = fail_at;
}

static void box_check_end(void) {
    if (!box_driver->context_lost) T_INT(box_driver->held, 0);
    box_driver->held = 0;
    box_driver->context_lost = false;
    T_INT(box_driver->mistakes, 0);
    T_INT(box_nvrtc->held, 0);
    box_nvrtc->held = 0;
}

/* ---- Problems ---------------------------------------------------------------------------------------------------- */

static const char box_text[] = "tensor ids : i32[1]\nscore = 3.5 * tanh(score / 3.5) - 0.25 * float(abs(q - k))\n"
                               "mask = ids[q] == ids[k]";

typedef struct box {
    fxa_problem p;
    fxa_capture captures[1];
    fxa_program *program;
} box;

/* The shapes that the stand-in is asked for are those of this problem from now on. */
static void box_start(box *b, fxa_pass pass, const char *target) {
    fxa_error err;
    fxa__problem *p = NULL;
    const fxa__cu_self self = {.arch = 90, .processors = 132, .forced = -1};
    memset(b, 0, sizeof *b);
    b->p = (fxa_problem)FXA_PROBLEM_INIT;
    T_OK(fxa_program_parse(box_ctx, box_text, strlen(box_text), &b->program, &err));
    b->captures[0].size[0] = 512;
    b->p.pass = (uint32_t)pass, b->p.b = 2, b->p.hq = 4, b->p.hkv = 2, b->p.sq = 300, b->p.sk = 500, b->p.d = 64;
    b->p.q.dtype = FXA_BF16, b->p.alignment = 16, b->p.device = FXA_CUDA, b->p.program = b->program;
    b->p.captures = b->captures, b->p.n_captures = 1, b->p.engine = "cuda", b->p.target = target;
    b->p.flags = pass ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V | FXA_DETERMINISTIC : FXA_WANT_LSE;
    T_OK(fxa__problem_create(fxa__context_host(box_ctx), &b->p, &p, &err));
    fxa__cuda_program_free(&box_program);
    T_OK(fxa__cu_choose(&self, p, &box_choice, &box_program, &err));
    fxa__problem_release(p);
}

static void box_end(box *b) {
    fxa_program_destroy(b->program);
    fxa__cuda_program_free(&box_program);
}

static fxa_context *box_context(void) {
    fxa_context *ctx = NULL;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    return ctx;
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

TEST(plans_for_a_device_and_for_its_profile) {
    NEEDS_BOX;
    static char text[4096], listing[1 << 16];
    static unsigned char bytes[1 << 18], again[1 << 18];
    fxa_error err;
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        fxa_context *there = box_context(), *here = box_context();
        fxa_plan *plan = NULL, *loaded = NULL;
        size_t n = 0, m = 0, needed = 0;
        box b;
        T_OK(fxa_device_profile(there, FXA_CUDA, 0, text, sizeof text, NULL, &err));
        box_start(&b, pass, text);
        T_OK(fxa_plan_create(there, &b.p, &plan, &err));
        T_REQUIRE(plan);
        T_HAS(fxa_plan_detail(plan), "kernels sm90, NVRTC 13.0, sm_90a, bf16, columns 64 and 64");
        T_OK(fxa_plan_listing(plan, listing, sizeof listing, &needed, &err));
        T_HAS(listing, "struct Program : ProgramBase {");
        T_HAS(listing, "ids is copied with the keys");
        T_HAS(listing, "tiles of b 0, h 0, whatever tensors hold: ");
        T_HAS(listing, " left out, ");
        T_HAS(listing, pass ? "dq_sm90.cu: cubin of" : "forward_sm90.cu: cubin of");
        T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &n, &err));
        T_INT(box_driver->held, 0);
        fxa_plan_destroy(plan);
        fxa_context_destroy(there);
        size_t compilations = box_nvrtc->calls;
        T_OK(fxa_plan_load(here, bytes, n, &loaded, &err));
        T_CHECK(loaded && box_nvrtc->calls == compilations); /* it is not even looked for */
        T_HAS(fxa_plan_detail(loaded), "NVRTC 13.0, sm_90a");
        T_CHECK(box_driver->held > 2); /* a context and modules */
        T_OK(fxa_plan_save(loaded, again, sizeof again, &m, &err));
        T_CHECK(m == n && memcmp(bytes, again, n) == 0);
        fxa_plan_destroy(loaded);
        fxa_context_destroy(here);
        box_end(&b);
        box_check_end();
    }
}

/* Other lengths and numbers are no new compilation. */
TEST(code_is_shared) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan = NULL, *other = NULL;
    fxa_error err;
    fxa_cache_stats stats = {.hits = 0};
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    b.p.sq = 77, b.p.b = 3;
    T_OK(fxa_plan_create(ctx, &b.p, &other, &err));
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.builds, 1);
    fxa_plan_destroy(plan);
    fxa_plan_destroy(other);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

/* What one process has compiled the next one finds in the folder, and needs no compiler for it. */
TEST(code_of_a_folder_needs_no_compiler) {
    NEEDS_BOX;
    char folder[] = "/tmp/test_cuda_engine_XXXXXX", command[64];
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_error err;
    box b;
    T_REQUIRE(mkdtemp(folder));
    config.cache_dir = folder;
    box_start(&b, FXA_BACKWARD, NULL);
    for (int i = 0; i < 2; i++) {
        fxa_context *ctx = NULL;
        fxa_plan *plan = NULL;
        T_OK(fxa_context_create(&config, &ctx, &err));
        box_arm(box_nvrtc, (size_t)i); /* the first call fails */
        T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
        T_CHECK(i ? box_nvrtc->calls == 0 : box_nvrtc->calls > 10);
        T_HAS(fxa_plan_detail(plan), "NVRTC 13.0, sm_90a");
        box_arm(box_nvrtc, 0);
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
    }
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    T_INT(system(command), 0);
    box_end(&b);
    box_check_end();
}

static fxa_context *box_context_of(const char *folder) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_context *ctx = NULL;
    fxa_error err;
    config.cache_dir = folder;
    T_OK(fxa_context_create(&config, &ctx, &err));
    return ctx;
}

static fxa_support box_support(fxa_context *ctx, const box *b) {
    fxa_support report = {.engine = NULL};
    size_t count = 1;
    fxa_error err;
    T_OK(fxa_support_query(ctx, &b->p, &report, &count, &err));
    return report;
}

/* Without a compiler the answer is that of the folder, as it is now: a no does not outlive the code's arrival, and of
 * what is not there it stays one. */
TEST(code_of_a_folder_is_a_yes_without_compiler) {
    NEEDS_BOX;
    char folder[] = "/tmp/test_cuda_engine_XXXXXX", command[64];
    fxa_plan *plan = NULL;
    fxa_error err;
    box b;
    T_REQUIRE(mkdtemp(folder));
    box_start(&b, FXA_FORWARD, NULL);
    fxa_context *ctx = box_context_of(folder), *other = box_context_of(folder);
    box_arm(box_nvrtc, 1); /* the first call fails, which is remembered */
    T_HAS(box_support(ctx, &b).reason, "nvrtcVersion");
    box_arm(box_nvrtc, 0);
    T_OK(fxa_plan_create(other, &b.p, &plan, &err));
    fxa_plan_destroy(plan);
    fxa_context_destroy(other);
    fxa_support said = box_support(ctx, &b);
    T_INT(said.supported, 1);
    T_STR(said.reason, "");
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    T_INT(fxa_plan_workspace(plan), said.workspace);
    b.p.d = 128;
    T_HAS(box_support(ctx, &b).reason, "nvrtcVersion");
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    T_INT(system(command), 0);
    b.p.d = 64;
    T_INT(box_support(ctx, &b).supported, 1); /* the context has it by now */
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

/* What comes before and after the backward kernels is compiled for the first program alone. */
TEST(programs_share_what_no_text_is_in) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan[2] = {NULL, NULL};
    fxa_program *other = NULL;
    fxa_error err;
    size_t calls[2];
    box b;
    T_OK(fxa_program_parse(box_ctx, "tensor ids : i32[1]\nscore = tanh(score)\nmask = ids[q] == ids[k]", SIZE_MAX,
                           &other, &err));
    for (int i = 0; i < 2; i++) {
        box_start(&b, FXA_BACKWARD, NULL);
        if (i) b.p.program = other;
        box_arm(box_nvrtc, 0);
        T_OK(fxa_plan_create(ctx, &b.p, &plan[i], &err));
        calls[i] = box_nvrtc->calls;
        box_end(&b);
    }
    T_REQUIRE(plan[0] && plan[1]);
    const fxa__cu_code *x = plan[0]->code->code, *y = plan[1]->code->code;
    const fxa__cu_module *first = &x->unit[FXA__CU_ENDS], *second = &y->unit[FXA__CU_ENDS];
    T_CHECK(x != y && first->cubin != second->cubin && first->size == second->size);
    T_CHECK(memcmp(first->cubin, second->cubin, first->size) == 0);
    int fewer = __builtin_popcount(x->choice.units) - __builtin_popcount(y->choice.units) + 1;
    T_INT(calls[1], calls[0] - 3 - 4 * (size_t)fewer); /* of opening it; create, compile, size and code */
    for (int i = 0; i < 2; i++) fxa_plan_destroy(plan[i]);
    fxa_program_destroy(other);
    fxa_context_destroy(ctx);
    box_check_end();
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* Each call of the driver and of NVRTC fails once while a plan is made, and while one is loaded. */
TEST(every_call_fails) {
    NEEDS_BOX;
    static unsigned char bytes[1 << 18];
    standin_state *const both[] = {box_driver, box_nvrtc};
    fxa_error err;
    fxa_plan *first = NULL;
    size_t n = 0;
    box b;
    box_start(&b, FXA_BACKWARD, NULL);
    fxa_context *saver = box_context();
    T_OK(fxa_plan_create(saver, &b.p, &first, &err));
    T_OK(fxa_plan_save(first, bytes, sizeof bytes, &n, &err));
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
            T_INT(box_driver->waits, 0); /* there is nothing to wait for */
            fxa_plan_destroy(plan);
            fxa_context_destroy(ctx);
            box_check_end();
        }
        T_CHECK(which == 3 ? k == 2 : k > 15); /* bytes need no compiler */
    }
    box_end(&b);
}

TEST(every_allocation_fails) {
    NEEDS_BOX;
    fxa_error err;
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

/* What the compiler says is the reason, and shapes that are not those of this library are not run. */
TEST(compilers_that_say_no) {
    NEEDS_BOX;
    fxa_error err;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    for (int i = 0; i < 2; i++) {
        fxa_context *ctx = box_context();
        fxa_plan *plan = NULL;
        box_nvrtc->no_engine = i == 0, box_other_shapes = i == 1;
        T_STATUS(fxa_plan_create(ctx, &b.p, &plan, &err), i ? FXA_E_VERSION : FXA_E_ENGINE);
        T_HAS(err.text, i ? "this library reckons with" : "program.cuh(7): error: the stand-in does not like it");
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
    box_driver->family = 7;
    box_expect_reason("FXA_FAST_MATH", "0", "from sm_80 on, and this is sm_70");
    box_driver->family = 0;
}

/* What a compiler says at once, or that there is none, is known when something is compiled, and remembered. */
TEST(compilers_that_are_not_there) {
    NEEDS_BOX;
    fxa_error err;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    for (int i = 0; i < 2; i++) {
        fxa_context *ctx = box_context();
        fxa_plan *plan = NULL;
        box_driver->family = i ? 13 : 0;
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
        b.p.sq = 400; /* which nobody has asked for */
        T_OK(fxa_support_query(ctx, &b.p, &report, &count, &err));
        T_INT(report.supported, 0);
        T_HAS(report.reason, i ? "makes no code" : "nvrtcVersion");
        box_driver->family = 0;
        box_arm(box_nvrtc, 0);
        fxa_context_destroy(ctx);
        box_check_end();
    }
    box_end(&b);
}

/* ---- Cubins ------------------------------------------------------------------------------------------------------ */

/* Bytes that are no cubin, or half of one, have no symbols, and nothing outside of them is read (make asan). */
TEST(cubins_are_read_with_doubt) {
    NEEDS_BOX;
    fxa_context *ctx = box_context();
    fxa_plan *plan = NULL;
    fxa_error err;
    box b;
    box_start(&b, FXA_FORWARD, NULL);
    T_OK(fxa_plan_create(ctx, &b.p, &plan, &err));
    T_REQUIRE(plan);
    const fxa__cu_module *m = &((const fxa__cu_code *)plan->code->code)->unit[FXA__CU_FORWARD];
    size_t bytes = 0;
    T_CHECK(fxa__cu_cubin_find(m->cubin, m->size, "fxa_forward", &bytes));
    T_CHECK(fxa__cu_cubin_find(m->cubin, m->size, "fxa_forward_shape", &bytes) && bytes == sizeof m->shape);
    T_CHECK(!fxa__cu_cubin_find(m->cubin, m->size, "fxa_forwar", &bytes));
    T_CHECK(!fxa__cu_cubin_find(m->cubin, m->size, "fxa_backward", &bytes));
    for (size_t size = 0; size < m->size; size += 1 + size / 32) {
        uint8_t *part = malloc(size ? size : 1);
        memcpy(part, m->cubin, size);
        T_CHECK(!fxa__cu_cubin_find(part, size, "fxa_forward", &bytes));
        free(part);
    }
    uint8_t *copy = malloc(m->size);
    for (size_t at = 0; at < m->size; at++) {
        memcpy(copy, m->cubin, m->size);
        copy[at] ^= (uint8_t)(1u << at % 8);
        copy[at] |= at % 3 ? 0 : 0x80;
        const uint8_t *found = fxa__cu_cubin_find(copy, m->size, "fxa_forward_shape", &bytes);
        if (found) T_CHECK(found >= copy && bytes <= m->size && found + bytes <= copy + m->size);
    }
    free(copy);
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
    box_end(&b);
    box_check_end();
}

TEST(saved_kernels_of_somebody_else) {
    NEEDS_BOX;
    static const struct {
        uint32_t format, units;
        uint64_t size;
        fxa_status status;
        int32_t major, arch;
        const char *text;
    } cases[] = {{2, 1, 4, FXA_E_BYTES, 13, 90, "a"},       {3, 2, 4, FXA_E_VERSION, 13, 90, "a"},
                 {3, 1, 1 << 20, FXA_E_BYTES, 13, 90, "a"}, {3, 1, 0, FXA_E_BYTES, 13, 90, "a"},
                 {3, 1, 4, FXA_E_BYTES, -1, 90, "a"},       {3, 1, 4, FXA_E_VERSION, 13, 91, "a"},
                 {3, 1, 4, FXA_E_VERSION, 13, 80, "a"},     {3, 1, 4, FXA_E_VERSION, 13, 0, "a"},
                 {3, 1, 4, FXA_E_VERSION, 13, 90, "b"},     {3, 1, 4, FXA_OK, 12, 90, "a"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa__host *host = fxa__context_host(box_ctx);
        fxa__writer w = {.host = host};
        fxa__cu_code saved = {.choice = {.units = cases[i].units}, .maker = {cases[i].major, 4, cases[i].arch}};
        fxa__cu_code code = {.host = host, .choice = {.units = 1u << FXA__CU_FORWARD, .arch = 90}};
        const fxa__cu_self self = {.host = host};
        fxa_error err;
        saved.program.text.host = code.program.text.host = host;
        fxa__write_bytes(&saved.program.text, cases[i].text, 1);
        fxa__write_bytes(&code.program.text, "a", 1);
        fxa__cu_saved_write(&saved, &w);
        memcpy(w.data, &cases[i].format, sizeof cases[i].format);
        fxa__write_u64(&w, cases[i].size);
        fxa__write_u32(&w, 0x464c457f);
        fxa__reader r = {.data = w.data, .size = w.size};
        T_STATUS(fxa__cu_saved_read(&r, &code, &err), cases[i].status);
        fxa__cu_build_free(&self, &code);
        fxa__writer_free(&saved.program.text);
        fxa__writer_free(&code.program.text);
        fxa__writer_free(&w);
    }
}

T_MAIN
