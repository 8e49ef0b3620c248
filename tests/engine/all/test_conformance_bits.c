/* SPDX-License-Identifier: Apache-2.0
 *
 * Deterministic results: the same bits in every run, for any number of threads, through a caller's parallel loop, from
 * a loaded plan, and for a batch entry in any batch. Forward, backward, all gradients.
 */
#include "support/conformance/conf_case.h"
#include "t.h"

/* Every byte of every output of both passes. Backward reads the O and LSE of the forward run. */
typedef struct bits_result {
    unsigned char *bytes;
    size_t size;
} bits_result;

static void bits_append(bits_result *r, const void *data, size_t size) {
    r->bytes = realloc(r->bytes, r->size + size + 1);
    if (!r->bytes) abort();
    memcpy(r->bytes + r->size, data, size);
    r->size += size;
}

static bits_result bits_collect(conf_case *c, fxa_pass pass, bits_result r) {
    conf_buffer *t;
    for (int i = 0; (t = conf_output(c, pass, i)); i++) bits_append(&r, t->memory, t->bytes);
    if (pass == FXA_BACKWARD) bits_append(&r, c->dparams, c->n_params * sizeof(double));
    return r;
}

/* Runs each pass once, with a plan as made or, if `reload`, with the plan saved and loaded. */
static bits_result bits_run(conf_case *c, fxa_context *ctx, const char *engine, bool reload) {
    bits_result r = {0};
    for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
        fxa_error err;
        fxa_plan *plan = NULL, *loaded = NULL;
        conf_call x;
        size_t n = 0;
        conf_fill_outputs(c, pass);
        conf_call_make(c, engine, pass, false, &x);
        T_OK(fxa_plan_create(ctx, &x.p, &plan, &err));
        if (!plan) return r;
        if (reload) {
            T_OK(fxa_plan_save(plan, NULL, 0, &n, &err));
            void *bytes = malloc(n);
            T_OK(fxa_plan_save(plan, bytes, n, &n, &err));
            T_OK(fxa_plan_load(ctx, bytes, n, &loaded, &err));
            free(bytes);
            fxa_plan_destroy(plan);
            plan = loaded;
            if (!plan) return r;
        }
        x.args.workspace_size = fxa_plan_workspace(plan);
        x.args.workspace = aligned_alloc(64, x.args.workspace_size / 64 * 64 + 64);
        if (!x.args.workspace) abort();
        memset(x.args.workspace, 0xff, x.args.workspace_size);
        T_OK(fxa_plan_run(plan, &x.args, &err));
        r = bits_collect(c, pass, r);
        free(x.args.workspace);
        fxa_plan_destroy(plan);
    }
    return r;
}

static void bits_same(const conf_case *c, bits_result got, bits_result want, const char *how) {
    size_t at = 0;
    char what[400];
    while (at < got.size && at < want.size && got.bytes[at] == want.bytes[at]) at++;
    conf_describe(c, what, sizeof what);
    if (got.size != want.size || at < got.size) T_FAIL("%s: byte %zu of %zu differs: %s\n", how, at, want.size, what);
    free(got.bytes);
}

static bool bits_draw(conf_case *c, fxa_context *ctx, uint32_t features, conf_source source, const attn_shape *shape,
                      uint64_t *rng) {
    static conf_tally tally;
    const char *name;
    fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", rng, &name);
    return program && conf_draw(c, ctx, features, shape, program, name, NULL, &tally, rng);
}

