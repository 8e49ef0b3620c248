/* SPDX-License-Identifier: Apache-2.0
 *
 * Every engine compared with the reference: each feature, and random combinations of all features, with random
 * programs, shapes, layouts and dtypes, forward and backward, by one runner and one reference. A refusal must agree
 * with the support report. docs/numerics.md has the tolerances. FXA_TEST_ENGINE selects one engine, also ref;
 * FXA_TEST_CASE=0x... repeats the case named by a failure; FXA_TEST_DTYPE=bf16 gives all cases that dtype of Q.
 */
#include "support/conformance/conf_case.h"
#include "support/fixtures/isa.h"
#include "t.h"

static const char *conform_engine(size_t i) {
    const char *only = getenv("FXA_TEST_ENGINE");
    for (size_t j = 0, n = 0; engine_here(j); j++)
        if ((strcmp(engine_here(j), "ref") != 0 || (only && *only)) && n++ == i) return engine_here(j);
    return NULL;
}

/* Returns a random length: usually short, often equal or next to the sizes of kernels and blocks. */
static int64_t conform_length(uint64_t *rng, int64_t most) {
    static const int64_t edges[] = {1, 4, 6, 8, 12, 16, 32, 48, 64, 96, 128, 192, 256, 384};
    int64_t n = edges[attn_int(rng, 0, 13)] + attn_int(rng, -1, 1), r = attn_int(rng, 0, 9);
    if (r < 4)
        n = attn_int(rng, 0, 24);
    else if (r < 6)
        n = attn_int(rng, 0, 300);
    return n < most ? n : attn_int(rng, most / 2, most);
}

static int64_t conform_width(uint64_t *rng) {
    static const int64_t wide[] = {64, 128, 256, 512, 96, 80};
    return attn_int(rng, 0, 9) ? attn_int(rng, 1, 70) : wide[attn_int(rng, 0, 5)];
}

/* Returns a shape of at most `pairs` pairs, because the reference evaluates each pair several times. */
static attn_shape conform_shape(uint32_t features, int64_t pairs, uint64_t *rng) {
    attn_shape s = {.b = attn_int(rng, 1, 3), .hkv = attn_int(rng, 1, 3)};
    s.hq = s.hkv * (features & ATTN_GQA ? attn_int(rng, 1, 4) : 1);
    s.d = conform_width(rng);
    s.dv = features & ATTN_DIMS ? conform_width(rng) : s.d;
    int64_t first = conform_length(rng, 400), room = pairs / (s.b * s.hq * (first ? first : 1)) + 1;
    int64_t second = conform_length(rng, room < 400 ? room : 400);
    bool keys_first = attn_int(rng, 0, 2) > 0; /* prefer many keys with few rows */
    s.sk = keys_first ? first : second, s.sq = keys_first ? second : first;
    s.page_size = attn_int(rng, 0, 1) ? attn_int(rng, 1, 20) : 16;
    s.n_pages = attn_int(rng, 1, s.b * (s.sk / s.page_size + 1) + 2);
    s.window = attn_int(rng, 0, 1) ? 6 : s.sk;
    return s;
}

/* ---- Random cases ------------------------------------------------------------------------------------------------ */

typedef struct conform_plan {
    uint32_t features;
    bool free_choice; /* true: each case draws any subset of the features */
    uint32_t sources; /* bit i: conf_source i */
    int64_t pairs;
    int n;
    double unsure;         /* maximum share of inconclusive cases */
    const uint64_t *found; /* cases that failed in the past, which run first; ends with 0 */
} conform_plan;

static bool conform_case(fxa_context *ctx, const char *engine, const conform_plan *plan, conf_tally *tally,
                         uint64_t *rng) {
    static conf_case c;
    char what[400];
    const char *name;
    uint64_t start = *rng;
    conf_source source = plan->sources >> CONF_STEEP & 1 ? CONF_STEEP : CONF_SPARSE; /* which come alone */
    if (!(plan->sources >> CONF_SPARSE)) do
            source = (conf_source)attn_int(rng, CONF_IDENTITY, CONF_GALLERY);
        while (!(plan->sources >> source & 1));
    uint32_t features = plan->free_choice ? plan->features & (uint32_t)attn_next(rng) : plan->features;
    fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", rng, &name);
    fxa_program *bprop = plan->free_choice && attn_int(rng, 0, 15) == 0 ? conf_bprop(ctx, rng) : NULL;
    if (!program) {
        T_FAIL("no program (%s, 0x%" PRIx64 ")\n", name, start);
        return false;
    }
    attn_shape shape = conform_shape(features, attn_int(rng, 0, 30) ? plan->pairs : 10 * plan->pairs, rng);
    bool ok = conf_draw(&c, ctx, features, &shape, program, name, bprop, tally, rng);
    ok = ok && conf_check_forward(&c, engine) && conf_check_backward(&c, engine);
    if (!ok) {
        char text[4000] = "";
        conf_describe(&c, what, sizeof what);
        if (fxa_program_print(program, text, sizeof text, NULL, NULL) != FXA_OK) text[0] = 0;
        T_FAIL("%s (0x%" PRIx64 "): %s\n    %s\n%s", engine, start, what, c.why, text);
    }
    conf_free(&c);
    return ok;
}

