/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical form and hash: what is and is not folded, what the hash does and does not depend on, sums of gradients,
 * import. Random programs are in test_canon_random.c.
 */
#include "support/fixtures/own_context.h"

/* ---- Identities -------------------------------------------------------------------------------------------------- */

/* A builder with one non-constant value of each type, and shorthands for the rows below. */
typedef struct canon_bench {
    fxa_builder *b;
    fxa_value f, g, i, j, c, d; /* floats, ints, bools */
} canon_bench;

static canon_bench canon_bench_start(void) {
    canon_bench s = {.b = own_builder(FXA_PROGRAM_SCORE)};
    s.f = fxa_builder_input(s.b, FXA_INPUT_SCORE);
    s.g = fxa_builder_param(s.b, "g", FXA_FLOAT);
    s.i = fxa_builder_input(s.b, FXA_INPUT_Q);
    s.j = fxa_builder_input(s.b, FXA_INPUT_K);
    s.c = fxa_builder_op2(s.b, FXA_OP_LT, s.i, s.j);
    s.d = fxa_builder_op2(s.b, FXA_OP_EQ, s.f, s.g);
    return s;
}

#define F(x) fxa_builder_float(s.b, x)
#define I(x) fxa_builder_int(s.b, x)
#define B(x) fxa_builder_bool(s.b, x)
#define OP1(op, x) fxa_builder_op1(s.b, FXA_OP_##op, x)
#define OP2(op, x, y) fxa_builder_op2(s.b, FXA_OP_##op, x, y)
#define OP3(op, x, y, z) fxa_builder_op3(s.b, FXA_OP_##op, x, y, z)

TEST(what_becomes_simpler) {
    canon_bench s = canon_bench_start();
    T_INT(OP2(MUL, s.f, F(1)), s.f);
    T_INT(OP2(MUL, I(1), s.f), s.f); /* the int is converted first */
    T_INT(OP2(DIV, s.f, F(1)), s.f);
    T_INT(OP2(SUB, s.f, F(0.0)), s.f);
    T_INT(OP2(ADD, s.f, F(-0.0)), s.f);
    T_INT(OP2(POW, s.f, F(1)), s.f);
    T_INT(OP2(POW, s.f, F(0)), F(1)); /* of NaN too */
    T_INT(OP2(POW, s.f, F(-0.0)), F(1));
    T_INT(OP2(POW, I(1), s.f), F(1));
    T_INT(OP2(POW, s.i, I(1)), OP1(FLOAT, s.i));
    T_INT(OP2(POW, F(NAN), F(0)), F(1));
    T_INT(OP2(POW, F(-INFINITY), F(1)), F(-INFINITY));
    T_INT(OP2(POW, F(0.1), F(1)), F(0.1));
    T_INT(OP2(MULZ, F(1), s.f), s.f);
    T_INT(OP2(MULZ, F(0), s.f), F(0));
    T_INT(OP2(MULZ, F(-0.0), s.f), F(0));
    T_INT(OP2(DIVZ, F(0), s.f), F(0));
    T_INT(OP2(MULZ, F(-2), s.f), OP2(MUL, F(-2), s.f)); /* the constant is not 0, so plain mul suffices */
    T_INT(OP2(MULZ, F(NAN), s.f), OP2(MUL, F(NAN), s.f));
    T_INT(OP2(DIVZ, F(1), s.f), OP2(DIV, F(1), s.f));
    T_INT(OP2(DIVZ, F(INFINITY), s.f), OP2(DIV, F(INFINITY), s.f));
    T_INT(OP1(NEG, OP1(NEG, s.f)), s.f);
    T_INT(OP2(MIN, s.f, s.f), s.f);
    T_INT(OP2(MAX, s.f, s.f), s.f);
    T_INT(OP2(WITH_GRAD, s.f, s.f), s.f);
    T_INT(OP2(WITH_GRAD, OP2(WITH_GRAD, s.f, F(1)), OP2(WITH_GRAD, F(2), OP1(SIN, s.f))),
          OP2(WITH_GRAD, s.f, OP1(SIN, s.f)));
    T_INT(OP2(ADD, s.i, I(0)), s.i);
    T_INT(OP2(SUB, s.i, I(0)), s.i);
    T_INT(OP2(SUB, s.i, s.i), I(0));
    T_INT(OP2(MUL, I(1), s.i), s.i);
    T_INT(OP2(MUL, s.i, I(0)), I(0));
    T_INT(OP2(FLOORDIV, s.i, I(1)), s.i);
    T_INT(OP2(MOD, s.i, I(1)), I(0));
    T_INT(OP2(SHL, s.i, I(32)), s.i);
    T_INT(OP2(SHR, s.i, I(0)), s.i);
    T_INT(OP1(NEG, OP1(NEG, s.i)), s.i);
    T_INT(OP2(MIN, s.i, s.i), s.i);
    T_INT(OP2(AND, s.i, I(-1)), s.i);
    T_INT(OP2(AND, s.i, I(0)), I(0));
    T_INT(OP2(OR, s.i, I(0)), s.i);
    T_INT(OP2(OR, s.i, I(-1)), I(-1));
    T_INT(OP2(XOR, s.i, I(0)), s.i);
    T_INT(OP2(XOR, s.i, I(-1)), OP1(NOT, s.i));
    T_INT(OP2(AND, s.i, s.i), s.i);
    T_INT(OP2(OR, s.i, s.i), s.i);
    T_INT(OP2(XOR, s.i, s.i), I(0));
    T_INT(OP1(NOT, OP1(NOT, s.i)), s.i);
    fxa_builder_destroy(s.b);
}

