/* SPDX-License-Identifier: Apache-2.0
 *
 * Random score programs from a tape (gen.h). Each type has a pool of the values made so far. A step reads an operation
 * from the tape and takes operands from the pools, preferring recent ones; outputs combine the last few values.
 */
#include "gen.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

const fxa_tensor_info gen_tensors[] = {
    {"bias", FXA_F32, 2},      {"slopes", FXA_F64, 1}, {"half", FXA_F16, 3},  {"brain", FXA_BF16, 1},
    {"cell", FXA_F64, 0},      {"doc", FXA_I32, 1},    {"table", FXA_I64, 2}, {"steps", FXA_I16, 4},
    {"tiny", FXA_I8, 1},       {"bytes", FXA_U8, 5},   {"allow", FXA_B8, 2},  {"ids", FXA_I64, 1},
    {NULL, FXA_DTYPE_NONE, 0},
};
enum { GEN_FLOAT_TENSORS = 5, GEN_TENSORS = 12, GEN_IDS = 11, GEN_POOL = 48 };

typedef struct gen_pool {
    fxa_value value[GEN_POOL];
    unsigned count, made;
} gen_pool;

typedef struct gen_state {
    fxa_builder *b;
    const uint8_t *tape;
    size_t size, at;
    unsigned flags;
    gen_pool pool[4]; /* by fxa_type */
} gen_state;

static unsigned gen_byte(gen_state *g) { return g->at < g->size ? g->tape[g->at++] : 0; }
static unsigned gen_pick(gen_state *g, unsigned n) { return gen_byte(g) % n; }

static void gen_put(gen_state *g, fxa_type type, fxa_value v) {
    gen_pool *p = &g->pool[type];
    p->value[p->made++ % GEN_POOL] = v;
    if (p->count < GEN_POOL) p->count++;
}

static fxa_value gen_back(gen_state *g, fxa_type type, unsigned back) {
    gen_pool *p = &g->pool[type];
    return p->value[(p->made - 1 - back % p->count) % GEN_POOL];
}

/* Returns a value of the type, usually a recent one (byte 0 = the latest), so that values are used and expressions
 * become deep. */
static fxa_value gen_get(gen_state *g, fxa_type type) {
    unsigned r = gen_byte(g);
    return gen_back(g, type, (r * r * g->pool[type].count) >> 16);
}

/* Returns an operand of any type; the builder converts it. */
static fxa_value gen_any(gen_state *g, fxa_type wanted) {
    unsigned r = gen_byte(g);
    if (r >= 240) return gen_get(g, FXA_BOOL);
    if (r >= 200) return gen_get(g, FXA_INT);
    return gen_get(g, wanted);
}

static double gen_small(gen_state *g) { return ((double)gen_byte(g) - 128) / 16; }