static void conform_report(const char *engine, const conf_tally *tally) {
    printf("  %s: %" PRId64 " runs, %" PRId64 " refused, %" PRId64 " unsure, %" PRId64
           " elements; worst in parts of what is"
           " allowed, element (root mean square):",
           engine, tally->cases, tally->refused, tally->unsure, tally->elements);
    for (int d = FXA_F64; d <= FXA_E5M2; d++)
        if (tally->by_dtype[d])
            printf(" %s %.2g (%.2g)", fxa_dtype_name((fxa_dtype)d), tally->element[d], tally->rms[d]);
    printf("\n");
}

static void conform_cases(conform_plan plan) {
    if (!conform_engine(0)) T_SKIP("this build has no engine beside the reference");
    for (size_t e = 0; conform_engine(e); e++) {
        fxa_error err;
        t_ctx *ctx = NULL;
        uint64_t rng = t_seed() ^ plan.features ^ ((uint64_t)plan.sources << 32);
        conf_tally tally = {0};
        const char *replay = getenv("FXA_TEST_CASE");
        if (replay && *replay) rng = strtoull(replay, NULL, 0), plan.n = 1;
        T_OK(fxa_context_create(NULL, &ctx, &err));
        for (const uint64_t *case_of = plan.found; case_of && *case_of; case_of++) {
            uint64_t state = *case_of;
            conform_case(ctx, conform_engine(e), &plan, &tally, &state);
        }
        for (int i = 0; i < plan.n; i++)
            if (!conform_case(ctx, conform_engine(e), &plan, &tally, &rng)) break;
        conform_report(conform_engine(e), &tally);
        /* However few cases there are, one may be inconclusive, in both of its runs (forward and backward). */
        if ((double)tally.unsure > plan.unsure * (double)tally.cases + 2)
            T_FAIL("nothing can be said of %" PRId64 " runs of %" PRId64 "\n", tally.unsure, tally.cases);
    }
}

/* ---- The comparison itself --------------------------------------------------------------------------------------- */

/* Compares a forward run of the reference with itself after `change` has altered the result. Returns true if the
 * comparison finds the change. */
static bool conform_spoilt(uint32_t features, void (*change)(conf_buffer *o)) {
    static conf_case c;
    t_ctx *ctx = t_context();
    uint64_t rng = t_seed();
    conf_tally tally = {0};
    const char *name;
    const attn_shape shape = {.b = 1, .hq = 2, .hkv = 1, .sq = 17, .sk = 300, .d = 5, .dv = 5, .window = 3};
    fxa_program *program = conf_program(ctx, CONF_IDENTITY, "", &rng, &name);
    bool ok = conf_draw(&c, ctx, features, &shape, program, name, NULL, &tally, &rng);
    conf_fill_outputs(&c, FXA_FORWARD);
    ok = ok && conf_reference(&c, FXA_FORWARD) && conf_bound_forward(&c) && conf_run(&c, "ref", FXA_FORWARD);
    if (!ok) T_FAIL("%s\n", c.why);
    change(&c.slot[FXA_SLOT_O]);
    ok = conf_compare(&c, FXA_FORWARD);
    conf_free(&c);
    return ok;
}

static int64_t conform_first(const conf_buffer *t) {
    const int64_t at[4] = {0};
    return conf_place(t, at);
}
static void spoil_nothing(conf_buffer *o) { (void)o; }
static void spoil_one(conf_buffer *o) { ((double *)(void *)o->memory)[conform_first(o)] += 1e-13; }
static void spoil_all(conf_buffer *o) { /* each element within its bound, but nearly all at the bound */
    double *x = (double *)(void *)o->memory;
    int64_t at[4] = {0};
    do {
        int64_t i = conf_place(o, at);
        x[i] += 1.5 * o->error[i] + 42 * 0x1p-52 * (o->size[i] + fabs(x[i]));
    } while (conf_next(o, at));
}
static void spoil_nan(conf_buffer *o) { ((double *)(void *)o->memory)[conform_first(o)] = NAN; }
static void spoil_row(conf_buffer *o) { ((double *)(void *)o->memory)[conform_first(o) - 1] = 0; }

