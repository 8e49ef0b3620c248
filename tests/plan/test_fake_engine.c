/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reference engine never does, shown with engines made for it: refusals, fixed geometry, code that is saved
 * and loaded, compiles that fail. This program brings a registry of its own, so the library's is not linked.
 */
#include "plan/plan.h"
#include "support/fail_alloc.h"
#include "support/own_engines.h"
#include "support/tiny.h"
#include "t.h"

/* ---- Three engines ----------------------------------------------------------------------------------------------- */

static atomic_int queries, compiles, loads, releases;
static fxa_status compile_status;
static uint32_t saved_mark = 0x600dc0de;
static bool saved_too_much, saved_nothing;
static size_t compiled_bytes, workspace_bytes, workspace_bytes_of_code;

/* "picky" refuses everything that is wide. */
static void picky_query(const fxa__problem *p, fxa_support *report) {
    atomic_fetch_add(&queries, 1);
    report->supported = p->in.d < 3;
    if (report->supported) return;
    snprintf(report->reason, sizeof report->reason, "d is %d, below 3 is accepted", (int)p->in.d);
}

/* "fixed" compiles for one geometry; its code is a number that it checks when it runs. */
static void fixed_query(const fxa__problem *p, fxa_support *report) {
    atomic_fetch_add(&queries, 1);
    report->supported = p->in.pass == FXA_FORWARD;
    if (!report->supported) snprintf(report->reason, sizeof report->reason, "only forward");
}
static fxa_status fixed_make(fxa__host *host, uint32_t mark, void **code, size_t *size, fxa_error *err) {
    uint32_t *made = fxa__alloc(host, sizeof *made);
    if (!made) return fxa__fail_memory(err, "fixed code");
    *made = mark;
    *code = made;
    *size = compiled_bytes;
    return FXA_OK;
}
static fxa_status fixed_compile(fxa__host *host, const fxa__problem *p, void **code, size_t *size, fxa_error *err) {
    (void)p;
    atomic_fetch_add(&compiles, 1);
    if (compile_status != FXA_OK) return fxa__fail(err, compile_status, "the assembler is out of order");
    return fixed_make(host, 0x600dc0de, code, size, err);
}
static void fixed_release(fxa__host *host, void *code) {
    atomic_fetch_add(&releases, 1);
    fxa__free(host, code, sizeof(uint32_t));
}
static bool fixed_workspace(const void *code, const fxa__problem *p, size_t *size) {
    *size = code ? workspace_bytes_of_code : workspace_bytes;
    return p->in.b < 1000;
}
static fxa_status fixed_run(const void *code, const fxa__problem *p, const fxa__bind *bind, fxa_error *err) {
    (void)p;
    uint32_t mark = *(const uint32_t *)code;
    if (mark != 0x600dc0de) return fxa__fail(err, FXA_E_ENGINE, "code is %08x", (unsigned)mark);
    if (bind->workspace_size < 64) return fxa__fail(err, FXA_E_INTERNAL, "no room");
    *(double *)bind->slot[FXA_SLOT_O] = 42;
    return FXA_OK;
}
static void fixed_save(const void *code, fxa__writer *w) {
    (void)code;
    if (saved_nothing) return;
    fxa__write_u32(w, saved_mark);
    if (saved_too_much) fxa__write_u8(w, 0);
}
static fxa_status fixed_load(fxa__host *host, const fxa__problem *p, fxa__reader *r, void **code, size_t *size,
                             fxa_error *err) {
    (void)p;
    atomic_fetch_add(&loads, 1);
    uint32_t mark = fxa__read_u32(r);
    if (r->failed) return fxa__fail(err, FXA_E_BYTES, "code of fixed is cut off");
    return fixed_make(host, mark, code, size, err);
}

#define FIXED_CODE .compile = fixed_compile, .release = fixed_release, .workspace = fixed_workspace, .run = fixed_run
#define FIXED_ALL .name = "fixed", .query = fixed_query, FIXED_CODE, .save = fixed_save, .load = fixed_load
static const fxa__engine picky = {
    .name = "picky", .version = 1, .dynamic_geometry = true, .query = picky_query, FIXED_CODE};
static const fxa__engine fixed = {FIXED_ALL, .version = 3};
static const fxa__engine fixed_newer = {FIXED_ALL, .version = 4};
static const fxa__engine *own_engines[] = {&picky, &fixed};

/* ---- Fixture ----------------------------------------------------------------------------------------------------- */

typedef struct fake_rig {
    fail_alloc memory;
    fxa_context *ctx;
    tiny t; /* d is 3: picky says no */
} fake_rig;

