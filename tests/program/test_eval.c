/* SPDX-License-Identifier: Apache-2.0
 *
 * The evaluator: every operation over special values, evaluated and folded, compared with an independent
 * implementation; and refusals of the public function. All engines must follow these rules. Loads are in
 * test_eval_loads.c.
 */
#include "eval_fixture.h"
#include "support/oracle/op_meaning.h"

static const double special_floats[] = {0.0,    -0.0,     1.0,       -1.0, 0.5,          -0.5,          1.5,
                                        2.5,    -2.5,     3.7,       -3.7, 0.1,          1e10,          1e300,
                                        5e-324, INFINITY, -INFINITY, NAN,  2147483647.0, -2147483648.0, 2147483648.0};
static const int32_t special_ints[] = {
    0, 1, -1, 2, -2, 3, -3, 7, -7, 31, 32, 33, -33, INT32_MAX, INT32_MIN, INT32_MIN + 1, 65536, 46341};
enum {
    N_FLOATS = sizeof special_floats / sizeof special_floats[0],
    N_INTS = sizeof special_ints / sizeof special_ints[0]
};

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Builds an operand as a param (so that nothing folds) or as a constant. Bools are made from an int param. */
static fxa_value eval_operand(fxa_builder *b, int position, fxa_type type, meaning x, bool constant) {
    char name[2] = {(char)('x' + position), 0};
    if (constant && type == FXA_FLOAT) return fxa_builder_float(b, x.f);
    if (constant) return type == FXA_INT ? fxa_builder_int(b, (int32_t)x.i) : fxa_builder_bool(b, (int)x.i);
    fxa_value v = fxa_builder_param(b, name, type == FXA_FLOAT ? FXA_FLOAT : FXA_INT);
    return type == FXA_BOOL ? fxa_builder_op2(b, FXA_OP_NE, v, fxa_builder_int(b, 0)) : v;
}

static int eval_count(fxa_type type) { return type == FXA_FLOAT ? N_FLOATS : type == FXA_INT ? N_INTS : 2; }

static meaning eval_special(fxa_type type, int i) {
    return type == FXA_FLOAT ? meaning_float(special_floats[i])
           : type == FXA_INT ? meaning_int(special_ints[i])
                             : meaning_bool(i != 0);
}

/* Returns true if the sign of a zero result is unspecified: where two zeros tie. */
static bool eval_zero_free(fxa_op op) { return op == FXA_OP_MIN || op == FXA_OP_MAX || op == FXA_OP_CLAMP; }

static void eval_expect(fxa_op op, const fxa_program *p, const double *params, meaning want, const char *how) {
    double in[FXA_INPUT_COUNT] = {0}, got = 99;
    int mask = 99;
    fxa_error err;
    T_OK(fxa_program_eval(p, in, params, NULL, &got, &mask, &err));
    bool good = meaning_same(meaning_float(got), meaning_float(meaning_number(want)), eval_zero_free(op));
    if (want.type == FXA_BOOL && mask != (int)want.i) good = false;
    if (!good)
        T_FAIL("%s %s of %g %g %g is %.17g, not %.17g\n", fxa__op_info_get(op)->id, how, params[0], params[1],
               params[2], got, meaning_number(want));
}

/* Tests one operation on operands of given types over all special values, on params and folded. */
static void eval_sweep(fxa_op op, const fxa_type *type) {
    int n = meaning_arity(op), count[3] = {1, 1, 1};
    for (int i = 0; i < n; i++) count[i] = eval_count(type[i]);
    fxa_program *running = NULL;
    for (int at = 0; at < count[0] * count[1] * count[2]; at++) {
        meaning x[3];
        double params[3] = {0};
        int pick[3] = {at % count[0], at / count[0] % count[1], at / count[0] / count[1]};
        for (int i = 0; i < n; i++) {
            x[i] = eval_special(type[i], pick[i]);
            params[i] = meaning_number(x[i]);
        }
        for (int constant = 0; constant < 2; constant++) {
            fxa_program *p = constant ? NULL : running;
            if (!p) {
                fxa_builder *b = eval_builder();
                fxa_value arg[3];
                for (int i = 0; i < n; i++) arg[i] = eval_operand(b, i, type[i], x[i], constant != 0);
                p = eval_finish(b, fxa_builder_op(b, op, arg, (size_t)n));
            }
            T_REQUIRE(p);
            eval_expect(op, p, params, meaning_op(op, x), constant ? "folded" : "run");
            if (constant)
                fxa_program_destroy(p);
            else
                running = p;
        }
    }
    fxa_program_destroy(running);
}

/* Tests all operations of one arity on all types and special values. Refused combinations are skipped. */
static void eval_sweep_arity(int arity) {
    for (int op = 0; op < FXA_OP_COUNT; op++) {
        if (meaning_arity((fxa_op)op) != arity) continue;
        for (int combination = 0; combination < 27; combination++) {
            fxa_type type[3] = {(fxa_type)(1 + combination % 3), (fxa_type)(1 + combination / 3 % 3),
                                (fxa_type)(1 + combination / 9)};
            meaning probe[3];
            bool first_only = true;
            for (int i = 0; i < 3; i++) {
                probe[i] = eval_special(type[i], 0);
                if (i >= arity && type[i] != FXA_FLOAT) first_only = false;
            }
            /* mixed clamps convert like mixed additions: only equal types keep the number of cases small */
            if (op == FXA_OP_CLAMP && (type[0] != type[1] || type[1] != type[2])) continue;
            if (first_only && meaning_op((fxa_op)op, probe).type) eval_sweep((fxa_op)op, type);
        }
    }
}

