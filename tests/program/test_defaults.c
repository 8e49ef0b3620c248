/* SPDX-License-Identifier: Apache-2.0
 *
 * Default values of params, `param cap : float = 20`: text, builder, queries, canonical text, bytes. Hashes, nodes and
 * plan keys do not depend on them.
 */
#include "support/fixtures/own_context.h"
#include "t.h"

#include <math.h>

static fxa_program *defaults_parse(const char *text) {
    fxa_program *p = NULL;
    fxa_error err = {0};
    if (own_parse(FXA_PROGRAM_SCORE, text, SIZE_MAX, &p, &err) != FXA_OK) T_FAIL("%s in \"%s\"\n", err.text, text);
    return p;
}

/* Returns the default of the first param, NAN = none. */
static double defaults_of(const char *text) {
    double value = NAN;
    t_program *p = defaults_parse(text);
    if (p && !fxa_program_param_default(p, 0, &value)) value = NAN;
    return value;
}

TEST(texts_have_defaults) {
    T_SAME(defaults_of("param a : float = 20"), 20.0);
    T_SAME(defaults_of("param a : float = -0.5"), -0.5);
    T_SAME(defaults_of("param a : float = -0.0"), -0.0);
    T_SAME(defaults_of("param a : float = -inf"), -INFINITY);
    T_SAME(defaults_of("param a : float = 2 ** -3 * (1 + 2)"), 0.375);
    T_SAME(defaults_of("param a : float = 1 / 3"), 1.0 / 3.0);
    T_SAME(defaults_of("param a : int = -2147483648"), -2147483648.0);
    T_SAME(defaults_of("param a : int = 7 // 2"), 3.0);
    T_SAME(defaults_of("param a : int = 0"), 0.0);
    T_SAME(defaults_of("let x = 5; fn f(y) = y * x; param a : int = f(2)"), 10.0);
    T_SAME(defaults_of("param a : float = 1; param a : float"), 1.0); /* repeated, with or without the same default */
    T_SAME(defaults_of("param a : float; param a : float = 1; param a : float = 1.0"), 1.0);
    T_CHECK(isnan(defaults_of("param a : float")));
    t_program *p = defaults_parse("param a : float = nan; param b2 : float");
    double value = 0;
    T_INT(fxa_program_param_default(p, 0, &value), 1);
    T_CHECK(isnan(value));
    T_INT(fxa_program_param_default(p, 0, NULL), 1);
    value = 3;
    T_INT(fxa_program_param_default(p, 1, &value), 0);
    T_INT(fxa_program_param_default(p, 2, &value), 0);
    T_INT(fxa_program_param_default(NULL, 0, &value), 0);
    T_SAME(value, 3.0);
}

