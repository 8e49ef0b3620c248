/* SPDX-License-Identifier: Apache-2.0
 *
 * Support queries: their results, that they are cached, and that plans agree with them.
 */
#include "engine/engine.h"
#include "support/fixtures/plan_fixture.h"

static size_t engine_count(void) {
    size_t n = 0;
    while (fxa_engine_name(n)) n++;
    return n;
}

TEST(engines_have_names) {
    size_t n = engine_count();
    T_CHECK(n >= 1);
    bool has_ref = false;
    for (size_t i = 0; i < n; i++) has_ref = has_ref || strcmp(fxa_engine_name(i), "ref") == 0;
    T_CHECK(has_ref);
    T_CHECK(!fxa_engine_name(n));
    T_CHECK(!fxa_engine_name(SIZE_MAX));
}

RIG_TEST(the_reference_engine_runs_everything) {
    fxa_support reports[16];
    size_t count = 16;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(count, engine_count());
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        T_STR(reports[i].engine, fxa_engine_name(i));
        T_CHECK(reports[i].supported == (reports[i].reason[0] == '\0'));
        if (strcmp(reports[i].engine, "ref") != 0) continue;
        found = true;
        T_INT(reports[i].supported, 1);
        T_INT(reports[i].deterministic, 1);
        t_plan *plan = NULL;
        r->t.problem.engine = "ref";
        T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
        T_INT(reports[i].workspace, fxa_plan_workspace(plan));
    }
    T_CHECK(found);
}

enum { SUPPORT_MOST = 16 };
/* Sets the pass of the problem and queries; returns the number of engines. */
static size_t support_of_pass(plan_rig *r, fxa_pass pass, fxa_support reports[SUPPORT_MOST]) {
    fxa_error err;
    size_t count = SUPPORT_MOST;
    r->t.problem.pass = (uint32_t)pass;
    r->t.problem.flags = pass == FXA_BACKWARD ? FXA_GRAD_Q | FXA_GRAD_K | FXA_GRAD_V : 0;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    return count;
}

/* Engines that skip tiles report the tile size; ref computes everything. */
RIG_TEST(tiles_are_told) {
    for (int backward = 0; backward < 2; backward++) {
        fxa_support reports[SUPPORT_MOST];
        size_t count = support_of_pass(r, backward ? FXA_BACKWARD : FXA_FORWARD, reports);
        for (size_t i = 0; i < count; i++) {
            bool skips = reports[i].supported && strcmp(reports[i].engine, "ref") != 0;
            T_CHECK(skips ? reports[i].tile_q > 0 && reports[i].tile_k > 0
                          : reports[i].tile_q == 0 && reports[i].tile_k == 0);
        }
    }
}

/* At most *count reports are written, and *count becomes the number of engines. */
RIG_TEST(count_is_respected) {
    fxa_support report = {.engine = "untouched"};
    size_t count = 0;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, NULL, &count, &err));
    T_INT(count, engine_count());
    count = 0;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err));
    T_STR(report.engine, "untouched");
    count = 1;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err));
    T_STR(report.engine, fxa_engine_name(0));
    count = 1;
    T_STATUS(fxa_support_query(r->ctx, &r->t.problem, NULL, &count, &err), FXA_E_ARGUMENT);
    T_INT(count, 1);
}

/* An inconsistent problem is an error, not a report, and nothing is written. R-50: so are mismatched dtypes, with both
 * in the text; the next query works. */
RIG_TEST(an_invalid_problem_is_an_error) {
    fxa_support report = {.engine = "untouched"};
    size_t count = 1;
    r->t.problem.hkv = 3;
    T_STATUS(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err), FXA_E_PROBLEM);
    r->t.problem.hkv = TINY_HKV;
    r->t.problem.k.dtype = FXA_F16;
    T_STATUS(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err), FXA_E_PROBLEM);
    T_STR(err.text, "q, k, v have dtypes f64, f16, f64: "
                    "arithmetic is in f64 when all three are f64, and in f32 when none is");
    T_STR(report.engine, "untouched");
    T_INT(count, 1);
    T_INT(plan_stats(r).queries, 0);
    r->t.problem.k.dtype = FXA_F64;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err));
    T_INT(report.supported, 1);
}

/* A query with an invalid engine name is an error like a plan with it. */
RIG_TEST(an_engine_that_is_none_is_an_error) {
    const struct {
        const char *name, *environment, *says;
    } cases[] = {{"cuda2", NULL, "problem.engine is \"cuda2\", which is no engine of this build; there are: "},
                 {"cuda", NULL, "problem.engine is \"cuda\", which does not compute in the memory of device host"},
                 {NULL, "cudda", "the environment's FXA_ENGINE is \"cudda\", which is no engine of this build"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_support report = {.engine = "untouched"};
        t_ctx *ctx = NULL;
        fxa_plan *plan = NULL;
        char before[64] = "";
        size_t count = 1;
        if (getenv("FXA_ENGINE")) (void)snprintf(before, sizeof before, "%s", getenv("FXA_ENGINE"));
        if (cases[i].environment) setenv("FXA_ENGINE", cases[i].environment, 1);
        T_OK(fxa_context_create(NULL, &ctx, &err));
        if (before[0])
            setenv("FXA_ENGINE", before, 1);
        else
            unsetenv("FXA_ENGINE");
        fxa_problem p = r->t.problem;
        p.engine = cases[i].name;
        T_STATUS(fxa_support_query(ctx, &p, &report, &count, &err), FXA_E_ARGUMENT);
        T_HAS(err.text, cases[i].says);
        T_STR(report.engine, "untouched");
        T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), FXA_E_ARGUMENT);
        T_HAS(err.text, cases[i].says);
    }
}

