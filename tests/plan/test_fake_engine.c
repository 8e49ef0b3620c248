/* SPDX-License-Identifier: Apache-2.0
 *
 * Engine behaviour that ref never shows, tested with engines written for this purpose: refusals, fixed geometry,
 * failing compilation. Code in plan bytes is in test_fake_code.c.
 */
#include "fake_engines.h"

/* ---- Choice and refusals ----------------------------------------------------------------------------------------- */

/* refusals state names and values, and are cached like other support results. */
FAKE_TEST(refusals_are_answers_and_remembered) {
    fxa_support reports[2];
    for (int i = 0; i < 5; i++) {
        size_t count = 2;
        T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
        T_INT(count, 2);
        T_STR(reports[0].engine, "picky");
        T_INT(reports[0].supported, 0);
        T_STR(reports[0].reason, "d is 3, below 3 is accepted");
        T_INT(reports[0].workspace, 0);
        T_INT(reports[1].supported, 1);
        T_INT(reports[1].workspace % FXA_WORKSPACE_ALIGN, 0);
    }
    T_INT(queries, 2); /* one query per engine */
    T_INT(plan_stats(r).queries, 10);
    T_INT(plan_stats(r).query_hits, 8);
    T_INT(plan_stats(r).refusals, 0); /* no plan was requested */
}

/* The first supporting engine of the registry is chosen. R-51: the plan names it, and a report has the reason. */
FAKE_TEST(the_first_that_can_is_chosen) {
    fxa_plan *plan = NULL;
    fxa_support report;
    size_t count = 1;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "fixed");
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err));
    T_STR(report.engine, "picky");
    T_STR(report.reason, "d is 3, below 3 is accepted");
    T_INT(fxa_plan_is_deterministic(plan), 0);
    fxa_plan_destroy(plan);
    r->t.problem.d_qk = 2;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "picky");
    fxa_plan_destroy(plan);
    T_INT(plan_stats(r).refusals, 0);
}

static int zones_checked;
static void zones_check(void *self, const void *code, const fxa__problem *p, const void *workspace) {
    (void)self, (void)code, (void)p;
    T_CHECK(workspace != NULL);
    zones_checked++;
}

/* In builds with asserts, each run ends with a check of the workspace's red zones. */
FAKE_TEST(zones_are_checked_after_each_run) {
    static const fxa__engine zoned = {FIXED_ALL, .version = 3, .zones = zones_check};
    own_engines[1] = &zoned;
    zones_checked = 0;
    for (int i = 1; i <= 3; i++) {
        T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
        T_INT(zones_checked, FXA_ASSERT ? i : 0);
    }
}

/* "reader" refuses programs that load a tensor. */
static fxa_status reader_query(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    const fxa__problem *p = a->problem;
    (void)code, (void)err;
    atomic_fetch_add(&queries, 1);
    report->supported = p->program->n_tensors == 0;
    if (report->supported) return FXA_OK;
    snprintf(report->reason, sizeof report->reason, "the program loads %s", fxa_program_tensor(p->program, 0).name);
    return FXA_OK;
}

/* support depends on the program: another program with the same shapes is another query. */
FAKE_TEST(the_answer_may_depend_on_the_program) {
    static fxa__engine reader;
    reader = fixed;
    reader.query = reader_query;
    own_engines[1] = &reader;
    fxa_problem plain = r->t.problem;
    plain.program = NULL, plain.captures = NULL, plain.n_captures = 0;
    for (int i = 0; i < 3; i++) {
        fxa_support reports[2];
        size_t count = 2;
        T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
        T_INT(reports[1].supported, 0);
        T_STR(reports[1].reason, "the program loads slopes");
        T_OK(fxa_support_query(r->ctx, &plain, reports, &count, &err));
        T_INT(reports[1].supported, 1);
    }
    T_INT(queries, 4); /* two engines, two programs */
}

static int keys_written;
static void counted_key(fxa__analysis *a, fxa__writer *w) {
    keys_written++;
    fxa__problem_write(a->problem, 0, w);
}

/* The code key that the support query has computed is used for the plan, also if the engine is named. */
TEST(the_code_key_is_computed_once_per_plan) {
    static const fxa__engine counted = {FIXED_ALL, .version = 3, .key = counted_key};
    plan_rig r;
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_start(&r));
    own_engines[1] = &counted;
    keys_written = 0;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    fxa_plan_destroy(plan);
    T_INT(keys_written, 1);
    r.t.problem.engine = "fixed";
    r.t.problem.max_workspace = 1 << 20; /* another problem: its support is not cached */
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    fxa_plan_destroy(plan);
    T_INT(keys_written, 2);
    plan_rig_end(&r);
}

