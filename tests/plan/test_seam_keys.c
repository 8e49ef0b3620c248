/* SPDX-License-Identifier: Apache-2.0
 *
 * Identity of engines: it is part of the key of every plan and its code, and of plan bytes, which load where it is the
 * same. Plans for a target that is not present; the instruction set of the cpu engine; scalars in memory, which give
 * the same results as scalars of a call.
 */
#include "seam_fixture.h"
#include "support/fixtures/isa.h"

typedef struct key {
    uint8_t byte[16];
} key;

static key key_of(fxa_context *ctx, const fxa_problem *p) {
    fxa_error err;
    t_plan *plan = NULL;
    key k = {{0}};
    T_OK(fxa_plan_create(ctx, p, &plan, &err));
    fxa_plan_key(plan, k.byte);
    return k;
}

static bool key_same(key a, key b) { return memcmp(&a, &b, sizeof a) == 0; }

TEST(ordinals_and_drivers_are_in_the_keys) {
    plan_rig r, newer;
    T_REQUIRE(seam_start(&r));
    key zero = key_of(r.ctx, &r.t.problem);
    T_INT(mock.count[MOCK_COMPILE], 1);
    T_CHECK(key_same(zero, key_of(r.ctx, &r.t.problem)));
    r.t.problem.ordinal = 1;
    key one = key_of(r.ctx, &r.t.problem);
    T_CHECK(!key_same(zero, one));
    T_INT(mock.count[MOCK_COMPILE], 2); /* code belongs to a device */
    T_CHECK(key_same(one, key_of(r.ctx, &r.t.problem)));
    T_INT(mock.count[MOCK_COMPILE], 2);
    r.t.problem.ordinal = 0;
    atomic_store(&mock.driver, 5); /* already queried by this context */
    fxa_cache_clear(r.ctx);
    T_CHECK(key_same(zero, key_of(r.ctx, &r.t.problem)));
    newer = (plan_rig){.memory = FAIL_ALLOC_INIT};
    newer.ctx = fail_alloc_context(&newer.memory);
    T_CHECK(!key_same(zero, key_of(newer.ctx, &r.t.problem)));
    fxa_context_destroy(newer.ctx);
    T_INT(newer.memory.live_bytes, 0);
    seam_end(&r);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static unsigned char key_bytes[1 << 14];
static size_t key_size;

static void key_save(fxa_context *ctx, const fxa_problem *p, key *out) {
    fxa_error err;
    t_plan *plan = NULL;
    T_OK(fxa_plan_create(ctx, p, &plan, &err));
    T_OK(fxa_plan_save(plan, key_bytes, sizeof key_bytes, &key_size, &err));
    fxa_plan_key(plan, out->byte);
}

SEAM_TEST(bytes_are_taken_where_the_identity_is_the_same) {
    fxa_plan *plan = NULL;
    key saved, got;
    key_save(r->ctx, &r->t.problem, &saved);
    size_t compiled = mock.count[MOCK_COMPILE];
    T_OK(fxa_plan_load(r->ctx, key_bytes, key_size, &plan, &err));
    T_INT(mock.count[MOCK_LOAD], 1);
    T_INT(mock.count[MOCK_COMPILE], compiled);
    fxa_plan_key(plan, got.byte);
    T_CHECK(key_same(saved, got));
    fxa_plan_destroy(plan), plan = NULL;
    atomic_store(&mock.driver, 8);
    fxa_context *ctx = NULL;
    T_OK(fxa_context_create(NULL, &ctx, &err));
    T_STATUS(fxa_plan_load(ctx, key_bytes, key_size, &plan, &err), FXA_E_VERSION);
    T_HAS(err.text, "for \"mock 0, driver 0\"; this is \"mock 0, driver 8\"");
    T_HAS(err.text, "FXA_LOAD_REBUILD");
    T_CHECK(!plan);
    T_OK(fxa_plan_load_flags(ctx, key_bytes, key_size, FXA_LOAD_REBUILD, &plan, &err));
    T_INT(mock.count[MOCK_LOAD], 1); /* its code is not read */
    fxa_plan_key(plan, got.byte);
    T_CHECK(!key_same(saved, got));
    T_CHECK(key_same(got, key_of(ctx, &r->t.problem)));
    fxa_plan_destroy(plan);
    fxa_context_destroy(ctx);
}

/* Fails every call of the engine and every allocation: loading leaks nothing. */
TEST(loading_fails_at_every_call_and_allocation) {
    key saved;
    for (int what = 0; what < 2; what++) {
        size_t k = 1;
        for (size_t more = 1; more && k < 200; k++) {
            plan_rig r;
            fxa_plan *plan = NULL;
            fxa_context *ctx = NULL;
            T_REQUIRE(seam_start(&r));
            T_OK(fxa_context_create(NULL, &ctx, &err));
            key_save(ctx, &r.t.problem, &saved);
            fxa_context_destroy(ctx);
            if (what)
                fail_alloc_arm(&r.memory, k, false);
            else
                mock_arm(k, FXA_E_ENGINE);
            fxa_status status = fxa_plan_load(r.ctx, key_bytes, key_size, &plan, &err);
            more = what ? r.memory.failures : mock.failures;
            if (status != FXA_OK && (!more || err.status != status || !err.text[0] || plan))
                T_FAIL("%zu: %s\n", k, fxa_status_name(status));
            if (!what && more) T_CHECK(status != FXA_OK);
            fail_alloc_arm(&r.memory, 0, false), mock_arm(0, FXA_OK);
            fxa_plan_destroy(plan);
            seam_end(&r);
        }
        T_CHECK(k > 3);
    }
}

/* ---- Targets ----------------------------------------------------------------------------------------------------- */

SEAM_TEST(a_plan_for_a_target_runs_where_it_is_loaded) {
    fxa_plan *plan = NULL, *loaded = NULL;
    key saved, got;
    key here = key_of(r->ctx, &r->t.problem);
    r->t.problem.target = "mock 1";
    key_save(r->ctx, &r->t.problem, &saved);
    T_CHECK(!key_same(here, saved)); /* another device */
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    static double page[512] __attribute__((aligned(4096)));
    fxa_args args = r->t.args;
    args.workspace = page, args.workspace_size = sizeof page;
    if (fxa_plan_workspace(plan) <= sizeof page) T_STATUS(fxa_plan_run(plan, &args, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "for a target");
    fxa_plan_destroy(plan);
    /* the present device is "mock 0" */
    T_STATUS(fxa_plan_load(r->ctx, key_bytes, key_size, &loaded, &err), FXA_E_VERSION);
    T_HAS(err.text, "\"mock 1, driver 0\"");
    r->t.problem.ordinal = 1;
    key_save(r->ctx, &r->t.problem, &saved);
    T_OK(fxa_plan_load(r->ctx, key_bytes, key_size, &loaded, &err));
    fxa_plan_key(loaded, got.byte);
    T_CHECK(key_same(saved, got));
    r->t.problem.target = NULL; /* the plan equals one made there */
    T_CHECK(key_same(saved, key_of(r->ctx, &r->t.problem)));
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan_problem(loaded, &p);
    T_CHECK(!p.target && p.ordinal == 1);
    T_OK(fxa_attention(r->ctx, &p, &r->t.args, &err));
    T_CHECK(tiny_error(&r->t) <= TINY_TOLERANCE);
    fxa_plan_destroy(loaded);
}

/* ---- The instruction set ----------------------------------------------------------------------------------------- */

SEAM_TEST(the_instruction_set_is_the_contexts) {
#if !defined(__x86_64__) && !defined(__aarch64__)
    T_SKIP("scalar is the only set of this build");
#endif
    fxa_plan *plan = NULL;
    fxa_context *other = NULL;
    char why[256];
    const char *outside = getenv("FXA_CPU");
    if (outside && *outside) T_SKIP("FXA_CPU is set");
    r->t.problem.device = FXA_HOST, r->t.problem.engine = "cpu";
    key before = key_of(r->ctx, &r->t.problem), saved;
    key_save(r->ctx, &r->t.problem, &saved);
    setenv("FXA_CPU", "scalar", 1);
    T_CHECK(isa_is_usable(why, sizeof why));
    T_CHECK(key_same(before, key_of(r->ctx, &r->t.problem)));
    fxa_cache_clear(r->ctx);
    T_CHECK(key_same(before, key_of(r->ctx, &r->t.problem)));
    T_OK(fxa_context_create(NULL, &other, &err));
    key scalar = key_of(other, &r->t.problem);
    if (key_same(before, scalar)) T_FAIL("scalar has the key of the machine's own set\n");
    T_STATUS(fxa_plan_load(other, key_bytes, key_size, &plan, &err), FXA_E_VERSION);
    T_HAS(err.text, "\"scalar\"");
    T_OK(fxa_plan_load_flags(other, key_bytes, key_size, FXA_LOAD_REBUILD, &plan, &err));
    T_OK(tiny_run(plan, &r->t.args, &err));
    T_CHECK(tiny_error(&r->t) <= TINY_TOLERANCE);
    fxa_plan_destroy(plan);
    fxa_context_destroy(other);
    unsetenv("FXA_CPU");
}

/* ---- Scalars in memory ------------------------------------------------------------------------------------------- */

TEST(scalars_in_memory_are_scalars) {
    static const char *const engines[] = {"cpu", "ref", "first"};
    for (size_t i = 0; i < 3; i++) {
        plan_rig r;
        double by_args[TINY_Q_COUNT], scale = 0.37, cap = 1.25;
        uint64_t seed = 0x123456789abcdefu;
        T_REQUIRE(seam_start(&r));
        r.t.problem.engine = engines[i], r.t.problem.device = i == 2 ? FXA_CUDA : FXA_HOST;
        r.t.problem.flags |= FXA_DROPOUT, r.t.problem.dropout_p = 0.4;
        r.t.args.scale = scale, r.t.args.seed = seed, *r.t.cap = cap;
        key plain = key_of(r.ctx, &r.t.problem);
        T_OK(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err));
        memcpy(by_args, r.t.o, sizeof by_args);
        memset(r.t.o, 0, sizeof by_args);
        r.t.problem.flags |= FXA_SCALARS_IN_MEMORY;
        T_CHECK(!key_same(plain, key_of(r.ctx, &r.t.problem)));
        r.t.args.scale = 1, r.t.args.seed = 1, *r.t.cap = 99;
        T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_BINDING);
        T_HAS(err.text, "slot SCALE is NULL; FXA_SCALARS_IN_MEMORY");
        r.t.args.slot[FXA_SLOT_SCALE] = &scale;
        T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_BINDING);
        T_HAS(err.text, "slot SEED is NULL");
        r.t.args.slot[FXA_SLOT_SEED] = &seed;
        T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_BINDING);
        T_HAS(err.text, "slot PARAMS is NULL");
        r.t.args.slot[FXA_SLOT_PARAMS] = &cap;
        T_OK(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err));
        T_CHECK(memcmp(by_args, r.t.o, sizeof by_args) == 0);
        r.t.problem.flags &= ~(uint32_t)FXA_SCALARS_IN_MEMORY;
        T_STATUS(fxa_attention(r.ctx, &r.t.problem, &r.t.args, &err), FXA_E_BINDING);
        T_HAS(err.text, "slot SCALE is set");
        seam_end(&r);
    }
}

T_MAIN