TEST(errors_of_defaults) {
    static const struct {
        const char *text;
        int line, column, length;
        const char *message;
    } table[] = {
        {"param a : float = ", 1, 19, 1, "expected a value"},
        {"param a : float 3", 1, 17, 1, "expected the end of the statement, found '3'"},
        {"param a : float = q", 1, 19, 1,
         "a default is a constant, without inputs, params, tensors and functions that"},
        {"param a : float = exp(1)", 1, 19, 6, "a default is a constant"},
        {"param a : float = a", 1, 19, 1, "a default is a constant"},
        {"param a : float = true", 1, 19, 4, "the default of a float param is a number, this is a bool"},
        {"param a : int = 1.0", 1, 17, 3, "the default of an int param is a whole number, this is a float"},
        {"param a : int = true", 1, 17, 4, "the default of an int param is a whole number, this is a bool"},
        {"param a : int = 2147483648", 1, 17, 10, "larger than 2147483647"},
        {"param a : int = 1\nparam a : int = 2", 2, 17, 1, "param 'a' has the default 1 already, not 2"},
        {"param a : float = 0.0\nparam a : float = -0.0", 2, 19, 4, "param 'a' has the default 0 already, not -0"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fxa_program *p = NULL;
        T_STATUS(own_parse(FXA_PROGRAM_SCORE, table[i].text, SIZE_MAX, &p, &err), FXA_E_PROGRAM);
        T_HAS(err.text, table[i].message);
        if (err.line != table[i].line || err.column != table[i].column || err.length != table[i].length)
            T_FAIL("%s: %d:%d+%d\n", table[i].text, err.line, err.column, err.length);
    }
}

TEST(builders_have_defaults) {
    fxa_builder *b = own_builder(FXA_PROGRAM_SCORE);
    double value = 0;
    (void)fxa_builder_param(b, "w", FXA_FLOAT);
    (void)fxa_builder_param(b, "n", FXA_INT);
    fxa_builder_set_default(b, "w", 0.25);
    fxa_builder_set_default(b, "n", -0.0);
    fxa_program *p = own_finish(b), *text = defaults_parse("param n : int = 0; param w : float = 0.25");
    T_CHECK(own_equal(p, text));
    T_INT(fxa_program_param_default(p, 0, &value), 1);
    T_SAME(value, 0.0);
    T_INT(fxa_program_param_default(p, 1, &value), 1);
    T_SAME(value, 0.25);
    fxa_program_destroy(p);
    fxa_program_destroy(text);
    fxa_builder_set_default(NULL, "w", 1);
    static const struct {
        const char *name;
        double value;
        fxa_status status;
        const char *message;
    } wrong[] = {
        {"w", 1, FXA_E_ARGUMENT, "'w' is no param, so it has no default"},
        {NULL, 1, FXA_E_ARGUMENT, "is no param"},
        {"n", 0.5, FXA_E_PROGRAM, "the default of param 'n' is 0.5; a whole number of 32 bits is accepted"},
        {"n", 0x1p31, FXA_E_PROGRAM, "a whole number of 32 bits is accepted"},
        {"n", NAN, FXA_E_PROGRAM, "a whole number of 32 bits is accepted"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        b = own_builder(FXA_PROGRAM_SCORE);
        (void)fxa_builder_param(b, "n", FXA_INT);
        fxa_builder_set_default(b, wrong[i].name, wrong[i].value);
        T_STATUS(fxa_builder_finish(b, &p, &err), wrong[i].status);
        T_HAS(err.text, wrong[i].message);
        fxa_builder_destroy(b);
    }
}

static const char with[] = "param cap : float = 20\nparam n : int = -4\nparam w : float\n"
                           "score = cap * tanh(score / cap) + n * w";
static const char without[] = "param cap : float\nparam n : int\nparam w : float\n"
                              "score = cap * tanh(score / cap) + n * w";

TEST(text_and_bytes_keep_them_and_hashes_do_not_know) {
    char printed[400];
    uint8_t bytes[1000], again[1000];
    size_t size, plain;
    fxa_program *p = defaults_parse(with), *q = defaults_parse(without), *r = NULL;
    T_REQUIRE(p && q);
    T_CHECK(own_equal(p, q)); /* hash and nodes */
    T_OK(fxa_program_print(p, printed, sizeof printed, NULL, &err));
    T_HAS(printed, "param cap : float = 20.0\nparam n : int = -4\nparam w : float\n");
    r = defaults_parse(printed);
    T_OK(fxa_program_save(p, bytes, sizeof bytes, &size, &err));
    T_OK(fxa_program_save(r, again, sizeof again, &plain, &err));
    T_CHECK(size == plain && memcmp(bytes, again, size) == 0);
    T_INT(bytes[4], 2);
    fxa_program_destroy(r);
    T_OK(fxa_program_load(ctx, bytes, size, &r, &err));
    T_OK(fxa_program_save(r, again, sizeof again, &plain, &err));
    T_CHECK(size == plain && memcmp(bytes, again, size) == 0);
    fxa_program_destroy(r);
    /* A program without defaults is written in format 1; format 2 with an empty list is refused. */
    T_OK(fxa_program_save(q, again, sizeof again, &plain, &err));
    T_INT(again[4], 1);
    T_INT(size - plain, 3 + 2 * 8 + 8);
    again[4] = 2;
    T_STATUS(fxa_program_load(ctx, again, plain, &r, &err), FXA_E_BYTES);
    fxa_program_destroy(p);
    fxa_program_destroy(q);
}

/* Flips each bit of a program with defaults. */
TEST(damage_to_defaults_is_found) {
    uint8_t bytes[1000];
    size_t size;
    fxa_program *p = defaults_parse("param cap : float = 20; param n : int = 4; score = score * cap"), *r = NULL;
    T_OK(fxa_program_save(p, bytes, sizeof bytes, &size, &err));
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        fxa_status status = fxa_program_load(ctx, bytes, size, &r, &err);
        if (status != FXA_E_BYTES && status != FXA_E_VERSION) T_FAIL("bit %zu: %s\n", bit, fxa_status_name(status));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    fxa_program_destroy(p);
}

/* Params and tensors precede and follow nodes and outputs at any alignment. */
TEST(declarations_are_aligned) {
    static const char *const texts[] = {"param a : float = 1", "param a : float = 1; score = score * a",
                                        "param a : float = 1; tensor t : f32[1]; score = score * a + t[q] * t[k]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        t_program *p = defaults_parse(texts[i]), *d = NULL;
        T_OK(fxa_program_derivative(p, &d, &err));
        T_INT((uintptr_t)p->params % _Alignof(fxa__decl), 0);
        T_INT((uintptr_t)d->params % _Alignof(fxa__decl), 0);
        T_INT((uintptr_t)p->outputs % _Alignof(fxa__output) + (uintptr_t)d->outputs % _Alignof(fxa__output), 0);
    }
}

TEST(derivatives_keep_them) {
    double value = 0;
    t_program *p = defaults_parse(with), *d = NULL;
    T_OK(fxa_program_derivative(p, &d, &err));
    T_INT(fxa_program_param_default(d, 0, &value), 1);
    T_SAME(value, 20.0);
    T_INT(fxa_program_param_default(d, 2, &value), 0);
}

/* One plan key, one cache entry, and identical plan bytes. */
TEST(plans_do_not_know_of_them) {
    fxa_program *p[2] = {defaults_parse(with), defaults_parse(without)};
    uint8_t key[2][16], bytes[2][4000];
    size_t size[2];
    for (int i = 0; i < 2; i++) {
        fxa_problem problem = FXA_PROBLEM_INIT;
        fxa_plan *plan = NULL;
        problem.b = 1, problem.hq = problem.hkv = 2, problem.sq = problem.sk = 8, problem.d_qk = 8;
        problem.q.dtype = FXA_F32;
        problem.program = p[i];
        T_OK(fxa_plan_create(ctx, &problem, &plan, &err));
        T_REQUIRE(plan);
        fxa_plan_key(plan, key[i]);
        T_OK(fxa_plan_save(plan, bytes[i], sizeof bytes[i], &size[i], &err));
        fxa_plan_destroy(plan);
        fxa_program_destroy(p[i]);
    }
    T_CHECK(memcmp(key[0], key[1], 16) == 0);
    T_CHECK(size[0] == size[1] && memcmp(bytes[0], bytes[1], size[0]) == 0);
}

T_MAIN