TEST(what_becomes_simpler_of_bools_and_choices) {
    canon_bench s = canon_bench_start();
    T_INT(OP2(AND, s.c, B(1)), s.c);
    T_INT(OP2(AND, s.c, B(0)), B(0));
    T_INT(OP2(OR, B(0), s.c), s.c);
    T_INT(OP2(OR, s.c, B(1)), B(1));
    T_INT(OP2(XOR, s.c, B(0)), s.c);
    T_INT(OP2(XOR, s.d, B(1)), OP1(NOT, s.d));
    T_INT(OP2(XOR, s.c, s.c), B(0));
    T_INT(OP2(AND, s.c, s.c), s.c);
    T_INT(OP1(NOT, OP1(NOT, s.d)), s.d);
    T_INT(OP1(NOT, OP2(LT, s.i, s.j)), OP2(LE, s.j, s.i));
    T_INT(OP1(NOT, OP2(LE, s.i, s.j)), OP2(LT, s.j, s.i));
    T_INT(OP1(NOT, OP2(EQ, s.i, s.j)), OP2(NE, s.i, s.j));
    T_INT(OP1(NOT, OP2(EQ, s.f, s.g)), OP2(NE, s.f, s.g));
    T_INT(OP1(NOT, OP2(NE, s.f, s.g)), OP2(EQ, s.f, s.g));
    T_INT(OP2(EQ, s.i, s.i), B(1));
    T_INT(OP2(LE, s.i, s.i), B(1));
    T_INT(OP2(GE, s.i, s.i), B(1));
    T_INT(OP2(NE, s.i, s.i), B(0));
    T_INT(OP2(LT, s.i, s.i), B(0));
    T_INT(OP3(SELECT, B(1), s.f, s.g), s.f);
    T_INT(OP3(SELECT, B(0), s.f, s.g), s.g);
    T_INT(OP3(SELECT, s.c, s.f, s.f), s.f);
    fxa_value less = OP2(LT, s.f, s.g);
    T_INT(OP3(SELECT, OP1(NOT, less), s.f, s.g), OP3(SELECT, less, s.g, s.f));
    T_INT(OP3(SELECT, s.c, B(1), B(0)), s.c);
    T_INT(OP3(SELECT, less, B(0), B(1)), OP1(NOT, less));
    T_INT(OP1(FLOAT, s.f), s.f);
    T_INT(OP1(INT, s.i), s.i);
    T_INT(OP1(INT, OP1(FLOAT, s.i)), s.i);
    T_INT(OP1(INT, OP1(FLOAT, s.c)), OP1(INT, s.c));
    T_INT(OP1(FLOAT, OP1(INT, s.c)), OP1(FLOAT, s.c));
    T_INT(OP1(FLOAT, I(3)), F(3));
    fxa_builder_destroy(s.b);
}