static bool fake_rig_start(fake_rig *r) {
    fxa_error err;
    *r = (fake_rig){.memory = FAIL_ALLOC_INIT};
    queries = compiles = loads = releases = 0;
    compile_status = FXA_OK;
    saved_mark = 0x600dc0de;
    saved_too_much = saved_nothing = false;
    compiled_bytes = 1000;
    workspace_bytes = workspace_bytes_of_code = 64;
    own_engines[1] = &fixed;
    r->ctx = fail_alloc_context(&r->memory);
    return r->ctx && tiny_forward(r->ctx, &r->t, &err) == FXA_OK;
}
static void fake_rig_end(fake_rig *r) {
    tiny_end(&r->t);
    fxa_context_destroy(r->ctx);
    T_INT(r->memory.live_bytes, 0);
    T_INT(r->memory.mistakes, 0);
}
static fxa_cache_stats fake_stats(fake_rig *r) {
    fxa_cache_stats s;
    fxa_cache_get_stats(r->ctx, &s);
    return s;
}

/* ---- Choice and refusals ----------------------------------------------------------------------------------------- */

/* refusals carry names and values, and are remembered like any other answer. */
TEST(refusals_are_answers_and_remembered) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    fxa_support reports[2];
    for (int i = 0; i < 5; i++) {
        size_t count = 2;
        T_OK(fxa_support_query(r.ctx, &r.t.problem, reports, &count, &err));
        T_INT(count, 2);
        T_STR(reports[0].engine, "picky");
        T_INT(reports[0].supported, 0);
        T_STR(reports[0].reason, "d is 3, below 3 is accepted");
        T_INT(reports[0].workspace, 0);
        T_INT(reports[1].supported, 1);
        T_INT(reports[1].workspace % FXA_WORKSPACE_ALIGN, 0);
    }
    T_INT(queries, 2); /* each engine was asked once */
    T_INT(fake_stats(&r).queries, 10);
    T_INT(fake_stats(&r).query_hits, 8);
    T_INT(fake_stats(&r).refusals, 0); /* nobody asked for a plan */
    fake_rig_end(&r);
}

/* The first engine of the registry that can. R-51: that it is not the first of all is seen in the plan, and why in a
 * report. */
TEST(the_first_that_can_is_chosen) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    fxa_plan *plan = NULL;
    fxa_support report;
    size_t count = 1;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "fixed");
    T_OK(fxa_support_query(r.ctx, &r.t.problem, &report, &count, &err));
    T_STR(report.engine, "picky");
    T_STR(report.reason, "d is 3, below 3 is accepted");
    T_INT(fxa_plan_is_deterministic(plan), 0);
    fxa_plan_destroy(plan);
    r.t.problem.d = 2;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "picky");
    fxa_plan_destroy(plan);
    T_INT(fake_stats(&r).refusals, 0);
    fake_rig_end(&r);
}

/* "reader" takes no program that loads a tensor. */
static void reader_query(const fxa__problem *p, fxa_support *report) {
    atomic_fetch_add(&queries, 1);
    report->supported = p->program->n_tensors == 0;
    if (report->supported) return;
    snprintf(report->reason, sizeof report->reason, "the program loads %s", fxa_program_tensor(p->program, 0).name);
}

/* a probe is asked with the program itself: another program at the same shapes is another question. */
TEST(the_answer_may_depend_on_the_program) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    static fxa__engine reader;
    reader = fixed;
    reader.query = reader_query;
    own_engines[1] = &reader;
    fxa_problem plain = r.t.problem;
    plain.program = NULL, plain.captures = NULL, plain.n_captures = 0;
    for (int i = 0; i < 3; i++) {
        fxa_support reports[2];
        size_t count = 2;
        T_OK(fxa_support_query(r.ctx, &r.t.problem, reports, &count, &err));
        T_INT(reports[1].supported, 0);
        T_STR(reports[1].reason, "the program loads slopes");
        T_OK(fxa_support_query(r.ctx, &plain, reports, &count, &err));
        T_INT(reports[1].supported, 1);
    }
    T_INT(queries, 4); /* two engines, two programs */
    fake_rig_end(&r);
}

/* a refusal is counted; its text has the reason of every engine that was asked. Nothing is built. */
TEST(when_none_can_all_reasons_are_given) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    fxa_problem back = r.t.problem;
    back.pass = FXA_BACKWARD;
    back.flags = FXA_GRAD_Q;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_create(r.ctx, &back, &plan, &err), FXA_E_UNSUPPORTED);
    T_STR(err.text, "no engine can run this problem: picky: d is 3, below 3 is accepted; fixed: only forward");
    back.engine = "fixed";
    T_STATUS(fxa_plan_create(r.ctx, &back, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "fixed");
    T_HAS(err.text, "only forward");
    T_CHECK(!strstr(err.text, "picky"));
    T_INT(fake_stats(&r).refusals, 2);
    T_INT(fake_stats(&r).builds, 0);
    T_INT(queries, 2);
    fake_rig_end(&r);
}

