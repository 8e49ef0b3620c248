/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of hand-made masks with given params, tensors and sizes. test_range_random.c tests random
 * masks.
 */
#include "t.h"

#include "program/range.h"
#include "support/oracle/brute.h"
#include "support/memory/fail_alloc.h"

#include <stdarg.h>

static fxa_program *range_parse(fxa_context *ctx, const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    if (fxa_program_parse(ctx, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s: %s\n", text, err.text);
    return p;
}

/* ---- Cases by hand ----------------------------------------------------------------------------------------------- */

typedef struct range_case {
    const char *mask;
    int32_t q0, q1, k0, k1; /* b 1, h 2, q_len 100, k_len 120 */
    fxa_tile_class want;
} range_case;

#define E FXA_TILE_EMPTY
#define M FXA_TILE_MIXED
#define F FXA_TILE_FULL
static const range_case range_cases[] = {
    {"true", 0, 9, 0, 9, F},
    {"false", 0, 9, 0, 9, E},
    {"k <= q", 0, 9, 10, 19, E},
    {"k <= q", 0, 9, 9, 19, M},
    {"k <= q", 9, 19, 0, 9, F},
    {"q - k >= 0 && q - k < 64", 128, 255, 0, 64, E},
    {"q - k >= 0 && q - k < 64", 128, 255, 0, 65, M},
    {"q - k >= 0 && q - k < 64", 120, 127, 64, 120, F},
    {"0 <= q - k && k <= 3 && q - k <= -1", 0, 9, 0, 9, E}, /* bounds on one form are combined across another */
    {"k <= q || q < k", 0, 99, 0, 99, F},
    {"k < q || q < k || q + 5 == k + 5", 0, 99, 0, 99, F},
    {"(k <= q) ^ (q < k)", 0, 99, 0, 99, F},
    {"(k <= q) == (q >= k)", 0, 99, 0, 99, F},
    {"!(q - k >= 3 && q - k <= 2)", 0, 99, 0, 99, F},
    {"where(q >= k, q - k >= 0, q - k < 0)", 0, 99, 0, 99, F},
    {"abs(q - k) < 8", 0, 7, 0, 7, F},
    {"abs(q % 100 - 50) >= 40", 195, 205, 0, 0, F}, /* -50..-45 and 45..49 */
    {"(q + 4 * k) % 4 == q % 4", 0, 99, 0, 99, F},
    {"(q // 8 - (q + 3) // 8) * 3 >= -3", 0, 999, 0, 9, F},
    {"2 * (q // 8) - (q + 3) // 8 <= 0", 0, 999, 0, 9, M}, /* up to 124 */
    {"q // 8 - (q + 3) // 8 + (q + 1) // 8 <= 1", 0, 999, 0, 9, M},
    {"abs(q - k) < 8", 0, 7, 15, 20, E},
    {"abs(q - k) < 8 && q - k > 7", 0, 99, 0, 99, E},
    {"q // 64 == k // 64", 0, 63, 0, 63, F},
    {"q // 64 == k // 64", 0, 63, 64, 127, E},
    {"q // 64 == k // 64", 0, 64, 64, 127, M},
    {"q // 64 == (q + 64) // 64 - 1", 0, 999, 0, 9, F},
    {"q // 64 <= (q + 32) // 64", 0, 999, 0, 9, F},
    {"q // 6 == q // 2 // 3", 0, 999, 0, 9, F},
    {"(q - k) // 8 == 0 && q - k >= 8", 0, 99, 0, 99, E}, /* a quotient is combined with its form */
    {"(q * 2) % 2 == 0", 0, 99, 0, 99, F},
    {"(q * 6 + 3) % 4 == 2", 0, 99, 0, 99, E},
    {"2 * q == 2 * k + 1", 0, 99, 0, 99, E},
    {"2 * q == 3 * k + 1", 0, 1, 0, 0, E},
    {"2 * q - 3 * k == 4", 0, 1, 0, 1, E}, /* 0 2 -3 -1 */
    {"(q - k) % 2 == 0", 5, 5, 3, 3, F},
    {"(q - k) % 7 == 3", 5, 6, 0, 1, E}, /* 4 5 6 */
    {"(q - k) % 7 == 3", 5, 6, 0, 2, M},
    {"q % 64 == k % 64", 60, 70, 75, 80, E}, /* 60..63 and 0..6 compared with 11..16 */
    {"(5 * q) % 64 == 3", 0, 8, 0, 0, E},
    {"(5 * k + 7 * h) % 8 + 4 * ((4 * q + 5) % 12) == 13", 11, 21, 12, 19, E}, /* k alone takes every residue */
    {"(9 * k + 4) % 6 + 4 * ((5 * q + 5) % 7) != 19", 6, 12, 33, 44, F},
    {"abs(q % 8 - k % 8) <= 1 && abs(q // 8 - k // 8) <= 1", 0, 7, 16, 23, E},
    {"q & 7 < 8", 0, 999, 0, 9, F},
    {"(q & ~7) == q - q % 8", 0, 999, 0, 9, F},
    {"q >> 3 == k >> 3", 8, 15, 8, 15, F},
    {"(q << 3) % 8 == 0", 0, 999, 0, 9, F},
    {"q - q % 64 <= k", 64, 190, 63, 63, E},
    {"q - q % 64 <= k", 64, 190, 128, 300, F},
    {"q - q // 8 * 8 < 8", 0, 999, 0, 9, F},
    {"q + 11 <= (3 * k - 6 + q) // 2", 44, 60, 2, 22, E},
    {"q * k >= 0", 0, 99, 0, 99, F},
    {"min(q, k) <= q", 0, 99, 0, 99, M}, /* sound, but not exact */
    {"max(q, q + 1) == q + 1", 0, 99, 0, 99, F},
    {"clamp(q, 0, 50) == q", 0, 50, 0, 9, F},
    {"q // 0 == 0 && k % 0 == 0", 0, 9, 0, 9, F},
    {"q // -8 == -(q // 8)", 8, 8, 0, 0, F},
    {"q % -8 <= 0", 0, 99, 0, 9, F},
    {"q + b < 100 && h == 2 && k < k_len", 0, 98, 0, 119, F},
    {"k <= q + k_len - q_len", 0, 0, 0, 20, F},
    {"k <= q + k_len - q_len", 0, 0, 21, 30, E},
    {"q - k >= 0 && q - k + k_len < 120", 0, 99, 0, 99, E}, /* single values fold into the same form */
    {"q + 2147483647 < 0", 1, 99, 0, 9, F},                 /* wraps everywhere */
    {"q + 2147483647 < 0", 0, 99, 0, 9, M},
    {"(q + 2147483647) - 2147483647 == q", -9, 99, 0, 9, F},
    {"q * 65536 * 65536 == 0", 0, 99, 0, 9, F},
    {"float(q) - float(k) < 64.0", 0, 63, 0, 63, F},
    {"float(q) >= float(k)", 0, 63, 64, 70, E},
    {"tanh(q / 7) < 1.1", 0, 63, 0, 63, F},
    {"score < 1 || score >= 1", 0, 9, 0, 9, M}, /* NaN satisfies neither */
    {"score != score || score == score", 0, 9, 0, 9, M},
    {"sqrt(q - 5) >= 0", 0, 3, 0, 9, M},
    {"int(float(q) * 0.5) <= 20", 0, 30, 0, 9, F},
    {"int(k <= q) == 2", 0, 9, 0, 9, E},
    {"log1p(exp(float(q))) >= 0", 0, 200, 0, 9, M},         /* up to infinity, or beyond f32 */
    {"max(float(q), 0.5) == abs(float(q))", 3, 3, 0, 9, M}, /* equal, but not known to be an integer */
    {"max(float(q), 0.5) == float(q) + 0", 3, 3, 0, 9, M},
    {"max(float(q), 0.5) == floor(float(q) * 2)", 0, 0, 0, 9, E},
    {"max(float(q), 0.5) == floor(float(q))", 3, 3, 0, 9, M},
    {"max(float(q), 0.5) == float(q) * 1.0 + 0.0", 3, 3, 0, 9, M},
    {"max(float(q), 0.5) == min(float(q), 7.0)", 3, 3, 0, 9, M},
    {"max(float(q), 0.25) == min(float(q), 8.0)", 3, 3, 0, 9, M},
    {"max(float(q), 0.75) == min(float(q), 9.0)", 3, 3, 0, 9, M},
};

CONTEXT_TEST(cases) {
    for (size_t i = 0; i < sizeof range_cases / sizeof *range_cases; i++) {
        const range_case *c = &range_cases[i];
        char text[256];
        snprintf(text, sizeof text, "mask = %s", c->mask);
        t_program *p = range_parse(ctx, text);
        if (!p) continue;
        fxa_tile_bounds box = brute_box(1, 2, c->q0, c->q1, c->k0, c->k1, 100, 120);
        fxa_tile_class got = fxa_program_classify(p, &box, NULL, NULL),
                       truth = brute_class(p, &box, NULL, NULL, brute_scores, 3);
        if (got != c->want) T_FAIL("%s: %s, not %s\n", c->mask, brute_name(got), brute_name(c->want));
        if (got != FXA_TILE_MIXED && got != truth) T_FAIL("%s: %s is wrong\n", c->mask, brute_name(got));
    }
}
#undef E
#undef M
#undef F

/* ---- Params and tensors ------------------------------------------------------------------------------------------ */

CONTEXT_TEST(params) {
    fxa_program *p = range_parse(ctx, "param w : int\nparam x : float\nmask = q - k < w && float(q) < x");
    T_REQUIRE(p != NULL);
    fxa_tile_bounds box = brute_box(0, 0, 10, 19, 0, 9, 100, 100);
    double full[2] = {20, 19.5}, empty[2] = {1, 1e9}, border[2] = {20, 19}, odd[2] = {20.5, 30}, none[2] = {20, NAN};
    double large[2] = {3e9, 30};
    T_INT(fxa_program_classify(p, &box, full, NULL), FXA_TILE_FULL);
    T_INT(fxa_program_classify(p, &box, empty, NULL), FXA_TILE_EMPTY);
    T_INT(fxa_program_classify(p, &box, border, NULL), FXA_TILE_MIXED);
    T_INT(fxa_program_classify(p, &box, odd, NULL), FXA_TILE_MIXED); /* no int: unknown */
    T_INT(fxa_program_classify(p, &box, large, NULL), FXA_TILE_MIXED);
    T_INT(fxa_program_classify(p, &box, none, NULL), FXA_TILE_EMPTY); /* no comparison with NaN is true */
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_MIXED);
    double close[2] = {20, 19 * (1 + 1e-7)}; /* within one f32 step: undecided */
    T_INT(fxa_program_classify(p, &box, close, NULL), FXA_TILE_MIXED);
    fxa_program_destroy(p);
    p = range_parse(ctx, "param w : int\nmask = q + w - w == q && k - w < k - w + 1 || w == w + 1");
    T_REQUIRE(p != NULL);
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_MIXED); /* k - w + 1 may wrap */
    fxa_program_destroy(p);
    p = range_parse(ctx, "param w : int\nmask = q + w - k == w + q - k");
    T_REQUIRE(p != NULL);
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_FULL); /* unknown, but equal */
    fxa_program_destroy(p);
}