/* Each simplification would be wrong for some value: NaN, infinity, -0, or a non-integer float. */
TEST(what_must_stay) {
    canon_bench s = canon_bench_start();
    const fxa_value stays[] = {
        OP2(ADD, s.f, F(0.0)),       OP2(SUB, s.f, F(-0.0)),    OP2(MUL, s.f, F(0.0)),    OP2(SUB, s.f, s.f),
        OP2(DIV, s.f, s.f),          OP2(DIV, F(0.0), s.f),     OP2(FLOORDIV, s.f, F(1)), OP2(MOD, s.f, F(1)),
        OP2(MULZ, s.f, F(1)),        OP2(MULZ, s.f, F(0)),      OP2(DIVZ, s.f, F(1)),     OP2(EQ, s.f, s.f),
        OP2(NE, s.f, s.f),           OP2(LE, s.f, s.f),         OP2(LT, s.f, s.f),        OP1(NOT, OP2(LT, s.f, s.g)),
        OP1(NOT, OP2(LE, s.f, s.g)), OP1(FLOAT, OP1(INT, s.f)), OP2(POW, s.f, F(0.5)),    OP2(POW, s.f, F(-1)),
        OP2(POW, s.f, F(2)),         OP2(POW, F(-1), s.f),      OP2(POW, F(0), s.f),      OP2(FLOORDIV, s.i, s.i),
        OP2(MOD, s.i, s.i)};
    const fxa_op op[] = {FXA_OP_ADD,  FXA_OP_SUB,      FXA_OP_MUL,   FXA_OP_SUB,      FXA_OP_DIV,
                         FXA_OP_DIV,  FXA_OP_FLOORDIV, FXA_OP_MOD,   FXA_OP_MULZ,     FXA_OP_MULZ,
                         FXA_OP_DIVZ, FXA_OP_EQ,       FXA_OP_NE,    FXA_OP_LE,       FXA_OP_LT,
                         FXA_OP_NOT,  FXA_OP_NOT,      FXA_OP_FLOAT, FXA_OP_POW,      FXA_OP_POW,
                         FXA_OP_POW,  FXA_OP_POW,      FXA_OP_POW,   FXA_OP_FLOORDIV, FXA_OP_MOD};
    for (size_t i = 0; i < sizeof stays / sizeof stays[0]; i++) {
        T_REQUIRE(stays[i] >= 0);
        T_INT(fxa__builder_node(s.b, stays[i]).op, op[i]);
    }
    fxa_builder_destroy(s.b);
}

/* Simplified powers equal the evaluator's result in every bit, except a NaN's payload. */
TEST(powers_that_become_simpler_are_those_of_the_evaluator) {
    const double values[] = {0.0, -0.0, 1, -1, 0.1, -2.5, 5e-324, 1.7976931348623157e308, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const fxa__val power[][2] = {{{.f = values[i]}, {.f = 1}},
                                     {{.f = values[i]}, {.f = 0}},
                                     {{.f = values[i]}, {.f = -0.0}},
                                     {{.f = 1}, {.f = values[i]}}};
        for (size_t k = 0; k < 4; k++) {
            double got = fxa__op_eval(FXA_OP_POW, FXA_FLOAT, FXA_FLOAT, power[k]).f, want = k ? 1 : values[i];
            T_CHECK((isnan(got) && isnan(want)) || memcmp(&got, &want, sizeof got) == 0);
        }
    }
}

/* Folding uses exact IEEE arithmetic. Functions that C libraries round differently are not folded. */
TEST(what_is_folded) {
    canon_bench s = canon_bench_start();
    T_INT(OP2(ADD, F(0.1), F(0.2)), F(0.1 + 0.2));
    T_INT(OP2(DIV, I(1), I(3)), F(1.0 / 3.0));
    T_INT(OP2(SUB, F(INFINITY), F(INFINITY)), F(NAN));
    T_INT(OP1(SQRT, F(2)), F(sqrt(2.0)));
    T_INT(OP2(ADD, I(INT32_MAX), I(1)), I(INT32_MIN));
    T_INT(OP2(POW, I(2), I(10)), F(1024));
    T_INT(OP2(POW, F(2), F(-8)), F(0.00390625));
    T_INT(OP2(POW, I(-3), I(3)), F(-27));
    T_INT(OP2(LT, F(1), F(2)), B(1));
    T_INT(OP1(INT, F(-1.5)), I(-1));
    T_INT(OP2(ADD, B(1), B(1)), I(2));
    T_INT(OP3(CLAMP, I(9), I(0), I(5)), I(5));
    const fxa_value kept[] = {OP1(EXP, F(1)),        OP1(LOG, F(2)),     OP1(TANH, F(0.5)), OP2(POW, F(2.5), F(0.5)),
                              OP2(POW, I(3), I(40)), OP1(SIGMOID, F(1)), OP1(TAN, F(1)),    OP2(POW, F(3), F(-1))};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        T_REQUIRE(kept[i] >= 0);
        T_CHECK(fxa__builder_node(s.b, kept[i]).op != FXA_OP_CONST);
    }
    fxa_builder_destroy(s.b);
}

