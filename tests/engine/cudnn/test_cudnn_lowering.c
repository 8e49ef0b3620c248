/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuDNN engine compared with ref, its graphs evaluated by the cuDNN stand-in (tests/standin): problems with every
 * supported feature, random programs, both passes. This shows that the graph means what the problem does. `make
 * test-gpu` runs the same test on cuDNN itself (without FXA_TEST_STANDIN and its folder in the loader's path), with
 * larger shapes and the cpu engine as a third opinion. Tolerances are those of all engines (docs/numerics.md).
 * FXA_TEST_CASE=0x... repeats the case named by a failure.
 */
#include "support/conformance/conf_frame.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cudnn, &fxa__engine_cpu, &fxa__engine_ref};

enum { LOWERING_WRONG = 10 /* number of wrong cases that are shown before a test ends */, LOWERING_PAIRS = 120000 };

static bool lowering_is_standin(void) { return frame_is_set("FXA_TEST_STANDIN"); }

/* Returns the reason why the engine does not open on this machine; NULL: it opens. */
static const char *lowering_missing(void) { return frame_missing(FXA_BF16); }

/* Draws a shape that the engine supports; most captured tensors are as large as the coordinates. */
static attn_shape lowering_shape(uint64_t *rng) {
    static const int64_t widths[] = {8, 16, 24, 32, 64};
    attn_shape s = {.b = attn_int(rng, 1, 2), .hkv = attn_int(rng, 1, 2)};
    s.hq = s.hkv * attn_int(rng, 1, 3);
    s.d = widths[attn_int(rng, 0, 4)];
    s.dv = widths[attn_int(rng, 0, 4)];
    s.sq = attn_int(rng, 0, 3) ? attn_int(rng, 2, 24) : attn_int(rng, 1, 70);
    s.sk = attn_int(rng, 0, 3) ? attn_int(rng, 1, 24) : attn_int(rng, 1, 140);
    if (!lowering_is_standin() && attn_int(rng, 0, 1)) { /* large enough for several tiles of a real kernel */
        static const int64_t wide[] = {64, 96, 128, 192, 256};
        s.sq = attn_int(rng, 1, 520), s.sk = attn_int(rng, 1, 520);
        s.d = wide[attn_int(rng, 0, 4)], s.dv = attn_int(rng, 0, 1) ? s.d : 64;
        while (s.b * s.hq * s.sq * s.sk > LOWERING_PAIRS) { /* the reference evaluates every pair */
            if (s.b > 1)
                s.b--;
            else if (s.hkv > 1)
                s.hkv--, s.hq = s.hkv;
            else
                s.sk = s.sk * 3 / 4, s.hq = s.hq > 2 ? 2 : s.hq;
        }
    }
    s.page_size = 16, s.n_pages = 1;
    s.window = attn_int(rng, 0, 1) ? 6 : s.sk;
    return s;
}

/* Gives axes of captured tensors that are indexed by a coordinate the size of this coordinate. */
static void lowering_narrow(conf_case *c, uint64_t *rng) {
    fxa_problem *p = &c->base.data.problem;
    if (attn_int(rng, 0, 3)) p->flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    p->alignment = 16;
    p->param_grads = 0;
    for (size_t i = 0; i < c->n_tensors; i++) c->captures[i].grad = 0;
    c->base.data.backward_flags &= ~(uint32_t)(FXA_ACCUMULATE_DTENSORS | FXA_ACCUMULATE_DPARAMS);
    if (attn_int(rng, 0, 1)) c->base.data.backward_flags |= FXA_DETERMINISTIC;
}

/* Returns a frame in which the cpu engine checks passes that cudnn supports, if cudnn runs on a device. */
static conf_frame lowering_frame(void) {
    return (conf_frame){.engine = "cudnn", .other = {lowering_is_standin() ? NULL : "cpu"}, .others = 1};
}

/* Draws features of a problem, each so often that enough cases remain supported. */
static uint32_t lowering_features(uint64_t *rng) {
    uint32_t plain = ATTN_GQA | ATTN_DIMS | ATTN_READY | ATTN_LENGTHS | ATTN_SOME_GRADS;
    uint32_t others = ATTN_PADDING | ATTN_VARLEN | ATTN_PAGED | ATTN_SINK_ZERO | ATTN_SINK | ATTN_MAPS | ATTN_ACC |
                      ATTN_DLSE | ATTN_ROWS | ATTN_CHUNKED;
    uint32_t features = plain & (uint32_t)attn_next(rng);
    if (attn_int(rng, 0, 1)) features |= others & (uint32_t)attn_next(rng) & (uint32_t)attn_next(rng);
    return frame_features(features);
}

/* Tests a random case. own: with a user-written backward program that is not the derivative. */
static bool lowering_case(fxa_context *ctx, conf_source source, bool own, conf_frame *f, uint64_t *rng) {
    static conf_case c;
    char what[400], text[4000] = "", own_text[4000] = "";
    const char *name;
    uint64_t start = *rng;
    uint32_t features = lowering_features(rng);
    fxa_program *program = conf_program(ctx, source, FXA_SOURCE_DIR "/examples/programs", rng, &name);
    fxa_program *bprop = own ? conf_bprop(ctx, rng) : NULL;
    attn_shape shape = lowering_shape(rng);
    if (!program || (own && !bprop)) {
        T_FAIL("no program (%s, 0x%" PRIx64 ")\n", name, start);
        return false;
    }
    bool ok = conf_draw(&c, ctx, features, &shape, program, name, bprop, &f->all, rng);
    if (ok) lowering_narrow(&c, rng);
    ok = ok && frame_passes(f, &c);
    if (!ok) {
        conf_describe(&c, what, sizeof what);
        if (fxa_program_print(program, text, sizeof text, NULL, NULL) != FXA_OK) text[0] = 0;
        if (own && fxa_program_print(bprop, own_text, sizeof own_text, NULL, NULL) != FXA_OK) own_text[0] = 0;
        T_FAIL("0x%" PRIx64 ": %s\n    %s\n%s%s", start, what, c.why, text, own_text);
    }
    conf_free(&c);
    return ok;
}

/* Compares a program text with the reference, with 21 rows and 30 keys. param: value of the first param; NaN:
 * random. */
static void lowering_text_by(fxa_context *ctx, const char *text, fxa_pass pass, double param) {
    static conf_case c;
    conf_frame f = lowering_frame();
    fxa_error err;
    fxa_program *program = NULL;
    uint64_t rng = 7;
    const attn_shape shape = {2, 4, 2, 21, 30, 32, 32, 16, 1, 30, 0};
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &program, &err));
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    bool ok = conf_draw(&c, ctx, ATTN_GQA, &shape, program, "text", NULL, &f.all, &rng);
    if (ok) lowering_narrow(&c, &rng);
    if (param == param) c.params[0] = param;
    ok = ok && frame_pass(&f, &c, FXA_FORWARD);
    ok = ok && (pass == FXA_FORWARD || frame_pass(&f, &c, FXA_BACKWARD));
    if (!ok || c.refused || c.unsure) T_FAIL("%s, %s: %s\n", text, pass ? "backward" : "forward", c.why);
    conf_free(&c);
}

