/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between plans and engines (engine/engine.h, engine/instance.h): when and how often an engine is opened,
 * which refusals are cached, which engine is chosen, what each key contains, and requirements of a problem that the
 * library checks itself.
 */
#include "seam_fixture.h"

static fxa_support seam_ask(plan_rig *r, size_t engine) {
    fxa_error err;
    fxa_support reports[OWN_ENGINES];
    size_t count = OWN_ENGINES;
    T_OK(fxa_support_query(r->ctx, &r->t.problem, reports, &count, &err));
    T_INT(count, 4);
    return reports[engine];
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

SEAM_TEST(opened_at_the_first_question_and_once) {
    r->t.problem.device = FXA_HOST;
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    T_INT(mock.count[MOCK_OPEN], 0); /* no problem was on that device */
    r->t.problem.device = FXA_CUDA;
    for (int i = 0; i < 10; i++) T_STR(seam_engine(r, &err), "first");
    T_INT(mock.count[MOCK_OPEN], 1);
    (void)seam_ask(r, 0);
    T_INT(mock.count[MOCK_OPEN], 2); /* the second device */
    r->t.problem.ordinal = 1;
    T_STR(seam_engine(r, &err), "first");
    T_INT(mock.count[MOCK_OPEN], 3);
    fxa_cache_clear(r->ctx);
    T_STR(seam_engine(r, &err), "first");
    T_INT(mock.count[MOCK_OPEN], 3);
}

SEAM_TEST(a_failure_to_open_is_remembered_as_the_reason) {
    mock.open_status = FXA_E_UNAVAILABLE;
    for (int i = 0; i < 10; i++) {
        T_STR(seam_engine(r, &err), "");
        T_INT(err.status, FXA_E_UNSUPPORTED);
        T_HAS(err.text, "first: the mock device's driver does not answer");
        T_HAS(err.text, "second: the mock device's driver does not answer");
    }
    T_STR(seam_ask(r, 1).reason, "the mock device's driver does not answer");
    mock.open_status = FXA_OK;
    T_STR(seam_engine(r, &err), "");
    T_INT(mock.count[MOCK_OPEN], 2);
    r->t.problem.ordinal = 7;
    T_STR(seam_engine(r, &err), "");
    T_HAS(err.text, "ordinal is 7: there are mock devices 0 and 1");
    r->t.problem.ordinal = 0, r->t.problem.device = FXA_HOST;
    T_STR(seam_engine(r, &err), "cpu");
}

SEAM_TEST(a_want_of_memory_at_opening_is_not_remembered) {
    mock.open_status = FXA_E_MEMORY;
    for (int i = 1; i <= 5; i++) {
        T_STR(seam_engine(r, &err), "");
        T_INT(err.status, FXA_E_MEMORY);
        T_STR(err.text, "the mock device's driver does not answer");
        T_INT(mock.count[MOCK_OPEN], i);
    }
    mock.open_status = FXA_OK;
    T_STR(seam_engine(r, &err), "first");
}

SEAM_TEST(a_context_has_only_so_many_instances) {
    char target[32];
    r->t.problem.target = target, r->t.problem.engine = "first";
    size_t made = 0;
    for (; made < 2 * FXA__MAX_INSTANCES; made++) {
        (void)snprintf(target, sizeof target, "mock 0 %zu", made);
        if (!*seam_engine(r, &err)) break;
    }
    T_INT(err.status, FXA_E_LIMIT);
    T_HAS(err.text, "a context opens 256 engines, devices and targets at most");
    T_CHECK(made <= FXA__MAX_INSTANCES && made > FXA__MAX_INSTANCES - 4);
}

/* ---- A compiler's no --------------------------------------------------------------------------------------------- */

static atomic_int refused;
static fxa_status seam_refuse(fxa__analysis *a, void **code, size_t *bytes, fxa_error *err) {
    (void)a, (void)code, (void)bytes;
    atomic_fetch_add(&refused, 1);
    return fxa__fail(err, FXA_E_UNSUPPORTED, "the assembler runs out of registers");
}

SEAM_TEST(a_compilers_no_is_remembered_and_the_next_is_asked) {
    refused = 0;
    seam_first.compile = seam_refuse;
    T_CHECK(seam_ask(r, 0).supported); /* the query cannot find out */
    for (int i = 0; i < 100; i++) T_STR(seam_engine(r, &err), "second");
    T_INT(refused, 1);
    T_INT(mock.count[MOCK_COMPILE], 1);
    fxa_support now = seam_ask(r, 0);
    T_CHECK(!now.supported);
    T_STR(now.reason, "the assembler runs out of registers");
    T_INT(now.workspace, 0);
    r->t.problem.engine = "first";
    for (int i = 0; i < 10; i++) {
        T_STR(seam_engine(r, &err), "");
        T_INT(err.status, FXA_E_UNSUPPORTED);
        T_HAS(err.text, "the assembler runs out of registers");
    }
    T_INT(refused, 1);
    seam_second.compile = seam_refuse;
    r->t.problem.engine = NULL, r->t.problem.b = 1; /* another plan and other code */
    T_STR(seam_engine(r, &err), "second");          /* the second engine has compiled it for any batch */
    r->t.problem.flags |= FXA_RETURN_ROW_MAX;
    T_STR(seam_engine(r, &err), "");
    T_HAS(err.text, "first: the assembler");
    T_HAS(err.text, "second: the assembler");
}

/* One of the failing allocations is the cache entry of the refusal. */
TEST(a_compilers_no_without_memory_to_remember_it) {
    for (size_t k = 1, more = 1; more && k < 200; k++) {
        plan_rig r;
        T_REQUIRE(seam_start(&r));
        seam_first.compile = seam_refuse;
        fail_alloc_arm(&r.memory, k, false);
        const char *name = seam_engine(&r, &err);
        more = r.memory.failures;
        fail_alloc_arm(&r.memory, 0, false);
        if (strcmp(name, "second") != 0 && err.status != FXA_E_MEMORY)
            T_FAIL("allocation %zu: \"%s\", %s: %s\n", k, name, fxa_status_name(err.status), err.text);
        T_STR(seam_engine(&r, &err), "second");
        seam_end(&r);
    }
}

/* No result of the first engine can be cached: its refusal still counts for this call. */
static int seam_forgotten;
static bool seam_remembers;
static void *seam_forget(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    typedef struct seam_entry {
        fxa__lru_node node;
        fxa_support answer;
    } seam_entry;
    bool answer = !ptr && new_size == sizeof(seam_entry) && !seam_remembers;
    seam_forgotten += answer;
    return answer ? NULL : fail_alloc_fn(user, ptr, old_size, new_size, align);
}

SEAM_TEST(a_compilers_no_that_cannot_be_kept_at_all) {
    fxa_plan *plan = NULL;
    fxa_context *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.alloc = seam_forget, config.alloc_user = &r->memory;
    T_OK(fxa_context_create(&config, &ctx, &err));
    seam_first.compile = seam_refuse;
    refused = 0;
    T_OK(fxa_plan_create(ctx, &r->t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "second");
    T_INT(refused, 1);
    fxa_plan_destroy(plan);
    seam_second.compile = seam_refuse;
    fxa_cache_clear(ctx);
    T_STATUS(fxa_plan_create(ctx, &r->t.problem, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "first: ");
    T_HAS(err.text, "second: ");
    T_INT(refused, 3);
    T_CHECK(seam_forgotten > 0);
    fxa_context_destroy(ctx);
}

/* The report that is cached already becomes the refusal, for which no more memory is needed. */
SEAM_TEST(a_compilers_no_takes_the_place_of_the_report) {
    t_plan *plan = NULL;
    fxa_context *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    fxa_support reports[2];
    size_t count = 2;
    config.alloc = seam_forget, config.alloc_user = &r->memory;
    T_OK(fxa_context_create(&config, &ctx, &err));
    seam_first.compile = seam_refuse;
    refused = 0;
    seam_remembers = true;
    T_OK(fxa_support_query(ctx, &r->t.problem, reports, &count, &err));
    seam_remembers = false;
    T_INT(reports[0].supported, 1);
    T_OK(fxa_plan_create(ctx, &r->t.problem, &plan, &err));
    T_STR(fxa_plan_engine(plan), "second");
    count = 2;
    T_OK(fxa_support_query(ctx, &r->t.problem, reports, &count, &err));
    T_INT(reports[0].supported, 0);
    T_STR(reports[0].reason, "the assembler runs out of registers");
    T_INT(refused, 1);
    fxa_context_destroy(ctx);
}

/* A refusal of untrusted plan bytes says nothing about the engine. */
static fxa_status seam_load(fxa__analysis *a, fxa__reader *reader, void **code, size_t *bytes, fxa_error *err) {
    (void)a, (void)reader, (void)code, (void)bytes;
    return fxa__fail(err, FXA_E_UNSUPPORTED, "this code is for another one");
}

SEAM_TEST(a_no_to_loaded_code_is_not_remembered) {
    fxa_plan *plan = NULL, *loaded = NULL;
    static unsigned char bytes[1 << 14];
    size_t size = 0;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err));
    seam_first.load = seam_load;
    T_STATUS(fxa_plan_load(r->ctx, bytes, size, &loaded, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "this code is for another one");
    T_CHECK(!loaded);
    T_CHECK(seam_ask(r, 0).supported);
    T_STR(seam_engine(r, &err), "first");
    fxa_plan_destroy(plan);
}

/* While the second engine is queried, a plan finds that the first cannot compile: the earlier report must not be
 * cached. */
static plan_rig *seam_now;
static fxa_status seam_meanwhile(fxa__analysis *a, const void *code, fxa_support *report, fxa_error *err) {
    plan_rig *r = seam_now;
    seam_now = NULL;
    if (r) {
        fxa_plan *plan = NULL;
        fxa_problem first = r->t.problem;
        first.engine = "first";
        T_CHECK(fxa_plan_create(r->ctx, &first, &plan, NULL) == FXA_E_UNSUPPORTED);
    }
    return mock_engine.query(a, code, report, err);
}

SEAM_TEST(a_no_that_comes_while_others_are_asked) {
    seam_first.compile = seam_refuse, seam_second.query = seam_meanwhile;
    seam_now = r;
    T_CHECK(seam_ask(r, 0).supported); /* true at the time of the query */
    T_CHECK(!seam_now);
    T_CHECK(!seam_ask(r, 0).supported);
    T_CHECK(seam_ask(r, 1).supported);
}

/* ---- Analyses ---------------------------------------------------------------------------------------------------- */

/* Sets the costs of both engines to `first` and 2, so that selection compares two analyses. */
static double seam_analysis_cost;
static double seam_cost_analyzed(fxa__analysis *a) { return (void)a, seam_analysis_cost; }
static double seam_cost_of_two(fxa__analysis *a) { return (void)a, 2; }

/* A plan derives once from the problem on each engine that is compared, whichever is chosen. A repeated plan, and a
 * repeated query, derive nothing. */
TEST(a_plan_analyzes_its_problem_once) {
    for (int other = 0; other < 2; other++) {
        plan_rig r;
        T_REQUIRE(seam_start(&r));
        seam_analysis_cost = other ? 3 : 1;
        seam_first.cost = seam_cost_analyzed, seam_second.cost = seam_cost_of_two;
        T_STR(seam_engine(&r, &err), other ? "second" : "first");
        T_INT(mock.count[MOCK_ANALYZE], 2);
        T_STR(seam_engine(&r, &err), other ? "second" : "first");
        T_INT(mock.count[MOCK_ANALYZE], 2);
        T_CHECK(seam_ask(&r, 0).supported);
        T_INT(mock.count[MOCK_ANALYZE], 2);
        T_INT(mock.count[MOCK_COMPILE], 1);
        seam_end(&r);
    }
}

/* If a compiler refuses, the plan is made from the other engine's analysis; nothing is leaked when memory runs out. */
TEST(analyses_end_when_a_compiler_refuses_or_memory_runs_out) {
    for (size_t k = 0, more = 1; more && k < 300; k++) {
        plan_rig r;
        fxa_plan *plan = NULL;
        T_REQUIRE(seam_start(&r));
        seam_analysis_cost = 1;
        seam_first.cost = seam_cost_analyzed, seam_second.cost = seam_cost_of_two;
        seam_first.compile = seam_refuse;
        fail_alloc_arm(&r.memory, k, k % 2);
        fxa_status status = fxa_plan_create(r.ctx, &r.t.problem, &plan, &err);
        more = k == 0 || r.memory.failures;
        fail_alloc_arm(&r.memory, 0, false);
        if (status == FXA_OK) T_STR(fxa_plan_engine(plan), "second");
        if (status != FXA_OK && status != FXA_E_MEMORY) T_FAIL("allocation %zu: %s\n", k, fxa_status_name(status));
        fxa_plan_destroy(plan);
        seam_end(&r);
    }
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

static double seam_costs[2];
static double seam_cost_first(fxa__analysis *a) { return (void)a, seam_costs[0]; }
static double seam_cost_second(fxa__analysis *a) { return (void)a, seam_costs[1]; }

TEST(the_cheaper_engine_is_chosen) {
    static const struct {
        double first, second; /* negative: no hook */
        const char *want;
    } rows[] = {{1, 2, "first"},   {2, 1, "second"},  {1, 1, "first"},         {-1, 1, "first"},  {5, -1, "first"},
                {NAN, 1, "first"}, {1, NAN, "first"}, {INFINITY, 3, "second"}, {0, 0.5, "first"}, {0.5, 0, "second"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        plan_rig r;
        T_REQUIRE(seam_start(&r));
        seam_costs[0] = rows[i].first, seam_costs[1] = rows[i].second;
        seam_first.cost = rows[i].first < 0 ? NULL : seam_cost_first;
        seam_second.cost = rows[i].second < 0 ? NULL : seam_cost_second;
        T_STR(seam_engine(&r, &err), rows[i].want);
        seam_first.compile = seam_refuse; /* then the other engine, at any cost */
        fxa_cache_clear(r.ctx);
        T_STR(seam_engine(&r, &err), "second");
        seam_end(&r);
    }
}

SEAM_TEST(engines_of_other_memory_are_not_asked) {
    T_HAS(seam_ask(r, 3).reason, "ref computes in the memory of device host, and the problem is on device cuda");
    r->t.problem.engine = "ref";
    T_STR(seam_engine(r, &err), "");
    T_INT(err.status, FXA_E_ARGUMENT);
    T_HAS(err.text, "which does not compute in the memory of device cuda; there: first, second");
    r->t.problem.engine = "first", r->t.problem.device = FXA_HOST;
    T_STR(seam_engine(r, &err), "");
    T_HAS(err.text, "device host; there: cpu, ref");
}

/* ---- Demands of the problem -------------------------------------------------------------------------------------- */

SEAM_TEST(deterministic_or_no_plan) {
    mock.not_deterministic = true;
    T_STR(seam_engine(r, &err), "first");
    r->t.problem.flags |= FXA_DETERMINISTIC;
    T_STR(seam_engine(r, &err), "");
    T_HAS(err.text, "FXA_DETERMINISTIC");
    mock.not_deterministic = false;
    fxa_cache_clear(r->ctx);
    T_STR(seam_engine(r, &err), "first");
}

SEAM_TEST(no_more_workspace_than_allowed) {
    mock.more_workspace = 1000;
    uint64_t needs = seam_ask(r, 0).workspace;
    T_CHECK(needs > 1000);
    r->t.problem.max_workspace = needs;
    T_STR(seam_engine(r, &err), "first");
    T_OK(fxa_attention(r->ctx, &r->t.problem, &r->t.args, &err));
    r->t.problem.max_workspace = needs - 1;
    T_STR(seam_engine(r, &err), "");
    T_HAS(err.text, "max_workspace is");
    mock.more_workspace = SIZE_MAX - 4000; /* the total size must fit in size_t */
    r->t.problem.max_workspace = 0, r->t.problem.b = 1;
    T_STR(seam_engine(r, &err), "first");
    fxa_args args = r->t.args;
    T_CHECK(fxa_attention(r->ctx, &r->t.problem, &args, &err) != FXA_OK);
}

enum { ALIGNED_S = 4, ALIGNED_D = 8, ALIGNED_N = ALIGNED_S * ALIGNED_D };

SEAM_TEST(promises_of_alignment) {
    static float x[4][2 * ALIGNED_N] __attribute__((aligned(4096)));
    static const uint32_t wrong[] = {3, 8192, 6};
    static const fxa_slot slots[4] = {FXA_SLOT_Q, FXA_SLOT_K, FXA_SLOT_V, FXA_SLOT_O};
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_args args = FXA_ARGS_INIT;
    p.b = p.hq = 1, p.sq = p.sk = ALIGNED_S, p.d_qk = ALIGNED_D;
    for (int i = 0; i < 4; i++) args.slot[slots[i]] = x[i];
    for (uint32_t device = FXA_HOST; device <= FXA_CUDA; device++) {
        fxa_plan *plan = NULL;
        p.device = device;
        for (int i = 0; i < 3; i++) {
            p.alignment = wrong[i];
            T_STATUS(fxa_plan_create(r->ctx, &p, &plan, &err), FXA_E_PROBLEM);
            T_HAS(err.text, "alignment is");
        }
        p.alignment = 256; /* also guaranteed for copies on the device */
        for (int i = 0; i < 4; i++) args.slot[slots[i]] = x[i];
        T_OK(fxa_attention(r->ctx, &p, &args, &err));
        for (int i = 0; i < 4; i++) {
            args.slot[slots[i]] = x[i] + 4;
            T_STATUS(fxa_attention(r->ctx, &p, &args, &err), FXA_E_BINDING);
            T_HAS(err.text, fxa_slot_name(slots[i]));
            T_HAS(err.text, "the problem's alignment promises a multiple of 256 bytes");
            args.slot[slots[i]] = x[i];
        }
    }
}

T_MAIN
