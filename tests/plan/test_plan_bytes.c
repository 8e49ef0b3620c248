/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan bytes: the format of src/plan/plan_save.c, loaded plans, golden files, other versions. Damage is in
 * test_plan_bytes_hostile.c. FXA_TEST_UPDATE=1 writes the golden files anew.
 */
#include "plan/plan.h"
#include "support/fixtures/plan_bytes.h"
#include "support/fixtures/tiny.h"
#include "t.h"

/* ---- Good bytes -------------------------------------------------------------------------------------------------- */

/* magic, format version, library and engine versions, device and key are at their documented offsets. */
CONTEXT_TEST(the_layout_is_as_documented) {
    for (int c = 0; c < BLOB_CASES; c++) {
        static blob_bytes b, again;
        static blob_parts p;
        T_OK(blob_cases[c].make(ctx, &b, &err));
        T_REQUIRE(blob_parts_read(&b, &p));
        T_INT(p.format, 2);
        T_STR(p.library, FXA_VERSION_STRING);
        T_STR(p.engine, "ref");
        T_STR(p.identity, "");
        T_INT(p.n_sections, 1);
        T_INT(p.id[0], 1);
        fxa_plan *plan = NULL;
        uint8_t key[16];
        T_OK(fxa_plan_load(ctx, b.data, b.size, &plan, &err));
        fxa_plan_key(plan, key);
        T_CHECK(memcmp(key, p.key, 16) == 0);
        fxa_plan_destroy(plan);
        blob_parts_write(&p, &again);
        T_INT(again.size, b.size);
        T_CHECK(memcmp(again.data, b.data, b.size) == 0);
    }
}

CONTEXT_TEST(save_is_two_calls) {
    t_plan *plan = NULL;
    static blob_bytes b;
    T_OK(blob_cases[BLOB_IDENTITY].make(ctx, &b, &err));
    T_OK(fxa_plan_load(ctx, b.data, b.size, &plan, &err));
    size_t needed = 0;
    T_OK(fxa_plan_save(plan, NULL, 0, &needed, &err));
    T_INT(needed, b.size);
    fxa_cache_stats stats;
    fxa_cache_get_stats(ctx, &stats);
    T_INT(stats.refusals, 0); /* the load succeeded */
    uint8_t *room = malloc(needed);
    T_STATUS(fxa_plan_save(plan, room, needed - 1, &needed, &err), FXA_E_ARGUMENT);
    T_OK(fxa_plan_save(plan, room, needed, NULL, &err));
    T_CHECK(memcmp(room, b.data, b.size) == 0);
    T_STATUS(fxa_plan_save(plan, NULL, 0, NULL, &err), FXA_E_ARGUMENT);
    free(room);
}

/* A loaded plan equals the saved one: same key, same bytes, bit-equal results, in another context. */
TEST(a_loaded_plan_gives_the_same_results) {
    fxa_context *ctx = t_context(), *other = t_context();
    T_REQUIRE(ctx && other);
    static tiny t, u;
    T_OK(tiny_backward(ctx, &t, &err));
    T_OK(tiny_backward(ctx, &u, &err));
    fxa_plan *plan = NULL, *loaded = NULL;
    T_OK(fxa_plan_create(ctx, &t.problem, &plan, &err));
    static blob_bytes b, again;
    T_OK(fxa_plan_save(plan, b.data, BLOB_CAPACITY, &b.size, &err));
    T_OK(fxa_plan_load(other, b.data, b.size, &loaded, &err));
    memset(b.data, 0, BLOB_CAPACITY); /* the plan does not refer to the bytes */
    fxa_context_destroy(other);
    T_OK(fxa_plan_save(loaded, again.data, BLOB_CAPACITY, &again.size, &err));
    T_OK(fxa_plan_save(plan, b.data, BLOB_CAPACITY, &b.size, &err));
    T_INT(again.size, b.size);
    T_CHECK(memcmp(again.data, b.data, b.size) == 0);
    T_STR(fxa_plan_engine(loaded), fxa_plan_engine(plan));
    T_INT(fxa_plan_workspace(loaded), fxa_plan_workspace(plan));
    T_INT(fxa_plan_is_deterministic(loaded), fxa_plan_is_deterministic(plan));
    T_OK(tiny_run(plan, &t.args, &err));
    T_OK(tiny_run(loaded, &u.args, &err));
    T_CHECK(memcmp(t.dq, u.dq, TINY_Q_COUNT * sizeof(double)) == 0);
    T_CHECK(memcmp(t.dk, u.dk, TINY_KV_COUNT * sizeof(double)) == 0);
    T_CHECK(memcmp(t.dv, u.dv, TINY_KV_COUNT * sizeof(double)) == 0);
    T_CHECK(memcmp(t.dslopes, u.dslopes, TINY_H * sizeof(float)) == 0);
    T_SAME(*t.dcap, *u.dcap);
    T_CHECK(*t.dcap != 0);
    fxa_plan_destroy(plan);
    fxa_plan_destroy(loaded);
    tiny_end(&t);
    tiny_end(&u);
    fxa_context_destroy(ctx);
}

/* Loading uses the plan cache and adds to it. */
TEST(loading_goes_through_the_cache) {
    t_ctx *maker = t_context(), *ctx = t_context();
    T_REQUIRE(maker && ctx);
    static blob_bytes b;
    static tiny t;
    fxa_cache_stats s;
    T_OK(blob_cases[BLOB_TINY_FORWARD].make(maker, &b, &err));
    fxa_plan *plan = NULL;
    for (int i = 0; i < 3; i++) {
        T_OK(fxa_plan_load(ctx, b.data, b.size, &plan, &err));
        fxa_plan_destroy(plan);
    }
    T_OK(tiny_forward(ctx, &t, &err));
    t.problem.engine = "ref";
    T_OK(fxa_attention(ctx, &t.problem, &t.args, &err));
    T_NEAR(tiny_error(&t), 0, TINY_TOLERANCE);
    fxa_cache_get_stats(ctx, &s);
    T_INT(s.builds, 1);
    T_INT(s.hits, 3);
    tiny_end(&t);
}

