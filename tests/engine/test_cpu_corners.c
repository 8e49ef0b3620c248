/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the cpu engine's shortcuts end, against the reference: coordinates that wrap around, lengths past those that
 * bands are true for, bits of masks that many batch entries or other lengths need, rows whose chunks are all masked,
 * masks too long for range analysis, and problems whose workspace no memory holds.
 */
#include "t.h"

#include "support/attn_data.h"

#include <stdlib.h>

static bool corner_make(attn_data *x, const attn_spec *s) {
    fxa_error err;
    fxa_context *ctx = attn_context(1);
    fxa_status status = attn_data_make(x, ctx, s, t_seed(), &err);
    if (status != FXA_OK) T_FAIL("%s\n", err.text);
    fxa_context_destroy(ctx);
    return status == FXA_OK;
}

static bool corner_run(attn_data *x, const char *engine, const char *what) {
    fxa_error err;
    fxa_context *ctx = attn_context(2);
    fxa_status status = attn_data_run(x, ctx, engine, FXA_FORWARD, &err);
    if (status != FXA_OK) T_FAIL("%s, %s: %s\n", what, engine, err.text);
    fxa_context_destroy(ctx);
    return status == FXA_OK;
}

/* Forward by both engines: special values are the same, and O is within `units` of the dtype's rounding. */
static void corner_check(attn_data *x, double units, const char *what) {
    attn_kept want = {{NULL}};
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
    attn_drop(&want);
}

/* Sums in another order: 32 units as in test_cpu_forward.c, and twice the size of scores, here below 4. */
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
        attn_data x;
        int32_t from = cases[i].from;
        if (!corner_make(&x, &s)) return;
        x.problem.map_k = (fxa_index_map){.kind = FXA_MAP_AFFINE, .step = cases[i].step, .dynamic = 1};
        x.ints[FXA_SLOT_DYN_K] = &from;
        corner_check(&x, CORNER_UNITS, cases[i].text);
        attn_data_free(&x);
    }
}

TEST(lengths_past_those_of_bands) {
    const int64_t far = (int64_t)1 << 30;
    static const char *const texts[] = {"mask = k <= q", "mask = k <= q + k_len - q_len",
                                        "mask = q_len - 20 <= k + k_len"};
    for (int i = 0; i < 3 * 3; i++) {
        attn_spec s = corner_spec(texts[i / 3], 1, 2, 40, 100, 8);
        attn_data x;
        if (!corner_make(&x, &s)) return;
        x.problem.q_len = i % 3 != 1 ? far + 5 : 40;
        x.problem.k_len = i % 3 != 0 ? far + 40 : 100;
        corner_check(&x, CORNER_UNITS, texts[i / 3]);
        attn_data_free(&x);
    }
}

/* ---- Bits of masks ----------------------------------------------------------------------------------------------- */

TEST(more_batch_entries_than_kept_bits) {
    attn_spec s = corner_spec("mask = (k * 7 + q + b) % 3 == 0", 300, 2, 20, 20, 8);
    attn_data x;
    s.hkv = 2;
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "300 batch entries");
    attn_data_free(&x);
}

/* The first tiles of both are as long, of rows in other places. */
TEST(bits_of_sequences_of_other_lengths) {
    attn_spec s = corner_spec("mask = (q * 3 + k + q_len) % 5 != 0", 2, 2, 202, 64, 512);
    attn_data x;
    int32_t rows[] = {200, 202}, keys[] = {64, 64};
    s.flags = FXA_PADDING;
    if (!corner_make(&x, &s)) return;
    x.ints[FXA_SLOT_LEN_Q] = rows, x.ints[FXA_SLOT_LEN_K] = keys;
    corner_check(&x, CORNER_UNITS, "200 and 202 rows");
    attn_data_free(&x);
}

TEST(strips_of_one_block_in_decoding) {
    attn_spec s = corner_spec("mask = (k * k) % 512 < 200 && (k // 100) % 2 == 0", 2, 2, 1, 1024, 8);
    attn_data x;
    if (!corner_make(&x, &s)) return;
    corner_check(&x, CORNER_UNITS, "decoding with gaps");
    attn_data_free(&x);
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
        x.ints[FXA_SLOT_LEN_Q] = rows, x.ints[FXA_SLOT_LEN_K] = keys;
        corner_check(&x, CORNER_UNITS, decode ? "decoding" : "20 rows");
        attn_data_free(&x);
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

/* Products that round Q to 16 bits: weights and outputs round once each, half a unit. */
TEST(scales_of_bf16) {
    static const double scales[] = {0, 0.125, 0.3};
    for (int i = 0; i < 3; i++) {
        attn_spec s = corner_spec(NULL, 1, 2, 40, 100, 16);
        attn_data x;
        s.dtype = FXA_BF16;
        if (!corner_make(&x, &s)) return;
        x.scale = scales[i];
        corner_check(&x, 1, "bf16");
        attn_data_free(&x);
    }
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

/* Sums of a gradient's elements take four times what a tensor of 2^62 bytes does. */
TEST(a_workspace_past_every_memory_is_refused) {
    fxa_context *ctx = attn_context(1);
    fxa_program *program = NULL;
    fxa_problem p = FXA_PROBLEM_INIT;
    fxa_plan *plan = NULL;
    fxa_error err;
    fxa_support reports[4];
    size_t n = 4;
    const int64_t size = (int64_t)1 << 20;
    fxa_capture capture = {.size = {size, size, 2 * size}, .grad = 1};
    T_OK(fxa_program_parse(ctx, "tensor t : bf16[3]\nscore = score + t[q % 3, k % 5, h]", SIZE_MAX, &program, &err));
    p.pass = FXA_BACKWARD, p.flags = FXA_GRAD_K, p.engine = "cpu", p.program = program;
    p.b = p.hq = 1, p.sq = p.sk = 40, p.d = 8, p.captures = &capture, p.n_captures = 1;
    T_STATUS(fxa_plan_create(ctx, &p, &plan, &err), FXA_E_UNSUPPORTED);
    T_HAS(err.text, "the workspace of one run does not fit");
    T_OK(fxa_support_query(ctx, &p, reports, &n, &err));
    T_STR(reports[0].engine, "cpu");
    T_INT(reports[0].supported, 0);
    T_HAS(reports[0].reason, "the workspace of one run does not fit");
    fxa_program_destroy(program);
    fxa_context_destroy(ctx);
}

TEST(an_empty_name_of_a_set_is_none) {
    attn_spec s = corner_spec(NULL, 1, 1, 5, 9, 8);
    attn_data x;
    if (!corner_make(&x, &s)) return;
    setenv("FXA_CPU", "", 1);
    corner_check(&x, CORNER_UNITS, "FXA_CPU is empty");
    unsetenv("FXA_CPU");
    attn_data_free(&x);
}

T_MAIN
