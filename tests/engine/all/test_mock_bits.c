/* SPDX-License-Identifier: Apache-2.0
 *
 * A device gives the same bits as the host: random problems of every kind by the reference engine, and by the same
 * engine as a device whose memory the host cannot access (support/mock/mock_device.h), once through fxa_attention,
 * which copies tensors to the device and back, and once by fxa_plan_run on tensors that the test has placed on the
 * device. All bytes of all outputs are compared, also those between elements; any access of the library to device
 * memory faults.
 */
#include "support/conformance/conf_case.h"
#include "support/mock/mock_call.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

static const fxa__engine *own_engines[OWN_ENGINES] = {&mock_engine, &fxa__engine_ref};

typedef enum bits_way { BITS_STAGED, BITS_PLACED, BITS_LOADED, BITS_WAYS } bits_way;

/* Scalars of a call, passed in slots or as arguments; both must give the same results. */
typedef struct bits_scalars {
    double scale, params[CONF_PARAMS];
    uint64_t seed;
} bits_scalars;

static void scalars_to_memory(conf_call *x, bits_scalars *s) {
    s->scale = x->args.scale, s->seed = x->args.seed;
    memcpy(s->params, x->args.params, x->args.n_params * sizeof(double));
    x->p.flags |= FXA_SCALARS_IN_MEMORY;
    x->args.slot[FXA_SLOT_SCALE] = &s->scale;
    if (x->p.flags & FXA_DROPOUT) x->args.slot[FXA_SLOT_SEED] = &s->seed;
    if (x->args.n_params) x->args.slot[FXA_SLOT_PARAMS] = s->params;
    x->args.scale = 1e300, x->args.seed = 99, x->args.params = NULL, x->args.n_params = 0;
}

static void device_run(fxa_context *ctx, const conf_call *x, bits_way way, int32_t ordinal) {
    fxa_error err;
    fxa_plan *plan = NULL;
    static mock_call call;
    T_OK(fxa_plan_create(ctx, &x->p, &plan, &err));
    T_REQUIRE(plan);
    if (way == BITS_LOADED) {
        static unsigned char bytes[1 << 16];
        size_t size = 0;
        T_OK(fxa_plan_save(plan, bytes, sizeof bytes, &size, &err));
        fxa_plan_destroy(plan);
        T_OK(fxa_plan_load(ctx, bytes, size, &plan, &err));
        T_REQUIRE(plan);
    }
    mock_call_place(&call, plan, &x->args, ordinal);
    T_OK(fxa_plan_run(plan, &call.args, &err));
    fxa_plan_destroy(plan); /* a started run does not need the plan */
    T_OK(mock_sync(ordinal, &err));
    mock_call_fetch(&call);
    mock_call_end(&call);
}

static void bits_pass(conf_case *c, fxa_pass pass, int number) {
    fxa_error err;
    conf_call x;
    bits_scalars scalars;
    conf_buffer *t;
    double dparams[CONF_PARAMS];
    unsigned char *want[32];
    int n = 0;
    conf_fill_outputs(c, pass);
    conf_call_make(c, "ref", pass, false, &x);
    if (number % 2) scalars_to_memory(&x, &scalars);
    T_OK(fxa_attention(c->base.ctx, &x.p, &x.args, &err));
    for (; (t = conf_output(c, pass, n)); n++) {
        want[n] = malloc(t->bytes + 1);
        if (!want[n]) abort();
        memcpy(want[n], t->memory, t->bytes);
    }
    memcpy(dparams, c->dparams, sizeof dparams);
    for (bits_way way = BITS_STAGED; way < BITS_WAYS; way++) {
        conf_restore_outputs(c, pass);
        conf_call_make(c, "mock", pass, false, &x);
        x.p.ordinal = number % 3 == 0;
        if ((number >> way & 1) != 0) scalars_to_memory(&x, &scalars);
        if (way == BITS_STAGED)
            T_OK(fxa_attention(c->base.ctx, &x.p, &x.args, &err));
        else
            device_run(c->base.ctx, &x, way, x.p.ordinal);
        for (int i = 0; (t = conf_output(c, pass, i)); i++)
            if (memcmp(want[i], t->memory, t->bytes) != 0) T_FAIL("%s has other bits, way %d\n", t->name, (int)way);
        if (memcmp(dparams, c->dparams, sizeof dparams) != 0) T_FAIL("dparams has other bits, way %d\n", (int)way);
    }
    while (n > 0) free(want[--n]);
}

static void bits_cases(uint32_t features, conf_source source, int count) {
    fxa_context *ctx = t_context();
    uint64_t rng = t_seed() ^ features ^ ((uint64_t)source << 40);
    int before = t_failures;
    mock_reset();
    for (int i = 0; i < count && t_failures == before; i++) {
        static conf_case c;
        conf_tally tally = {0};
        const char *name;
        char what[400];
        uint64_t start = rng;
        attn_shape s = {.b = attn_int(&rng, 0, 3), .hkv = attn_int(&rng, 1, 2), .page_size = attn_int(&rng, 1, 9)};
        s.hq = s.hkv * attn_int(&rng, 1, 3), s.sk = attn_int(&rng, 0, 40), s.sq = attn_int(&rng, 0, 20);
        s.d = attn_int(&rng, 1, 20), s.dv = attn_int(&rng, 1, 20), s.n_pages = attn_int(&rng, 1, 20), s.window = 9;
        fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", &rng, &name);
        fxa_program *bprop = i % 9 == 8 ? conf_bprop(ctx, &rng) : NULL;
        uint32_t drawn = features & (uint32_t)attn_next(&rng);
        T_REQUIRE(program);
        if (conf_draw(&c, ctx, drawn, &s, program, name, bprop, &tally, &rng)) {
            bits_pass(&c, FXA_FORWARD, i);
            bits_pass(&c, FXA_BACKWARD, i);
        } else {
            T_FAIL("%s\n", c.why);
        }
        conf_describe(&c, what, sizeof what);
        if (t_failures != before) T_FAIL("0x%" PRIx64 ": %s\n", start, what);
        conf_free(&c);
    }
    fxa_context_destroy(ctx);
    T_INT(mock.mistakes, 0);
    T_INT(mock.blocks, 0);
    T_INT(mock.codes, 0);
    T_INT(mock.queued, 0);
    T_INT(mock.opened, mock.closed);
}

TEST(plain_on_a_device) { bits_cases(ATTN_ALL, CONF_IDENTITY, t_scaled(100)); }
TEST(twins_on_a_device) { bits_cases(ATTN_ALL, CONF_TWIN, t_scaled(150)); }
TEST(programs_with_masks_on_a_device) { bits_cases(ATTN_ALL, CONF_BOTH, t_scaled(100)); }
TEST(wild_programs_on_a_device) { bits_cases(ATTN_ALL, CONF_WILD, t_scaled(100)); }
TEST(gallery_on_a_device) { bits_cases(ATTN_ALL, CONF_GALLERY, t_scaled(100)); }

T_MAIN