TEST(order_of_operands_reads_naturally) {
    canon_bench s = canon_bench_start();
    const fxa_value in_order[] = {s.f,
                                  OP1(NEG, s.f),
                                  fxa_builder_load(s.b, fxa_builder_tensor(s.b, "t", FXA_F32, 1), &s.i, 1),
                                  s.g,
                                  OP1(FLOAT, fxa_builder_input(s.b, FXA_INPUT_B)),
                                  OP1(FLOAT, fxa_builder_input(s.b, FXA_INPUT_H)),
                                  OP1(FLOAT, s.i),
                                  OP1(FLOAT, s.j),
                                  OP1(FLOAT, fxa_builder_input(s.b, FXA_INPUT_Q_LEN)),
                                  OP1(FLOAT, fxa_builder_input(s.b, FXA_INPUT_K_LEN)),
                                  F(2)};
    const size_t n = sizeof in_order / sizeof in_order[0];
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            fxa_value sum = OP2(ADD, in_order[j], in_order[i]);
            T_REQUIRE(sum >= 0);
            fxa__node node = fxa__builder_node(s.b, sum);
            T_INT(node.arg[0], in_order[i]);
            T_INT(node.arg[1], in_order[j]);
        }
    fxa_builder_destroy(s.b);
}

/* ---- The hash ---------------------------------------------------------------------------------------------------- */

/* One program in many variants: every part of the content changes the hash, each to a different value. */
static fxa_program *canon_variant(int v) {
    fxa_builder *b = own_builder(v == 1 ? FXA_PROGRAM_BPROP : v == 2 ? FXA_PROGRAM_DERIVATIVE : FXA_PROGRAM_SCORE);
    fxa_value w = fxa_builder_param(b, v == 3 ? "v" : "w", v == 4 ? FXA_INT : FXA_FLOAT), at[2];
    int32_t t = fxa_builder_tensor(b, v == 5 ? "s" : "t", v == 6 ? FXA_F64 : FXA_F32, v == 7 ? 2 : 1);
    at[0] = at[1] = fxa_builder_input(b, v == 8 ? FXA_INPUT_K : FXA_INPUT_Q);
    fxa_value x = fxa_builder_load(b, t, at, v == 7 ? 2 : 1);
    x = fxa_builder_op2(b, v == 9 ? FXA_OP_DIV : FXA_OP_SUB, x, w);
    x = fxa_builder_op2(b, FXA_OP_MUL, x, fxa_builder_float(b, v == 10 ? 0.1 : nextafter(0.1, v == 11 ? 1 : 0)));
    if (v == 12 || v == 16) (void)fxa_builder_param(b, "unused", v == 12 ? FXA_FLOAT : FXA_INT);
    if (v == 13 || v == 17) (void)fxa_builder_tensor(b, "unused", v == 13 ? FXA_F32 : FXA_F16, 1);
    if (v == 18) (void)fxa_builder_param(b, "idle", FXA_FLOAT);
    if (v == 19) (void)fxa_builder_tensor(b, "idle", FXA_F32, 1);
    if (v == 1 || v == 2)
        fxa_builder_set_dscore(b, x);
    else
        fxa_builder_set_score(b, x);
    if (v == 14) fxa_builder_set_mask(b, fxa_builder_bool(b, 0));
    if (v == 15) fxa_builder_set_score(b, fxa_builder_op1(b, FXA_OP_NEG, x));
    if (v == 2) fxa__builder_grad_param(b, "w", x);
    return own_finish(b);
}

TEST(the_hash_sees_all_content) {
    enum { VARIANTS = 20 };
    fxa_program *p[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) {
        p[i] = canon_variant(i);
        T_REQUIRE(p[i]);
        for (int j = 0; j < i; j++) T_CHECK(memcmp(p[i]->hash, p[j]->hash, 16) != 0);
    }
    for (int i = 0; i < VARIANTS; i++) fxa_program_destroy(p[i]);
}

