/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of the cpu engine's fast paths, compared with ref: wrapping coordinates, lengths beyond those for which bands
 * are valid, mask bits shared by many batch entries or by other lengths, rows with only masked chunks, masks too long
 * for range analysis, and problems whose workspace exceeds memory.
 */
#include "t.h"

#include "support/fixtures/attn_data.h"
#include "support/fixtures/isa.h"

#include <math.h>
#include <stdlib.h>

static bool corner_make(attn_data *x, const attn_spec *s) {
    fxa_error err;
    t_ctx *ctx = attn_context(1);
    fxa_status status = attn_data_make(x, ctx, s, t_seed(), &err);
    if (status != FXA_OK) T_FAIL("%s\n", err.text);
    return status == FXA_OK;
}

static bool corner_run(attn_data *x, const char *engine, const char *what) {
    fxa_error err;
    t_ctx *ctx = attn_context(2);
    fxa_status status = attn_data_run(x, ctx, engine, FXA_FORWARD, &err);
    if (status != FXA_OK) T_FAIL("%s, %s: %s\n", what, engine, err.text);
    return status == FXA_OK;
}

/* Compares a forward run of cpu and ref: special values must be equal, and O within `units` of the dtype's rounding. */
static void corner_check(attn_data *x, double units, const char *what) {
    T_ENDED(attn_drop) attn_kept want = {{NULL}};
    fxa_dtype dtype = (fxa_dtype)x->problem.q.dtype;
    double unit = dtype == FXA_F64 ? 0x1p-53 : dtype == FXA_BF16 ? 0x1p-8 : 0x1p-24;
    if (corner_run(x, "ref", what)) {
        attn_keep(x, FXA_FORWARD, &want);
        if (corner_run(x, "cpu", what)) {
            attn_off o = attn_tensor_off(attn_output(x, FXA_FORWARD, 0), want.memory[0]);
            if (o.odd) T_FAIL("%s: %d special values differ\n", what, (int)o.odd);
            if (!(o.rms <= units * unit)) T_FAIL("%s: off by %.3g, %.3g is allowed\n", what, o.rms, units * unit);
        }
    }
}

/* Tolerance in units for sums in another order: 32 as in test_cpu_forward.c, and twice the magnitude of scores, here
 * below 4. */
enum { CORNER_UNITS = 40 };

static attn_spec corner_spec(const char *text, int64_t b, int64_t hq, int64_t sq, int64_t sk, int64_t d) {
    return (attn_spec){.b = b, .hq = hq, .hkv = 1, .sq = sq, .sk = sk, .d = d, .text = text};
}

/* ---- Coordinates and lengths ------------------------------------------------------------------------------------- */

TEST(keys_whose_coordinates_wrap) {
    static const struct {
        const char *text;
        int64_t step;
        int32_t from;
    } cases[] = {
        {"mask = k < 0 || k % 3 == 1", 1, INT32_MAX - 50},
        {"mask = k > 0 || k % 3 == 1", -1, INT32_MIN + 50},
        {"mask = k <= q", 1, INT32_MAX - 3},
        {"mask = (k + q) % 7 < 3 && k > 5", 3, INT32_MAX - 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_spec s = corner_spec(cases[i].text, 1, 2, 40, 100, 8);
        attn_owned x = {0};
        int32_t from = cases[i].from;
        if (!corner_make(&x, &s)) return;
        x.problem.map_k = (fxa_index_map){.kind = FXA_MAP_AFFINE, .step = cases[i].step, .has_offset = 1};
        x.ints[FXA_SLOT_OFFSET_K] = &from;
        corner_check(&x, CORNER_UNITS, cases[i].text);
    }
}

TEST(lengths_past_those_of_bands) {
    const int64_t far = (int64_t)1 << 30;
    static const char *const texts[] = {"mask = k <= q", "mask = k <= q + k_len - q_len",
                                        "mask = q_len - 20 <= k + k_len"};
    for (int i = 0; i < 3 * 3; i++) {
        attn_spec s = corner_spec(texts[i / 3], 1, 2, 40, 100, 8);
        attn_owned x = {0};
        if (!corner_make(&x, &s)) return;
        x.problem.global_q_len = i % 3 != 1 ? far + 5 : 40;
        x.problem.global_k_len = i % 3 != 0 ? far + 40 : 100;
        corner_check(&x, CORNER_UNITS, texts[i / 3]);
    }
}

/* ---- Bits of masks ----------------------------------------------------------------------------------------------- */

TEST(more_batch_entries_than_kept_bits) {
    attn_spec s = corner_spec("mask = (k * 7 + q + b) % 3 == 0", 300, 2, 20, 20, 8);
    attn_owned x = {0};
    s.hkv = 2;
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "300 batch entries");
}

