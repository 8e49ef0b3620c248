/* SPDX-License-Identifier: Apache-2.0
 *
 * The evaluator: loads of every dtype, rank and layout, 64-bit elements, out-of-bounds indices.
 */
#include "eval_fixture.h"

/* Returns t[index...] from a program whose indices are the coordinates b, h, q, k and k_len. */
static double eval_load_at(const fxa_view *view, const int32_t *index) {
    static const fxa_input axis[FXA_MAX_RANK] = {FXA_INPUT_B, FXA_INPUT_H, FXA_INPUT_Q, FXA_INPUT_K, FXA_INPUT_K_LEN};
    fxa_builder *b = eval_builder();
    fxa_value at[FXA_MAX_RANK];
    double in[FXA_INPUT_COUNT] = {0}, got = NAN;
    for (int i = 0; i < view->rank; i++) {
        at[i] = fxa_builder_input(b, axis[i]);
        in[axis[i]] = index[i];
    }
    int32_t t = fxa_builder_tensor(b, "t", view->dtype, view->rank);
    t_program *p = eval_finish(b, fxa_builder_load(b, t, at, (size_t)view->rank));
    fxa_error err;
    T_OK(fxa_program_eval(p, in, NULL, view, &got, NULL, &err));
    return got;
}

static double eval_load1(const fxa_view *view, int32_t index) { return eval_load_at(view, &index); }