/* A workspace that does not fit is a no, in the query and so in the plan. */
TEST(a_workspace_too_large_is_a_refusal) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    r.t.problem.b = 1000;
    fxa_support reports[2];
    size_t count = 2;
    T_OK(fxa_support_query(r.ctx, &r.t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_HAS(reports[1].reason, "workspace");
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err), FXA_E_UNSUPPORTED);
    fake_rig_end(&r);
}

/* With what binding needs, 64 bits are not enough: a no where it is seen before there is code, else an error. */
TEST(a_workspace_that_fits_alone_but_not_with_the_bind) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    fxa_support reports[2];
    size_t count = 2;
    fxa_plan *plan = NULL;
    workspace_bytes = SIZE_MAX;
    r.t.problem.flags |= FXA_STRICT_INDEX; /* binding needs memory */
    T_OK(fxa_support_query(r.ctx, &r.t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_HAS(reports[1].reason, "does not fit");
    fxa_cache_clear(r.ctx);
    workspace_bytes = 64;
    workspace_bytes_of_code = SIZE_MAX;
    T_STATUS(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err), FXA_E_LIMIT);
    T_HAS(err.text, "does not fit");
    T_CHECK(!plan);
    workspace_bytes_of_code = 64;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    fxa_plan_destroy(plan);
    fake_rig_end(&r);
}

/* Memory of a device is nothing that the host can look at. */
TEST(indices_are_not_checked_on_a_device) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    static fxa__engine device;
    device = fixed;
    device.device = true;
    own_engines[1] = &device;
    fxa_support reports[2];
    size_t count = 2;
    T_OK(fxa_support_query(r.ctx, &r.t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 1);
    r.t.problem.flags |= FXA_STRICT_INDEX;
    T_OK(fxa_support_query(r.ctx, &r.t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_HAS(reports[1].reason, "FXA_STRICT_INDEX");
    T_HAS(reports[1].reason, "fixed reads them on a device");
    fake_rig_end(&r);
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* with fixed geometry another batch is exactly one build, which can be made ahead. */
TEST(fixed_geometry_builds_once_per_geometry) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    for (int round = 0; round < 3; round++)
        for (r.t.problem.b = 1; r.t.problem.b <= 4; r.t.problem.b++) {
            fxa_plan *plan = NULL;
            T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
            fxa_plan_destroy(plan);
        }
    T_INT(compiles, 4);
    T_INT(fake_stats(&r).builds, 4);
    T_INT(fake_stats(&r).hits, 8);
    T_CHECK(fake_stats(&r).bytes > 4000);
    fake_rig_end(&r);
    T_INT(releases, 4);
}

/* A compile that fails is the caller's error with the engine's text, and is tried again next time. */
TEST(a_failed_compile_is_reported_and_not_kept) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    fxa_plan *plan = NULL;
    compile_status = FXA_E_ENGINE;
    T_STATUS(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err), FXA_E_ENGINE);
    T_STR(err.text, "the assembler is out of order");
    T_CHECK(!plan);
    T_INT(fake_stats(&r).plans, 0);
    compile_status = FXA_OK;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r.t.args, &err));
    T_SAME(r.t.o[0], 42);
    fxa_plan_destroy(plan);
    T_INT(compiles, 2);
    fake_rig_end(&r);
}

/* ---- Bytes with code --------------------------------------------------------------------------------------------- */

static size_t fake_saved(fake_rig *r, uint8_t *out, size_t room) {
    fxa_error err;
    fxa_plan *plan = NULL;
    size_t size = 0;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(fxa_plan_save(plan, out, room, &size, &err));
    fxa_plan_destroy(plan);
    return size;
}

/* Code travels in the bytes: loading compiles nothing. R-36: one entry, however often it is loaded. */
TEST(code_is_loaded_from_bytes) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_rig_start(&r));
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    fxa_cache_clear(r.ctx);
    T_INT(compiles, 1);
    for (int i = 0; i < 3; i++) {
        fxa_plan *plan = NULL;
        T_OK(fxa_plan_load(r.ctx, bytes, size, &plan, &err));
        T_OK(tiny_run(plan, &r.t.args, &err));
        fxa_plan_destroy(plan);
    }
    T_INT(compiles, 1);
    T_INT(loads, 1);
    T_INT(fake_stats(&r).plans, 1);
    fake_rig_end(&r);
}