static fxa_view range_view(const int32_t *data, int64_t n) {
    return (fxa_view){.data = data, .dtype = FXA_I32, .rank = 1, .size = {n}, .stride = {1}};
}

TEST(scan) {
    const int32_t up[] = {-3, -3, 0, 7}, mixed[] = {1, 9, 2};
    fxa_view view = range_view(up, 4), other = range_view(mixed, 3), none = range_view(NULL, 0),
             back = range_view(up + 3, 4);
    fxa_tensor_range r = fxa_tensor_scan(&view);
    T_CHECK(r.known && r.nondecreasing && r.lo == -3 && r.hi == 7 && r.view == &view);
    r = fxa_tensor_scan(&other);
    T_CHECK(r.known && !r.nondecreasing && r.lo == 1 && r.hi == 9);
    r = fxa_tensor_scan(&none);
    T_CHECK(r.known && r.nondecreasing && r.lo == 0 && r.hi == 0); /* every load is out of bounds: 0 */
    back.stride[0] = -1;
    r = fxa_tensor_scan(&back);
    T_CHECK(r.known && !r.nondecreasing && r.lo == -3 && r.hi == 7);
    const int64_t wide[] = {INT64_MIN, 5, INT64_MAX};
    fxa_view big = {.data = wide, .dtype = FXA_I64, .rank = 1, .size = {3}, .stride = {1}};
    r = fxa_tensor_scan(&big);
    T_CHECK(r.known && r.nondecreasing && r.lo == INT32_MIN && r.hi == INT32_MAX);
    const float real[] = {1, 2};
    fxa_view floats = {.data = real, .dtype = FXA_F32, .rank = 1, .size = {2}, .stride = {1}};
    r = fxa_tensor_scan(&floats);
    T_CHECK(!r.known && !r.nondecreasing);
    fxa_view square = {.data = up, .dtype = FXA_I32, .rank = 2, .size = {2, 2}, .stride = {2, 1}};
    r = fxa_tensor_scan(&square);
    T_CHECK(!r.known && !r.nondecreasing);
    T_CHECK(!fxa_tensor_scan(NULL).known);
}