/* The first tiles of two sequences have the same lengths but rows at other positions. */
TEST(bits_of_sequences_of_other_lengths) {
    attn_spec s = corner_spec("mask = (q * 3 + k + q_len) % 5 != 0", 3, 2, 202, 64, 512);
    attn_owned x = {0};
    int32_t rows[] = {200, 202, 150}, keys[] = {64, 64, 64}; /* tiles of the last row block differ in length */
    s.flags = FXA_PADDING;
    if (!corner_make(&x, &s)) return;
    x.ints[FXA_SLOT_Q_LENGTHS] = rows, x.ints[FXA_SLOT_K_LENGTHS] = keys;
    corner_check(&x, CORNER_UNITS, "200, 202 and 150 rows");
}

TEST(strips_of_one_block_in_decoding) {
    attn_spec s = corner_spec("mask = (k * k) % 512 < 200 && (k // 100) % 2 == 0", 2, 2, 1, 1024, 8);
    attn_owned x = {0};
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "decoding with gaps");
}

/* As many keys as a block holds, with an attended pair in every granule of the mask bits. */
TEST(strips_of_whole_blocks) {
    attn_spec s = corner_spec("mask = (q * 5 + k * 7) % 3 != 0", 1, 2, 40, 1100, 8);
    attn_owned x = {0};
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "every third pair of long rows");
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

TEST(chunks_of_nothing_and_of_infinity) {
    attn_spec s = corner_spec("score = h == 1 && k > 3000 ? inf : score\nmask = h != 2 && k != 7", 2, 3, 1, 4096, 8);
    attn_data x;
    int32_t rows[] = {1, 1}, keys[] = {4096, 10};
    s.flags = FXA_PADDING;
    for (int decode = 0; decode < 2; decode++) {
        s.sq = decode ? 1 : 20, rows[0] = rows[1] = (int32_t)s.sq;
        if (!corner_make(&x, &s)) return;
        x.ints[FXA_SLOT_Q_LENGTHS] = rows, x.ints[FXA_SLOT_K_LENGTHS] = keys;
        corner_check(&x, CORNER_UNITS, decode ? "decoding" : "20 rows");
        attn_data_free(&x);
    }
}

/* V with non-contiguous elements is not decoded by the decoding kernels, however many keys there are. */
TEST(few_rows_over_strided_values) {
    attn_spec s = corner_spec(NULL, 1, 2, 1, 4096, 8);
    attn_owned x = {0};
    s.strided = 1u << FXA_SLOT_V;
    memcpy(s.stride[FXA_SLOT_V], (int64_t[4]){4096 * 16, 4096 * 16, 16, 2}, sizeof s.stride[FXA_SLOT_V]);
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "every second element of V");
}

/* Prefetching for a large tensor must not read another, empty tensor. */
TEST(empty_captures_beside_large_ones) {
    attn_spec s =
        corner_spec("tensor t : f32[3]\ntensor u : f32[2]\nscore = score + t[h, q, k] + u[q, k]", 1, 2, 200, 200, 8);
    attn_owned x = {0};
    s.tensor[0][0] = 2, s.tensor[0][1] = s.tensor[0][2] = 200, s.tensor[1][0] = 200, s.tensor[1][1] = 0;
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "an empty capture");
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Compares gradients of cpu and ref. `before` changes the data before forward, `after` changes it after forward.
 * Tolerance as in test_cpu_backward.c. */