/* Code from forged bytes serves plans of those bytes only, never a plan compiled here. */
TEST(code_from_bytes_cannot_replace_compiled_code) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_rig_start(&r));
    saved_mark = 0xbadc0de;
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    fxa_cache_clear(r.ctx);
    fxa_plan *forged = NULL, *plan = NULL;
    T_OK(fxa_plan_load(r.ctx, bytes, size, &forged, &err));
    T_STATUS(tiny_run(forged, &r.t.args, &err), FXA_E_ENGINE);
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r.t.args, &err));
    fxa_plan_destroy(plan);
    fxa_plan_destroy(forged);
    fake_rig_end(&r);
}

/* Damage in the code is seen before the engine sees it; code that the engine does not use up is no code of its. */
TEST(damaged_code_is_refused) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_rig_start(&r));
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    fxa_cache_clear(r.ctx);
    bytes[size - 1] ^= 1;
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_BYTES);
    T_HAS(err.text, "section 2");
    T_INT(loads, 0);
    saved_too_much = true;
    size = fake_saved(&r, bytes, sizeof bytes);
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_BYTES);
    T_HAS(err.text, "4 of 5 bytes");
    T_INT(loads, 1);
    T_CHECK(!plan);
    fake_rig_end(&r);
    T_INT(releases, 3); /* two compiled, one loaded and given back */
}

/* A load that fails has the engine's own text, and nothing is kept. */
TEST(code_that_the_engine_cannot_load) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_rig_start(&r));
    saved_nothing = true; /* a section of no bytes */
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    fxa_cache_clear(r.ctx);
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "code of fixed is cut off");
    T_INT(loads, 1);
    T_INT(fxa_plan_load(r.ctx, bytes, size, &plan, NULL), FXA_E_BYTES); /* nobody to tell */
    T_INT(loads, 2);
    T_CHECK(!plan);
    T_INT(fake_stats(&r).plans, 0);
    fake_rig_end(&r);
}

/* Bytes of an engine that has changed without a new version: with code or without, host or device. */
TEST(bytes_that_are_not_of_this_kind_of_engine) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[2][8192];
    size_t size[2];
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_rig_start(&r));
    static fxa__engine plain, device;
    plain = device = fixed;
    plain.save = NULL;
    plain.load = NULL;
    device.device = true;
    size[0] = fake_saved(&r, bytes[0], sizeof bytes[0]);
    own_engines[1] = &plain;
    fxa_cache_clear(r.ctx);
    size[1] = fake_saved(&r, bytes[1], sizeof bytes[1]);
    T_STATUS(fxa_plan_load(r.ctx, bytes[0], size[0], &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "a plan with a code section; engine fixed version 3 saves plans without one");
    own_engines[1] = &fixed;
    T_STATUS(fxa_plan_load(r.ctx, bytes[1], size[1], &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "a plan without a code section; engine fixed version 3 saves plans with one");
    own_engines[1] = &device;
    T_STATUS(fxa_plan_load(r.ctx, bytes[0], size[0], &plan, &err), FXA_E_VERSION);
    T_STR(err.text, "a plan for device \"host\"; engine fixed here is for \"device\"");
    T_CHECK(!plan);
    fake_rig_end(&r);
}

/* Code whose size is beyond all counting is used, and does not stay in the cache. */
TEST(code_of_any_size_runs) {
    fake_rig r;
    fxa_error err;
    T_REQUIRE(fake_rig_start(&r));
    compiled_bytes = SIZE_MAX;
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r.t.args, &err));
    T_SAME(r.t.o[0], 42);
    fxa_plan_destroy(plan);
    T_INT(fake_stats(&r).plans, 0);
    T_INT(fake_stats(&r).bytes, 0);
    fake_rig_end(&r);
}

/* code of another engine version is refused by name. */
TEST(code_of_another_version_is_refused) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_rig_start(&r));
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    own_engines[1] = &fixed_newer;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_VERSION);
    T_HAS(err.text, "version 3");
    T_HAS(err.text, "version 4");
    /* and other versions have other keys: nothing of the old engine is used */
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_INT(compiles, 2);
    fxa_plan_destroy(plan);
    fake_rig_end(&r);
}

/* A problem that its engine would not take now (it may have once) is refused when loaded, not run. */
TEST(what_the_engine_refuses_is_not_loaded) {
    fake_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_rig_start(&r));
    static fxa__engine moody;
    moody = fixed;
    moody.query = picky_query;
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    fxa_cache_clear(r.ctx);
    own_engines[1] = &moody;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "d is 3");
    T_INT(loads, 0);
    fake_rig_end(&r);
}

T_MAIN