/* Documents: exact classes for ascending ids, from two elements per axis. */
CONTEXT_TEST(documents) {
    enum { N = 96, TILE = 8 };
    int32_t doc[N];
    for (int i = 0; i < N; i++) doc[i] = i / 20;
    fxa_program *p = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] == doc[k] && k <= q");
    fxa_program *same = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q + 1 + 1] == doc[q + 2]");
    T_REQUIRE(p != NULL && same != NULL);
    fxa_view view = range_view(doc, N);
    fxa_tensor_range known = fxa_tensor_scan(&view), range = {.known = 1, .lo = 1, .hi = 3};
    for (int q = 0; q < N; q += TILE)
        for (int k = 0; k < N; k += TILE) {
            fxa_tile_bounds box = brute_box(0, 0, q, q + TILE - 1, k, k + TILE - 1, N, N);
            T_INT(fxa_program_classify(p, &box, NULL, &known), brute_class(p, &box, NULL, &view, brute_scores, 1));
            T_INT(fxa_program_classify(same, &box, NULL, NULL), FXA_TILE_FULL);
        }
    fxa_tile_bounds box = brute_box(0, 0, 50, 60, 10, 20, N, N);
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    fxa_program_destroy(p);
    fxa_program_destroy(same);

    /* A range without a view: the index may be out of bounds, so 0 is included. */
    p = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] >= 1");
    T_REQUIRE(p != NULL);
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    range.view = &view; /* in bounds: 0 is excluded */
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_FULL);
    box.hi[FXA_INPUT_Q] = N;
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    box.lo[FXA_INPUT_Q] = -N; /* few elements are read, whatever range the caller gave: some are 0 */
    box.hi[FXA_INPUT_Q] = -1;
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_MIXED);
    box.lo[FXA_INPUT_Q] = -N + 20;
    T_INT(fxa_program_classify(p, &box, NULL, &range), FXA_TILE_FULL);
    fxa_program_destroy(p);

    /* Ascending ids need only their two end elements; out-of-bounds indices add 0, negative ones count from the end. */
    p = range_parse(ctx, "tensor doc : i32[1]\nmask = doc[q] >= 4");
    T_REQUIRE(p != NULL);
    static const struct {
        int32_t q0, q1;
        fxa_tile_class want;
    } ends[] = {{80, N - 1, FXA_TILE_FULL},       {80, N, FXA_TILE_MIXED},
                {N, N + 9, FXA_TILE_EMPTY},       {-16, -1, FXA_TILE_FULL},
                {-16, 0, FXA_TILE_MIXED},         {-N, -17, FXA_TILE_EMPTY},
                {-N - 9, -N - 1, FXA_TILE_EMPTY}, {INT32_MIN, INT32_MAX, FXA_TILE_MIXED}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        box = brute_box(0, 0, ends[i].q0, ends[i].q1, 0, 0, N, N);
        T_INT(fxa_program_classify(p, &box, NULL, &known), ends[i].want);
    }
    fxa_program_destroy(p);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

