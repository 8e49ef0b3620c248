/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between plans and engines at its limits: targets without memory, engines without optional hooks, a
 * device without an engine, more engines than a context uses, and environment variables for engines of other devices.
 */
#include "seam_fixture.h"

#include "problem/bound_args.h"

/* ---- Targets ----------------------------------------------------------------------------------------------------- */

SEAM_TEST(a_target_is_opened_once) {
    char target[] = "mock 1";
    r->t.problem.target = "mock 1";
    T_STR(seam_engine(r, &err), "first");
    T_INT(mock.count[MOCK_OPEN], 1);
    r->t.problem.target = target, r->t.problem.flags |= FXA_RETURN_ROW_MAX; /* another plan, with the same text */
    T_STR(seam_engine(r, &err), "first");
    T_INT(mock.count[MOCK_OPEN], 1);
    target[5] = '0';
    T_STR(seam_engine(r, &err), "first");
    T_INT(mock.count[MOCK_OPEN], 2);
}

TEST(memory_runs_out_while_a_target_is_opened) {
    plan_rig r;
    size_t k = 1;
    for (size_t more = 1; more && k < 200; k++) {
        T_REQUIRE(seam_start(&r));
        r.t.problem.target = "mock 0";
        fail_alloc_arm(&r.memory, k, false);
        const char *name = seam_engine(&r, &err);
        more = r.memory.failures;
        fail_alloc_arm(&r.memory, 0, false);
        if (!*name && err.status != FXA_E_MEMORY) T_FAIL("allocation %zu: %s\n", k, err.text);
        T_STR(seam_engine(&r, &err), "first");
        seam_end(&r);
    }
    T_CHECK(k > 5);
    fxa_plan *plan = NULL;
    T_REQUIRE(seam_start(&r));
    r.t.problem.target = "mock 0";
    mock.open_status = FXA_E_MEMORY; /* the engine runs out of memory, without fxa_error */
    T_INT(fxa_plan_create(r.ctx, &r.t.problem, &plan, NULL), FXA_E_MEMORY);
    T_CHECK(!plan);
    mock.open_status = FXA_OK;
    T_STR(seam_engine(&r, &err), "first");
    seam_end(&r);
}

SEAM_TEST(questions_to_a_context_with_too_many_instances) {
    char target[32];
    fxa_support reports[4];
    size_t count = 4;
    r->t.problem.target = target;
    fxa_status status = FXA_OK;
    for (size_t i = 0; i < FXA__MAX_INSTANCES && status == FXA_OK; i++) {
        (void)snprintf(target, sizeof target, "mock 0 %zu", i);
        status = fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err);
    }
    T_INT(status, FXA_E_LIMIT);
    T_HAS(err.text, "engine first for another target on device 0 is one too many: a context opens 256 engines");
    r->t.problem.target = NULL, r->t.problem.ordinal = 1;
    T_STATUS(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err), FXA_E_LIMIT);
    T_HAS(err.text, "engine first for device 1 is one too many");
    T_HAS(err.text, "another context");
    (void)snprintf(target, sizeof target, "mock 0 0"); /* open instances still work */
    r->t.problem.target = target, r->t.problem.ordinal = 0;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_CHECK(reports[0].supported);
}

/* ---- Engines without a hook -------------------------------------------------------------------------------------- */

/* An engine of a device without `open` also works after a fork. */
SEAM_TEST(an_engine_of_a_device_may_have_nothing_to_open) {
    seam_first = fxa__engine_ref;
    seam_first.name = "first", seam_first.device = FXA_CUDA;
    T_STR(seam_engine(r, &err), "first");
    fxa_support reports[4];
    size_t count = 4;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_STR(reports[0].reason, "");
}

SEAM_TEST(an_engine_that_checks_nothing) {
    seam_first.check = NULL;
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    T_CHECK(tiny_error(&r->t) <= TINY_TOLERANCE);
    T_INT(mock.count[MOCK_CHECK], 0);
}

SEAM_TEST(an_engine_without_a_way_to_its_memory) {
    seam_first.memory = NULL;
    T_STATUS(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "engine first has no way to the memory of its device");
    T_INT(mock.count[MOCK_RUN], 0);
}

static fxa_status edge_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    FXA_TRY(mock_engine.query(a, code, report, err));
    report->workspace = 0;
    return FXA_OK;
}

static int edge_runs;
static fxa_status edge_run(void *self, const void *code, const fxa__problem *p, const fxa__bound_args *bound,
                           fxa_error *err) {
    (void)self, (void)code, (void)p, (void)err;
    T_CHECK(!bound->workspace);
    T_INT(bound->workspace_size, 0);
    edge_runs++;
    return FXA_OK;
}

/* Unused workspace bytes are unchanged after a run. */
SEAM_TEST(an_engine_without_a_workspace) {
    double before[TINY_Q_COUNT];
    seam_first.query = edge_query, seam_first.run = edge_run;
    edge_runs = 0;
    for (int i = 0; i < TINY_Q_COUNT; i++) before[i] = r->t.o[i] = i;
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    T_INT(edge_runs, 1);
    T_CHECK(memcmp(before, r->t.o, sizeof before) == 0);
}

