/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical form and hash: what is folded and what must not be, what the hash does not see and what it must see, random
 * programs built in two ways, gradients that are added up, ready masks, import.
 */
#include "t.h"

#include "support/fail_alloc.h"
#include "support/op_meaning.h"
#include "program/program.h"

static fxa_context *ctx;

__attribute__((constructor)) static void canon_start(void) {
    if (fxa_context_create(NULL, &ctx, NULL) != FXA_OK) abort();
}
__attribute__((destructor)) static void canon_stop(void) { fxa_context_destroy(ctx); }

static fxa_builder *canon_builder(fxa_program_kind kind) {
    fxa_builder *b = NULL;
    if (fxa_builder_create(ctx, kind, &b, NULL) != FXA_OK) abort();
    return b;
}

static fxa_program *canon_finish(fxa_builder *b) {
    fxa_program *p = NULL;
    fxa_error err;
    T_OK(fxa_builder_finish(b, &p, &err));
    fxa_builder_destroy(b);
    return p;
}

static bool canon_equal(const fxa_program *x, const fxa_program *y) {
    return x && y && memcmp(x->hash, y->hash, 16) == 0 && x->n_nodes == y->n_nodes &&
           memcmp(x->nodes, y->nodes, (size_t)x->n_nodes * sizeof *x->nodes) == 0 && x->n_outputs == y->n_outputs &&
           memcmp(x->outputs, y->outputs, (size_t)x->n_outputs * sizeof *x->outputs) == 0;
}

/* ---- Identities -------------------------------------------------------------------------------------------------- */

/* A builder with one value of each type that is no constant, and shorthands for the rows below. */
typedef struct canon_bench {
    fxa_builder *b;
    fxa_value f, g, i, j, c, d; /* floats, ints, bools */
} canon_bench;

static canon_bench canon_bench_start(void) {
    canon_bench s = {.b = canon_builder(FXA_PROGRAM_SCORE)};
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
    T_INT(OP2(MULZ, F(1), s.f), s.f);
    T_INT(OP2(MULZ, F(0), s.f), F(0));
    T_INT(OP2(MULZ, F(-0.0), s.f), F(0));
    T_INT(OP2(DIVZ, F(0), s.f), F(0));
    T_INT(OP1(NEG, OP1(NEG, s.f)), s.f);
    T_INT(OP2(MIN, s.f, s.f), s.f);
    T_INT(OP2(MAX, s.f, s.f), s.f);
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

/* Each of these would be wrong for some value: NaN, infinity, -0, or a float that is not whole. */
TEST(what_must_stay) {
    canon_bench s = canon_bench_start();
    const fxa_value stays[] = {
        OP2(ADD, s.f, F(0.0)),       OP2(SUB, s.f, F(-0.0)),    OP2(MUL, s.f, F(0.0)),    OP2(SUB, s.f, s.f),
        OP2(DIV, s.f, s.f),          OP2(DIV, F(0.0), s.f),     OP2(FLOORDIV, s.f, F(1)), OP2(MOD, s.f, F(1)),
        OP2(MULZ, s.f, F(1)),        OP2(MULZ, s.f, F(0)),      OP2(DIVZ, s.f, F(1)),     OP2(EQ, s.f, s.f),
        OP2(NE, s.f, s.f),           OP2(LE, s.f, s.f),         OP2(LT, s.f, s.f),        OP1(NOT, OP2(LT, s.f, s.g)),
        OP1(NOT, OP2(LE, s.f, s.g)), OP1(FLOAT, OP1(INT, s.f)), OP2(POW, s.f, F(1)),      OP2(POW, s.f, F(0)),
        OP2(FLOORDIV, s.i, s.i),     OP2(MOD, s.i, s.i)};
    const fxa_op op[] = {FXA_OP_ADD,      FXA_OP_SUB, FXA_OP_MUL,      FXA_OP_SUB,  FXA_OP_DIV,  FXA_OP_DIV,
                         FXA_OP_FLOORDIV, FXA_OP_MOD, FXA_OP_MULZ,     FXA_OP_MULZ, FXA_OP_DIVZ, FXA_OP_EQ,
                         FXA_OP_NE,       FXA_OP_LE,  FXA_OP_LT,       FXA_OP_NOT,  FXA_OP_NOT,  FXA_OP_FLOAT,
                         FXA_OP_POW,      FXA_OP_POW, FXA_OP_FLOORDIV, FXA_OP_MOD};
    for (size_t i = 0; i < sizeof stays / sizeof stays[0]; i++) {
        fxa__node n;
        T_REQUIRE(fxa__builder_node(s.b, stays[i], &n));
        T_INT(n.op, op[i]);
    }
    fxa_builder_destroy(s.b);
}

/* Folding is exact IEEE arithmetic; functions that a C library may round in its own way are not folded. */
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
        fxa__node n;
        T_REQUIRE(fxa__builder_node(s.b, kept[i], &n));
        T_CHECK(n.op != FXA_OP_CONST);
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
            fxa__node node;
            T_REQUIRE(fxa__builder_node(s.b, OP2(ADD, in_order[j], in_order[i]), &node));
            T_INT(node.arg[0], in_order[i]);
            T_INT(node.arg[1], in_order[j]);
        }
    fxa_builder_destroy(s.b);
}