/* A hundred bounds on as many forms, and a program that exceeds the stack: correct, and MIXED without memory. */
TEST(large) {
    fail_alloc alloc = FAIL_ALLOC_INIT;
    fxa_context *ctx = fail_alloc_context(&alloc);
    T_REQUIRE(ctx != NULL);
    for (int n = 1; n <= 400; n = n < 20 ? n + 1 : n * 2) {
        fxa_builder *b = NULL;
        t_program *p = NULL;
        T_OK(fxa_builder_create(ctx, FXA_PROGRAM_SCORE, &b, &err));
        fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K),
                  mask = fxa_builder_bool(b, 1);
        for (int i = 1; i <= n; i++) { /* q * i - k * (i + 1) <= 0, true where q <= k; the last one is q > k */
            fxa_value x = fxa_builder_op2(b, FXA_OP_MUL, q, fxa_builder_int(b, i));
            x = fxa_builder_op2(b, FXA_OP_SUB, x, fxa_builder_op2(b, FXA_OP_MUL, k, fxa_builder_int(b, i + 1)));
            mask = fxa_builder_op2(b, FXA_OP_AND, mask, fxa_builder_op2(b, FXA_OP_LE, x, fxa_builder_int(b, 0)));
        }
        mask = fxa_builder_op2(b, FXA_OP_AND, mask, fxa_builder_op2(b, FXA_OP_LT, k, q));
        fxa_builder_set_mask(b, mask);
        T_OK(fxa_builder_finish(b, &p, &err));
        fxa_builder_destroy(b);
        T_REQUIRE(p != NULL);
        fxa_tile_bounds below = brute_box(0, 0, 10, 20, 30, 40, 50, 50),
                        above = brute_box(0, 0, 41, 50, 30, 40, 50, 50);
        size_t before = alloc.calls;
        T_INT(fxa_program_classify(p, &below, NULL, NULL), FXA_TILE_EMPTY);
        fxa_tile_class got = fxa_program_classify(p, &above, NULL, NULL),
                       truth = brute_class(p, &above, NULL, NULL, brute_scores, 1);
        T_CHECK(got == FXA_TILE_MIXED || got == truth);
        T_INT(alloc.calls != before, fxa_program_node_count(p) - 1 > FXA__SMALL_NODES); /* minus the score */
        if (alloc.calls != before) {
            fail_alloc_arm(&alloc, 1, true);
            T_INT(fxa_program_classify(p, &below, NULL, NULL), FXA_TILE_MIXED);
            fail_alloc_arm(&alloc, 0, false);
        }
    }
    fxa_context_destroy(ctx);
    T_INT(alloc.blocks, 0);
    T_INT(alloc.mistakes, 0);
}