/* A reason that does not fit is cut before a word, or inside a very long one, and ends with "...". */
TEST(a_reason_is_cut_before_a_word) {
    char text[400];
    fxa_support report = {.supported = 1};
    for (size_t length = 230; length < 260; length++) {
        for (size_t i = 0; i < length; i++) text[i] = i % 7 == 6 ? ' ' : 'x';
        text[length] = '\0';
        fxa__support_refuse(&report, text);
        T_INT(report.supported, 0);
        size_t n = strlen(report.reason);
        if (length < sizeof report.reason) {
            T_STR(report.reason, text);
            continue;
        }
        T_CHECK(n > 230 && n < sizeof report.reason);
        T_STR(report.reason + n - 7, "xxx ...");
        T_INT((n - 4) % 7, 6); /* the text is cut at a space */
    }
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    fxa__support_refuse(&report, text);
    T_STR(report.reason + strlen(report.reason) - 4, "x...");
    for (size_t i = 0; i + 2 < sizeof text; i += 2) text[i] = '\xc3', text[i + 1] = '\xa4';
    fxa__support_refuse(&report, text);
    T_STR(report.reason + strlen(report.reason) - 5, "\xc3\xa4...");
}

/* callers that need determinism or have limited workspace choose by the reports and name the engine. Its plan has
 * the properties of its report, forward and backward. */
RIG_TEST(a_plan_keeps_what_its_report_promised) { /* */
    for (int backward = 0; backward < 2; backward++) {
        fxa_support reports[SUPPORT_MOST];
        size_t count = support_of_pass(r, backward ? FXA_BACKWARD : FXA_FORWARD, reports);
        for (size_t i = 0; i < count; i++) {
            t_plan *plan = NULL;
            if (!reports[i].supported) continue;
            r->t.problem.engine = reports[i].engine;
            T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
            T_STR(fxa_plan_engine(plan), reports[i].engine);
            T_INT(fxa_plan_is_deterministic(plan), reports[i].deterministic);
            T_INT(fxa_plan_workspace(plan), reports[i].workspace);
        }
        r->t.problem.engine = NULL;
    }
}

/* a repeated query is a lookup. R-40: a report belongs to the caller and does not change. */
RIG_TEST(a_repeated_query_is_a_lookup) {
    fxa_support first, other, again;
    memset(&first, 0, sizeof first);
    size_t count = 1;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &first, &count, &err));
    T_INT(plan_stats(r).queries, 1);
    T_INT(plan_stats(r).query_hits, 0);
    fxa_support copy = first;
    r->t.problem.b++;
    count = 1;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &other, &count, &err));
    T_INT(plan_stats(r).query_hits, 0);
    T_CHECK(memcmp(&copy, &first, sizeof first) == 0);
    r->t.problem.b--;
    count = 1;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &again, &count, &err));
    T_INT(plan_stats(r).queries, 3);
    T_INT(plan_stats(r).query_hits, 1);
    T_CHECK(memcmp(&copy, &again, sizeof again) == 0);
}

/* query and run have the same key: a plan after a query queries no engine again, and the reverse. */
RIG_TEST(query_and_plan_share_one_answer) {
    fxa_support report;
    size_t count = 1;
    fxa_plan *plan = NULL;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err));
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    fxa_cache_stats s = plan_stats(r);
    T_INT(s.queries - s.query_hits, 1);
    fxa_plan_destroy(plan);
    r->t.problem.sq++;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    count = 1;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, &report, &count, &err));
    s = plan_stats(r);
    T_INT(s.queries - s.query_hits, 2);
    fxa_plan_destroy(plan);
}

/* results of many configurations are cached, up to a limit. */
TEST(answers_are_kept_for_many_and_bounded) {
    fail_alloc memory = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&memory);
    T_REQUIRE(ctx);
    fxa_support report;
    fxa_cache_stats s;
    fxa_problem p = FXA_PROBLEM_INIT;
    p.hq = 1, p.sq = p.sk = 2, p.d_qk = 1;
    for (int round = 0; round < 2; round++) {
        for (p.b = 1; p.b <= 500; p.b++) {
            size_t count = 1;
            T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
        }
        fxa_cache_get_stats(ctx, &s);
        T_INT(s.queries, 500 * (round + 1));
        T_INT(s.query_hits, 500 * round);
    }
    size_t at_2000 = 0;
    for (; p.b <= 4000; p.b++) {
        size_t count = 1;
        T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
        if (p.b == 2000) at_2000 = memory.live_bytes;
    }
    T_INT(memory.live_bytes, at_2000);
    fxa_cache_clear(ctx);
    size_t count = 1;
    p.b = 4000;
    T_OK(fxa_support_query(ctx, &p, &report, &count, &err));
    uint64_t before = s.query_hits;
    fxa_cache_get_stats(ctx, &s);
    T_INT(s.query_hits, before); /* cleared: queried again */
    fxa_context_destroy(ctx);
    T_INT(memory.live_bytes, 0);
}

T_MAIN
