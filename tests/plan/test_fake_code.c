/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan bytes that contain an engine's code: loaded again, and refused if damaged, from another version or kind of
 * engine, or rejected by the engine.
 */
#include "fake_engines.h"

/* ---- Bytes with code --------------------------------------------------------------------------------------------- */

static size_t fake_saved(plan_rig *r, uint8_t *out, size_t room) {
    fxa_error err;
    t_plan *plan = NULL;
    size_t size = 0;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(fxa_plan_save(plan, out, room, &size, &err));
    return size;
}

/* Loading compiles nothing. R-36: one cache entry, however often the code is loaded. */
FAKE_TEST(code_is_loaded_from_bytes) {
    static uint8_t bytes[8192];
    size_t size = fake_saved(r, bytes, sizeof bytes);
    fxa_cache_clear(r->ctx);
    T_INT(compiles, 1);
    for (int i = 0; i < 3; i++) {
        t_plan *plan = NULL;
        T_OK(fxa_plan_load(r->ctx, bytes, size, &plan, &err));
        T_OK(tiny_run(plan, &r->t.args, &err));
    }
    T_INT(compiles, 1);
    T_INT(loads, 1);
    T_INT(plan_stats(r).plans, 1);
}

/* Code from forged bytes serves plans of those bytes only, never a plan compiled here. */
FAKE_TEST(code_from_bytes_cannot_replace_compiled_code) {
    static uint8_t bytes[8192];
    saved_mark = 0xbadc0de;
    size_t size = fake_saved(r, bytes, sizeof bytes);
    fxa_cache_clear(r->ctx);
    t_plan *forged = NULL, *plan = NULL;
    T_OK(fxa_plan_load(r->ctx, bytes, size, &forged, &err));
    T_STATUS(tiny_run(forged, &r->t.args, &err), FXA_E_ENGINE);
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r->t.args, &err));
}

/* Damaged code is detected before the engine reads it; a section that the engine does not read completely is refused.
 * */
TEST(damaged_code_is_refused) {
    plan_rig r;
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
    T_INT(releases, 3); /* two compiled, one loaded and released */
}

/* A failed load returns the engine's own text and caches nothing. */
FAKE_TEST(code_that_the_engine_cannot_load) {
    static uint8_t bytes[8192];
    fxa_plan *plan = NULL;
    saved_little = true;
    size_t size = fake_saved(r, bytes, sizeof bytes);
    fxa_cache_clear(r->ctx);
    T_STATUS(fxa_plan_load(r->ctx, bytes, size, &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "code of fixed is cut off");
    T_INT(loads, 1);
    T_INT(fxa_plan_load(r->ctx, bytes, size, &plan, NULL), FXA_E_BYTES); /* without fxa_error */
    T_INT(loads, 2);
    T_CHECK(!plan);
    T_INT(plan_stats(r).plans, 0);
}

/* Bytes of an engine that changed without a new version: with code that it cannot load, or without code, which it
 * compiles. */
FAKE_TEST(bytes_that_are_not_of_this_kind_of_engine) {
    static uint8_t bytes[2][8192];
    size_t size[2];
    t_plan *plan = NULL;
    static fxa__engine plain;
    plain = fixed;
    plain.save = NULL;
    plain.load = NULL;
    size[0] = fake_saved(r, bytes[0], sizeof bytes[0]);
    own_engines[1] = &plain;
    fxa_cache_clear(r->ctx);
    size[1] = fake_saved(r, bytes[1], sizeof bytes[1]);
    T_STATUS(fxa_plan_load(r->ctx, bytes[0], size[0], &plan, &err), FXA_E_BYTES);
    T_STR(err.text, "a plan with a code section; engine fixed version 3 saves plans without one");
    own_engines[1] = &fixed;
    int before = compiles;
    fxa_cache_clear(r->ctx);
    T_OK(fxa_plan_load(r->ctx, bytes[1], size[1], &plan, &err));
    T_INT(compiles, before + 1);
}

/* Code with an extremely large size runs, and does not stay in the cache. */
FAKE_TEST(code_of_any_size_runs) {
    compiled_bytes = SIZE_MAX;
    fxa_plan *plan = NULL;
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_OK(tiny_run(plan, &r->t.args, &err));
    T_SAME(r->t.o[0], 42);
    fxa_plan_destroy(plan);
    T_INT(plan_stats(r).plans, 0);
    T_INT(plan_stats(r).bytes, 0);
}

/* code of another engine version is refused by name. */
FAKE_TEST(code_of_another_version_is_refused) { /* */
    static uint8_t bytes[8192];
    size_t size = fake_saved(r, bytes, sizeof bytes);
    own_engines[1] = &fixed_newer;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_load(r->ctx, bytes, size, &plan, &err), FXA_E_VERSION);
    T_HAS(err.text, "version 3");
    T_HAS(err.text, "version 4");
    T_HAS(err.text, "FXA_LOAD_REBUILD");
    T_OK(fxa_plan_load_flags(r->ctx, bytes, size, FXA_LOAD_REBUILD, &plan, &err));
    T_INT(loads, 0); /* compiled: the code of another version is not read */
    T_INT(compiles, 2);
    fxa_plan_destroy(plan);
    T_STATUS(fxa_plan_load_flags(r->ctx, bytes, size, 6, &plan, &err), FXA_E_ARGUMENT);
    fxa_cache_clear(r->ctx);
    /* other versions have other keys: nothing of the old engine is used */
    T_OK(fxa_plan_create(r->ctx, &r->t.problem, &plan, &err));
    T_INT(compiles, 3);
    fxa_plan_destroy(plan);
}

/* A problem that its engine refuses is refused when loaded, too. */
FAKE_TEST(what_the_engine_refuses_is_not_loaded) {
    static uint8_t bytes[8192];
    static fxa__engine moody;
    moody = fixed;
    moody.query = picky_query;
    size_t size = fake_saved(r, bytes, sizeof bytes);
    fxa_cache_clear(r->ctx);
    own_engines[1] = &moody;
    fxa_plan *plan = NULL;
    T_STATUS(fxa_plan_load(r->ctx, bytes, size, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "d is 3");
    T_INT(loads, 0);
}

T_MAIN