/* ---- Programs made to take long ---------------------------------------------------------------------------------- */

static char hostile_text[1 << 19];

static void hostile_add(const char *format, ...) {
    size_t used = strlen(hostile_text);
    va_list list;
    va_start(list, format);
    int n = vsnprintf(hostile_text + used, sizeof hostile_text - used, format, list);
    va_end(list);
    if (n < 0 || (size_t)n >= sizeof hostile_text - used) abort();
}

static void hostile_loads(int n) { /* each load may read an element that another one loaded */
    hostile_add("tensor t: i32[1]\nlet x0 = t[q]\n");
    for (int i = 0; i < n; i++) hostile_add("let x%d = t[x%d + %d]\n", i + 1, i, i);
    hostile_add("mask = x%d == k\n", n);
}
static void hostile_lists(int n) { /* two long lists of bounds are combined repeatedly */
    for (int side = 0; side < 2; side++) {
        hostile_add("let side%d = true", side);
        for (int i = 0; i < n; i++) hostile_add(" && k < q * %d + %d", i + 2, i + side);
        hostile_add("\n");
    }
    hostile_add("let z0 = true\nlet x = float(k) * 0.37 * float(q)\n");
    for (int i = 0; i < 3 * n; i++)
        hostile_add("let z%d = z%d && ((side0 && x > %d.5) && (side1 && x < %d.25))\n", i + 1, i, i, i);
    hostile_add("mask = z%d\n", 3 * n);
}
static void hostile_walks(int n) { /* each comparison is decided by enumerating q */
    hostile_add("let a0 = q // 3 - q %% 5\nmask = true");
    for (int i = 0; i < 3 * n; i++) hostile_add(" && (q * %d) %% 61 - (q * 7) %% 53 != %d", i % 20 + 2, i + 1);
    hostile_add("\n");
}
static void hostile_steps(int n) { /* each solves equations in two unknowns */
    hostile_add("mask = true");
    for (int i = 0; i < 4 * n; i++) hostile_add(" && q * %d - k * %d != %d", 1000 + i, 1001 + i, i + 1);
    hostile_add("\n");
}

