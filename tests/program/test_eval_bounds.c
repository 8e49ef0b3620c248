/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa_program_eval_bounds: every result of a program, the targets of gradients, and valid bounds. Bounds are tested
 * with the same formulas in float; the conformance tests compare them with engines.
 */
#include "t.h"

#include "program/program.h"

#include <math.h>

static fxa_context *terms_context(void) {
    static fxa_context *ctx;
    if (!ctx && fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
    return ctx;
}

static fxa_program *terms_parse(const char *text) {
    fxa_program *p = NULL;
    fxa_error err;
    T_OK(fxa_program_parse(terms_context(), text, SIZE_MAX, &p, &err));
    return p;
}

TEST(terms_of_a_derivative_are_all_gradients) {
    static const float data[2][3] = {{1, 2, 3}, {4, 5, 6}};
    const fxa_view view = {data, FXA_F32, 2, {2, 3}, {3, 1}};
    const double in[FXA_INPUT_COUNT] = {0.5, 0, 1, 2, 0, 8, 8, 2};
    double c = 3;
    fxa_program *p = terms_parse("param c : float\ntensor t : f32[2]\nscore = score * c + t[h, q] * t[h, q + 9]"), *d;
    fxa_bounded_result terms[8];
    size_t count = 8;
    T_OK(fxa_program_eval_bounds(p, in, NULL, FXA_F64, &c, &view, terms, &count, &err));
    T_INT(count, 2);
    T_CHECK(terms[0].kind == FXA_RESULT_SCORE && terms[0].value == 1.5 && terms[0].error < 1e-14);
    T_CHECK(terms[1].kind == FXA_RESULT_MASK && terms[1].value == 1 && terms[1].error == 0);
    T_OK(fxa_program_derivative(p, &d, &err));
    count = 0;
    T_OK(fxa_program_eval_bounds(d, in, NULL, FXA_F32, &c, &view, NULL, &count, &err));
    T_INT(count, 4);
    T_OK(fxa_program_eval_bounds(d, in, NULL, FXA_F32, &c, &view, terms, &count, &err));
    T_CHECK(terms[0].kind == FXA_RESULT_DSCORE && terms[0].value == 6);
    T_CHECK(terms[1].kind == FXA_RESULT_DPARAM && terms[1].slot == 0 && terms[1].value == 1);
    int inside = terms[2].offset >= 0 ? 2 : 3, outside = 5 - inside;
    T_CHECK(terms[inside].kind == FXA_RESULT_DTENSOR && terms[inside].offset == 5 && terms[inside].value == 0);
    T_CHECK(terms[outside].kind == FXA_RESULT_DTENSOR && terms[outside].offset == -1 && terms[outside].value == 12);
    count = 1; /* capacity for one: it is filled, and the total number is returned */
    terms[1].value = 99;
    T_OK(fxa_program_eval_bounds(d, in, NULL, FXA_F32, &c, &view, terms, &count, &err));
    T_CHECK(count == 4 && terms[1].value == 99);
    fxa_program_destroy(d);
    fxa_program_destroy(p);
}

TEST(bounds_hold_for_float_and_are_near_it) {
    t_program *p = terms_parse("score = (score + 1000) - 999 * (score / 3)");
    double worst = 0;
    for (int i = 0; i < 2000; i++) {
        double x = -3 + 0.003 * i, in[FXA_INPUT_COUNT] = {x}, off[FXA_INPUT_COUNT] = {1e-5};
        volatile float s = (float)(x + 1e-5), a = s + 1000, b = s / 3, c = 999 * b, y = a - c;
        fxa_bounded_result term[2];
        size_t count = 2;
        T_OK(fxa_program_eval_bounds(p, in, off, FXA_F32, NULL, NULL, term, &count, &err));
        double error = fabs((double)y - term[0].value);
        T_CHECK(error <= term[0].error + 400 * 3e-7); /* s itself is rounded */
        worst = fmax(worst, error / term[0].error);
    }
    T_CHECK(worst > 0.2); /* the bounds are not much too large */
}

TEST(what_rounding_decides_is_infinite) {
    const double in[FXA_INPUT_COUNT] = {0.4999}, off[FXA_INPUT_COUNT] = {1e-3};
    static const char *const texts[] = {"score = score < 0.5001 ? 1 : 2", "score = floor(score * 2)",
                                        "score = exp(200 * score)"};
    for (int i = 0; i < 3; i++) {
        t_program *p = terms_parse(texts[i]);
        fxa_bounded_result terms[2];
        size_t count = 2;
        T_OK(fxa_program_eval_bounds(p, in, off, FXA_F32, NULL, NULL, terms, &count, &err));
        T_CHECK(terms[0].error == INFINITY);
        T_OK(fxa_program_eval_bounds(p, in, i < 2 ? NULL : off, FXA_F64, NULL, NULL, terms, &count, &err));
        T_CHECK(terms[0].error < INFINITY);
    }
}

TEST(what_is_refused) {
    const double in[FXA_INPUT_COUNT] = {0}, broken[FXA_INPUT_COUNT] = {0, 0.5};
    t_program *p = terms_parse("score = score * 2");
    fxa_bounded_result terms[2];
    size_t count = 2;
    T_STATUS(fxa_program_eval_bounds(NULL, in, NULL, FXA_F64, NULL, NULL, terms, &count, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_eval_bounds(p, NULL, NULL, FXA_F64, NULL, NULL, terms, &count, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_eval_bounds(p, in, NULL, FXA_F16, NULL, NULL, terms, &count, &err), FXA_E_ARGUMENT);
    T_CHECK(strstr(err.text, "f16"));
    T_STATUS(fxa_program_eval_bounds(p, in, NULL, FXA_F64, NULL, NULL, NULL, &count, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_eval_bounds(p, in, NULL, FXA_F64, NULL, NULL, terms, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_eval_bounds(p, broken, NULL, FXA_F64, NULL, NULL, terms, &count, &err), FXA_E_BINDING);
}

T_MAIN
