/* SPDX-License-Identifier: Apache-2.0
 *
 * The caller's floating-point state has no effect on random programs and problems: text and bytes of the program, its
 * derivative, properties and tiles, and both passes of every engine are the same in a random state as in the default
 * one. test_float_state.c has the single calls.
 */
#include "support/memory/float_states.h"

#include "support/conformance/conf_case.h"

/* Parses and loads the case's program again; computes its derivative, properties and tiles. */
static void drawn_program(record *r, const conf_case *c, const char *text, const void *bytes, size_t n_bytes) {
    fxa_context *ctx = c->base.ctx;
    fxa_error err = {.text = ""};
    fxa_program *program = NULL;
    fxa_properties properties;
    memset(&properties, 0, sizeof properties);
    record_status(r, fxa_program_parse(ctx, text, SIZE_MAX, &program, &err), &err);
    if (program) record_program(r, program);
    program = NULL;
    record_status(r, fxa_program_load(ctx, bytes, n_bytes, &program, &err), &err);
    if (!program) return;
    fxa_program_properties(program, &properties);
    record_bytes(r, &properties, sizeof properties);
    for (int32_t at = 0; at < 48; at += 16) {
        fxa_tile_bounds box = {{0}, {0}};
        box.lo[FXA_INPUT_Q] = at, box.hi[FXA_INPUT_Q] = at + 15, box.hi[FXA_INPUT_K] = at + 7;
        fxa_tile_class tile = fxa_program_classify(program, &box, c->n_params ? c->params : NULL, NULL);
        record_bytes(r, &tile, sizeof tile);
    }
    record_program(r, program);
    program = NULL;
    record_status(r, fxa_program_derivative(c->program, &program, &err), &err);
    if (program) record_program(r, program);
}

/* Compares the outputs of one pass byte by byte; the call is prepared in the default state. */
static bool drawn_same_outputs(conf_case *c, fxa_pass pass, unsigned char *kept, size_t capacity, bool keep) {
    conf_buffer *t;
    size_t at = 0;
    bool same = true;
    for (int i = 0; (t = conf_output(c, pass, i)) && at + t->bytes <= capacity; at += t->bytes, i++) {
        if (keep) memcpy(kept + at, t->memory, t->bytes);
        same = same && memcmp(kept + at, t->memory, t->bytes) == 0;
    }
    if (pass == FXA_FORWARD || at + sizeof c->dparams > capacity) return same;
    if (keep) memcpy(kept + at, c->dparams, sizeof c->dparams);
    return same && memcmp(kept + at, c->dparams, sizeof c->dparams) == 0;
}

static fxa_status drawn_run(conf_case *c, const char *engine, fxa_pass pass, int state_of) {
    conf_call x;
    fxa_error err = {.text = ""};
    conf_restore_outputs(c, pass);
    conf_call_make(c, engine, pass, false, &x);
    fxa_cache_clear(c->base.ctx);
    states[state_of].set();
    state before = state_get();
    fxa_status status = fxa_attention(c->base.ctx, &x.p, &x.args, &err);
    state after = state_get();
    state_reset();
    if (memcmp(&before, &after, sizeof before) != 0)
        T_FAIL("%s left another state than %s\n", engine, states[state_of].name);
    return status;
}

static void drawn_compare_runs(conf_case *c, int state_of) {
    static unsigned char kept[1 << 20];
    char what[400], text[4000] = "";
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        conf_fill_outputs(c, pass);
        for (size_t e = 0; engine_here(e); e++) {
            const char *engine = engine_here(e);
            fxa_status plain = drawn_run(c, engine, pass, 0);
            (void)drawn_same_outputs(c, pass, kept, sizeof kept, true);
            fxa_status status = drawn_run(c, engine, pass, state_of);
            if (status == plain && drawn_same_outputs(c, pass, kept, sizeof kept, false)) continue;
            conf_describe(c, what, sizeof what);
            if (fxa_program_print(c->program, text, sizeof text, NULL, NULL) != FXA_OK) text[0] = 0;
            T_FAIL("%s, pass %d, gives other bytes in state %s (%s):\n%s\n", engine, (int)pass, states[state_of].name,
                   what, text);
        }
    }
}

static void drawn_compare_program(conf_case *c, int state_of) {
    static record want, got;
    static char text[1 << 15], bytes[1 << 15];
    size_t n = 0;
    if (fxa_program_print(c->program, text, sizeof text, NULL, NULL) != FXA_OK) return;
    if (fxa_program_save(c->program, bytes, sizeof bytes, &n, NULL) != FXA_OK) return;
    want.size = got.size = 0;
    drawn_program(&want, c, text, bytes, n);
    states[state_of].set();
    state before = state_get();
    drawn_program(&got, c, text, bytes, n);
    state after = state_get();
    state_reset();
    if (memcmp(&before, &after, sizeof before) != 0) T_FAIL("another state is left than %s\n", states[state_of].name);
    if (want.size != got.size || memcmp(want.byte, got.byte, want.size) != 0)
        T_FAIL("other bytes in state %s:\n%s\n", states[state_of].name, text);
}

CONTEXT_TEST(no_state_reaches_random_problems) {
    static const conf_source sources[] = {CONF_WILD, CONF_STEEP, CONF_BOTH, CONF_GALLERY, CONF_SPARSE, CONF_TWIN};
    static conf_case c;
    static conf_tally tally;
    uint64_t rng = t_seed();
    for (int i = 0; i < t_scaled(120) && !t_failures; i++) {
        const char *name;
        attn_shape shape = {.b = 2,
                            .hkv = 2,
                            .hq = 2,
                            .sq = attn_int(&rng, 1, 20),
                            .sk = attn_int(&rng, 1, 40),
                            .d = attn_int(&rng, 1, 12),
                            .window = 6,
                            .page_size = 8,
                            .n_pages = 12};
        shape.dv = shape.d;
        fxa_program *program = conf_program(ctx, sources[i % 6], FXA_SOURCE_DIR "/examples/programs", &rng, &name);
        uint32_t features = ATTN_ALL & (uint32_t)attn_next(&rng);
        int state_of = (int)attn_int(&rng, 1, N_STATES - 1);
        T_REQUIRE(program && conf_draw(&c, ctx, features, &shape, program, name, NULL, &tally, &rng));
        drawn_compare_program(&c, state_of);
        drawn_compare_runs(&c, state_of);
        conf_free(&c);
    }
}

/* A hook that computes in the x87, as long double does: the flags that it raises do not stay. */
static void *raising_alloc(void *user, void *ptr, size_t old_size, size_t new_size, size_t align) {
    volatile long double third = 1.0L;
    third /= 3.0L;
    (void)user, (void)old_size, (void)third;
    if (new_size == 0) return free(ptr), NULL;
    return align <= 16 ? realloc(ptr, new_size) : aligned_alloc(align, (new_size + align - 1) / align * align);
}

TEST(flags_of_hooks_do_not_stay) {
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    t_ctx *ctx = NULL;
    fxa_program *program = NULL;
    config.alloc = raising_alloc, config.threads = 1;
    T_OK(fxa_context_create(&config, &ctx, &err));
    for (int i = 0; i < N_STATES; i++) {
        state_reset();
        states[i].set();
        state before = state_get();
        fxa_status status = fxa_program_parse(ctx, "score = score * 0.1", SIZE_MAX, &program, &err);
        state after = state_get();
        state_reset();
        T_INT(status, FXA_OK);
        if (memcmp(&before, &after, sizeof before) != 0) T_FAIL("another state than %s is left\n", states[i].name);
        fxa_program_destroy(program);
    }
}

T_MAIN