static void corner_backward(const attn_spec *s, void (*before)(attn_data *x), void (*after)(attn_data *x),
                            const char *what) {
    attn_kept want = {{NULL}};
    fxa_error err;
    fxa_context *ctx = attn_context(2);
    attn_data x;
    attn_tensor *t;
    if (!corner_make(&x, s)) return;
    if (before) before(&x);
    T_OK(attn_data_run(&x, ctx, "ref", FXA_FORWARD, &err));
    if (after) after(&x);
    T_OK(attn_data_run(&x, ctx, "ref", FXA_BACKWARD, &err));
    attn_keep(&x, FXA_BACKWARD, &want);
    T_OK(attn_data_run(&x, ctx, "cpu", FXA_BACKWARD, &err));
    for (int i = 0; (t = attn_output(&x, FXA_BACKWARD, i)); i++) {
        attn_off off = attn_tensor_off(t, want.memory[i]);
        if (off.odd || !(off.rms <= 2e-6))
            T_FAIL("%s: %s is off by %.3g, %d odd\n", what, t->name, off.rms, (int)off.odd);
    }
    attn_drop(&want);
    attn_data_free(&x);
    fxa_context_destroy(ctx);
}

static void corner_ask_captures(attn_data *x) { x->backward_flags = 0; }

TEST(gradients_of_captures_alone) {
    attn_spec s = corner_spec("tensor t : f32[1]\nscore = score + t[k % 5]", 2, 2, 20, 30, 8);
    s.tensor[0][0] = 5;
    corner_backward(&s, corner_ask_captures, NULL, "no gradient of Q, K, V");
}

static void corner_count_down(attn_data *x) {
    x->problem.map_h = (fxa_index_map){.kind = FXA_MAP_AFFINE, .base = 1, .step = -1};
    x->problem.map_k = (fxa_index_map){.kind = FXA_MAP_AFFINE, .base = 40, .step = -1};
}

/* Tensors that are too large for a sum per thread, where no axis separates the threads, or where one tensor has such an
 * axis and the other does not. */
TEST(large_captures_with_coordinates_that_count_down) {
    attn_spec s = corner_spec("tensor t : f32[2]\ntensor u : f32[1]\nscore = score + t[h, k] * u[k]", 2, 2, 20, 41, 8);
    s.tensor[0][0] = 2, s.tensor[0][1] = 300000, s.tensor[1][0] = 300000;
    corner_backward(&s, NULL, NULL, "two large captures");
    corner_backward(&s, corner_count_down, NULL, "two large captures, counting down");
}

static void corner_lose_lse(attn_data *x) {
    for (int64_t q = 0; q < 20; q += 3) attn_tensor_set(&x->t[FXA_SLOT_LSE], (int64_t[4]){0, 1, q, 0}, -INFINITY);
}

/* An LSE that a narrower dtype has rounded to -inf: its rows have no weights, and their sink gets no gradient. */
TEST(sinks_of_rows_without_an_lse) {
    attn_spec s = corner_spec(NULL, 2, 2, 20, 30, 8);
    s.flags = FXA_SINKS;
    corner_backward(&s, NULL, corner_lose_lse, "lost LSE");
}