static void lowering_text(fxa_context *ctx, const char *text, fxa_pass pass) { lowering_text_by(ctx, text, pass, NAN); }

static void lowering_cases_of(conf_source source, bool own, int n, int least) {
    t_ctx *ctx = t_context();
    conf_frame f = lowering_frame();
    uint64_t rng = frame_start(t_seed() ^ (uint64_t)source << 40 ^ (uint64_t)own << 50);
    if (lowering_missing()) T_SKIP(lowering_missing());
    n = frame_is_set("FXA_TEST_CASE") ? 1 : t_scaled(n);
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    for (int i = 0, wrong = 0; i < n && wrong < LOWERING_WRONG; i++)
        wrong += !lowering_case(ctx, source, own, &f, &rng);
    frame_print(&f);
    if (n >= 40) /* all of a few cases may be refused */
        T_CHECK(f.done[0] * 100 >= (int64_t)least * n && f.done[1] * 110 >= (int64_t)least * n);
}

static void lowering_cases(conf_source source, int n, int least) { lowering_cases_of(source, false, n, least); }

/* Tensors indexed by q_row and k_row, with start positions, alignments and maps of every kind, by which q and k are not
 * the local indices: cuDNN reads these tensors in place. */
CONTEXT_TEST(arrays_that_lie_as_rows_lie) {
    static const char *const texts[] = {
        "tensor bias : bf16[4]\nscore = score + bias[b, h, q_row, k_row]",
        "tensor bias : f32[2]\nscore = score + bias[q_row, k_row]\nmask = k <= q + 9",
        "tensor ids : i32[2]\nmask = ids[b, q_row] == ids[b, k_row]",
        "tensor t : f32[1]\nscore = score * t[q_row] + 0.01 * float(abs(q - k))\nmask = k_row <= q_row + 4"};
    const attn_shape shape = {2, 4, 2, 21, 30, 32, 32, 16, 1, 30, 0};
    static conf_case c;
    conf_frame f = lowering_frame();
    if (lowering_missing()) T_SKIP(lowering_missing());
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    for (uint64_t i = 0; i < 4 * 24 && !t_failures; i++) {
        uint64_t rng = t_seed() + i;
        fxa_program *program = NULL;
        T_OK(fxa_program_parse(ctx, texts[i % 4], SIZE_MAX, &program, &err));
        bool ok = conf_draw(&c, ctx, ATTN_GQA | (i / 4 % 2 ? ATTN_ROWS : ATTN_MAPS), &shape, program, "text", NULL,
                            &f.all, &rng);
        if (ok) lowering_narrow(&c, &rng);
        if (!ok || !frame_passes(&f, &c)) T_FAIL("%s: %s\n", texts[i % 4], c.why);
        conf_free(&c);
    }
    frame_print(&f);
    T_CHECK(f.done[0] >= 48 && f.done[1] >= 12);
}

