/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines access only the memory given to them: every buffer of a random problem, including captured tensors, lengths,
 * pages and the workspace, is next to a page that faults, and inputs are read-only. Results have the same bits as
 * without guard pages (so they do not depend on alignment), and runs allocate nothing.
 */
#include "support/conformance/conf_guard.h"
#include "support/memory/guard.h"
#include "t.h"

static int memory_calls;
static void *memory_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    (void)user, (void)old_size;
    memory_calls++;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    if (align < 16 || ptr) return realloc(ptr, new_size);
    return aligned_alloc(align, (new_size + align - 1) / align * align);
}

static void memory_pass(conf_case *c, const char *engine, fxa_pass pass) {
    fxa_error err;
    t_plan *plan = NULL;
    conf_call x;
    char what[400];
    conf_describe(c, what, sizeof what);
    conf_fill_outputs(c, pass);
    if (!conf_run(c, engine, pass)) T_FAIL("%s\n", c->why);
    conf_call_make(c, engine, pass, false, &x);
    T_OK(fxa_plan_create(c->base.ctx, &x.p, &plan, &err));
    for (int at_end = 0; plan && at_end < 2; at_end++) {
        static conf_guard g;
        double dparams[CONF_PARAMS];
        conf_guard_make(&g, c, engine, pass, at_end, fxa_plan_workspace(plan));
        memcpy(dparams, c->dparams, sizeof dparams);
        memcpy(g.c.dparams, c->old_dparams, sizeof dparams);
        memory_calls = 0;
        T_OK(fxa_plan_run(plan, &g.call.args, &err));
        T_INT(memory_calls, 0);
        if (!conf_guard_same(&g, c, pass)) T_FAIL("%s, %s\n    %s\n", engine, c->why, what);
        if (memcmp(dparams, g.c.dparams, sizeof dparams) != 0) T_FAIL("%s, params: %s\n", engine, what);
        conf_guard_free(&g);
    }
}

static void memory_cases(const char *engine, uint32_t features, conf_source source, int n) {
    fxa_error err;
    t_ctx *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    uint64_t rng = t_seed() ^ features;
    int before = t_failures;
    config.alloc = memory_alloc, config.threads = 2;
    T_OK(fxa_context_create(&config, &ctx, &err));
    for (int i = 0; i < n && t_failures == before; i++) {
        static conf_case c;
        conf_tally tally = {0};
        const char *name;
        static const int64_t edges[] = {1, 3, 15, 16, 17, 31, 33, 47, 49, 65, 127, 130, 200};
        attn_shape s = {.b = attn_int(&rng, 1, 2), .hkv = attn_int(&rng, 1, 2), .page_size = attn_int(&rng, 1, 9)};
        s.hq = s.hkv * attn_int(&rng, 1, 3), s.sk = edges[attn_int(&rng, 0, 12)], s.sq = edges[attn_int(&rng, 0, 9)];
        s.d = attn_int(&rng, 1, 70), s.dv = attn_int(&rng, 1, 70), s.n_pages = attn_int(&rng, 1, 20), s.window = 20;
        fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", &rng, &name);
        T_REQUIRE(program &&
                  conf_draw(&c, ctx, features & (uint32_t)attn_next(&rng), &s, program, name, NULL, &tally, &rng));
        memory_pass(&c, engine, FXA_FORWARD);
        memory_pass(&c, engine, FXA_BACKWARD); /* backward reads the O and LSE of forward */
        conf_free(&c);
    }
}

static void memory_engines(conf_source source, int n) {
    for (size_t e = 0; engine_here(e); e++)
        memory_cases(engine_here(e), ATTN_ALL, source, strcmp(engine_here(e), "ref") ? n : n / 10 + 1);
}

/* Returns true if a child process that accesses byte `at` of K dies. Called before the guarded case has run. */
static bool memory_child_dies(conf_guard *g, int64_t at, bool write_it) {
    return guard_child_dies(g->c.slot[FXA_SLOT_K].memory + at, write_it);
}

CONTEXT_TEST(guard_pages_catch_a_read_outside_and_a_write_to_an_input) {
    static conf_case c;
    static conf_guard g;
    uint64_t rng = t_seed();
    conf_tally tally = {0};
    const char *name;
    const attn_shape s = {.b = 1, .hq = 1, .hkv = 1, .sq = 3, .sk = 5, .d = 3, .dv = 3};
    fxa_program *program = conf_program(ctx, CONF_IDENTITY, "", &rng, &name);
    T_REQUIRE(conf_draw(&c, ctx, 0, &s, program, name, NULL, &tally, &rng));
    conf_fill_outputs(&c, FXA_FORWARD);
    for (int at_end = 0; at_end < 2; at_end++) {
        conf_guard_make(&g, &c, "ref", FXA_FORWARD, at_end, 100);
        int64_t size = (int64_t)g.c.slot[FXA_SLOT_K].bytes;
        T_INT(size, 5 * 3 * (int64_t)fxa_dtype_size(c.slot[FXA_SLOT_K].dtype));
        T_CHECK(!memory_child_dies(&g, 0, false) && !memory_child_dies(&g, size - 1, false));
        T_CHECK(memory_child_dies(&g, at_end ? size : -1, false));
        T_CHECK(memory_child_dies(&g, 0, true));
        conf_guard_free(&g);
    }
    conf_free(&c);
}

TEST(plain_between_guard_pages) { memory_engines(CONF_IDENTITY, t_scaled(150)); }
TEST(twins_between_guard_pages) { memory_engines(CONF_TWIN, t_scaled(150)); }
TEST(programs_and_masks_between_guard_pages) { memory_engines(CONF_BOTH, t_scaled(100)); }
TEST(wild_programs_between_guard_pages) { memory_engines(CONF_WILD, t_scaled(100)); }
TEST(gallery_between_guard_pages) { memory_engines(CONF_GALLERY, t_scaled(100)); }

T_MAIN
