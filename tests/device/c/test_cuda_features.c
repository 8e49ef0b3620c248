/* SPDX-License-Identifier: Apache-2.0
 *
 * Features that few problems have, tested with the cuda engine on a GPU against the reference, feature by feature:
 * operands of every type and stride, results that are merged with existing ones, nothing to attend to, masks that read
 * the score, user-written backward programs, dropout with mapped coordinates, scales of 0 and below, as many params and
 * tensors as kernels accept. Each feature has a few programs with several shapes each. FXA_TEST_ENGINE=cpu runs the
 * features without a GPU, as the last test does with some of them; FXA_TEST_SHAPES is the number of shapes,
 * FXA_TEST_REASONS=1 prints refusals with their reasons.
 */
#include "support/conformance/conf_frame.h"
#include "support/fixtures/own_engines.h"
#include "t.h"

#include <math.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&fxa__engine_cuda, &fxa__engine_cpu, &fxa__engine_ref};

enum { FEATURE_SHAPES = 6, FEATURE_SECONDS = 60, FEATURE_TEXTS = 4 };
enum { FEATURE_ALIKE = 3 }; /* consecutive shapes that share their code */

typedef struct feature {
    uint32_t features;
    const char *texts[FEATURE_TEXTS]; /* texts of programs; NULL: end of the list; "": no program */
    const char *bprop;
    void (*shape)(attn_shape *s, int i);
    void (*change)(conf_case *c, int i);
} feature;

static attn_shape feature_shape(int i, uint64_t *rng) {
    static const int64_t widths[] = {64, 128, 40, 32};
    attn_shape s = {.b = attn_int(rng, 1, 2), .hkv = attn_int(rng, 1, 2)};
    s.hq = s.hkv * attn_int(rng, 1, 3);
    s.sq = i % 3 ? attn_int(rng, 1, 200) : attn_int(rng, 1, 3), s.sk = attn_int(rng, 1, 300);
    s.d = s.dv = widths[i / 6 % 4]; /* each width needs a compilation */
    s.page_size = attn_int(rng, 0, 1) ? 16 : 64;
    s.n_pages = attn_int(rng, 1, s.b * (s.sk / s.page_size + 1) + 2);
    s.window = 40;
    return s;
}

/* Returns true if the test uses the kernel family that the device selects. Other families run tests of tile edges at
 * fewer head dims. */
static bool feature_is_best(void) { return !frame_is_set("FXA_CUDA_FAMILY"); }

static bool feature_is_at(const void *origin) { return (uintptr_t)origin % 16 == 0; }

static bool feature_is_aligned(const conf_case *c) {
    bool aligned = true;
    for (int i = 0; i < CONF_SLOTS; i++) aligned = aligned && feature_is_at(c->slot[i].origin);
    for (size_t i = 0; i < c->n_tensors; i++)
        aligned = aligned && feature_is_at(c->tensor[i].origin) && feature_is_at(c->dtensor[i].origin);
    return aligned;
}

static fxa_program *feature_program(fxa_context *ctx, fxa_program_kind kind, const char *text) {
    fxa_program *program = NULL;
    fxa_error err;
    fxa_text source = {.data = text, .size = strlen(text)};
    fxa_parse_config config = FXA_PARSE_CONFIG_INIT;
    config.kind = (uint32_t)kind, config.texts = &source, config.n_texts = 1;
    T_OK(fxa_program_parse_texts(ctx, &config, &program, &err));
    return program;
}

/* Tests one shape of a feature. Types, strides, maps and flags are drawn for a group of consecutive shapes, which
 * therefore share their code; for a family other than the device's own, all shapes are one group. The row maximum is
 * returned only where the feature requests it, because not every family returns it. */