/* ---- Golden files ------------------------------------------------------------------------------------------------ */

static void golden_write(const char *path, const blob_bytes *b) {
    FILE *f = fopen(path, "w");
    if (!f) {
        T_FAIL("cannot write %s\n", path);
        return;
    }
    for (size_t i = 0; i < b->size; i++) fprintf(f, "%02x%s", b->data[i], i % 40 == 39 || i + 1 == b->size ? "\n" : "");
    fclose(f);
}

static bool golden_read(const char *path, blob_bytes *b) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    unsigned x;
    for (b->size = 0; b->size < BLOB_CAPACITY && fscanf(f, "%2x", &x) == 1; b->size++) b->data[b->size] = (uint8_t)x;
    fclose(f);
    return true;
}

/* Plans have the bytes of the golden files on every machine, and the golden files load. */
CONTEXT_TEST(golden_files) {
    for (int c = 0; c < BLOB_CASES; c++) {
        static blob_bytes b, golden;
        char path[512];
        t_plan *plan = NULL;
        snprintf(path, sizeof path, "%s/tests/golden/plans/%s.hex", FXA_SOURCE_DIR, blob_cases[c].name);
        T_OK(blob_cases[c].make(ctx, &b, &err));
        if (getenv("FXA_TEST_UPDATE")) golden_write(path, &b);
        if (!golden_read(path, &golden)) T_FAIL("cannot read %s\n", path);
        if (golden.size != b.size || memcmp(golden.data, b.data, b.size) != 0)
            T_FAIL("%s: %zu bytes that differ from the golden %zu\n", blob_cases[c].name, b.size, golden.size);
        T_OK(fxa_plan_load(ctx, golden.data, golden.size, &plan, &err));
    }
}

/* ---- Other versions ---------------------------------------------------------------------------------------------- */

/* each mismatch has its own error, with both versions. */
CONTEXT_TEST(other_versions_are_told_apart) {
    static blob_bytes b;
    static blob_parts good, p;
    T_OK(blob_cases[BLOB_TINY_FORWARD].make(ctx, &b, &err));
    T_REQUIRE(blob_parts_read(&b, &good));
    T_OK(blob_parts_load(ctx, &good, &err));

    p = good, p.format = 3;
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_VERSION);
    T_HAS(err.text, "format 3");
    p = good, strcpy(p.library, "0.2.0");
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_VERSION);
    T_HAS(err.text, "0.2.0");
    T_HAS(err.text, FXA_VERSION_STRING);
    p = good, strcpy(p.library, "0.1.77"); /* another patch release has the same format */
    T_OK(blob_parts_load(ctx, &p, &err));
    p = good, strcpy(p.engine, "abacus");
    T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_VERSION);
    T_HAS(err.text, "abacus");
    T_HAS(err.text, "ref");
}

/* Bytes of the previous format: the text names it. */
CONTEXT_TEST(the_format_before_says_so) {
    static blob_bytes old;
    fxa_plan *plan = NULL;
    T_REQUIRE(golden_read(FXA_SOURCE_DIR "/tests/golden/plans/tiny_forward_format_1.hex", &old));
    T_STATUS(fxa_plan_load(ctx, old.data, old.size, &plan, &err), FXA_E_VERSION);
    T_STR(err.text, "plan bytes of format 1; this library (" FXA_VERSION_STRING ") reads format 2");
}

/* Writes p with a key that matches its other parts. */
static void blob_forge(fxa_context *ctx, blob_parts *p, blob_bytes *b) {
    fxa_error err;
    fxa__reader r = {.data = p->section[0].data, .size = p->section[0].size};
    fxa__problem *problem = NULL;
    T_OK(fxa__problem_read(fxa__context_host(ctx), &r, &problem, &err));
    fxa__plan_key_make(problem, p->engine, p->engine_version, p->identity, p->key);
    fxa__problem_release(problem);
    blob_parts_write(p, b);
}

/* Another engine version or identity is refused, or compiled again with the key of the present engine. */
CONTEXT_TEST(another_engine_is_refused_or_rebuilt) {
    static blob_bytes b;
    static blob_parts good, p;
    T_OK(blob_cases[BLOB_TINY_FORWARD].make(ctx, &b, &err));
    T_REQUIRE(blob_parts_read(&b, &good));
    for (int i = 0; i < 2; i++) {
        t_plan *plan = NULL;
        uint8_t key[16];
        p = good;
        if (i == 0) p.engine_version += 5;
        if (i == 1) strcpy(p.identity, "an abacus");
        T_STATUS(blob_parts_load(ctx, &p, &err), FXA_E_BYTES); /* the key includes the original engine */
        T_HAS(err.text, "key");
        blob_forge(ctx, &p, &b);
        T_STATUS(fxa_plan_load(ctx, b.data, b.size, &plan, &err), FXA_E_VERSION);
        T_HAS(err.text,
              i == 0 ? "a plan of engine ref version 8; this is version 3" : "for \"an abacus\"; this is \"\"");
        T_CHECK(!plan);
        T_OK(fxa_plan_load_flags(ctx, b.data, b.size, FXA_LOAD_REBUILD, &plan, &err));
        fxa_plan_key(plan, key);
        T_CHECK(memcmp(key, good.key, 16) == 0);
    }
}

T_MAIN