TEST(operations_of_one_operand) { eval_sweep_arity(1); }
TEST(operations_of_two_operands) { eval_sweep_arity(2); }
TEST(operations_of_three_operands) { eval_sweep_arity(3); }

static double eval_int2(fxa_op op, int32_t x, int32_t y) {
    fxa__val v[2] = {{.i = x}, {.i = y}};
    return fxa__op_eval(op, FXA_INT, FXA_INT, v).i;
}

static double eval_float1(fxa_op op, double x) { return fxa__op_eval(op, FXA_FLOAT, FXA_FLOAT, &(fxa__val){.f = x}).f; }

/* Rules of docs/program.md for ints: wrap-around, division by 0, signs of quotients and remainders, shifts. */
TEST(int_rules) {
    T_INT(eval_int2(FXA_OP_ADD, INT32_MAX, 1), INT32_MIN);
    T_INT(eval_int2(FXA_OP_MUL, 65536, 65536), 0);
    T_INT(eval_int2(FXA_OP_FLOORDIV, 7, 0), 0);
    T_INT(eval_int2(FXA_OP_MOD, 7, 0), 0);
    T_INT(eval_int2(FXA_OP_FLOORDIV, -7, 2), -4);
    T_INT(eval_int2(FXA_OP_MOD, -7, 2), 1);
    T_INT(eval_int2(FXA_OP_MOD, 7, -2), -1);
    T_INT(eval_int2(FXA_OP_FLOORDIV, INT32_MIN, -1), INT32_MIN);
    T_INT(eval_int2(FXA_OP_MOD, INT32_MIN, -1), 0);
    T_INT(eval_int2(FXA_OP_SHR, -8, 1), -4);
    T_INT(eval_int2(FXA_OP_SHR, -1, 31), -1);
    T_INT(eval_int2(FXA_OP_SHL, 1, 33), 2);
    T_INT(eval_int2(FXA_OP_SHL, 3, 31), INT32_MIN);
    T_INT(eval_int2(FXA_OP_SHR, 8, -31), 4);
}

TEST(float_rules) {
    const double round[][2] = {{0.5, 0}, {1.5, 2}, {2.5, 2}, {-0.5, -0.0}, {-1.5, -2}, {0.49999999999999994, 0}};
    for (size_t i = 0; i < sizeof round / sizeof round[0]; i++)
        T_SAME(eval_float1(FXA_OP_ROUND, round[i][0]), round[i][1]);
    const double toint[][2] = {
        {2.9, 2}, {-2.9, -2}, {NAN, 0}, {3e9, INT32_MAX}, {INFINITY, INT32_MAX}, {-INFINITY, INT32_MIN}};
    for (size_t i = 0; i < sizeof toint / sizeof toint[0]; i++)
        T_INT(fxa__op_eval(FXA_OP_INT, FXA_INT, FXA_FLOAT, &(fxa__val){.f = toint[i][0]}).i, toint[i][1]);
    T_SAME(fxa__op_eval(FXA_OP_MIN, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = NAN}, {.f = 1}}).f, NAN);
    T_SAME(fxa__op_eval(FXA_OP_MAX, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = 1}, {.f = NAN}}).f, NAN);
    T_SAME(fxa__op_eval(FXA_OP_MULZ, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = 0}, {.f = INFINITY}}).f, 0);
    T_SAME(fxa__op_eval(FXA_OP_MULZ, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = -0.0}, {.f = NAN}}).f, 0);
    T_SAME(fxa__op_eval(FXA_OP_DIVZ, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = 0}, {.f = 0}}).f, 0);
    T_SAME(fxa__op_eval(FXA_OP_MOD, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = -1.5}, {.f = 1}}).f, 0.5);
    T_SAME(fxa__op_eval(FXA_OP_FLOORDIV, FXA_FLOAT, FXA_FLOAT, (fxa__val[]){{.f = -1.5}, {.f = 1}}).f, -2);
}

/* Each function compared with long double: a C library's f64 function errs by at most 2 ulp. */
TEST(functions_against_long_double) {
    const double x[] = {0.03125, 0.3, 0.7, 1.1, 2.9};
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        const long double v = x[i];
        const struct {
            fxa_op op;
            long double want;
        } rows[] = {{FXA_OP_SQRT, sqrtl(v)}, {FXA_OP_RSQRT, 1 / sqrtl(v)}, {FXA_OP_EXP, expl(v)},
                    {FXA_OP_EXP2, exp2l(v)}, {FXA_OP_LOG, logl(v)},        {FXA_OP_LOG2, log2l(v)},
                    {FXA_OP_TANH, tanhl(v)}, {FXA_OP_ERF, erfl(v)},        {FXA_OP_SIN, sinl(v)},
                    {FXA_OP_COS, cosl(v)},   {FXA_OP_TAN, tanl(v)},        {FXA_OP_SIGMOID, 1 / (1 + expl(-v))}};
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            T_NEAR(eval_float1(rows[r].op, x[i]), (double)rows[r].want, 4 * 0x1p-53 * fabs((double)rows[r].want));
    }
}