/* ---- Random programs, built in two ways -------------------------------------------------------------------------- */

/* A recipe: steps in an order of dependence. Leaves are inputs, params, constants; the rest operations and loads. */
enum { STEP_INPUT, STEP_PARAM, STEP_FLOAT, STEP_INT, STEP_BOOL, STEP_LOAD, STEP_OP, MAX_STEPS = 60, POINTS = 4 };
typedef struct canon_step {
    int kind, which; /* input, param, tensor or operation */
    double number;
    int arg[3];
    meaning at[POINTS]; /* its value at each point */
} canon_step;
typedef struct canon_recipe {
    canon_step step[MAX_STEPS];
    int n, score, mask;
} canon_recipe;

static const char *const canon_params[4] = {"alpha", "beta", "m", "n"}; /* two floats, two ints */
static const double canon_f64[5] = {0.5, -0.0, INFINITY, -3, NAN};
static const int32_t canon_i32[4] = {3, -1, INT32_MIN, 100};
static const uint8_t canon_b8[3] = {1, 0, 1};
static const fxa_view canon_views[3] = {{canon_b8, FXA_B8, 1, {3}, {1}}, /* in order of name: flag, real, whole */
                                        {canon_f64, FXA_F64, 1, {5}, {1}},
                                        {canon_i32, FXA_I32, 1, {4}, {1}}};
static const char *const canon_tensors[3] = {"flag", "real", "whole"};
static const double canon_in[POINTS][FXA_INPUT_COUNT] = {{0.25, 0, 1, 2, 3, 8, 9, 0},
                                                         {NAN, 1, 0, 5, 5, 6, 6, 0},
                                                         {-0.0, 0, 3, 0, 7, 1, 8, 0},
                                                         {INFINITY, 2, 2, 1000000, 1, 2000000, 3, 0}};
static const double canon_values[POINTS][4] = {
    {1.5, -0.0, 3, -2}, {INFINITY, 2, 0, 1}, {0.0, NAN, -1, 33}, {-1e300, 0.1, INT32_MAX, INT32_MIN}};

static meaning canon_load_meaning(int tensor, meaning index) {
    const int64_t size = canon_views[tensor].size[0], i = index.i < 0 ? index.i + size : index.i;
    bool in = i >= 0 && i < size;
    if (tensor == 0) return meaning_bool(in && canon_b8[i]);
    return tensor == 1 ? meaning_float(in ? canon_f64[i] : 0) : meaning_int(in ? canon_i32[i] : 0);
}