/* The work of an analysis is limited by the number of nodes, and giving up is never wrong. */
CONTEXT_TEST(work_is_bounded_by_nodes) {
    static void (*const makers[])(int) = {hostile_loads, hostile_lists, hostile_walks, hostile_steps};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        hostile_text[0] = 0;
        makers[i](400);
        t_program *p = range_parse(ctx, hostile_text);
        T_REQUIRE(p != NULL);
        for (int32_t at = 0; at < 1024; at += 200) {
            fxa_tile_bounds box = {{0}, {0}};
            box.lo[FXA_INPUT_Q] = at, box.hi[FXA_INPUT_Q] = at + 199;
            box.lo[FXA_INPUT_K] = at / 2, box.hi[FXA_INPUT_K] = at / 2 + 99;
            static fxa__range_small small;
            fxa__range r;
            int32_t mask = fxa__program_output(p, FXA__OUT_MASK);
            T_CHECK(fxa__range_open(&r, &small, p, mask, &box, NULL, NULL));
            T_CHECK(r.work > -100000); /* one walk may exceed the limit by this much */
            fxa__range_close(&r);
            fxa_tile_class tile = fxa_program_classify(p, &box, NULL, NULL);
            int32_t data = 0;
            const fxa_view view = {&data, FXA_I32, 1, {1}, {1}};
            for (int n = 0; n < 8; n++) { /* corners and interior points */
                double in[FXA_INPUT_COUNT] = {0}, value;
                int kept;
                in[FXA_INPUT_Q] = n & 1 ? box.hi[FXA_INPUT_Q] : box.lo[FXA_INPUT_Q] + 13 * (n & 4);
                in[FXA_INPUT_K] = n & 2 ? box.hi[FXA_INPUT_K] : box.lo[FXA_INPUT_K] + 7 * (n & 4);
                T_OK(fxa_program_eval(p, in, NULL, &view, &value, &kept, &err));
                T_CHECK(tile != (kept ? FXA_TILE_EMPTY : FXA_TILE_FULL));
            }
        }
    }
}

CONTEXT_TEST(odd_calls) {
    t_program *p = range_parse(ctx, "mask = k <= q"), *d = NULL;
    T_REQUIRE(p != NULL);
    fxa_tile_bounds box = brute_box(0, 0, 5, 4, 0, 9, 9, 9); /* empty range of q */
    T_INT(fxa_program_classify(p, &box, NULL, NULL), FXA_TILE_EMPTY);
    T_INT(fxa_program_classify(NULL, &box, NULL, NULL), FXA_TILE_FULL);
    T_INT(fxa_program_classify(p, NULL, NULL, NULL), FXA_TILE_MIXED);
    fxa_tile_bounds all = {{0, 0, 0, INT32_MIN, INT32_MIN, 0, 0, 0}, {0, 0, 0, INT32_MAX, INT32_MAX, 0, 0, 0}};
    T_INT(fxa_program_classify(p, &all, NULL, NULL), FXA_TILE_MIXED);
    T_OK(fxa_program_derivative(p, &d, &err));
    T_INT(fxa_program_classify(d, &all, NULL, NULL), FXA_TILE_FULL); /* has no mask */
}

T_MAIN