static bool feature_one(fxa_context *ctx, const feature *x, const char *text, int i, conf_frame *f, uint64_t *rng) {
    static conf_case c;
    int alike = feature_is_best() ? FEATURE_ALIKE : FEATURE_SHAPES;
    uint64_t start = *rng, kind = x->features + strlen(text) * 0x10001u + (uint64_t)(i / alike) + 1;
    char what[400];
    attn_shape s = feature_shape(i, rng);
    s.kind = kind * 0x9E3779B97F4A7C15u ^ t_seed() << 1 ^ 1;
    if (x->shape) x->shape(&s, i);
    fxa_program *own = x->bprop ? feature_program(ctx, FXA_PROGRAM_BPROP, x->bprop) : NULL;
    bool ok = conf_draw(&c, ctx, frame_features(x->features), &s, feature_program(ctx, FXA_PROGRAM_SCORE, text), text,
                        own, &f->all, rng);
    c.base.data.problem.flags &= ~(uint32_t)FXA_RETURN_ROW_MAX;
    if (ok && !(x->features & ATTN_DTYPES)) c.base.data.problem.alignment = feature_is_aligned(&c) ? 16 : 0;
    if (ok && x->change) x->change(&c, i);
    ok = ok && frame_passes(f, &c);
    printf("  shape %d: %s, forward %d backward %d; %s\n", i, text, (int)f->state[0], (int)f->state[1], f->detail[0]);
    (void)fflush(stdout);
    if (!ok) {
        conf_describe(&c, what, sizeof what);
        T_FAIL("0x%" PRIx64 " shape %d, %s: %s\n    %s\n    %s | %s\n%s\n", start, i,
               f->state[1] == FRAME_NOT_RUN ? "forward" : "backward", what, c.why, f->detail[0], f->detail[1], text);
    }
    conf_free(&c);
    return ok;
}

static void feature_run(const feature *x, conf_frame *f, int shapes) {
    t_ctx *ctx = t_context();
    uint64_t rng = t_seed() * 0x9E3779B97F4A7C15u ^ x->features;
    setenv("FXA_TEST_DTYPE", "bf16", 0);
    for (int t = 0; t < FEATURE_TEXTS && x->texts[t]; t++)
        for (int i = 0; i < shapes && feature_one(ctx, x, x->texts[t], i, f, &rng); i++) {}
    frame_print(f);
}

static void feature_check(const feature *x) {
    const char *engine = getenv("FXA_TEST_ENGINE"), *shapes = getenv("FXA_TEST_SHAPES");
    conf_frame f = {.engine = engine ? engine : "cuda", .seconds = FEATURE_SECONDS};
    const char *missing = engine ? NULL : frame_missing(FXA_F32);
    if (missing) T_SKIP(missing);
    feature_run(x, &f, shapes ? atoi(shapes) : FEATURE_SHAPES);
    T_CHECK(f.done[0] > 0);
}

/* ---- Features ---------------------------------------------------------------------------------------------------- */

static const char causal[] = "mask = k <= q", capped[] = "score = 20 * tanh(score / 20)\nmask = k <= q";
static const char learned[] = "tensor t : f32[1]\nparam a : float\nscore = score * a + t[k]";

static void change_max(conf_case *c, int i) {
    if (i / FEATURE_ALIKE % 2) c->base.data.problem.flags |= FXA_RETURN_ROW_MAX;
}

static const feature types = {.features = ATTN_DTYPES | ATTN_GQA, .texts = {"", capped, learned}, .change = change_max};
static const feature mixtures = {.features = ATTN_DTYPES | ATTN_MIXED | ATTN_STRIDES | ATTN_DLSE,
                                 .texts = {"", causal}};
static const feature maxima = {.features = ATTN_GQA, .texts = {"", capped}, .change = change_max};
static const feature joined = {.features = ATTN_ACC | ATTN_GQA, .texts = {"", causal, learned}};
static const feature packed = {
    .features = ATTN_ACC | ATTN_VARLEN | ATTN_CHUNKED | ATTN_PADDING | ATTN_DTYPES | ATTN_SINK, .texts = {"", causal}};
static const feature scored = {
    .texts = {"mask = score > 0.1", "mask = k <= q && score > 0.1",
              "tensor t : f32[1]\nscore = tanh(score) + t[h]\nmask = (score < 1.3 && k <= q) && q - k < 90"}};

/* Gradients of params and captured tensors that read the score although the derivative by the score does not. */
static const feature stopped = {.features = ATTN_GQA,
                                .texts = {"param a : float\nscore = score + a * with_grad(score, 0.0)",
                                          "tensor t : f32[1]\nscore = score + t[h] * with_grad(score, 0.0)",
                                          "tensor t : f32[1]\nscore = score + t[k] * with_grad(tanh(score), 0.0)"}};

/* Tiles without a mask in which only the derivative, or a backward program, reads coordinates. */
static const feature sloped = {
    .features = ATTN_GQA,
    .texts = {"score = with_grad(score, score * (1.0 + 0.01 * float(q - k)))",
              "score = with_grad(score, (q > k + 3 ? score : 0.5 * score))\nmask = k < 200"}};
static const feature owned_alone = {.texts = {"", "mask = k <= q + 200"},
                                    .bprop = "dscore = dscore * (1.0 + 0.01 * float(q - k))"};