static double gen_double(gen_state *g) {
    static const double special[] = {0.0,  1.0,      -1.0,      2.0, 0.5,   1e-3,   0.1,
                                     -0.0, INFINITY, -INFINITY, NAN, 1e300, 5e-324, 1e22};
    unsigned r = gen_byte(g);
    if (g->flags & (GEN_NO_SPECIAL | GEN_SMOOTH)) return gen_small(g);
    if (r < 128) return gen_small(g);
    if (r < 220) return special[gen_pick(g, sizeof special / sizeof *special)];
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | gen_byte(g);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int32_t gen_int(gen_state *g) {
    unsigned r = gen_byte(g);
    if ((g->flags & (GEN_NO_SPECIAL | GEN_AFFINE_MASK)) || r < 200) return (int32_t)gen_byte(g) % 33 - 16;
    if (r < 230) return (int32_t)(1u << gen_pick(g, 31));
    return r < 240 ? INT_MIN : r < 250 ? INT_MAX : -(int32_t)(1u << gen_pick(g, 31));
}

static fxa_value gen_coordinate(const gen_state *g, fxa_input input) {
    if (g->flags & GEN_NO_STORED && input == FXA_INPUT_Q_ROW) input = FXA_INPUT_Q;
    if (g->flags & GEN_NO_STORED && input == FXA_INPUT_K_ROW) input = FXA_INPUT_K;
    return fxa_builder_input(g->b, input);
}

/* Returns an index that is likely to be inside a small tensor: a coordinate, or any int. */
static fxa_value gen_index(gen_state *g) {
    static const fxa_input coordinate[] = {FXA_INPUT_H, FXA_INPUT_Q,     FXA_INPUT_K,    FXA_INPUT_B,
                                           FXA_INPUT_H, FXA_INPUT_Q_ROW, FXA_INPUT_K_ROW};
    unsigned r = gen_byte(g);
    if (r < 160) return gen_coordinate(g, coordinate[r % 7]);
    return r < 180 ? fxa_builder_int(g->b, (int32_t)gen_pick(g, 8) - 4) : gen_get(g, FXA_INT);
}

static fxa_value gen_load_of(gen_state *g, const fxa_tensor_info *t) {
    fxa_value index[FXA_MAX_RANK];
    int32_t handle = fxa_builder_tensor(g->b, t->name, t->dtype, t->rank);
    for (int32_t i = 0; i < t->rank; i++) index[i] = gen_index(g);
    return fxa_builder_load(g->b, handle, index, (size_t)t->rank);
}

static void gen_load(gen_state *g, unsigned n_tensors) {
    const fxa_tensor_info *t = &gen_tensors[gen_pick(g, n_tensors)];
    fxa_value v = gen_load_of(g, t);
    gen_put(g, t->dtype <= FXA_BF16 ? FXA_FLOAT : t->dtype == FXA_B8 ? FXA_BOOL : FXA_INT, v);
}

static void gen_param(gen_state *g, const char *name, fxa_type type) {
    gen_put(g, type, fxa_builder_param(g->b, name, type));
}

static void gen_leaf(gen_state *g) {
    static const fxa_input ints[] = {FXA_INPUT_Q,     FXA_INPUT_K,     FXA_INPUT_H,     FXA_INPUT_B,    FXA_INPUT_Q_LEN,
                                     FXA_INPUT_K_LEN, FXA_INPUT_HEADS, FXA_INPUT_Q_ROW, FXA_INPUT_K_ROW};
    unsigned r = gen_pick(g, 8);
    bool params = !(g->flags & GEN_NO_PARAMS), tensors = !(g->flags & GEN_NO_TENSORS);
    if (r == 0)
        gen_put(g, FXA_INT, gen_coordinate(g, ints[gen_pick(g, 9)]));
    else if (r == 1)
        gen_put(g, FXA_INT, fxa_builder_int(g->b, gen_int(g)));
    else if (r == 2 && params)
        gen_param(g, gen_pick(g, 2) ? "p_gain" : "p_cap", FXA_FLOAT);
    else if (r == 3 && params)
        gen_param(g, gen_pick(g, 2) ? "p_left" : "p_step", FXA_INT);
    else if (r <= 5 && tensors)
        gen_load(g, GEN_TENSORS);
    else if (r == 6)
        gen_put(g, FXA_BOOL, fxa_builder_bool(g->b, (int)gen_pick(g, 2)));
    else
        gen_put(g, FXA_FLOAT, fxa_builder_float(g->b, gen_double(g)));
}

/* Returns a coordinate as a float, or an earlier value. */
static fxa_value gen_place_or_float(gen_state *g) {
    static const fxa_input coordinate[] = {FXA_INPUT_K, FXA_INPUT_H, FXA_INPUT_Q, FXA_INPUT_B};
    unsigned r = gen_byte(g);
    if (r >= 160) return gen_get(g, FXA_FLOAT);
    return fxa_builder_op1(g->b, FXA_OP_SIN, fxa_builder_input(g->b, coordinate[r % 4]));
}

/* Returns a with_grad whose two operands often depend on different coordinates. */
static fxa_value gen_with_grad(gen_state *g) {
    fxa_value x = gen_place_or_float(g);
    return fxa_builder_op2(g->b, FXA_OP_WITH_GRAD, x, gen_place_or_float(g));
}

static void gen_float_step(gen_state *g) {
    static const fxa_op two[] = {FXA_OP_ADD, FXA_OP_SUB, FXA_OP_MUL, FXA_OP_DIV,  FXA_OP_FLOORDIV, FXA_OP_MOD,
                                 FXA_OP_MIN, FXA_OP_MAX, FXA_OP_POW, FXA_OP_MULZ, FXA_OP_DIVZ};
    static const fxa_op one[] = {FXA_OP_NEG,  FXA_OP_ABS,   FXA_OP_SQRT,  FXA_OP_RSQRT, FXA_OP_EXP,
                                 FXA_OP_EXP2, FXA_OP_LOG,   FXA_OP_LOG2,  FXA_OP_TANH,  FXA_OP_SIGMOID,
                                 FXA_OP_ERF,  FXA_OP_SIN,   FXA_OP_COS,   FXA_OP_TAN,   FXA_OP_FLOOR,
                                 FXA_OP_CEIL, FXA_OP_ROUND, FXA_OP_TRUNC, FXA_OP_LOG1P, FXA_OP_ATAN};
    unsigned r = gen_pick(g, 46);
    fxa_value x = gen_get(g, FXA_FLOAT), v;
    if (r < 11)
        v = fxa_builder_op2(g->b, two[r], x, gen_any(g, FXA_FLOAT));
    else if (r < 31)
        v = fxa_builder_op1(g->b, one[r - 11], x);
    else if (r < 34)
        v = fxa_builder_op2(g->b, two[r - 31], gen_any(g, FXA_FLOAT), x);
    else if (r == 34)
        v = fxa_builder_op2(g->b, FXA_OP_DIV, gen_get(g, FXA_INT), gen_get(g, FXA_INT));
    else if (r == 35)
        v = fxa_builder_op1(g->b, FXA_OP_TANH, gen_any(g, FXA_INT));
    else if (r == 36)
        v = fxa_builder_op1(g->b, FXA_OP_FLOAT, gen_any(g, FXA_INT));
    else if (r < 39)
        v = fxa_builder_op3(g->b, FXA_OP_CLAMP, x, gen_any(g, FXA_FLOAT), gen_any(g, FXA_FLOAT));
    else if (r < 42)
        v = fxa_builder_op3(g->b, FXA_OP_SELECT, gen_get(g, FXA_BOOL), x, gen_any(g, FXA_FLOAT));
    else
        v = gen_with_grad(g);
    gen_put(g, FXA_FLOAT, v);
}

static void gen_int_step(gen_state *g) {
    static const fxa_op two[] = {FXA_OP_ADD, FXA_OP_SUB, FXA_OP_MUL, FXA_OP_FLOORDIV, FXA_OP_MOD, FXA_OP_MIN,
                                 FXA_OP_MAX, FXA_OP_AND, FXA_OP_OR,  FXA_OP_XOR,      FXA_OP_SHL, FXA_OP_SHR};
    unsigned r = gen_pick(g, 25);
    fxa_value x = gen_get(g, FXA_INT), v;
    fxa_value y = gen_byte(g) >= 230 ? gen_get(g, FXA_BOOL) : gen_get(g, FXA_INT);
    if (r < 12)
        v = fxa_builder_op2(g->b, two[r], x, y);
    else if (r == 12)
        v = fxa_builder_op1(g->b, FXA_OP_NEG, x);
    else if (r == 13)
        v = fxa_builder_op1(g->b, FXA_OP_ABS, x);
    else if (r == 14)
        v = fxa_builder_op1(g->b, FXA_OP_NOT, x);
    else if (r == 15)
        v = fxa_builder_op1(g->b, FXA_OP_INT, gen_get(g, FXA_FLOAT));
    else if (r == 16)
        v = fxa_builder_op1(g->b, FXA_OP_INT, gen_get(g, FXA_BOOL));
    else if (r == 17)
        v = fxa_builder_op3(g->b, FXA_OP_CLAMP, x, y, gen_get(g, FXA_INT));
    else if (r == 18)
        v = fxa_builder_op2(g->b, FXA_OP_ADD, gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    else if (r < 21)
        v = fxa_builder_op3(g->b, FXA_OP_SELECT, gen_get(g, FXA_BOOL), x, y);
    else
        v = fxa_builder_op2(g->b,
                            r == 21   ? FXA_OP_FLOORDIV
                            : r == 22 ? FXA_OP_MOD
                            : r == 23 ? FXA_OP_SHR
                                      : FXA_OP_SHL,
                            x, fxa_builder_int(g->b, gen_int(g)));
    gen_put(g, FXA_INT, v);
}

static void gen_bool_step(gen_state *g) {
    static const fxa_op compare[] = {FXA_OP_EQ, FXA_OP_NE, FXA_OP_LT, FXA_OP_LE, FXA_OP_GT, FXA_OP_GE};
    unsigned r = gen_pick(g, 17);
    fxa_value v;
    if (r == 16 && !(g->flags & GEN_NO_TENSORS)) /* i64 */
        v = fxa_builder_op2(g->b, compare[gen_pick(g, 3)], gen_load_of(g, &gen_tensors[GEN_IDS]),
                            gen_load_of(g, &gen_tensors[GEN_IDS]));
    else if (r < 6)
        v = fxa_builder_op2(g->b, compare[r], gen_get(g, FXA_INT), gen_any(g, FXA_INT));
    else if (r < 10)
        v = fxa_builder_op2(g->b, compare[gen_pick(g, 6)], gen_get(g, FXA_FLOAT), gen_any(g, FXA_FLOAT));
    else if (r == 10)
        v = fxa_builder_op2(g->b, FXA_OP_AND, gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    else if (r == 11)
        v = fxa_builder_op2(g->b, FXA_OP_OR, gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    else if (r == 12)
        v = fxa_builder_op2(g->b, FXA_OP_XOR, gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    else if (r == 13)
        v = fxa_builder_op1(g->b, FXA_OP_NOT, gen_get(g, FXA_BOOL));
    else if (r == 14)
        v = fxa_builder_op2(g->b, compare[gen_pick(g, 6)], gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    else
        v = fxa_builder_op3(g->b, FXA_OP_SELECT, gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    gen_put(g, FXA_BOOL, v);
}

/* Returns c0 + c1 * x + c2 * y with coordinates x and y, sometimes // or % a nonzero constant. */
static fxa_value gen_affine(gen_state *g) {
    fxa_value sum = fxa_builder_int(g->b, (int32_t)gen_pick(g, 41) - 20);
    unsigned terms = 1 + gen_pick(g, 3);
    for (unsigned i = 0; i < terms; i++) {
        static const fxa_input order[] = {FXA_INPUT_Q,     FXA_INPUT_K,     FXA_INPUT_Q,     FXA_INPUT_K,
                                          FXA_INPUT_B,     FXA_INPUT_H,     FXA_INPUT_Q_LEN, FXA_INPUT_K_LEN,
                                          FXA_INPUT_HEADS, FXA_INPUT_Q_ROW, FXA_INPUT_K_ROW};
        static const struct {
            fxa_op op;
            int32_t by;
        } factor[] = {{FXA_OP_MUL, 1},  {FXA_OP_MUL, -1}, {FXA_OP_MUL, 1}, {FXA_OP_MUL, -1}, {FXA_OP_MUL, 2},
                      {FXA_OP_MUL, -3}, {FXA_OP_MUL, 1},  {FXA_OP_MUL, 4}, {FXA_OP_SHL, 1},  {FXA_OP_SHL, 3}};
        fxa_value x = gen_coordinate(g, order[gen_pick(g, 11)]);
        unsigned times = gen_pick(g, 10);
        fxa_value term = fxa_builder_op2(g->b, factor[times].op, x, fxa_builder_int(g->b, factor[times].by));
        sum = fxa_builder_op2(g->b, FXA_OP_ADD, sum, term);
    }
    unsigned r = gen_pick(g, 6);
    if (r < 4) return sum;
    int32_t by = (int32_t)gen_pick(g, 12) - 4;
    if (by >= 0) by++;
    return fxa_builder_op2(g->b, r == 4 ? FXA_OP_FLOORDIV : FXA_OP_MOD, sum, fxa_builder_int(g->b, by));
}

static void gen_affine_step(gen_state *g) {
    static const fxa_op compare[] = {FXA_OP_LE, FXA_OP_LT, FXA_OP_GE, FXA_OP_GT, FXA_OP_EQ, FXA_OP_NE};
    unsigned r = gen_pick(g, 10);
    fxa_value v;
    if (r < 6)
        v = fxa_builder_op2(g->b, compare[r], gen_affine(g), gen_affine(g));
    else if (r == 6)
        v = fxa_builder_op1(g->b, FXA_OP_NOT, gen_get(g, FXA_BOOL));
    else
        v = fxa_builder_op2(g->b, r < 9 ? FXA_OP_AND : FXA_OP_OR, gen_get(g, FXA_BOOL), gen_get(g, FXA_BOOL));
    gen_put(g, FXA_BOOL, v);
}

static void gen_smooth_step(gen_state *g) {
    static const fxa_op bounded[] = {FXA_OP_TANH, FXA_OP_SIGMOID, FXA_OP_SIN, FXA_OP_COS, FXA_OP_ERF, FXA_OP_ATAN};
    unsigned r = gen_pick(g, 17);
    fxa_builder *b = g->b;
    fxa_value x = gen_get(g, FXA_FLOAT), y = gen_get(g, FXA_FLOAT), v;
    /* bounded by 1, to keep products and quotients of moderate size */
    fxa_value small = fxa_builder_op1(b, FXA_OP_TANH, y), one = fxa_builder_float(b, 1);
    fxa_value square = fxa_builder_op2(b, FXA_OP_MUL, x, x);
    fxa_value above = fxa_builder_op2(b, FXA_OP_ADD, square, one);
    if (r == 0 && !(g->flags & GEN_NO_TENSORS)) {
        gen_load(g, GEN_FLOAT_TENSORS);
        return;
    }
    if (r <= 1 && !(g->flags & GEN_NO_PARAMS))
        v = fxa_builder_param(b, gen_pick(g, 2) ? "p_gain" : "p_cap", FXA_FLOAT);
    else if (r <= 2)
        v = fxa_builder_float(b, gen_small(g));
    else if (r <= 7)
        v = fxa_builder_op1(b, bounded[r - 3], x);
    else if (r == 8)
        v = fxa_builder_op2(b, FXA_OP_ADD, x, y);
    else if (r == 9)
        v = fxa_builder_op2(b, FXA_OP_SUB, x, y);
    else if (r == 10)
        v = fxa_builder_op2(b, FXA_OP_MUL, x, small);
    else if (r == 11)
        v = fxa_builder_op2(b, FXA_OP_DIV, small, above);
    else if (r == 12)
        v = fxa_builder_op1(b, FXA_OP_SQRT, above);
    else if (r == 13)
        v = fxa_builder_op1(b, FXA_OP_LOG, above);
    else if (r == 14)
        v = fxa_builder_op1(b, FXA_OP_EXP, fxa_builder_op1(b, FXA_OP_NEG, square));
    else if (r == 15)
        v = gen_with_grad(g);
    else
        v = fxa_builder_op1(b, FXA_OP_NEG, x);
    gen_put(g, FXA_FLOAT, v);
}

static void gen_start(gen_state *g) {
    fxa_value q = fxa_builder_input(g->b, FXA_INPUT_Q), k = fxa_builder_input(g->b, FXA_INPUT_K);
    gen_put(g, FXA_BOOL, fxa_builder_op2(g->b, FXA_OP_GE, q, k));
    gen_put(g, FXA_INT, k);
    gen_put(g, FXA_INT, q);
    if (g->flags & GEN_BPROP) gen_put(g, FXA_FLOAT, fxa_builder_input(g->b, FXA_INPUT_DSCORE));
    gen_put(g, FXA_FLOAT, fxa_builder_input(g->b, FXA_INPUT_SCORE));
}

static void gen_step(gen_state *g) {
    unsigned r;
    if (g->flags & GEN_AFFINE_MASK)
        gen_affine_step(g);
    else if (g->flags & GEN_SMOOTH)
        gen_smooth_step(g);
    else if ((r = gen_pick(g, 8)) == 0)
        gen_leaf(g);
    else if (r < 4)
        gen_float_step(g);
    else if (r < 6)
        gen_int_step(g);
    else
        gen_bool_step(g);
}

/* Returns an output that combines up to `most` of the most recent values. */
static fxa_value gen_join(gen_state *g, fxa_type type, unsigned most) {
    fxa_value v = gen_back(g, type, 0);
    for (unsigned i = gen_pick(g, most); i > 0; i--) {
        bool other = gen_byte(g) & 1;
        fxa_op op = type == FXA_FLOAT ? (other ? FXA_OP_SUB : FXA_OP_ADD) : other ? FXA_OP_OR : FXA_OP_AND;
        v = fxa_builder_op2(g->b, op, v, gen_back(g, type, i));
    }
    return v;
}

static void gen_outputs(gen_state *g) {
    unsigned writes = (g->flags & GEN_AFFINE_MASK) ? 2 : (g->flags & GEN_SMOOTH) ? 1 : 3 - gen_pick(g, 16) % 4;
    if (g->flags & GEN_BPROP) {
        fxa_value d = fxa_builder_input(g->b, FXA_INPUT_DSCORE);
        fxa_builder_set_dscore(g->b, fxa_builder_op2(g->b, FXA_OP_MUL, d, gen_join(g, FXA_FLOAT, 4)));
        return;
    }
    if (writes & 1) fxa_builder_set_score(g->b, gen_join(g, FXA_FLOAT, 4));
    if (writes & 2) fxa_builder_set_mask(g->b, gen_join(g, FXA_BOOL, 4));
}

fxa_program *gen_program(fxa_context *ctx, const uint8_t *tape, size_t n, unsigned flags) {
    gen_state g = {.tape = tape, .size = n, .flags = flags};
    fxa_program *program = NULL;
    fxa_program_kind kind = flags & GEN_BPROP ? FXA_PROGRAM_BPROP : FXA_PROGRAM_SCORE;
    if (fxa_builder_create(ctx, kind, &g.b, NULL) != FXA_OK) return NULL;
    gen_start(&g);
    for (unsigned steps = 1 + gen_byte(&g) % 40; steps > 0 && g.at < g.size; steps--) gen_step(&g);
    gen_outputs(&g);
    if (fxa_builder_finish(g.b, &program, NULL) != FXA_OK) program = NULL;
    fxa_builder_destroy(g.b);
    return program;
}