static fxa_status edge_refuse(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    (void)a, (void)code, (void)bytes;
    return fxa__fail(err, FXA_E_ENGINE, "the assembler is not there");
}

/* Another engine is used unless one is named. If all fail, the first failure is reported, with or without fxa_error. */
SEAM_TEST(a_compiler_that_fails_with_nobody_to_read_why) {
    fxa_plan *plan = NULL;
    seam_first.compile = edge_refuse;
    T_STR(seam_engine(r, &err), "second");
    r->t.problem.engine = "first";
    T_INT(fxa_plan_create(r->ctx, &r->t.problem, &plan, NULL), FXA_E_ENGINE);
    r->t.problem.engine = NULL;
    fxa_cache_clear(r->ctx);
    seam_second.compile = edge_refuse;
    T_INT(fxa_plan_create(r->ctx, &r->t.problem, &plan, NULL), FXA_E_ENGINE);
    T_STATUS(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err), FXA_E_ENGINE);
    T_HAS(err.text, "the assembler is not there");
    T_CHECK(!plan);
}

/* A compiler's refusal does not depend on what `key` leaves to the run: with another batch, or another length at every
 * step of a decoder, the compiler is not called again, and an earlier acceptance is not used. */
static atomic_int edge_noes;
static fxa_status edge_say_no(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    (void)a, (void)code, (void)bytes;
    edge_noes++;
    return fxa__fail(err, FXA_E_UNSUPPORTED, "the assembler runs out of registers");
}

SEAM_TEST(a_compilers_no_is_one_for_every_batch) {
    fxa_support reports[4];
    size_t count = 4;
    edge_noes = 0;
    seam_first.compile = edge_say_no;
    r->t.problem.b = 9;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_CHECK(reports[0].supported); /* not yet known */
    for (r->t.problem.b = 1; r->t.problem.b < 9; r->t.problem.b++) T_STR(seam_engine(r, &err), "second");
    T_INT(edge_noes, 1);
    for (r->t.problem.b = 9; r->t.problem.b < 12; r->t.problem.b++) {
        T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
        T_CHECK(!reports[0].supported && reports[1].supported);
        T_STR(reports[0].reason, "the assembler runs out of registers");
        T_STR(seam_engine(r, &err), "second");
    }
    T_INT(edge_noes, 1);
    r->t.problem.flags |= FXA_RETURN_ROW_MAX; /* other code, possibly another result */
    T_STR(seam_engine(r, &err), "second");
    T_INT(edge_noes, 2);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

SEAM_TEST(a_carried_problem_is_placed_on_another_device_of_its_kind) {
    t_plan *plan = NULL;
    static unsigned char bytes[1 << 14];
    size_t size = 0;
    fxa_problem p = FXA_PROBLEM_INIT;
    T_OK(fxa_problem_save(r->ctx, &r->t.problem, bytes, sizeof bytes, &size, &err));
    T_OK(fxa_plan_create_from_problem(r->ctx, bytes, size, 1, &plan, &err));
    T_STR(fxa_plan_engine(plan), "first");
    fxa_plan_problem(plan, &p);
    T_INT(p.device, FXA_CUDA);
    T_INT(p.ordinal, 1);
    T_OK(fxa_attention(r->ctx, &p, &r->t.args, &err));
    T_CHECK(tiny_error(&r->t) <= TINY_TOLERANCE);
}

/* In this build the engine of that name is on another device. */
SEAM_TEST(plan_bytes_of_an_engine_that_has_moved) {
    fxa_plan *plan = NULL;
    fxa_context *other = NULL;
    static unsigned char bytes[1 << 14];
    size_t size = 0;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err));
    fxa_plan_destroy(plan), plan = NULL;
    fxa_cache_clear(r->ctx);
    seam_first.device = FXA_HOST;
    T_OK(fxa_context_create(NULL, &other, &err));
    T_STATUS(fxa_plan_load(other, bytes, size, &plan, &err), FXA_E_BYTES);
    T_HAS(err.text, "engine first on device cuda, in whose memory it does not compute");
    T_CHECK(!plan);
    fxa_context_destroy(other);
    seam_first.device = FXA_CUDA;
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

/* An engine named for one device does not affect another. */
TEST(the_environment_names_an_engine_of_another_device) {
    static const char *const names[2] = {"FXA_ENGINE", "FXA_CPU"}, *const values[2] = {"ref", "scalar"},
                             *const here[2] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++)
        if (getenv(names[i])) T_SKIP("the environment names an engine");
    for (int i = 0; i < 2; i++) {
        plan_rig r;
        setenv(names[i], values[i], 1);
        bool ready = seam_start(&r);
        unsetenv(names[i]);
        T_REQUIRE(ready);
        T_STR(seam_engine(&r, &err), "first");
        r.t.problem.device = FXA_HOST;
        T_STR(seam_engine(&r, &err), here[i]);
        seam_end(&r);
    }
}