/* ---- The public call --------------------------------------------------------------------------------------------- */

TEST(inputs_reach_the_program) {
    for (int i = 0; i < FXA_INPUT_COUNT; i++) {
        if (i == FXA_INPUT_DSCORE) continue;
        fxa_builder *b = eval_builder();
        t_program *p = eval_finish(b, fxa_builder_input(b, (fxa_input)i));
        double in[FXA_INPUT_COUNT] = {0.25, 1, 2, 3, 4, 5, 6, 0.75, 9}, got;
        int mask = 0;
        T_OK(fxa_program_eval(p, in, NULL, NULL, &got, &mask, &err));
        T_SAME(got, in[i]);
        T_INT(mask, 1);
    }
}

TEST(backward_programs_give_dscore) {
    t_builder *b = NULL;
    t_program *p = NULL;
    T_OK(fxa_builder_create(eval_context(), FXA_PROGRAM_BPROP, &b, &err));
    fxa_builder_set_dscore(b, fxa_builder_op2(b, FXA_OP_MUL, fxa_builder_input(b, FXA_INPUT_DSCORE),
                                              fxa_builder_input(b, FXA_INPUT_SCORE)));
    T_OK(fxa_builder_finish(b, &p, &err));
    double in[FXA_INPUT_COUNT] = {3, [FXA_INPUT_DSCORE] = 0.5}, got;
    int mask = 0;
    T_OK(fxa_program_eval(p, in, NULL, NULL, &got, &mask, &err));
    T_SAME(got, 1.5);
    T_INT(mask, 1);
}

TEST(what_eval_refuses) {
    fxa_builder *b = eval_builder();
    fxa_value n = fxa_builder_param(b, "n", FXA_INT);
    t_program *p = eval_finish(b, fxa_builder_load(b, fxa_builder_tensor(b, "bias", FXA_F32, 1), &n, 1));
    float data[1] = {1};
    double in[FXA_INPUT_COUNT] = {0}, n_value = 0, got = 77;
    fxa_view view = {data, FXA_F32, 1, {1}, {1}}, bad = view;
    T_STATUS(fxa_program_eval(NULL, in, &n_value, &view, &got, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_eval(p, NULL, &n_value, &view, &got, NULL, &err), FXA_E_ARGUMENT);
    T_STATUS(fxa_program_eval(p, in, NULL, &view, &got, NULL, &err), FXA_E_BINDING);
    T_STATUS(fxa_program_eval(p, in, &n_value, NULL, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "the program has 1 param and 1 tensor, but their values are NULL");
    b = eval_builder();
    fxa_value two =
        fxa_builder_op2(b, FXA_OP_ADD, fxa_builder_param(b, "x", FXA_FLOAT), fxa_builder_param(b, "y", FXA_FLOAT));
    fxa_program *other = eval_finish(b, two);
    T_STATUS(fxa_program_eval(other, in, NULL, NULL, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "the program has 2 params and 0 tensors, but their values are NULL");
    fxa_program_destroy(other);
    in[FXA_INPUT_Q] = 0.5;
    T_STATUS(fxa_program_eval(p, in, &n_value, &view, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "'q' is 0.5; a whole number of 32 bits is accepted");
    in[FXA_INPUT_Q] = 2147483648.0;
    T_STATUS(fxa_program_eval(p, in, &n_value, &view, &got, NULL, &err), FXA_E_BINDING);
    in[FXA_INPUT_Q] = NAN;
    T_STATUS(fxa_program_eval(p, in, &n_value, &view, &got, NULL, &err), FXA_E_BINDING);
    in[FXA_INPUT_Q] = 0;
    n_value = 1.5;
    T_STATUS(fxa_program_eval(p, in, &n_value, &view, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "param 'n' is an int, got 1.5; a whole number of 32 bits is accepted");
    n_value = 0;
    bad.dtype = FXA_F64;
    T_STATUS(fxa_program_eval(p, in, &n_value, &bad, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "tensor 'bias' is f32[1] in the program, got f64[1]");
    bad = view;
    bad.size[0] = -1;
    T_STATUS(fxa_program_eval(p, in, &n_value, &bad, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "size 0 of tensor 'bias' is -1; 0 or more is accepted");
    bad = view;
    bad.data = NULL;
    T_STATUS(fxa_program_eval(p, in, &n_value, &bad, &got, NULL, &err), FXA_E_BINDING);
    T_STR(err.text, "tensor 'bias' has elements but no data");
    T_SAME(got, 77); /* not written */
    T_OK(fxa_program_eval(p, in, &n_value, &view, &got, NULL, NULL));
    T_SAME(got, 1);
    T_OK(fxa_program_eval(p, in, &n_value, &view, NULL, NULL, &err));
}

T_MAIN