/* Fills in the values of a step; false when the operation does not take these types. */
static bool canon_step_values(canon_recipe *r, canon_step *s) {
    for (int p = 0; p < POINTS; p++) {
        meaning x[3];
        for (int i = 0; i < 3; i++) x[i] = r->step[s->arg[i]].at[p];
        switch (s->kind) {
        case STEP_INPUT:
            s->at[p] = s->which == FXA_INPUT_SCORE ? meaning_float(canon_in[p][0])
                                                   : meaning_int((int64_t)canon_in[p][s->which]);
            break;
        case STEP_PARAM:
            s->at[p] = s->which < 2 ? meaning_float(canon_values[p][s->which])
                                    : meaning_int((int64_t)canon_values[p][s->which]);
            break;
        case STEP_FLOAT: s->at[p] = meaning_float(s->number); break;
        case STEP_INT: s->at[p] = meaning_int((int64_t)s->number); break;
        case STEP_BOOL: s->at[p] = meaning_bool(s->number != 0); break;
        case STEP_LOAD:
            if (x[0].type == FXA_FLOAT) return false;
            s->at[p] = canon_load_meaning(s->which, x[0]);
            break;
        default: s->at[p] = meaning_op((fxa_op)s->which, x);
        }
        if (!s->at[p].type) return false;
    }
    return true;
}

static canon_step canon_random_step(t_rng *rng, int n) {
    static const double special[] = {0.0, -0.0, 1, -1, 0.5, 2, 3.7, INFINITY, -INFINITY, NAN, 1e10};
    static const double ints[] = {0, 1, -1, 2, 5, 31, 32, -7, INT32_MAX, INT32_MIN};
    canon_step s = {.kind = (int)t_int(rng, 0, 13)};
    for (int i = 0; i < 3; i++) s.arg[i] = n ? (int)t_int(rng, n > 12 ? n - 12 : 0, n - 1) : 0;
    if (s.kind > STEP_OP || n < 3) s.kind = n < 3 ? STEP_INPUT : STEP_OP;
    switch (s.kind) {
    case STEP_INPUT: s.which = (int)t_int(rng, FXA_INPUT_SCORE, FXA_INPUT_K_LEN); break;
    case STEP_PARAM: s.which = (int)t_int(rng, 0, 3); break;
    case STEP_FLOAT: s.number = special[t_int(rng, 0, 10)]; break;
    case STEP_INT: s.number = ints[t_int(rng, 0, 9)]; break;
    case STEP_BOOL: s.number = (double)t_int(rng, 0, 1); break;
    case STEP_LOAD: s.which = (int)t_int(rng, 0, 2); break;
    default:
        do s.which = (int)t_int(rng, 0, FXA_OP_COUNT - 1);
        while (!meaning_arity((fxa_op)s.which));
        if (t_int(rng, 0, 7) == 0) s.arg[1] = s.arg[0];
    }
    return s;
}

static void canon_random_recipe(t_rng *rng, canon_recipe *r) {
    int size = (int)t_int(rng, 4, MAX_STEPS);
    *r = (canon_recipe){.score = -1, .mask = -1};
    for (int tries = 0; r->n < size && tries < 20 * MAX_STEPS; tries++) {
        canon_step s = canon_random_step(rng, r->n);
        if (!canon_step_values(r, &s)) continue;
        if (s.at[0].type == FXA_BOOL)
            r->mask = r->n;
        else
            r->score = r->n;
        r->step[r->n++] = s;
    }
}

static fxa_op canon_mirror(fxa_op op) {
    return op == FXA_OP_LT ? FXA_OP_GT : op == FXA_OP_LE ? FXA_OP_GE : op == FXA_OP_GT ? FXA_OP_LT : FXA_OP_LE;
}

/* One step; with `swap` commutative operands and comparisons are written the other way round. */
static fxa_value canon_build_step(fxa_builder *b, const canon_step *s, const fxa_value *value, bool swap) {
    fxa_value x[3];
    int n = s->kind == STEP_OP ? meaning_arity((fxa_op)s->which) : 0;
    for (int i = 0; i < n; i++) x[i] = value[s->arg[i]];
    switch (s->kind) {
    case STEP_INPUT: return fxa_builder_input(b, (fxa_input)s->which);
    case STEP_PARAM: return fxa_builder_param(b, canon_params[s->which], s->which < 2 ? FXA_FLOAT : FXA_INT);
    case STEP_FLOAT: return fxa_builder_float(b, s->number);
    case STEP_INT: return fxa_builder_int(b, (int32_t)s->number);
    case STEP_BOOL: return fxa_builder_bool(b, s->number != 0);
    case STEP_LOAD: {
        int32_t t = fxa_builder_tensor(b, canon_tensors[s->which], canon_views[s->which].dtype, 1);
        return fxa_builder_load(b, t, &value[s->arg[0]], 1);
    }
    default: break;
    }
    fxa_op op = (fxa_op)s->which;
    bool order = op >= FXA_OP_LT && op <= FXA_OP_GE;
    if (swap && (order || (fxa__op_info_get(op)->flags & FXA__OP_COMM)))
        return fxa_builder_op2(b, order ? canon_mirror(op) : op, x[1], x[0]);
    return fxa_builder_op(b, op, x, (size_t)n);
}

