/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of loads with given tensor ranges: views that do not match the tensor, empty ranges, floats with NaN.
 * What does not match is ignored; what is known decides, for every engine.
 */
#include "t.h"

#include "program/program.h"
#include "support/oracle/brute.h"

/* Returns a program, which outlives its context. */
static fxa_program *view_parse(const char *text) {
    t_ctx *ctx = t_context();
    fxa_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(ctx, text, SIZE_MAX, &p, &err));
    return p;
}

/* Returns the class of q 0..3, k 0..5. */
static fxa_tile_class view_class(const fxa_program *p, const fxa_tensor_range *ranges) {
    fxa_tile_bounds box = brute_box(0, 0, 0, 3, 0, 5, 4, 6);
    return fxa_program_classify(p, &box, NULL, ranges);
}

static void view_check(const char *text, const fxa_tensor_range *ranges, fxa_tile_class want) {
    t_program *p = view_parse(text);
    T_REQUIRE(p);
    fxa_tile_class got = view_class(p, ranges);
    if (got != want) T_FAIL("%s: %d, not %d\n", text, (int)got, (int)want);
}

TEST(views_that_are_not_of_the_tensor) {
    static const char text[] = "tensor t : u8[1]\nmask = t[k] < 10";
    uint8_t low[6] = {1, 2, 3, 4, 5, 6};
    int16_t wide[6] = {0};
    fxa_view views[] = {
        {.data = low, .dtype = FXA_U8, .rank = 1, .size = {6}, .stride = {1}}, /* this one matches */
        {.data = wide, .dtype = FXA_I16, .rank = 1, .size = {6}, .stride = {1}},
        {.data = low, .dtype = FXA_U8, .rank = 2, .size = {6, 1}, .stride = {1, 1}},
        {.data = low, .dtype = FXA_U8, .rank = 1, .size = {-6}, .stride = {1}},
        {.data = low, .dtype = FXA_U8, .rank = 1, .size = {(int64_t)1 << 32}, .stride = {0}},
        {.data = NULL, .dtype = FXA_U8, .rank = 1, .size = {6}, .stride = {1}},
    };
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        fxa_tensor_range range = {.view = &views[i]};
        view_check(text, &range, i == 0 ? FXA_TILE_FULL : FXA_TILE_MIXED);
    }
    view_check(text, NULL, FXA_TILE_MIXED);
    view_check("tensor t : u8[1]\nmask = t[k] < 256", NULL, FXA_TILE_FULL); /* from the dtype alone */
    view_check("tensor t : f32[1]\nmask = t[k] < 10.0", NULL, FXA_TILE_MIXED);
}

/* A given range counts if it is not empty; an out-of-bounds index gives 0. */
TEST(ranges_as_they_are_given) {
    static const struct {
        const char *text;
        int32_t lo, hi;
        fxa_tile_class want;
    } cases[] = {
        {"tensor t : u8[1]\nmask = t[k] < 10", 0, 9, FXA_TILE_FULL},
        {"tensor t : u8[1]\nmask = t[k] < 10", 9, 0, FXA_TILE_MIXED}, /* empty */
        /* outside of u8: only out-of-bounds loads remain */
        {"tensor t : u8[1]\nmask = t[k] < 10", 300, 400, FXA_TILE_FULL},
        {"tensor t : u8[1]\nmask = 10 < t[k]", 20, 30, FXA_TILE_MIXED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fxa_tensor_range range = {.known = 1, .lo = cases[i].lo, .hi = cases[i].hi};
        view_check(cases[i].text, &range, cases[i].want);
    }
}

/* `nondecreasing` describes one axis only: a table of higher rank is read element by element. */
TEST(order_of_a_table_says_nothing) {
    int32_t table[4][6];
    for (int i = 0; i < 24; i++) table[i / 6][i % 6] = i % 5;
    fxa_view view = {.data = table, .dtype = FXA_I32, .rank = 2, .size = {4, 6}, .stride = {6, 1}};
    fxa_tensor_range range = {.view = &view, .nondecreasing = 1};
    view_check("tensor t : i32[2]\nmask = t[q, k] < 5", &range, FXA_TILE_FULL);
    view_check("tensor t : i32[2]\nmask = t[q, k] < 4", &range, FXA_TILE_MIXED);
}

TEST(scans_of_what_is_no_list_of_ints) {
    float real[6] = {0};
    int32_t whole[6] = {3, 1, 4, 1, 5, 9};
    fxa_view views[] = {
        {.data = real, .dtype = FXA_F32, .rank = 1, .size = {6}, .stride = {1}},
        {.data = whole, .dtype = FXA_I32, .rank = 1, .size = {-1}, .stride = {1}},
        {.data = whole, .dtype = FXA_I32, .rank = 2, .size = {3, 2}, .stride = {2, 1}},
        {.data = NULL, .dtype = FXA_I32, .rank = 1, .size = {6}, .stride = {1}},
    };
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) T_INT(fxa_tensor_scan(&views[i]).known, 0);
    fxa_view good = {.data = whole, .dtype = FXA_I32, .rank = 1, .size = {6}, .stride = {1}};
    fxa_tensor_range range = fxa_tensor_scan(&good);
    T_CHECK(range.known && !range.nondecreasing && range.lo == 1 && range.hi == 9);
    const uint8_t bits[4] = {0, 0, 1, 1};
    fxa_view bools = {.data = bits, .dtype = FXA_B8, .rank = 1, .size = {4}, .stride = {1}};
    range = fxa_tensor_scan(&bools);
    T_CHECK(range.known && range.nondecreasing && range.lo == 0 && range.hi == 1);
}

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

