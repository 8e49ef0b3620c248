/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as bytes with an engine's own code in them: loaded again, and refused when damaged, of another version, of
 * another kind of engine or of an engine that does not want it.
 */
#include "fake_engines.h"

/* ---- Bytes with code --------------------------------------------------------------------------------------------- */

static size_t fake_saved(plan_rig *r, uint8_t *out, size_t room) {
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
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_start(&r));
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
    T_INT(plan_stats(&r).plans, 1);
    plan_rig_end(&r);
}

/* Code from forged bytes serves plans of those bytes only, never a plan compiled here. */
TEST(code_from_bytes_cannot_replace_compiled_code) {
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_start(&r));
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
    plan_rig_end(&r);
}

/* Damage in the code is seen before the engine sees it; code that the engine does not use up is no code of its. */
TEST(damaged_code_is_refused) {
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_start(&r));
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
    plan_rig_end(&r);
    T_INT(releases, 3); /* two compiled, one loaded and given back */
}

/* A load that fails has the engine's own text, and nothing is kept. */
TEST(code_that_the_engine_cannot_load) {
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_start(&r));
    saved_little = true;
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    fxa_cache_clear(r.ctx);
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "code of fixed is cut off");
    T_INT(loads, 1);
    T_INT(fxa_plan_load(r.ctx, bytes, size, &plan, NULL), FXA_E_BYTES); /* nobody to tell */
    T_INT(loads, 2);
    T_CHECK(!plan);
    T_INT(plan_stats(&r).plans, 0);
    plan_rig_end(&r);
}

/* Bytes of an engine that has changed without a new version: with code, which it has no use for, or without, which it
 * then compiles. */
TEST(bytes_that_are_not_of_this_kind_of_engine) {
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[2][8192];
    size_t size[2];
    fxa_plan *plan = NULL;
    T_REQUIRE(fake_start(&r));
    static fxa__engine plain;
    plain = fixed;
    plain.save = NULL;
    plain.load = NULL;
    size[0] = fake_saved(&r, bytes[0], sizeof bytes[0]);
    own_engines[1] = &plain;
    fxa_cache_clear(r.ctx);
    size[1] = fake_saved(&r, bytes[1], sizeof bytes[1]);
    T_STATUS(fxa_plan_load(r.ctx, bytes[0], size[0], &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "a plan with a code section; engine fixed version 3 saves plans without one");
    own_engines[1] = &fixed;
    int before = compiles;
    fxa_cache_clear(r.ctx);
    T_OK(fxa_plan_load(r.ctx, bytes[1], size[1], &plan, &err));
    T_INT(compiles, before + 1);
    fxa_plan_destroy(plan);
    plan_rig_end(&r);
}

/* Code whose size is beyond all counting is used, and does not stay in the cache. */
TEST(code_of_any_size_runs) {
    plan_rig r;
    fxa_error err;
    T_REQUIRE(fake_start(&r));
    compiled_bytes = SIZE_MAX;
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r.t.args, &err));
    T_SAME(r.t.o[0], 42);
    fxa_plan_destroy(plan);
    T_INT(plan_stats(&r).plans, 0);
    T_INT(plan_stats(&r).bytes, 0);
    plan_rig_end(&r);
}

/* code of another engine version is refused by name. */
TEST(code_of_another_version_is_refused) {
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_start(&r));
    size_t size = fake_saved(&r, bytes, sizeof bytes);
    own_engines[1] = &fixed_newer;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_load(r.ctx, bytes, size, &plan, &err), FXA_E_VERSION);
    T_HAS(err.text, "version 3");
    T_HAS(err.text, "version 4");
    T_HAS(err.text, "FXA_LOAD_REBUILD");
    T_OK(fxa_plan_load_flags(r.ctx, bytes, size, FXA_LOAD_REBUILD, &plan, &err));
    T_INT(loads, 0); /* compiled: the code of another version is not looked at */
    T_INT(compiles, 2);
    fxa_plan_destroy(plan);
    T_STATUS(fxa_plan_load_flags(r.ctx, bytes, size, 6, &plan, &err), FXA_E_ARGUMENT);
    fxa_cache_clear(r.ctx);
    /* and other versions have other keys: nothing of the old engine is used */
    T_OK(fxa_plan_create(r.ctx, &r.t.problem, &plan, &err));
    T_INT(compiles, 3);
    fxa_plan_destroy(plan);
    plan_rig_end(&r);
}

/* A problem that its engine would not take now (it may have once) is refused when loaded, not run. */
TEST(what_the_engine_refuses_is_not_loaded) {
    plan_rig r;
    fxa_error err;
    static uint8_t bytes[8192];
    T_REQUIRE(fake_start(&r));
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
    plan_rig_end(&r);
}

T_MAIN