TEST(types_of_operands) { feature_check(&types); }
TEST(mixed_types_and_strides) { feature_check(&mixtures); }
TEST(row_maximum) { feature_check(&maxima); }
TEST(joining_what_is_there) { feature_check(&joined); }
TEST(packed_rows_are_added) { feature_check(&packed); }
TEST(masks_that_read_the_score) { feature_check(&scored); }
TEST(slopes_of_one) { feature_check(&stopped); }
TEST(slopes_without_values) { feature_check(&sloped), feature_check(&owned_alone); }

/* Rows whose size is not a multiple of 16 bytes while their stride is: TMA stores 16 bytes at a time, and the bytes
 * after a row must not change. */
static void shape_ending(attn_shape *s, int i) {
    s->d = i % 3 == 2 ? 180 : i % 3 ? 60 : 124, s->dv = i % 2 || !feature_is_best() ? s->d : 20;
    if (i % 6 == 5) s->sq = s->b = s->hq = s->hkv = 1; /* a single row: only its size says where it ends */
}
static void change_ending(conf_case *c, int i) {
    if (i % 2 && feature_is_best()) c->base.data.problem.flags |= FXA_DETERMINISTIC;
}
static const feature ending = {
    .features = ATTN_APART | ATTN_GQA, .texts = {""}, .shape = shape_ending, .change = change_ending};
static const feature ending_masked = {
    .features = ATTN_APART | ATTN_GQA, .texts = {causal}, .shape = shape_ending, .change = change_ending};
static const feature ending_packed = {.features = ATTN_APART | ATTN_VARLEN | ATTN_PADDING,
                                      .texts = {causal},
                                      .shape = shape_ending,
                                      .change = change_ending};
TEST(columns_that_end_within_16_bytes) { feature_check(&ending); }
TEST(columns_behind_a_mask_that_end_within_16_bytes) { feature_check(&ending_masked); }
TEST(columns_of_packed_rows_that_end_within_16_bytes) { feature_check(&ending_packed); }

static void shape_empty(attn_shape *s, int i) {
    if (i % 3 == 0) s->sk = 0;
    if (i % 3 == 1) s->sq = 0;
}
static const feature empty = {.features = ATTN_SINK | ATTN_DLSE, .texts = {"", capped, learned}, .shape = shape_empty};
static const feature empty_packed = {.features = ATTN_VARLEN | ATTN_ACC, .texts = {"", causal}, .shape = shape_empty};
TEST(nothing_to_attend_to) { feature_check(&empty), feature_check(&empty_packed); }

static const feature owned = {
    .features = ATTN_GQA | ATTN_DLSE,
    .texts = {"", capped, learned},
    .bprop =
        "param a : float\ntensor t : f32[1]\ndscore = dscore * (0.5 + 0.25 * tanh(a * score)) + 0.1 * t[k] * dscore"};
static const feature owned_moved = {.features = ATTN_MAPS | ATTN_ROWS | ATTN_VARLEN,
                                    .texts = {causal},
                                    .bprop = "dscore = dscore * exp(-0.01 * float(abs(q - k) % 7)) * (1.0 + 0.1 * h)"};
TEST(backward_programs) { feature_check(&owned), feature_check(&owned_moved); }

/* Cases with maps have all kinds of maps, dynamic offsets included. */
static const feature dropped = {.features = ATTN_DROPOUT | ATTN_MAPS | ATTN_ROWS, .texts = {"", capped}};
static const feature dropped_packed = {
    .features = ATTN_DROPOUT | ATTN_MAPS | ATTN_ROWS | ATTN_VARLEN | ATTN_PADDING | ATTN_GQA, .texts = {causal}};
TEST(dropout_at_moved_coordinates) { feature_check(&dropped), feature_check(&dropped_packed); }

/* Tensors indexed by q_row and k_row, with gradients, while maps, start positions and alignments change q and k. */
static const char ids_that_lie[] = "tensor ids : i32[2]\nscore = score - 0.05 * abs(q - k)\n"
                                   "mask = ids[b, q_row] == ids[b, k_row] && k <= q + 20";
static const char bias_that_lies[] = "tensor bias : f32[3]\nscore = score + bias[h, q_row, k_row] - 0.05 * abs(q - k)\n"
                                     "mask = k_row <= q_row + 30";
static const char sums_that_lie[] = "tensor t : f32[1]\ntensor u : f32[2]\n"
                                    "score = score * (1 + 0.1 * t[q_row]) + u[b, k_row] * float((q - q_row) % 3)";
static const feature stored = {.features = ATTN_MAPS | ATTN_ROWS | ATTN_GQA,
                               .texts = {ids_that_lie, bias_that_lies, sums_that_lie}};