TEST(floats_that_are_nan) {
    double nan[6], one[6], half[6];
    for (int i = 0; i < 6; i++) nan[i] = NAN, one[i] = 1, half[i] = 0.5;
    static const char head[] = "tensor n : f64[1]\ntensor o : f64[1]\ntensor p : f64[1]\nmask = ";
    static const struct {
        const char *mask;
        fxa_tile_class want;
    } cases[] = {
        {"n[k] < 1.0", FXA_TILE_EMPTY},
        {"1.0 < n[k]", FXA_TILE_EMPTY},
        {"n[k] == o[k]", FXA_TILE_EMPTY},
        {"o[k] == n[q]", FXA_TILE_EMPTY},
        {"n[k] == 1.0", FXA_TILE_EMPTY},
        {"n[k] != o[q]", FXA_TILE_FULL},
        {"int(n[k]) == 0", FXA_TILE_FULL},
        {"p[k] == 0.5", FXA_TILE_MIXED}, /* a rounded value may be another one */
        {"p[k] < 0.75", FXA_TILE_FULL},
        {"where(q < k, n[k], 1.0) < 2.0", FXA_TILE_MIXED},
        {"where(q < k, 1.0, n[k]) < 2.0", FXA_TILE_MIXED},
        {"where(q < k, 1.0, 2.0) < 3.0", FXA_TILE_FULL},
        {"where(q < k, 1.0, 2.5) < 3.0", FXA_TILE_FULL},
        {"where(q < k, 2.5, 1.0) < 3.0", FXA_TILE_FULL},
    };
    fxa_view views[3] = {{.data = nan}, {.data = one}, {.data = half}};
    fxa_tensor_range ranges[3] = {{.view = &views[0]}, {.view = &views[1]}, {.view = &views[2]}};
    for (int i = 0; i < 3; i++)
        views[i].dtype = FXA_F64, views[i].rank = 1, views[i].size[0] = 6, views[i].stride[0] = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        fxa_program *p;
        (void)snprintf(text, sizeof text, "%s%s", head, cases[i].mask);
        T_REQUIRE((p = view_parse(text)));
        fxa_tensor_range used[3];
        for (int32_t t = 0; t < p->n_tensors; t++) used[t] = ranges[p->tensors[t].name[0] - 'n'];
        fxa_tile_class got = view_class(p, used);
        if (got != cases[i].want) T_FAIL("%s: %d, not %d\n", cases[i].mask, (int)got, (int)cases[i].want);
        fxa_program_destroy(p);
    }
}

TEST(sums_past_what_f32_counts) {
    t_program *p = view_parse("mask = -16000000.0 - float(k) < 5.0 && -9000000.0 - float(q) * 3.0 < 1.0");
    fxa_tile_bounds box = brute_box(0, 0, 0, 9000000, 0, 9000000, 9, 9);
    T_REQUIRE(p);
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_FULL);
}

T_MAIN