static fxa_context *bits_context(uint32_t threads, fxa_parallel_fn parallel) {
    fxa_error err;
    fxa_context *ctx = NULL;
    fxa_context_config config = FXA_CONTEXT_CONFIG_INIT;
    config.threads = threads, config.parallel = parallel;
    T_OK(fxa_context_create(&config, &ctx, &err));
    return ctx;
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

TEST(a_thousand_runs_are_bit_equal) {
    for (size_t e = 0; engine_here(e); e++) {
        if (strcmp(engine_here(e), "ref") == 0) continue; /* ref has one thread and is slow */
        static conf_case c;
        uint64_t rng = t_seed();
        const attn_shape shape = {.b = 2, .hq = 4, .hkv = 2, .sq = 60, .sk = 90, .d = 33, .dv = 17, .window = 9};
        t_ctx *ctx = bits_context(3, NULL);
        T_REQUIRE(bits_draw(&c, ctx, ATTN_GQA | ATTN_DIMS | ATTN_SINK | ATTN_DLSE, CONF_TWIN, &shape, &rng));
        bits_result want = bits_run(&c, ctx, engine_here(e), false);
        for (int i = 0; i < t_scaled(1000) / 2; i++) { /* each case has two runs */
            bits_same(&c, bits_run(&c, ctx, engine_here(e), false), want, "again");
            if (t_failures) break;
        }
        free(want.bytes);
        conf_free(&c);
    }
}

/* A caller's parallel loop that runs all tasks, the last one first. */
static void bits_backwards(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
    (void)user;
    for (int32_t i = n - 1; i >= 0; i--) task(arg, i);
}

/* Returns a shape that is large enough for several threads: prefill, few rows with many keys, or one sequence of many
 * pieces. */
static attn_shape bits_shape(int i, uint64_t *rng) {
    static const int64_t size[][2] = {{230, 270}, {1, 1500}, {7, 900}, {70, 500}, {400, 90}};
    attn_shape s = {.b = attn_int(rng, 1, 2), .hkv = attn_int(rng, 1, 2), .d = attn_int(rng, 30, 80)};
    s.hq = s.hkv * attn_int(rng, 1, 4), s.dv = attn_int(rng, 20, 70), s.sq = size[i % 5][0], s.sk = size[i % 5][1];
    s.page_size = 16, s.n_pages = s.sk / 16 + 5, s.window = 100;
    return s;
}

TEST(any_number_of_threads_gives_the_same_bits) {
    const uint32_t features = ATTN_GQA | ATTN_DIMS | ATTN_PADDING | ATTN_VARLEN | ATTN_PAGED | ATTN_SINK |
                              ATTN_DROPOUT | ATTN_DTYPES | ATTN_STRIDES | ATTN_ACC | ATTN_READY | ATTN_DLSE |
                              ATTN_ROWS | ATTN_CHUNKED | ATTN_MIXED;
    static const conf_source sources[] = {CONF_TWIN, CONF_BOTH, CONF_GALLERY, CONF_IDENTITY, CONF_SPARSE};
    static const uint32_t threads[] = {2, 3, 7};
    for (size_t e = 0; engine_here(e); e++) {
        uint64_t rng = t_seed() + 1;
        if (strcmp(engine_here(e), "ref") == 0) continue;
        fxa_context *one = bits_context(1, NULL), *own = bits_context(5, bits_backwards), *many[3];
        for (int i = 0; i < 3; i++) many[i] = bits_context(threads[i], NULL);
        for (int n = 0; n < t_scaled(20); n++) {
            static conf_case c;
            attn_shape shape = bits_shape(n, &rng);
            uint32_t drawn = n < 5 ? ATTN_GQA : features & (uint32_t)attn_next(&rng);
            T_REQUIRE(bits_draw(&c, one, drawn, sources[(n + n / 5) % 5], &shape, &rng));
            bits_result want = bits_run(&c, one, engine_here(e), false);
            for (int i = 0; i < 3; i++) bits_same(&c, bits_run(&c, many[i], engine_here(e), false), want, "threads");
            bits_same(&c, bits_run(&c, own, engine_here(e), false), want, "the caller's loop");
            bits_same(&c, bits_run(&c, many[0], engine_here(e), true), want, "saved and loaded");
            free(want.bytes);
            conf_free(&c);
        }
        for (int i = 0; i < 3; i++) fxa_context_destroy(many[i]);
        fxa_context_destroy(one);
        fxa_context_destroy(own);
    }
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Runs batch entry b as a batch of its own, with the same memory and the same coordinate. */
static void bits_run_entry(conf_case *c, const char *engine, fxa_pass pass, int64_t b) {
    fxa_error err;
    fxa_problem p = FXA_PROBLEM_INIT;
    t_plan *plan = NULL;
    conf_call x;
    conf_call_make(c, engine, pass, false, &x);
    T_OK(fxa_plan_create(c->base.ctx, &x.p, &plan, &err));
    if (!plan) return;
    fxa_plan_problem(plan, &p); /* problem x.p with explicit strides */
    p.struct_size = sizeof p, p.engine = engine, p.b = 1;
    p.map_b.base = b;
    for (int i = 0; i < CONF_SLOTS; i++) {
        bool sink = i == FXA_SLOT_SINKS || i == FXA_SLOT_DSINKS, packed = c->base.features & ATTN_VARLEN;
        if (!x.args.slot[i] || sink || packed) continue;
        x.args.slot[i] = c->slot[i].origin + b * c->slot[i].stride[0] * (int64_t)fxa_dtype_size(c->slot[i].dtype);
    }
    for (int i = FXA_SLOT_Q_LENGTHS; i <= FXA_SLOT_CU_K; i++)
        if (x.args.slot[i]) x.args.slot[i] = (int32_t *)x.args.slot[i] + b;
    T_OK(fxa_attention(c->base.ctx, &p, &x.args, &err));
}

TEST(a_batch_entry_does_not_depend_on_the_others) { /* */
    const uint32_t features = ATTN_GQA | ATTN_DIMS | ATTN_PADDING | ATTN_VARLEN | ATTN_SINK_ZERO | ATTN_DROPOUT |
                              ATTN_DTYPES | ATTN_READY | ATTN_DLSE;
    for (size_t e = 0; engine_here(e); e++) {
        uint64_t rng = t_seed() + 2;
        t_ctx *ctx = bits_context(2, NULL);
        for (int n = 0; n < t_scaled(60); n++) {
            static conf_case c;
            attn_shape s = {.b = 3, .hkv = 2, .sq = attn_int(&rng, 1, 70), .sk = attn_int(&rng, 1, 90), .window = 8};
            s.hq = s.hkv * attn_int(&rng, 1, 3), s.d = attn_int(&rng, 1, 70), s.dv = attn_int(&rng, 1, 70);
            T_REQUIRE(
                bits_draw(&c, ctx, features & (uint32_t)attn_next(&rng), n % 2 ? CONF_TWIN : CONF_BOTH, &s, &rng));
            for (size_t i = 0; i < c.n_tensors; i++) c.captures[i].grad = 0; /* none: they are sums over the batch */
            c.base.data.problem.param_grads = 0;
            for (fxa_pass pass = FXA_FORWARD; pass <= FXA_BACKWARD; pass++) {
                bits_result want = {0}, got = {0};
                conf_fill_outputs(&c, pass);
                if (!conf_run(&c, engine_here(e), pass)) T_FAIL("%s\n", c.why);
                want = bits_collect(&c, pass, want);
                conf_restore_outputs(&c, pass);
                for (int64_t b = 0; b < c.base.x.b; b++) bits_run_entry(&c, engine_here(e), pass, b);
                got = bits_collect(&c, pass, got);
                bits_same(&c, got, want, pass ? "backward alone" : "forward alone");
                free(want.bytes);
            }
            conf_free(&c);
        }
    }
}

T_MAIN