/* Builds the recipe: in its own order, or (rng given) in a random order of dependence with operands swapped. */
static fxa_program *canon_build(const canon_recipe *r, t_rng *rng) {
    fxa_builder *b = canon_builder(FXA_PROGRAM_SCORE);
    fxa_value value[MAX_STEPS];
    for (int i = 0; i < 4; i++) {
        int at = rng ? 3 - i : i;
        (void)fxa_builder_param(b, canon_params[at], at < 2 ? FXA_FLOAT : FXA_INT);
    }
    for (int i = 0; i < 3; i++) {
        int at = rng ? 2 - i : i;
        (void)fxa_builder_tensor(b, canon_tensors[at], canon_views[at].dtype, 1);
    }
    for (int i = 0; i < r->n; i++) value[i] = -1;
    for (int done = 0; done < r->n;) {
        int i = rng ? (int)t_int(rng, 0, r->n - 1) : done;
        const canon_step *s = &r->step[i];
        int needs = s->kind == STEP_OP ? meaning_arity((fxa_op)s->which) : s->kind == STEP_LOAD;
        bool ready = value[i] < 0;
        for (int a = 0; a < needs; a++) ready = ready && value[s->arg[a]] >= 0;
        if (!ready) continue;
        value[i] = canon_build_step(b, s, value, rng && t_int(rng, 0, 1));
        done++;
        if (value[i] < 0) break; /* finish tells */
    }
    if (r->score >= 0) fxa_builder_set_score(b, value[r->score]);
    if (r->mask >= 0) fxa_builder_set_mask(b, value[r->mask]);
    return canon_finish(b);
}

/* Zeroes that tie in min, max and clamp have no fixed sign: then 1 / zero is not fixed either. */
static bool canon_signs_fixed(const canon_recipe *r) {
    for (int i = 0; i < r->n; i++) {
        int op = r->step[i].kind == STEP_OP ? r->step[i].which : 0;
        if (op == FXA_OP_MIN || op == FXA_OP_MAX || op == FXA_OP_CLAMP) return false;
    }
    return true;
}

static void canon_check_meaning(const canon_recipe *r, const fxa_program *p) {
    for (int at = 0; at < POINTS; at++) {
        double got = 0;
        int mask = 0;
        fxa_error err;
        T_OK(fxa_program_eval(p, canon_in[at], canon_values[at], canon_views, &got, &mask, &err));
        meaning score = r->score >= 0 ? r->step[r->score].at[at] : meaning_float(canon_in[at][0]);
        double want = meaning_number(score);
        T_SAME(got, want);
        T_INT(mask, r->mask >= 0 ? r->step[r->mask].at[at].i : 1);
    }
}

/* Operands before users, all nodes needed, no two equal, unused parts zero, numbered in postorder. */
static void canon_check_form(const fxa_program *p) {
    bool *used = calloc((size_t)p->n_nodes, sizeof *used);
    for (int32_t i = 0; i < p->n_outputs; i++) used[p->outputs[i].value] = true;
    for (int32_t i = 0; i < p->n_outputs; i++)
        for (int k = 0; k < p->outputs[i].n_index; k++) used[p->outputs[i].index[k]] = true;
    for (int32_t i = p->n_nodes - 1; i >= 0; i--) {
        const fxa__node *n = &p->nodes[i];
        T_CHECK(used[i]);
        for (int k = 0; k < FXA_MAX_RANK; k++) {
            if (k < n->n_args)
                T_CHECK(n->arg[k] >= 0 && n->arg[k] < i);
            else
                T_INT(n->arg[k], 0);
            if (k < n->n_args) used[n->arg[k]] = true;
        }
        T_CHECK(n->op != FXA_OP_GT && n->op != FXA_OP_GE);
        for (int32_t j = 0; j < i; j++) T_CHECK(memcmp(n, &p->nodes[j], sizeof *n) != 0);
    }
    free(used);
}