/* A set variable of an engine selects this engine; of two, the first in the list. */
TEST(variables_of_engines_select_them) {
    static const char *const variables[2] = {"FXA_TEST_FIRST", "FXA_TEST_SECOND"};
    for (int set = 0; set < 4; set++) {
        plan_rig r;
        fxa_context *ctx = NULL;
        fxa_plan *plan = NULL;
        T_REQUIRE(seam_start(&r));
        seam_first.variable = variables[0], seam_second.variable = variables[1];
        for (int i = 0; i < 2; i++)
            if (set >> i & 1) setenv(variables[i], "1", 1);
        T_OK(fxa_context_create(NULL, &ctx, &err));
        for (int i = 0; i < 2; i++) unsetenv(variables[i]);
        T_OK(fxa_plan_create(ctx, &r.t.problem, &plan, &err));
        T_STR(fxa_plan_engine(plan), set == 2 ? "second" : "first");
        fxa_plan_destroy(plan);
        fxa_context_destroy(ctx);
        seam_end(&r);
    }
}

/* A target that no engine of its device can parse is an error, whatever engines of other devices make of it. */
SEAM_TEST(a_target_that_no_engine_parses) {
    fxa_support report;
    size_t count = 1;
    r->t.problem.target = "mock 0";
    mock.open_status = FXA_E_PROBLEM;
    T_STATUS(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err), FXA_E_PROBLEM);
    T_STR(err.text, "the mock device's driver does not answer");
    mock.open_status = FXA_OK;
}

SEAM_TEST(no_engine_of_the_device_at_all) {
    const fxa__engine *const kept[2] = {own_engines[2], own_engines[3]};
    own_engines[0] = kept[0], own_engines[1] = kept[1], own_engines[2] = NULL;
    T_STR(seam_engine(r, &err), "");
    T_INT(err.status, FXA_E_UNSUPPORTED);
    T_HAS(err.text, "no engine of this build computes in the memory of device cuda");
    r->t.problem.engine = "ref";
    T_STR(seam_engine(r, &err), "");
    T_INT(err.status, FXA_E_ARGUMENT);
    T_HAS(err.text, "device cuda; there: none");
    own_engines[0] = &seam_first, own_engines[1] = &seam_second, own_engines[2] = kept[0];
}

/* Only the first 64 engines are candidates for a plan. The text of their reasons is truncated, and so many reports are
 * not cached. */
SEAM_TEST(more_engines_than_a_context_looks_at) {
    enum { EDGE_MOST = 70 };
    static fxa_support reports[EDGE_MOST];
    size_t count = EDGE_MOST;
    for (int i = 4; i < EDGE_MOST; i++) own_engines[i] = &seam_second;
    fxa_context *ctx = fail_alloc_context(&r->memory), *before = r->ctx;
    T_REQUIRE(ctx);
    r->ctx = ctx;
    mock.open_status = FXA_E_UNAVAILABLE;
    T_STR(seam_engine(r, &err), "");
    T_INT(err.status, FXA_E_UNSUPPORTED);
    T_HAS(err.text, "first: the mock device's driver does not answer; second: the mock device's driver");
    T_STR(err.text + strlen(err.text) - 4, " ..."); /* truncated before a word */
    r->t.problem.engine = "abacus";
    T_STR(seam_engine(r, &err), "");
    T_HAS(err.text, "which is no engine of this build; there are: first, second, cpu, ref, second");
    r->t.problem.engine = NULL;
    for (int i = 0; i < 2; i++) {
        T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
        T_INT(count, EDGE_MOST);
        T_STR(reports[EDGE_MOST - 1].reason, "the mock device's driver does not answer");
    }
    mock.open_status = FXA_OK;
    r->ctx = before;
    fxa_context_destroy(ctx);
    for (int i = 4; i < EDGE_MOST; i++) own_engines[i] = NULL;
}

/* The device of each engine, and device descriptions as targets. */
SEAM_TEST(devices_and_their_profiles) {
    size_t n = 0;
    char text[16] = "";
    T_INT(fxa_engine_device(0), FXA_CUDA);
    T_INT(fxa_engine_device(2), FXA_HOST);
    T_INT(fxa_engine_device(SIZE_MAX), -1);
    T_OK(fxa_device_description(r->ctx, FXA_CUDA, 1, NULL, 0, &n, &err));
    T_INT(n, strlen("mock 1"));
    T_STATUS(fxa_device_description(r->ctx, FXA_CUDA, 1, text, n, &n, &err), FXA_E_ARGUMENT);
    T_OK(fxa_device_description(r->ctx, FXA_CUDA, 1, text, n + 1, NULL, &err));
    T_STR(text, "mock 1");
    T_STATUS(fxa_device_description(r->ctx, FXA_CUDA, 2, text, sizeof text, NULL, &err), FXA_E_UNAVAILABLE);
    T_HAS(err.text, "ordinal is 2");
    T_STATUS(fxa_device_description(r->ctx, FXA_CUDA, -1, text, sizeof text, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_device_description(r->ctx, (fxa_device)7, 0, text, sizeof text, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_device_description(r->ctx, FXA_HOST, 0, text, sizeof text, NULL, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "device host");
    T_STR(text, "mock 1");
    T_INT(mock.opened, 0); /* a query without a device */
}

T_MAIN