/* Tensors that are read at clamped indices beside indices of keys, so that elements are gathered. */
TEST(gathered_elements_at_clamped_indices) {
    static const struct {
        const char *text;
        int64_t size[2];
    } cases[] = {
        {"tensor t : f32[1]\nscore = score + t[clamp(q - k, -3, 3) + 3]", {7}},
        {"tensor t : f32[2]\nscore = score + t[clamp(q - k, -3, 3) + 3, k % 5]", {7, 5}},
        {"tensor t : f32[2]\nscore = score * t[q * k % 5, clamp(k - q + 2, 0, 6)]", {5, 7}},
        {"tensor t : f32[2]\nscore = score * t[clamp(k, 3, 20) - 3, clamp(k - q, -9, 8) + 9]", {18, 18}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_spec s = corner_spec(cases[i].text, 1, 2, 40, 90, 8);
        attn_data x;
        memcpy(s.tensor[0], cases[i].size, sizeof cases[i].size);
        if (corner_make(&x, &s)) {
            corner_check(&x, CORNER_UNITS, cases[i].text);
            attn_data_free(&x);
        }
        corner_backward(&s, NULL, NULL, cases[i].text);
    }
}

/* ---- Blocks that are cut or lose their weight -------------------------------------------------------------------- */

/* Masks that single pairs decide, with keys cut off on both sides of a block. */
TEST(keys_cut_off_on_both_sides) {
    static const char *const texts[] = {
        "mask = k >= 100 && k < 333 && q * k % 3 != 1",
        "mask = k >= q + 70 && k < q + 200 && q * k % 3 != 1",
        "mask = k >= 64 && (q * k % 3 != 1 || q % 8 == 5) && k - q < 300",
        "mask = (k >= 450 || k < 30) && q * k % 7 != 1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        attn_spec s = corner_spec(texts[i], 2, 2, 75, 500, 8);
        attn_data x;
        if (!corner_make(&x, &s)) continue;
        corner_check(&x, CORNER_UNITS, texts[i]);
        attn_data_free(&x);
        corner_backward(&s, NULL, NULL, texts[i]);
    }
}

/* Earlier keys whose weight underflows beside later ones leave nothing of their values, large or infinite. */
TEST(values_that_lose_their_weight) {
    const int64_t rows[] = {1, 3, 70};
    const double values[] = {1e8, INFINITY};
    for (int i = 0; i < 6; i++) {
        attn_spec s = corner_spec("score = score + (k % 2000 < 1000 ? -2000.0 : 2000.0)", 1, 2, rows[i / 2], 4000, 128);
        attn_owned x = {0};
        if (!corner_make(&x, &s)) continue;
        for (int64_t k = 0; k < 4000; k++)
            for (int64_t d = 0; d < 128 && k % 2000 < 1000; d++)
                attn_tensor_set(&x.t[FXA_SLOT_V], (int64_t[4]){0, 0, k, d}, values[i % 2]);
        corner_check(&x, 100 * CORNER_UNITS, "values of no weight"); /* scores of 2000 are rounded to 2^-13 */
    }
}

/* Positions of which tiles begin alike and go on differently, and tiles that are equal. */
TEST(positions_that_repeat) {
    enum { ROWS = 700 };
    static int32_t table[ROWS];
    for (int way = 0; way < 2; way++) {
        attn_spec s = corner_spec("mask = q * k % 7 < 3", 1, 2, ROWS, 90, 8);
        attn_owned x = {0};
        uint64_t rng = t_seed() + 1;
        if (!corner_make(&x, &s)) continue;
        for (int i = 0; i < ROWS; i++) table[i] = i % 16 == 0 || way ? i % 16 : (int32_t)attn_int(&rng, 0, 500);
        x.problem.map_q.kind = FXA_MAP_TABLE;
        x.ints[FXA_SLOT_MAP_Q] = table;
        corner_check(&x, CORNER_UNITS, "positions");
    }
}

/* ---- Long masks -------------------------------------------------------------------------------------------------- */

TEST(masks_past_the_room_of_range_analysis) {
    static const int conjuncts[] = {20, 45, 150};
    for (int i = 0; i < 3; i++) {
        char *text = malloc(1 << 16), *at = text;
        at += sprintf(at, "mask = k <= q + 60");
        for (int c = 0; c < conjuncts[i]; c++) at += sprintf(at, " && (q * %d + k) %% 97 != %d", c + 2, c % 97);
        attn_spec s = corner_spec(text, 1, 2, 50, 120, 8);
        attn_data x;
        if (corner_make(&x, &s)) {
            corner_check(&x, CORNER_UNITS, "a long mask");
            attn_data_free(&x);
        }
        free(text);
    }
}

/* ---- Scales ------------------------------------------------------------------------------------------------------ */

/* Products that round Q to 16 bits: weights and outputs are rounded once each, by up to half a unit. */
TEST(scales_of_bf16) {
    static const double scales[] = {0, 0.125, 0.3};
    for (int i = 0; i < 3; i++) {
        attn_spec s = corner_spec(NULL, 1, 2, 40, 100, 16);
        attn_owned x = {0};
        s.dtype = FXA_BF16;
        if (!corner_make(&x, &s)) return;
        x.scale = scales[i];
        corner_check(&x, 1, "bf16");
    }
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

/* The copy of K that is packed into panels shares a buffer with rows of V, and is larger than these. */
static void corner_narrow(const char *isa) {
    static const fxa_dtype dtypes[] = {FXA_F32, FXA_F64, FXA_F16, FXA_BF16};
    for (int i = 0; i < 4 * 3; i++) {
        attn_spec s = corner_spec(NULL, 1, 2, 40, 100, 512);
        attn_owned x = {0};
        s.dv = i / 4 == 0 ? 1 : i / 4 == 1 ? 3 : 512;
        if (i / 4 == 2) s.d = 3;
        s.dtype = dtypes[i % 4];
        if (!corner_make(&x, &s)) return;
        /* A score is a sum of d products, with an error of at most d units of the sum of their magnitudes, which is
         * about d / 4 times the scale 1 / sqrt(d). Values of V are below 1, so O has at most twice that error. f16
         * rounds O once more; bf16 rounds P, O and the reference's O, by half a unit each. */
        double units = (int)CORNER_UNITS + 2 * (double)s.d * (sqrt((double)s.d) / 4 + 1);
        corner_check(&x, s.dtype == FXA_BF16 ? 1.5 + units * 0x1p-16 : units + (s.dtype == FXA_F16 ? 0x1p13 : 0), isa);
    }
}

TEST(values_far_narrower_than_keys_and_wider) { isa_each(corner_narrow); }

/* Each chunk of keys has its own copy of dQ, so long queries have fewer chunks. */
TEST(chunks_of_long_queries_do_not_multiply_them) {
    t_ctx *ctx = attn_context(1);
    for (int64_t sq = 1 << 18; sq <= 1 << 21; sq *= 2) {
        fxa_problem p = FXA_PROBLEM_INIT;
        t_plan *plan = NULL;
        p.pass = FXA_BACKWARD, p.flags = FXA_GRAD_Q, p.engine = "cpu";
        p.b = p.hq = 1, p.sq = sq, p.sk = 8192, p.d_qk = 64;
        T_OK(fxa_plan_create(ctx, &p, &plan, &err));
        double dq = (double)sq * 64 * 4, most = (double)(512 << 20) > dq ? (double)(512 << 20) : dq;
        T_CHECK(plan && (double)fxa_plan_workspace(plan) < most + (double)sq * 32 + (16 << 20));
    }
}

/* The sums of a gradient's elements need four times the bytes of a tensor of 2^62 bytes. */
TEST(a_workspace_past_every_memory_is_refused) {
    t_ctx *ctx = attn_context(1);
    t_program *program = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan *plan = NULL;
    fxa_support reports[4];
    size_t n = 4;
    const int64_t size = (int64_t)1 << 20;
    fxa_capture capture = {.size = {size, size, 2 * size}, .grad = 1};
    T_OK(fxa_program_parse(ctx, "tensor t : bf16[3]\nscore = score + t[q % 3, k % 5, h]", SIZE_MAX, &program, &err));
    p.pass = FXA_BACKWARD, p.flags = FXA_GRAD_K, p.engine = "cpu", p.program = program;
    p.b = p.hq = 1, p.sq = p.sk = 40, p.d_qk = 8, p.captures = &capture, p.n_captures = 1;
    T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "the workspace of one run does not fit");
    T_OK(fxa_support_query(ctx, &p, reports, &n, &err));
    T_STR(reports[0].engine, "cpu");
    T_INT(reports[0].supported, 0);
    T_HAS(reports[0].reason, "the workspace of one run does not fit");
}

TEST(an_empty_name_of_a_set_is_none) {
    attn_spec s = corner_spec(NULL, 1, 1, 5, 9, 8);
    attn_owned x = {0};
    if (!corner_make(&x, &s)) return;
    setenv("FXA_CPU", "", 1);
    corner_check(&x, CORNER_UNITS, "FXA_CPU is empty");
    unsetenv("FXA_CPU");
}

T_MAIN