static fxa_program *canon_rebuild(const fxa_program *p) {
    fxa_builder *b = canon_builder((fxa_program_kind)p->kind);
    fxa_value *map = calloc((size_t)p->n_nodes, sizeof *map);
    T_CHECK(fxa__builder_import(b, p, NULL, map));
    fxa_builder_set_score(b, map[p->outputs[0].value]);
    fxa_builder_set_mask(b, map[p->outputs[1].value]);
    free(map);
    return canon_finish(b);
}

TEST(random_programs_mean_what_was_built) {
    t_rng rng = {t_seed()};
    int checked = 0;
    for (int round = 0; round < t_scaled(3000); round++) {
        canon_recipe r;
        canon_random_recipe(&rng, &r);
        fxa_program *p = canon_build(&r, NULL), *other = canon_build(&r, &rng), *again = p ? canon_rebuild(p) : NULL;
        T_REQUIRE(p && other && again);
        T_CHECK(canon_equal(p, other));
        T_CHECK(canon_equal(p, again));
        canon_check_form(p);
        if (canon_signs_fixed(&r)) {
            canon_check_meaning(&r, p);
            checked++;
        }
        fxa_program_destroy(p);
        fxa_program_destroy(other);
        fxa_program_destroy(again);
    }
    T_CHECK(checked > t_scaled(3000) / 8);
}

/* ---- The hash ---------------------------------------------------------------------------------------------------- */