TEST(loads_of_every_dtype) {
    const double f64[] = {1.5, -2};
    const float f32[] = {1.5f, -2};
    const uint16_t f16[] = {0x3e00, 0xc000}, bf16[] = {0x3fc0, 0xc000};
    const int64_t i64[] = {INT64_C(3000000000), INT64_C(-3000000000)};
    const int32_t i32[] = {INT32_MAX, INT32_MIN};
    const int16_t i16[] = {32767, -32768};
    const int8_t i8[] = {127, -128};
    const uint8_t u8[] = {0, 255}, b8[] = {0, 7};
    const struct {
        fxa_dtype dtype;
        const void *data;
        double first, second;
    } rows[] = {{FXA_F64, f64, 1.5, -2},
                {FXA_F32, f32, 1.5, -2},
                {FXA_F16, f16, 1.5, -2},
                {FXA_BF16, bf16, 1.5, -2},
                {FXA_I64, i64, INT32_MAX, INT32_MIN},
                {FXA_I32, i32, INT32_MAX, INT32_MIN},
                {FXA_I16, i16, 32767, -32768},
                {FXA_I8, i8, 127, -128},
                {FXA_U8, u8, 0, 255},
                {FXA_B8, b8, 0, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fxa_view view = {rows[i].data, rows[i].dtype, 1, {2}, {1}};
        T_SAME(eval_load1(&view, 0), rows[i].first);
        T_SAME(eval_load1(&view, 1), rows[i].second);
        T_SAME(eval_load1(&view, -1), rows[i].second);
        T_SAME(eval_load1(&view, -2), rows[i].first);
        T_SAME(eval_load1(&view, 2), 0);
        T_SAME(eval_load1(&view, -3), 0);
        T_SAME(eval_load1(&view, INT32_MAX), 0);
        T_SAME(eval_load1(&view, INT32_MIN), 0);
    }
}

/* Returns the mask of a program text with the given declarations. */
static int eval_mask(fxa_context *ctx, const char *head, const char *text, const double *in, const fxa_view *views) {
    char all[192];
    t_program *p = NULL;
    fxa_error err;
    int mask = -1;
    snprintf(all, sizeof all, "%s%s", head, text);
    T_OK(fxa_program_parse(ctx, all, SIZE_MAX, &p, &err));
    T_OK(fxa_program_eval(p, in, NULL, views, NULL, &mask, &err));
    return mask;
}

/* Compares t[q] == u[k] and t[q] != u[k] of single elements; index 9 is out of bounds. */
static void eval_equality(int64_t x, int64_t y, bool outside, int equal) {
    t_ctx *ctx = t_context();
    const int64_t t[] = {x}, u[] = {y};
    fxa_view views[2] = {{t, FXA_I64, 1, {1}, {1}}, {u, FXA_I64, 1, {1}, {1}}};
    const double in[FXA_INPUT_COUNT] = {[FXA_INPUT_K] = outside ? 9 : 0};
    static const char *const texts[] = {
        "mask = t[q] == u[k]",    "mask = u[k] == t[q]", "let x = t[q]\nmask = x == u[k]",
        "mask = !(t[q] != u[k])", "mask = t[q] != u[k]", "mask = !(t[q] == u[k])"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        T_INT(eval_mask(ctx, "tensor t : i64[1]\ntensor u : i64[1]\n", texts[i], in, views), i < 4 ? equal : !equal);
}

TEST(equality_of_i64_elements) {
    const int64_t wide = INT64_C(5000000000);
    eval_equality(wide, INT64_C(7000000000), false, 0);
    eval_equality(wide, wide, false, 1);
    eval_equality(-wide, -wide - 1, false, 0);
    eval_equality(INT64_MIN, INT64_MIN, false, 1);
    eval_equality(INT64_MAX, INT32_MAX, false, 0);
    eval_equality(INT32_MIN, INT64_MIN, false, 0);
    eval_equality(1, 1 + (INT64_C(1) << 32), false, 0);
    eval_equality(INT64_C(1) << 32, 0, true, 0); /* an out-of-bounds load is 0, and all 64 bits are compared */
    eval_equality(0, wide, true, 1);
}

/* Except in == and != of two loads, i64 elements saturate to 32 bits. */
CONTEXT_TEST(other_uses_of_i64_saturate) {
    const int64_t wide[] = {INT64_C(5000000000), INT64_C(7000000000)};
    const int32_t most[] = {INT32_MAX, INT32_MAX};
    fxa_view views[2] = {{wide, FXA_I64, 1, {2}, {1}}, {most, FXA_I32, 1, {2}, {1}}};
    const double in[FXA_INPUT_COUNT] = {[FXA_INPUT_K] = 1};
    static const char *const texts[] = {"t[q] >= t[k]", "t[q] - t[k] == 0",   "min(t[q], 2147483647) == t[k]",
                                        "t[q] == u[k]", "t[q] == 2147483647", "!(t[q] < t[k])"};
    static const char head[] = "tensor t : i64[1]\ntensor u : i32[1]\nmask = u[q] > 0\nmask = mask && ";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (eval_mask(ctx, head, texts[i], in, views) != 1) T_FAIL("%s\n", texts[i]);
}

TEST(loads_of_every_rank) {
    double data[2 * 3 * 2 * 3 * 2];
    for (int i = 0; i < 72; i++) data[i] = i;
    fxa_view view = {data, FXA_F64, 5, {2, 3, 2, 3, 2}, {36, 12, 6, 2, 1}};
    for (int i = 0; i < 72; i++) {
        int32_t at[5] = {i / 36, i / 12 % 3, i / 6 % 2, i / 2 % 3, i % 2}, back[5];
        for (int d = 0; d < 5; d++) back[d] = at[d] - (int32_t)view.size[d];
        T_SAME(eval_load_at(&view, at), i);
        T_SAME(eval_load_at(&view, back), i);
        at[i % 5] = (int32_t)view.size[i % 5];
        T_SAME(eval_load_at(&view, at), 0);
    }
    const double want[] = {0, 36, 48, 54, 56};
    const int32_t ones[] = {1, 1, 1, 1};
    for (int rank = 0; rank < 5; rank++) {
        view.rank = rank;
        T_SAME(eval_load_at(&view, ones), want[rank]);
    }
}

TEST(loads_by_strides) {
    const float data[] = {0, 1, 2, 3, 4, 5};
    fxa_view back = {data + 5, FXA_F32, 1, {6}, {-1}}, same = {data + 3, FXA_F32, 1, {1000}, {0}};
    fxa_view transposed = {data, FXA_F32, 2, {3, 2}, {1, 3}};
    for (int i = 0; i < 6; i++) T_SAME(eval_load1(&back, i), 5 - i);
    T_SAME(eval_load1(&same, 999), 3);
    T_SAME(eval_load1(&same, 1000), 0);
    T_SAME(eval_load_at(&transposed, (int32_t[]){2, 1}), 5);
    T_SAME(eval_load_at(&transposed, (int32_t[]){2, -2}), 2);
}

TEST(loads_of_empty_tensors_and_wild_strides_read_zero) {
    fxa_view empty = {NULL, FXA_F32, 1, {0}, {1}}, half = {NULL, FXA_F32, 2, {5, 0}, {1, 1}};
    T_SAME(eval_load1(&empty, 0), 0);
    T_SAME(eval_load1(&empty, -1), 0);
    T_SAME(eval_load_at(&half, (int32_t[]){1, 0}), 0);
    const float one = 1;
    fxa_view wild = {&one, FXA_F32, 2, {3, 3}, {INT64_MAX, INT64_MAX}};
    T_SAME(eval_load_at(&wild, (int32_t[]){2, 0}), 0); /* an offset beyond 64 bits is out of bounds */
    T_SAME(eval_load_at(&wild, (int32_t[]){1, 1}), 0);
    T_SAME(eval_load_at(&wild, (int32_t[]){0, 0}), 1);
}

/* the offset is 64 bits wide. */
TEST(offsets_are_64_bit) {
    fxa_view big = {NULL, FXA_F32, 2, {100000, 100000}, {100000, 1}};
    int64_t at = 0;
    T_CHECK(fxa__view_offset(&big, (int32_t[]){99999, 99999}, &at));
    T_INT(at, INT64_C(9999999999));
    T_CHECK(fxa__view_offset(&big, (int32_t[]){-1, -100000}, &at));
    T_INT(at, INT64_C(9999900000));
    T_CHECK(!fxa__view_offset(&big, (int32_t[]){0, 100000}, &at));
}

/* An index may itself be loaded. */
TEST(loads_by_loaded_indices) {
    const int64_t page[] = {2, INT64_C(1) << 40, -1};
    const double value[] = {10, 20, 30};
    fxa_view views[2] = {{page, FXA_I64, 1, {3}, {1}}, {value, FXA_F64, 1, {3}, {1}}};
    fxa_builder *b = eval_builder();
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q);
    fxa_value at = fxa_builder_load(b, fxa_builder_tensor(b, "page", FXA_I64, 1), &q, 1);
    t_program *p = eval_finish(b, fxa_builder_load(b, fxa_builder_tensor(b, "value", FXA_F64, 1), &at, 1));
    const double want[] = {30, 0, 30};
    for (int i = 0; i < 3; i++) {
        double in[FXA_INPUT_COUNT] = {[FXA_INPUT_Q] = i}, got;
        T_OK(fxa_program_eval(p, in, NULL, views, &got, NULL, &err));
        T_SAME(got, want[i]);
    }
}

T_MAIN