TEST(comparison_finds_what_is_wrong) {
    if (getenv("FXA_TEST_DTYPE")) T_SKIP("it spoils f64, and FXA_TEST_DTYPE is set");
    T_CHECK(conform_spoilt(0, spoil_nothing));
    T_CHECK(!conform_spoilt(0, spoil_one));
    T_CHECK(!conform_spoilt(0, spoil_nan));
    T_CHECK(!conform_spoilt(0, spoil_row)); /* a change outside of the tensor */
    T_CHECK(!conform_spoilt(0, spoil_all));
}

/* ---- Features ---------------------------------------------------------------------------------------------------- */

#define FROM(source) (1u << (source))
static const uint32_t tame = FROM(CONF_IDENTITY) | FROM(CONF_TWIN) | FROM(CONF_SMOOTH) | FROM(CONF_BOTH);
static const uint32_t all_features = ATTN_ALL;

TEST(plain_f64) { conform_cases((conform_plan){0, false, FROM(CONF_IDENTITY), 3000, t_scaled(40), 0, NULL}); }
TEST(plain_any_dtype) {
    conform_cases((conform_plan){ATTN_DTYPES, false, FROM(CONF_IDENTITY), 3000, t_scaled(60), 0, NULL});
}
TEST(grouped_heads_and_widths) { /* */
    conform_cases(
        (conform_plan){ATTN_GQA | ATTN_DIMS | ATTN_DTYPES, false, FROM(CONF_IDENTITY), 3000, t_scaled(60), 0, NULL});
}
TEST(twins) {
    conform_cases((conform_plan){ATTN_DTYPES | ATTN_DLSE, false, FROM(CONF_TWIN), 1500, t_scaled(120), 0.02, NULL});
}
TEST(smooth_programs) { /* */
    conform_cases((conform_plan){ATTN_DTYPES | ATTN_DLSE, false, FROM(CONF_SMOOTH), 1000, t_scaled(150), 0.02, NULL});
}
TEST(masks) { conform_cases((conform_plan){ATTN_DTYPES, false, FROM(CONF_MASK), 3000, t_scaled(150), 0, NULL}); }
TEST(programs_with_masks) {
    conform_cases((conform_plan){ATTN_DTYPES, false, FROM(CONF_BOTH), 1500, t_scaled(100), 0.02, NULL});
}
/* some programs take the logarithm of nearly 0, where only wider arithmetic is conclusive */
TEST(gallery_programs) { /* */
    conform_cases((conform_plan){ATTN_DTYPES | ATTN_GQA, false, FROM(CONF_GALLERY), 1500, t_scaled(150), 0.12, NULL});
}
TEST(wild_programs) {
    conform_cases((conform_plan){ATTN_DTYPES, false, FROM(CONF_WILD), 600, t_scaled(200), 0.6, NULL});
}
TEST(sparse_masks) {
    conform_cases((conform_plan){ATTN_DTYPES | ATTN_GQA, false, FROM(CONF_SPARSE), 4000, t_scaled(300), 0.02, NULL});
    conform_cases((conform_plan){all_features, true, FROM(CONF_SPARSE), 1500, t_scaled(200), 0.04, NULL});
}
/* Near a pole, no digit of a score is certain. */
TEST(steep_programs) {
    conform_cases((conform_plan){ATTN_DTYPES | ATTN_DLSE, false, FROM(CONF_STEEP), 600, t_scaled(200), 0.2, NULL});
    conform_cases((conform_plan){all_features, true, FROM(CONF_STEEP), 300, t_scaled(200), 0.1, NULL});
}
TEST(padding) {
    conform_cases((conform_plan){ATTN_PADDING | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(packed_sequences) {
    conform_cases((conform_plan){ATTN_VARLEN | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(pages) {
    conform_cases((conform_plan){ATTN_PAGED | ATTN_PADDING | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(sinks) {
    conform_cases((conform_plan){ATTN_SINK | ATTN_READY | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(zero_sink) {
    static const uint64_t found[] = {0x931856bd15fc225a /* 191 equal scores, a sum with large rounding errors */, 0};
    conform_cases((conform_plan){ATTN_SINK_ZERO | ATTN_DTYPES, false, tame, 1500, t_scaled(40), 0.02, found});
}
TEST(dropout) {
    static const uint64_t found[] = {0x7b68aabd8be9bb6e /* O has subnormal elements, which backward reads as 0 */, 0};
    conform_cases((conform_plan){ATTN_DROPOUT | ATTN_MAPS | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, found});
}
TEST(coordinate_maps) {
    conform_cases((conform_plan){ATTN_MAPS | ATTN_LENGTHS, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(strides) {
    conform_cases((conform_plan){ATTN_STRIDES | ATTN_DTYPES, false, tame, 1500, t_scaled(100), 0.02, NULL});
} /* */
TEST(accumulating) {
    conform_cases((conform_plan){ATTN_ACC | ATTN_SINK | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(ready_masks) {
    conform_cases((conform_plan){ATTN_READY | ATTN_LENGTHS | ATTN_DTYPES, false, FROM(CONF_IDENTITY) | FROM(CONF_TWIN),
                                 3000, t_scaled(100), 0.02, NULL});
}
TEST(positions_of_rows) {
    conform_cases((conform_plan){ATTN_ROWS | ATTN_PADDING | ATTN_DTYPES, false, tame | FROM(CONF_MASK), 1500,
                                 t_scaled(100), 0.02, NULL});
}
TEST(positions_with_everything_that_decides_q) {
    conform_cases((conform_plan){ATTN_ROWS | ATTN_READY | ATTN_MAPS | ATTN_VARLEN | ATTN_PADDING | ATTN_LENGTHS |
                                     ATTN_DROPOUT | ATTN_DTYPES,
                                 true, tame | FROM(CONF_MASK) | FROM(CONF_GALLERY), 1500, t_scaled(150), 0.06, NULL});
}
TEST(packed_with_gaps) {
    conform_cases((conform_plan){ATTN_VARLEN | ATTN_CHUNKED | ATTN_PADDING | ATTN_DTYPES, false, tame, 1500,
                                 t_scaled(60), 0.02, NULL});
}
TEST(chunked_prefill) { /* */
    conform_cases((conform_plan){ATTN_VARLEN | ATTN_CHUNKED | ATTN_PAGED | ATTN_PADDING | ATTN_ROWS | ATTN_GQA |
                                     ATTN_DTYPES | ATTN_MIXED,
                                 false, tame | FROM(CONF_MASK), 1500, t_scaled(150), 0.02, NULL});
}
TEST(mixed_dtypes) {
    conform_cases((conform_plan){ATTN_MIXED | ATTN_DTYPES | ATTN_GQA | ATTN_STRIDES | ATTN_PAGED, true, tame, 1500,
                                 t_scaled(150), 0.02, NULL});
}
TEST(some_gradients) {
    conform_cases(
        (conform_plan){ATTN_SOME_GRADS | ATTN_SINK | ATTN_DTYPES, false, tame, 1500, t_scaled(60), 0.02, NULL});
}
TEST(everything_together) {
    static const uint64_t found[] = {0x940e817db3370a6b /* packed: a short sequence is decoded after a long one */, 0};
    conform_cases((conform_plan){all_features, true, tame | FROM(CONF_MASK) | FROM(CONF_GALLERY), 1500, t_scaled(700),
                                 0.04, found});
}

/* ---- Instruction sets -------------------------------------------------------------------------------------------- */

static void conform_isa(const char *isa) {
    printf("  FXA_CPU=%s\n", isa);
    conform_cases(
        (conform_plan){ATTN_DTYPES, false, FROM(CONF_IDENTITY) | FROM(CONF_MASK), 1500, t_scaled(40), 0, NULL});
    /* with so few cases, twice the usual share may be inconclusive */
    conform_cases((conform_plan){all_features, true, tame | FROM(CONF_GALLERY), 1000, t_scaled(60), 0.08, NULL});
    conform_cases((conform_plan){all_features, true, FROM(CONF_SPARSE), 2000, t_scaled(60), 0.04, NULL});
    conform_cases((conform_plan){all_features, true, FROM(CONF_STEEP), 600, t_scaled(60), 0.2, NULL});
}

/* The last instruction sets are for bf16; for other dtypes they equal avx512. */
static void conform_isa_dtype(const char *isa) {
    bool rounds = strcmp(isa, "avx512-bf16") == 0 || strcmp(isa, "amx") == 0;
    if (rounds) (void)setenv("FXA_TEST_DTYPE", "bf16", 1);
    conform_isa(isa);
    if (rounds) (void)unsetenv("FXA_TEST_DTYPE");
}

TEST(every_instruction_set) { isa_each(conform_isa_dtype); }

T_MAIN