/* equal content has one hash for different builders, contexts and times; addresses do not matter. */
TEST(the_hash_is_content_only) {
    fxa_context *other = NULL, *mine = ctx;
    T_OK(fxa_context_create(NULL, &other, &err));
    t_program *x = canon_variant(0);
    ctx = other;
    t_program *y = canon_variant(0);
    ctx = mine;
    fxa_context_destroy(other); /* the program outlives its context */
    T_CHECK(own_equal(x, y));
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* Adds grad statements in an order selected by `turn`; the program must be the same. */
static fxa_program *canon_grad_program(int turn) {
    fxa_builder *b = own_builder(FXA_PROGRAM_DERIVATIVE);
    const char *const params[2] = {turn ? "w" : "a", turn ? "a" : "w"};
    for (int i = 0; i < 2; i++) (void)fxa_builder_param(b, params[i], FXA_FLOAT);
    (void)fxa_builder_tensor(b, "t", FXA_F32, 1);
    (void)fxa_builder_tensor(b, "bias", FXA_F32, 1);
    fxa_value d = fxa_builder_input(b, FXA_INPUT_DSCORE), s = fxa_builder_input(b, FXA_INPUT_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value zero = fxa_builder_float(b, turn ? 0.0 : -0.0);
    static const int step[6] = {1, 2, 4, 5, 7, 8}; /* coprime to 9: each statement once */
    for (int i = 0; i < 9; i++) {
        switch ((i * step[turn % 6] + turn) % 9) {
        case 0: fxa__builder_grad_param(b, "w", d); break;
        case 1: fxa__builder_grad_load(b, "t", &q, 1, s); break;
        case 2: fxa__builder_grad_load(b, "t", &q, 1, d); break;
        case 3: fxa__builder_grad_load(b, "t", &k, 1, d); break;
        case 4: fxa__builder_grad_load(b, "bias", &k, 1, d); break;
        case 5: fxa__builder_grad_load(b, "t", &q, 1, fxa_builder_op1(b, FXA_OP_TANH, d)); break;
        case 6: fxa__builder_grad_param(b, "a", zero); break; /* adds nothing */
        case 7: fxa__builder_grad_load(b, "t", &q, 1, zero); break;
        default: fxa__builder_grad_load(b, "bias", &q, 1, zero); break; /* adds nothing */
        }
    }
    return own_finish(b);
}

TEST(gradients_are_summed_sorted_and_zeroes_dropped) {
    t_program *p = canon_grad_program(0);
    T_REQUIRE(p);
    T_INT(p->n_outputs, 5);
    const uint32_t kinds[5] = {FXA__OUT_DSCORE, FXA__OUT_DPARAM, FXA__OUT_DLOAD, FXA__OUT_DLOAD, FXA__OUT_DLOAD};
    const char *const names[5] = {NULL, "w", "bias", "t", "t"};
    for (int i = 0; i < p->n_outputs && i < 5; i++) {
        const fxa__output *o = &p->outputs[i];
        T_INT(o->kind, kinds[i]);
        if (names[i]) T_STR((o->kind == FXA__OUT_DPARAM ? p->params : p->tensors)[o->slot].name, names[i]);
        bool at_q = o->n_index == 1 && p->nodes[o->index[0]].imm == FXA_INPUT_Q;
        if (i >= 3 && at_q) T_INT(p->nodes[o->value].op, FXA_OP_ADD); /* three contributions */
        if (i >= 3 && !at_q) T_INT(p->nodes[o->value].op, FXA_OP_INPUT);
    }
    own_check_form(p);
    for (int turn = 1; turn < 18; turn++) {
        t_program *other = canon_grad_program(turn);
        T_CHECK(own_equal(p, other));
    }
}

/* A zero added before or after other terms. */
TEST(zero_gradients_add_nothing) {
    t_program *want = NULL;
    for (int where = 0; where < 3; where++) {
        fxa_builder *b = own_builder(FXA_PROGRAM_DERIVATIVE);
        (void)fxa_builder_param(b, "a", FXA_FLOAT);
        fxa_value d = fxa_builder_input(b, FXA_INPUT_DSCORE), zero = fxa_builder_float(b, 0);
        fxa_builder_set_dscore(b, d);
        if (where == 1) fxa__builder_grad_param(b, "a", zero);
        fxa__builder_grad_param(b, "a", d);
        if (where == 2) fxa__builder_grad_param(b, "a", zero);
        fxa_program *p = own_finish(b);
        if (where > 0) T_CHECK(own_equal(want, p));
        if (where > 0) fxa_program_destroy(p);
        if (where == 0) want = p;
    }
}

T_MAIN