/* One program in many variants: everything that the content is made of changes the hash, and each differently. */
static fxa_program *canon_variant(int v) {
    fxa_builder *b = canon_builder(v == 1 ? FXA_PROGRAM_BPROP : v == 2 ? FXA_PROGRAM_DERIVATIVE : FXA_PROGRAM_SCORE);
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
    return canon_finish(b);
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

/* equal content from different builders, contexts and times is one hash; nothing of an address enters. */
TEST(the_hash_is_content_only) {
    fxa_context *other = NULL, *mine = ctx;
    fxa_error err;
    T_OK(fxa_context_create(NULL, &other, &err));
    fxa_program *x = canon_variant(0);
    ctx = other;
    fxa_program *y = canon_variant(0);
    ctx = mine;
    fxa_context_destroy(other); /* the program outlives it */
    T_CHECK(canon_equal(x, y));
    fxa_program_destroy(x);
    fxa_program_destroy(y);
}

/* ---- Gradients --------------------------------------------------------------------------------------------------- */

/* grad statements in an order that is decided by `turn`; the same program must come out. */
static fxa_program *canon_grad_program(int turn) {
    fxa_builder *b = canon_builder(FXA_PROGRAM_DERIVATIVE);
    const char *const params[2] = {turn ? "w" : "a", turn ? "a" : "w"};
    for (int i = 0; i < 2; i++) (void)fxa_builder_param(b, params[i], FXA_FLOAT);
    (void)fxa_builder_tensor(b, "t", FXA_F32, 1);
    (void)fxa_builder_tensor(b, "bias", FXA_F32, 1);
    fxa_value d = fxa_builder_input(b, FXA_INPUT_DSCORE), s = fxa_builder_input(b, FXA_INPUT_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_value zero = fxa_builder_float(b, turn ? 0.0 : -0.0);
    static const int step[6] = {1, 2, 4, 5, 7, 8}; /* without common factor with 9: each statement once */
    for (int i = 0; i < 9; i++) {
        switch ((i * step[turn % 6] + turn) % 9) {
        case 0: fxa__builder_grad_param(b, "w", d); break;
        case 1: fxa__builder_grad_load(b, "t", &q, 1, s); break;
        case 2: fxa__builder_grad_load(b, "t", &q, 1, d); break;
        case 3: fxa__builder_grad_load(b, "t", &k, 1, d); break;
        case 4: fxa__builder_grad_load(b, "bias", &k, 1, d); break;
        case 5: fxa__builder_grad_load(b, "t", &q, 1, fxa_builder_op1(b, FXA_OP_TANH, d)); break;
        case 6: fxa__builder_grad_param(b, "a", zero); break; /* nothing */
        case 7: fxa__builder_grad_load(b, "t", &q, 1, zero); break;
        default: fxa__builder_grad_load(b, "bias", &q, 1, zero); break; /* nothing */
        }
    }
    return canon_finish(b);
}

TEST(gradients_are_summed_sorted_and_zeroes_dropped) {
    fxa_program *p = canon_grad_program(0);
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
    canon_check_form(p);
    for (int turn = 1; turn < 18; turn++) {
        fxa_program *other = canon_grad_program(turn);
        T_CHECK(canon_equal(p, other));
        fxa_program_destroy(other);
    }
    fxa_program_destroy(p);
}

/* ---- Ready masks ------------------------------------------------------------------------------------------------- */

static bool canon_ready_expected(uint32_t flags, int64_t left, int64_t right, int q, int k, int q_len, int k_len) {
    int64_t qa = flags & FXA_BOTTOM_RIGHT ? q + k_len - q_len : q;
    if ((flags & FXA_CAUSAL) && k > qa) return false;
    if ((flags & FXA_WINDOW) && left >= 0 && qa - k > left) return false;
    return !((flags & FXA_WINDOW) && right >= 0 && k - qa > right);
}

TEST(ready_masks) {
    const int64_t bounds[] = {-1, 0, 2, INT32_MAX - 1, INT32_MAX, INT64_MAX, INT64_MIN};
    const int n_bounds = sizeof bounds / sizeof bounds[0];
    fxa_builder *b = canon_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q);
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_NE, q, fxa_builder_int(b, 3)));
    fxa_program *own = canon_finish(b);
    for (uint32_t flags = 0; flags < 8; flags++)
        for (int c = 0; c < 2 * n_bounds * n_bounds; c++) {
            int64_t left = bounds[c % n_bounds], right = bounds[c / n_bounds % n_bounds];
            fxa_program *base = c / n_bounds / n_bounds ? own : NULL, *p = NULL;
            fxa_error err;
            T_OK(fxa__program_with_masks(fxa__context_host(ctx), base, flags, left, right, &p, &err));
            T_REQUIRE(p);
            for (int at = 0; at < 36; at++) {
                double in[FXA_INPUT_COUNT] = {0, 0, 0, at / 6, at % 6, 6, 4, 0};
                int mask = -1;
                T_OK(fxa_program_eval(p, in, NULL, NULL, NULL, &mask, &err));
                bool want = canon_ready_expected(flags, left, right, at / 6, at % 6, 6, 4) && !(base && at / 6 == 3);
                T_INT(mask, want);
            }
            fxa_program_destroy(p);
        }
    fxa_program_destroy(own);
}

TEST(ready_masks_compose) {
    fxa_builder *b = canon_builder(FXA_PROGRAM_SCORE);
    fxa_value q = fxa_builder_input(b, FXA_INPUT_Q), k = fxa_builder_input(b, FXA_INPUT_K);
    fxa_builder_set_mask(b, fxa_builder_op2(b, FXA_OP_GE, q, k));
    fxa_program *causal = canon_finish(b), *made = NULL, *twice = NULL, *wrong = NULL;
    fxa__host *host = fxa__context_host(ctx);
    fxa_error err;
    T_OK(fxa__program_with_masks(host, NULL, FXA_CAUSAL, 0, 0, &made, &err));
    T_CHECK(canon_equal(causal, made)); /* a flag is the same program as the text */
    T_OK(fxa__program_with_masks(host, causal, FXA_CAUSAL, 0, 0, &twice, &err));
    T_CHECK(canon_equal(causal, twice));
    fxa_program *identity = canon_finish(canon_builder(FXA_PROGRAM_SCORE)), *open = NULL;
    T_OK(fxa__program_with_masks(host, NULL, FXA_WINDOW, INT32_MAX, -1, &open, &err));
    T_CHECK(canon_equal(identity, open)); /* a bound that no difference reaches is none */
    fxa_program_destroy(identity);
    fxa_program_destroy(open);
    b = canon_builder(FXA_PROGRAM_BPROP);
    fxa_program *bprop = canon_finish(b);
    T_STATUS(fxa__program_with_masks(host, bprop, FXA_CAUSAL, 0, 0, &wrong, &err), FXA_E_PROBLEM);
    T_CHECK(wrong == NULL);
    fxa_program_destroy(causal);
    fxa_program_destroy(made);
    fxa_program_destroy(twice);
    fxa_program_destroy(bprop);
}