/* A plan without an engine name queries each engine once: the selected engine is not queried again. */
TEST(each_engine_is_queried_once_per_plan) {
    plan_rig r;
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_start(&r));
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    fxa_plan_destroy(plan);
    T_INT(plan_stats(&r).queries, 2);
    T_INT(plan_stats(&r).query_hits, 0);
    r.t.problem.engine = "fixed";
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    fxa_plan_destroy(plan);
    T_INT(plan_stats(&r).queries, 3);
    T_INT(plan_stats(&r).query_hits, 1);
    plan_rig_end(&r);
}

/* a refusal is counted, and its text has the reason of every queried engine. Nothing is built. */
FAKE_TEST(when_none_can_all_reasons_are_given) {
    fxa_problem back = r->t.problem;
    back.pass = FXA_BACKWARD;
    back.flags = FXA_GRAD_Q;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_create(r->ctx, &back, &plan, &err), FXA_E_UNSUPPORTED);
    T_STR(err.text, "no engine can run this problem: picky: d is 3, below 3 is accepted; fixed: only forward");
    back.engine = "fixed";
    T_STATUS(fxa_plan_create(r->ctx, &back, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "fixed");
    T_HAS(err.text, "only forward");
    T_CHECK(!strstr(err.text, "picky"));
    T_INT(plan_stats(r).refusals, 2);
    T_INT(plan_stats(r).builds, 0);
    T_INT(queries, 2);
}

/* A workspace that exceeds size_t is a refusal, in the query and for the plan. */
FAKE_TEST(a_workspace_too_large_is_a_refusal) {
    r->t.problem.b = 1000;
    fxa_support reports[2];
    size_t count = 2;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_HAS(reports[1].reason, "workspace");
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err), FXA_E_UNSUPPORTED);
}

/* The workspace exceeds 64 bits together with that of the bounds check. */
FAKE_TEST(a_workspace_that_fits_alone_but_not_with_the_check) {
    fxa_support reports[2];
    size_t count = 2;
    fxa_plan *plan = NULL;
    workspace_bytes = SIZE_MAX - 8;
    t_program *program = NULL;
    fxa_capture table = {.size = {4}};
    T_OK(fxa_program_parse(r->ctx, "param n : int\ntensor t : f32[1]\nscore = score + t[n]", SIZE_MAX, &program, &err));
    r->t.problem.program = program;
    r->t.problem.captures = &table;
    r->t.problem.n_captures = 1;
    r->t.problem.flags |= FXA_BOUNDS_CHECK;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_HAS(reports[1].reason, "does not fit");
    T_STATUS(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err), FXA_E_UNSUPPORTED);
    T_CHECK(!plan);
}

/* Requirements of a problem apply to every engine. */
FAKE_TEST(demands_are_refusals_with_numbers) {
    fxa_support reports[2];
    size_t count = 2;
    r->t.problem.max_workspace = 63;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_STR(reports[1].reason, "a run needs a workspace of 64 bytes, and max_workspace is 63");
    r->t.problem.max_workspace = 64;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 1);
    r->t.problem.flags |= FXA_DETERMINISTIC;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(reports[1].supported, 0);
    T_HAS(reports[1].reason, "FXA_DETERMINISTIC");
}

/* ---- Building ---------------------------------------------------------------------------------------------------- */

/* with fixed geometry, another batch is exactly one build, which can be done in advance. */
TEST(fixed_geometry_builds_once_per_geometry) {
    plan_rig r;
    T_REQUIRE(fake_start(&r));
    for (int round = 0; round < 3; round++)
        for (r.t.problem.b = 1; r.t.problem.b <= 4; r.t.problem.b++) {
            t_plan *plan = NULL;
            T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
        }
    T_INT(compiles, 4);
    T_INT(plan_stats(&r).builds, 4);
    T_INT(plan_stats(&r).hits, 8);
    T_CHECK(plan_stats(&r).bytes > 4000);
    plan_rig_end(&r);
    T_INT(releases, 4);
}

/* A failed compilation returns the engine's text and is tried again for the next request. */
FAKE_TEST(a_failed_compile_is_reported_and_not_kept) {
    fxa_plan *plan = NULL;
    compile_status = FXA_E_ENGINE;
    T_STATUS(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err), FXA_E_ENGINE);
    T_STR(err.text, "the assembler is out of order");
    T_CHECK(!plan);
    T_INT(plan_stats(r).plans, 0);
    compile_status = FXA_OK;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r->t.args, &err));
    T_SAME(r->t.o[0], 42);
    fxa_plan_destroy(plan);
    T_INT(compiles, 2);
}

T_MAIN