/* Of several causal masks and windows, the tightest becomes cuDNN's own mask; if bounds are known only at the run, the
 * first does. */
CONTEXT_TEST(bands_of_one_kind) {
    static const char *const texts[] = {"mask = k <= q && k <= q + 2", "mask = k <= q + 3 && k <= q - 1 && q - k < 9",
                                        "mask = q - k < 5 && q - k <= 2",
                                        "param w : int\nmask = k - q <= w && k <= q + 1",
                                        "param w : int\nparam v : int\nmask = k - q <= w && k - q <= v && q - k <= v"};
    if (lowering_missing()) T_SKIP(lowering_missing());
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pass = 0; pass < 2; pass++) lowering_text(ctx, texts[i], (fxa_pass)pass);
}

/* cuDNN would read the first values of a table [H,N] whatever its stride is, so the values are copied to contiguous
 * memory. */
CONTEXT_TEST(values_per_head) {
    static const char *const texts[] = {"tensor t : f32[2]\nscore = score * t[h, 1]",
                                        "tensor t : bf16[2]\nscore = score + t[h, 0] * tanh(score) + t[h, 2]",
                                        "tensor t : i32[2]\nmask = k - q <= t[h, 1]"};
    if (lowering_missing()) T_SKIP(lowering_missing());
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int pass = 0; pass < 2; pass++) lowering_text(ctx, texts[i], (fxa_pass)pass);
}

/* Divisors are ints known at the run, of any sign, and 0; cuDNN itself rounds towards zero. */
CONTEXT_TEST(quotients_by_params) {
    static const char *const texts[] = {"param w : int\nmask = q // w == k // w || k == 0",
                                        "param w : int\nmask = (k + 1) % w != 3",
                                        "param w : int\nscore = score + 0.25 * (k // (w + 1))"};
    static const double by[] = {1, 5, 0, -1, -4, 1 << 28, INT32_MAX, INT32_MIN};
    if (lowering_missing()) T_SKIP(lowering_missing());
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t j = 0; j < sizeof by / sizeof *by; j++)
            lowering_text_by(ctx, texts[i], i == 2 ? FXA_FORWARD : FXA_BACKWARD, by[j]);
}

/* Quotients and remainders just below and at multiples of the divisor, of ints up to 2^12, 2^18 and 2^22; also ints
 * above 2^24, such as document ids, which only 32-bit comparisons distinguish. */
CONTEXT_TEST(quotients_of_large_ints) {
    static const char *const compared[] = {
        "tensor t : i32[1]\nmask = k == 0 || t[q] + 1073741824 == t[k] + 1073741824",
        "tensor t : i32[1]\nmask = k == 0 || t[q] + 1073741824 != t[k] + 1073741824",
        "tensor t : i32[1]\nmask = k == 0 || t[q] + 1073741824 <= t[k] + 1073741823",
        "tensor t : i32[1]\nmask = k == 0 || t[k] - 1073741824 < t[q] - 1073741824",
        "tensor t : i32[2]\nmask = k == 0 || t[q, k] + 1073741824 <= t[k, q] + 1073741825"};
    static const int coefficient[] = {195, 12483, 199728}; /* for the last row, 20, and keys up to 29 */
    static const char *const ends[] = {"// 7 % 5 < 3", "// 977 % 2 == 0", "% 4099 % 3 != 1"};
    char text[128];
    if (lowering_missing()) T_SKIP(lowering_missing());
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            snprintf(text, sizeof text, "mask = k == 0 || (q * %d + k * 977) %s", coefficient[i], ends[j]);
            lowering_text(ctx, text, FXA_FORWARD);
        }
    for (size_t i = 0; i < sizeof compared / sizeof *compared; i++) lowering_text(ctx, compared[i], FXA_BACKWARD);
}

TEST(no_program) { lowering_cases(CONF_IDENTITY, 60, 50); }
TEST(small_programs) { lowering_cases(CONF_TWIN, 150, 20); }
TEST(smooth_programs) { lowering_cases(CONF_SMOOTH, 150, 10); }
TEST(only_masks) { lowering_cases(CONF_MASK, 150, 10); }
TEST(programs_with_masks) { lowering_cases(CONF_BOTH, 150, 5); }
TEST(every_operation) { lowering_cases(CONF_WILD, 200, 0); }
TEST(gallery) { lowering_cases(CONF_GALLERY, 150, 10); }
TEST(sparse_masks) { lowering_cases(CONF_SPARSE, 100, 5); }
TEST(own_backward) { lowering_cases_of(CONF_SMOOTH, true, 100, 10); }
TEST(own_backward_of_masks) { lowering_cases_of(CONF_MASK, true, 100, 10); }

T_MAIN