static const feature stored_packed = {.features = ATTN_MAPS | ATTN_ROWS | ATTN_VARLEN | ATTN_PADDING | ATTN_DROPOUT,
                                      .texts = {ids_that_lie, sums_that_lie}};
static const feature stored_paged = {.features = ATTN_ROWS | ATTN_VARLEN | ATTN_CHUNKED | ATTN_PAGED | ATTN_PADDING,
                                     .texts = {ids_that_lie, bias_that_lies}};
TEST(stored_coordinates) { feature_check(&stored), feature_check(&stored_packed), feature_check(&stored_paged); }

static void change_scale(conf_case *c, int i) { c->base.x.scale = i % 3 == 0 ? 0 : i % 3 == 1 ? -0.125 : -1; }
static const feature turned = {
    .features = ATTN_GQA | ATTN_SINK, .texts = {"", capped, learned}, .change = change_scale};
static void shape_wide(attn_shape *s, int i) {
    s->d = s->dv = 192;
    if (i % 2) s->sq = 2, s->sk = 300, s->d = s->dv = 64; /* decoding */
}
static void change_fixed(conf_case *c, int i) {
    change_scale(c, i);
    if (i % 3 == 2) c->base.data.backward_flags |= FXA_DETERMINISTIC;
}
static const feature turned_wide = {.texts = {"", capped}, .shape = shape_wide, .change = change_fixed};
TEST(scales_of_zero_and_below) { feature_check(&turned), feature_check(&turned_wide); }

static const char many[] =
    "tensor a0 : f32[1]\ntensor a1 : f32[1]\ntensor a2 : f32[1]\ntensor a3 : f16[1]\ntensor a4 : f32[1]\n"
    "tensor a5 : f32[1]\ntensor a6 : bf16[1]\ntensor a7 : f32[1]\ntensor a8 : f32[1]\ntensor a9 : f64[1]\n"
    "score = score + 0.1 * (a0[h] + a1[k] + a2[q] + a3[b] + a4[k] + a5[q - k] + a6[h] + a7[q] + a8[k] + a9[h])";
static const feature tensors = {
    .texts = {many, "tensor t : e4m3[1]\ntensor u : e5m2[2]\nscore = score + t[k] + u[h, 0]"}};
TEST(many_tensors) { feature_check(&tensors); }

/* Programs that take so much work per pair that kernels evaluate them out of line (PROG_OUT_OF_LINE of
 * common/program_interface.cuh): the value with its derivative, the mask, sums, scattered gradients, a backward
 * program. Also arguments of sin and cos beyond the range that is evaluated inline. */
static const char weighty[] =
    "param a : float\ntensor t : f32[1]\ntensor u : f32[1]\n"
    "let x = 0.1 * a * score + t[h]\n"
    "score = sin(x) + cos(2 * x) * (x * x + 1) ** 0.7 + sin(3 * x + 0.1 * u[k]) * cos(x + 0.2 * a)\n"
    "mask = sin(1.0 * (q * k)) * cos(0.3 * (q + k)) + sin(0.1 * (3 * q + k)) < 1.2";
static const feature called = {.features = ATTN_GQA,
                               .texts = {weighty, "score = 0.1 * sin(3e5 * (1 + float(q * k))) + cos(score)"}};
static const feature called_own = {
    .texts = {""},
    .bprop = "dscore = dscore * (sin(0.1 * q) * cos(score) * sin(score * score) * (score * score + 1) ** 0.3)"};
TEST(functions_that_are_called) { feature_check(&called), feature_check(&called_own); }

/* A tensor with an element per pair, together with other users of shared memory, at head dims where shared memory is
 * scarce. */
static void shape_crowded(attn_shape *s, int i) {
    s->b = 1, s->d = s->dv = i % 2 ? 256 : 128, s->sq = 70 + i, s->sk = 140 + 2 * i;
    if (i % 6 == 4) s->dv = 96;
}
static void change_crowded(conf_case *c, int i) {
    uint64_t rng = 5 + (uint64_t)i;
    const oracle *x = &c->base.x;
    conf_resize(c, 0, (int64_t[]){x->hq, x->sq, (x->sk + 7) / 8 * 8}, &rng);
    for (size_t t = 1; t < c->n_tensors; t++) conf_resize(c, t, (int64_t[]){400}, &rng);
}
static const feature crowded = {
    .texts = {"tensor t : bf16[3]\ntensor w : bool[1]\nscore = score + t[h, q, k]\nmask = w[k] || k < 3",
              "tensor t : bf16[3]\ntensor u : f32[1]\nscore = score + t[h, q, k] + u[q - k + 200] + u[k]\nmask = k <= "
              "q + 90"},
    .shape = shape_crowded,
    .change = change_crowded};