TEST(ready_masks_out_of_memory) {
    fail_alloc f = FAIL_ALLOC_INIT;
    fxa_context *failing = fail_alloc_context(&f);
    fxa_program *own = canon_variant(0);
    T_REQUIRE(failing && own);
    size_t before = f.live_bytes;
    bool done = false;
    for (size_t at = 1; !done && at < 100; at++) {
        fxa_program *p = NULL;
        fxa_error err = {0};
        fail_alloc_arm(&f, at, at % 2);
        fxa_status status = fxa__program_with_masks(fxa__context_host(failing), own, FXA_CAUSAL, 0, 0, &p, &err);
        done = status == FXA_OK;
        T_CHECK(done ? p != NULL : !p && status == FXA_E_MEMORY && strstr(err.text, "out of memory"));
        fail_alloc_arm(&f, 0, false);
        fxa_program_destroy(p);
        T_INT(f.live_bytes, before);
    }
    T_CHECK(done);
    T_INT(f.mistakes, 0);
    fxa_program_destroy(own);
    fxa_context_destroy(failing);
}

/* A program at the limit of nodes still takes its masks. */
TEST(ready_masks_on_the_largest_program) {
    fxa_builder *b = canon_builder(FXA_PROGRAM_SCORE);
    fxa_value x = fxa_builder_input(b, FXA_INPUT_SCORE);
    for (int i = 2; i < FXA_MAX_NODES; i++) x = fxa_builder_op1(b, FXA_OP_TANH, x);
    fxa_builder_set_score(b, x);
    fxa_program *p = canon_finish(b), *masked = NULL;
    fxa_error err;
    T_REQUIRE(p);
    const uint32_t flags = FXA_CAUSAL | FXA_WINDOW | FXA_BOTTOM_RIGHT;
    T_OK(fxa__program_with_masks(fxa__context_host(ctx), p, flags, 5, 6, &masked, &err));
    T_CHECK(fxa_program_node_count(masked) > FXA_MAX_NODES);
    fxa_program_destroy(p);
    fxa_program_destroy(masked);
}

/* ---- Import ------------------------------------------------------------------------------------------------------ */

TEST(import_substitutes_inputs) {
    fxa_builder *b = canon_builder(FXA_PROGRAM_SCORE);
    fxa_value s = fxa_builder_input(b, FXA_INPUT_SCORE);
    fxa_builder_set_score(b, fxa_builder_op2(b, FXA_OP_MUL, s, fxa_builder_param(b, "w", FXA_FLOAT)));
    fxa_program *p = canon_finish(b);
    b = canon_builder(FXA_PROGRAM_SCORE);
    fxa_value map[8], subst[FXA_INPUT_COUNT];
    for (int i = 0; i < FXA_INPUT_COUNT; i++) subst[i] = -1;
    subst[FXA_INPUT_SCORE] = fxa_builder_op1(b, FXA_OP_TANH, fxa_builder_input(b, FXA_INPUT_SCORE));
    T_REQUIRE(p && p->n_nodes <= 8);
    T_CHECK(fxa__builder_import(b, p, subst, map));
    fxa_builder_set_score(b, map[fxa__program_output(p, FXA__OUT_SCORE)]);
    fxa_program *joined = canon_finish(b);
    double got = 0, w = 3, in[FXA_INPUT_COUNT] = {0.5};
    fxa_error err;
    T_OK(fxa_program_eval(joined, in, &w, NULL, &got, NULL, &err));
    T_SAME(got, tanh(0.5) * 3);
    fxa_program_destroy(p);
    fxa_program_destroy(joined);
}

T_MAIN