TEST(much_for_shared_memory) { feature_check(&crowded); }

/* Query tiles in which single parts, of 64 queries each, attend to none or to all of a key tile. There are several
 * query tiles of 192 queries, and documents begin and end anywhere in them. */
static void shape_parts(attn_shape *s, int i) {
    s->b = 1 + (i & 1), s->hq = s->hkv = 1, s->d = s->dv = i % 4 == 3 && feature_is_best() ? 32 : 64;
    s->sq = s->sk = 460 - 61 * (i % 5);
}
static void change_parts(conf_case *c, int i) {
    uint64_t rng = 7 + (uint64_t)i;
    int64_t n = c->base.x.sq + c->base.x.sk;
    for (size_t t = 0; t < c->n_tensors; t++) {
        conf_resize(c, t, &n, &rng);
        void *origin = c->tensor[t].origin;
        for (int64_t k = 0; k < n; k++) {
            int64_t id = (k + 37 * i) / (90 + 50 * (i % 4));
            if (c->tensor[t].dtype == FXA_I64)
                ((int64_t *)origin)[k] = i % 2 ? id << 32 : id; /* IDs that exceed 32 bits, or that do not */
            else
                ((int32_t *)origin)[k] = (int32_t)id;
        }
    }
}
static const char windowed[] = "mask = k <= q && q - k < 70";
static const feature parts = {
    .texts = {"tensor d : i32[1]\nmask = d[q] == d[k] && k <= q"}, .shape = shape_parts, .change = change_parts};
static const feature parts_alone = {.texts = {causal, windowed, capped}, .shape = shape_parts, .change = change_parts};
static const feature parts_padded = {
    .features = ATTN_PADDING, .texts = {causal, windowed}, .shape = shape_parts, .change = change_parts};
static const feature parts_packed = {
    .features = ATTN_VARLEN, .texts = {causal, windowed, capped}, .shape = shape_parts, .change = change_parts};
/* Backward for i64 ids, of which only tile_class() reads the ranges. */
static const feature parts_whole = {
    .texts = {"tensor d : i64[1]\nmask = d[q] == d[k] && k <= q"}, .shape = shape_parts, .change = change_parts};
TEST(documents_in_query_tiles) { feature_check(&parts), feature_check(&parts_whole); }
TEST(parts_of_query_tiles) { feature_check(&parts_alone); }
TEST(parts_of_padded_query_tiles) { feature_check(&parts_padded); }
TEST(parts_of_packed_query_tiles) { feature_check(&parts_packed); }

/* Backward with blocks of 64 queries: key tiles of which one half is masked, or full, for the entire block. */
static void shape_halves(attn_shape *s, int i) {
    shape_parts(s, i);
    s->hq = 2, s->d = s->dv = i % 2 && feature_is_best() ? 96 : 128;
}
static const feature halves = {.texts = {"tensor d : i32[1]\nmask = d[q] == d[k] && k <= q",
                                         "tensor d : i32[1]\nmask = d[q] == d[k]", "mask = k >= q + 30", windowed},
                               .shape = shape_halves,
                               .change = change_parts};
static const feature halves_packed = {
    .features = ATTN_VARLEN, .texts = {causal, windowed}, .shape = shape_halves, .change = change_parts};
static const feature halves_dropped = {
    .features = ATTN_DROPOUT | ATTN_PADDING, .texts = {causal, capped}, .shape = shape_halves, .change = change_parts};
TEST(halves_of_key_tiles) { feature_check(&halves); }
TEST(halves_of_packed_key_tiles) { feature_check(&halves_packed); }
TEST(halves_of_dropped_key_tiles) { feature_check(&halves_dropped); }

/* Tests the frame itself: the cpu engine supports all features and is right. */
TEST(by_the_cpu_engine) {
    const feature *const all[] = {&types,  &mixtures,      &maxima,        &joined,      &packed,      &scored,
                                  &empty,  &empty_packed,  &owned,         &owned_moved, &dropped,     &dropped_packed,
                                  &turned, &turned_wide,   &stopped,       &sloped,      &owned_alone, &crowded,
                                  &ending, &ending_masked, &ending_packed, &parts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        conf_frame f = {.engine = "cpu"};
        feature_run(all[i], &f, 1);
        T_CHECK(f.refused[0] + f.refused[1] == 0);
    }
}

T_MAIN
