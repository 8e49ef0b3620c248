/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of score programs as operations of cuDNN: the table dnn_rows has a function (rule) per operation.
 * Rules add only the forms of operations that score.h lists. An operation without a rule is refused with its name.
 */
#include "score.h"

#include <math.h>

/* An operation of the score program; its operands have been added to the graph. */
typedef struct dnn_use {
    fxa__dnn_score *s;
    fxa__dnn_graph *g;
    int32_t node;
    const fxa__node *n;
    bool floats;    /* true: the operands are floats */
    int32_t arg[3]; /* tensors of the operands */
    int mode;       /* cuDNN's pointwise mode, from the operation's row of dnn_rows */
} dnn_use;

typedef int32_t (*dnn_rule)(const dnn_use *u);

static const fxa__dnn_tensor *use_tensor(const dnn_use *u, int32_t t) { return &u->g->tensors[t]; }
static bool use_is_virtual(const dnn_use *u, int32_t t) { return use_tensor(u, t)->source == FXA__DNN_VIRTUAL; }
static bool use_has_score(const dnn_use *u, int32_t t) { return use_tensor(u, t)->score; }

/* Fails the graph with the operation's name and a reason. Returns a tensor that must not be read. */
static int32_t use_refuse(const dnn_use *u, const char *why) {
    const fxa__op_info *info = fxa__op_info_get(u->n->op);
    return fxa__dnn_refuse(u->g, "operation %s (%s): %s", info->id, info->text, why);
}

/* Returns the result of a pointwise operation on floats or ints. */
static int32_t use_apply(const dnn_use *u, int mode, int32_t x, int32_t b, bool floats) {
    return floats ? fxa__dnn_float2(u->g, mode, x, b) : fxa__dnn_int2(u->g, mode, x, b);
}

/* Returns true if the operands must be swapped, because b is the one that cuDNN requires as first operand. */
static bool use_is_reversed(const dnn_use *u, int32_t x, int32_t b) {
    if (use_is_virtual(u, x) != use_is_virtual(u, b)) return use_is_virtual(u, b);
    return use_has_score(u, b) && !use_has_score(u, x);
}

/* Returns the result of a commutative operation, with its operands in the order that cuDNN requires. */
static int32_t use_commute(const dnn_use *u, int mode, int32_t x, int32_t b, bool floats) {
    if (u->g->status != FXA_OK) return 0;
    bool reversed = use_is_reversed(u, x, b);
    return use_apply(u, mode, fxa__dnn_as_virtual(u->s, reversed ? b : x), reversed ? x : b, floats);
}

/* Returns the negation of bools. */
static int32_t use_not(const dnn_use *u, int32_t m) {
    return fxa__dnn_int2(u->g, CUDNN_POINTWISE_LOGICAL_NOT, fxa__dnn_as_virtual(u->s, m), -1);
}

/* Returns true if the operation is on floats, or if cuDNN computes it exactly on ints. Sums, differences and negations
 * of ints are exact in 32 bits. Other operations on ints are exact if their results are in [-2^24, 2^24], where f32
 * represents every int; larger results were not tested. */
static bool use_is_exact(const dnn_use *u) {
    int64_t lo, hi;
    if (u->n->op == FXA_OP_ADD || u->n->op == FXA_OP_SUB || u->n->op == FXA_OP_NEG) return true;
    return u->floats || (fxa__dnn_range(u->s, u->node, &lo, &hi) && lo >= -(1 << 24) && hi <= 1 << 24);
}

#define USE_NOT_EXACT "its ints are not known to stay below 2^24; clamp them, or take a tensor of i16 or f32"

/* ---- Sums, products, functions ----------------------------------------------------------------------------------- */

static int32_t dnn_commuting(const dnn_use *u) {
    if (!use_is_exact(u)) return use_refuse(u, USE_NOT_EXACT);
    return use_commute(u, u->mode, u->arg[0], u->arg[1], u->floats);
}

/* Returns an int that is passed by value, with the opposite sign. */
static int32_t use_negate(const dnn_use *u, int32_t t) {
    fxa__dnn_tensor other = *use_tensor(u, t);
    other.value = -other.value, other.times = (int8_t)-other.times;
    return fxa__dnn_add(u->g, &other);
}

/* Rewrites c - s as -s + c, because an operand that depends on the score must be the first one. Rewrites i - c of ints
 * as i + (-c): cuDNN could mistake q + c1 - c2 for padding, which has the form q + q_len - k_len (q: row index). */
static int32_t dnn_sub(const dnn_use *u) {
    int32_t x = u->arg[0], y = u->arg[1];
    if (!use_is_exact(u)) return use_refuse(u, USE_NOT_EXACT);
    if (!u->floats && use_is_virtual(u, x) && fxa__dnn_is_by_value(use_tensor(u, y)))
        return use_apply(u, CUDNN_POINTWISE_ADD, x, use_negate(u, y), false);
    if (!use_is_reversed(u, x, y)) return use_apply(u, CUDNN_POINTWISE_SUB, fxa__dnn_as_virtual(u->s, x), y, u->floats);
    return use_apply(u, CUDNN_POINTWISE_ADD, use_apply(u, CUDNN_POINTWISE_NEG, y, -1, u->floats), x, u->floats);
}

static int32_t dnn_div(const dnn_use *u) {
    return fxa__dnn_float2(u->g, CUDNN_POINTWISE_DIV, fxa__dnn_as_virtual(u->s, u->arg[0]), u->arg[1]);
}

static int32_t dnn_unary(const dnn_use *u) {
    if (!use_is_exact(u)) return use_refuse(u, USE_NOT_EXACT);
    return use_apply(u, u->mode, fxa__dnn_as_virtual(u->s, u->arg[0]), -1, u->floats);
}

/* Returns the tensor of an f32 constant; equal constants share one tensor. */
static int32_t use_number(const dnn_use *u, double value) {
    for (size_t i = 0; i < u->g->n_tensors && u->g->status == FXA_OK; i++) {
        const fxa__dnn_tensor *t = &u->g->tensors[i];
        if (t->source == FXA__DNN_VALUE && t->type == CUDNN_DATA_FLOAT && t->value == value) return (int32_t)i;
    }
    return fxa__dnn_float(u->g, value);
}

/* sin, cos, tan: cuDNN's functions are accurate only near 0, so a multiple of 2 pi is subtracted first. 2 pi is split
 * into three parts; the first two have few bits, so that their products with the number of turns are exact. */
static int32_t dnn_turn(const dnn_use *u) {
    static const double parts[3] = {201.0 / 32, 4059.0 / (1 << 21), -1.7484555605e-7};
    fxa__dnn_graph *g = u->g;
    int32_t x = fxa__dnn_as_virtual(u->s, u->arg[0]);
    int32_t turns = fxa__dnn_float2(g, CUDNN_POINTWISE_MUL, x, use_number(u, 0.15915494309189535));
    turns = fxa__dnn_float2(g, CUDNN_POINTWISE_ADD, turns, use_number(u, 0.5));
    turns = fxa__dnn_float2(g, CUDNN_POINTWISE_FLOOR, turns, -1);
    for (int i = 0; i < 3; i++) {
        int32_t part = fxa__dnn_float2(g, CUDNN_POINTWISE_MUL, turns, use_number(u, parts[i]));
        x = fxa__dnn_float2(g, CUDNN_POINTWISE_SUB, x, part);
    }
    return fxa__dnn_float2(g, u->mode, x, -1);
}

static int32_t dnn_exp2(const dnn_use *u) {
    return fxa__dnn_float2(u->g, CUDNN_POINTWISE_POW, fxa__dnn_as_virtual(u->s, fxa__dnn_float(u->g, 2)), u->arg[0]);
}

static int32_t dnn_log2(const dnn_use *u) {
    int32_t x = fxa__dnn_float2(u->g, CUDNN_POINTWISE_LOG, fxa__dnn_as_virtual(u->s, u->arg[0]), -1);
    return fxa__dnn_float2(u->g, CUDNN_POINTWISE_MUL, x, fxa__dnn_float(u->g, 1.44269504088896340736));
}

static int32_t dnn_atan(const dnn_use *u) {
    int32_t one = fxa__dnn_float(u->g, 1);
    return fxa__dnn_float2(u->g, CUDNN_POINTWISE_ATAN2, fxa__dnn_as_virtual(u->s, u->arg[0]), one);
}

/* Computes x ** y by products or the reciprocal, because cuDNN's power of a negative base is NaN. Exponents other than
 * 2, 3, 4 and -1 are refused. */
static int32_t dnn_pow(const dnn_use *u) {
    const fxa__node *exponent = &u->s->program->nodes[u->n->arg[1]];
    int32_t x = fxa__dnn_as_virtual(u->s, u->arg[0]), y = x;
    if (exponent->op != FXA_OP_CONST || (exponent->f != 2 && exponent->f != 3 && exponent->f != 4 && exponent->f != -1))
        return use_refuse(u,
                          "cuDNN has powers of positive numbers alone; exponents 2, 3, 4 and -1 are done without, and "
                          "2 ** x as exp2(x)");
    if (exponent->f < 0) return fxa__dnn_float2(u->g, CUDNN_POINTWISE_RECIPROCAL, x, -1);
    if (exponent->f == 4) x = y = fxa__dnn_float2(u->g, CUDNN_POINTWISE_MUL, x, x);
    for (int i = exponent->f == 3 ? 2 : 1; i > 0; i--) y = fxa__dnn_float2(u->g, CUDNN_POINTWISE_MUL, y, x);
    return y;
}

/* Returns the scalar that the host derives from t, a divisor that is passed by value (fxa__dnn_part). */
static int32_t use_part(const dnn_use *u, int32_t t, fxa__dnn_part part) {
    fxa__dnn_tensor of = *use_tensor(u, t);
    of.part = (uint8_t)part;
    return fxa__dnn_add(u->g, &of);
}

/* Returns x // n or x % n for x >= 0 and a divisor n that is known only in a run. The quotient x / |n| is rounded down
 * for n > 0 and up for n < 0. x // n is this quotient times the sign of n; x % n is x minus this quotient times |n|.
 * Both results are 0 for n = 0. */
static int32_t use_floor_by_value(const dnn_use *u, int32_t x, int32_t n) {
    int32_t rounded = fxa__dnn_int2(u->g, CUDNN_POINTWISE_ADD, x, use_part(u, n, FXA__DNN_ROUNDS));
    int32_t times = fxa__dnn_int2(u->g, CUDNN_POINTWISE_DIV, rounded, use_part(u, n, FXA__DNN_DIVISOR));
    bool remainder = u->n->op == FXA_OP_MOD;
    int32_t by = use_part(u, n, remainder ? FXA__DNN_MAGNITUDE : FXA__DNN_SIGN);
    int32_t product = fxa__dnn_int2(u->g, CUDNN_POINTWISE_MUL, times, by);
    return remainder ? fxa__dnn_int2(u->g, CUDNN_POINTWISE_SUB, x, product) : product;
}

/* Floor divisions and remainders of ints. Negative dividends are refused, because cuDNN rounds quotients towards zero,
 * not down. */
static int32_t dnn_floor_int(const dnn_use *u) {
    const fxa__node *by = &u->s->program->nodes[u->n->arg[1]];
    int64_t lo, hi;
    bool of_run = by->op != FXA_OP_CONST && fxa__dnn_is_by_value(use_tensor(u, u->arg[1]));
    if (!of_run && (by->op != FXA_OP_CONST || by->imm <= 0))
        return use_refuse(u, "of ints cuDNN divides by positive constants and params alone");
    if (!fxa__dnn_range(u->s, u->n->arg[0], &lo, &hi) || lo < 0 || hi > FXA__DNN_DIVIDED)
        return use_refuse(u, "of ints cuDNN divides what is known to lie between 0 and 2^22; add a multiple of the "
                             "divisor, or clamp");
    if (of_run) return use_floor_by_value(u, fxa__dnn_as_virtual(u->s, u->arg[0]), u->arg[1]);
    return fxa__dnn_int2(u->g, u->mode, fxa__dnn_as_virtual(u->s, u->arg[0]), u->arg[1]);
}

static int32_t dnn_floordiv(const dnn_use *u) {
    if (!u->floats) return dnn_floor_int(u);
    return fxa__dnn_float2(u->g, CUDNN_POINTWISE_FLOOR, dnn_div(u), -1);
}

static int32_t dnn_mod(const dnn_use *u) {
    if (!u->floats) return dnn_floor_int(u);
    return use_refuse(u, "cuDNN's remainder of floats has the sign of the dividend");
}

/* ---- Minimum and maximum ----------------------------------------------------------------------------------------- */

/* Returns y, but NaN where `operand` is NaN: cuDNN's minimum and maximum ignore NaN. */
static int32_t use_keep_nan(const dnn_use *u, int32_t y, int32_t operand) {
    const fxa__dnn_tensor *t = use_tensor(u, operand);
    if (t->number || (t->source == FXA__DNN_VALUE && !isnan(t->value))) return y;
    int32_t x = fxa__dnn_as_virtual(u->s, operand);
    int32_t equal = fxa__dnn_op2(u->g, CUDNN_POINTWISE_CMP_EQ, x, x, CUDNN_DATA_INT32, CUDNN_DATA_FLOAT);
    return fxa__dnn_select(u->g, y, fxa__dnn_float(u->g, NAN), equal);
}

/* Returns the minimum or maximum, NaN if an operand is NaN. */
static int32_t use_extreme(const dnn_use *u, int mode, int32_t x, int32_t b) {
    int32_t y = use_commute(u, mode, x, b, u->floats);
    if (!u->floats || u->g->status != FXA_OK) return y;
    return use_keep_nan(u, use_keep_nan(u, y, x), b);
}

static int32_t dnn_extreme(const dnn_use *u) {
    if (!use_is_exact(u)) return use_refuse(u, USE_NOT_EXACT);
    return use_extreme(u, u->mode, u->arg[0], u->arg[1]);
}

static int32_t dnn_clamp(const dnn_use *u) {
    if (!use_is_exact(u)) return use_refuse(u, USE_NOT_EXACT);
    return use_extreme(u, CUDNN_POINTWISE_MIN, use_extreme(u, CUDNN_POINTWISE_MAX, u->arg[0], u->arg[1]), u->arg[2]);
}

static int32_t dnn_zero(const dnn_use *u) {
    return fxa__dnn_zero_wins(u->s, u->n->arg[1], u->mode, u->arg[0], u->arg[1]);
}

/* ---- Operations on bools, comparisons and selects ---------------------------------------------------------------- */

static int32_t dnn_logical(const dnn_use *u) {
    if (u->n->type != FXA_BOOL) return use_refuse(u, "cuDNN has no operations on bits of ints");
    return use_commute(u, u->mode, u->arg[0], u->arg[1], false);
}

static int32_t dnn_not(const dnn_use *u) {
    if (u->n->type != FXA_BOOL) return use_refuse(u, "cuDNN has no operations on bits of ints");
    return use_not(u, u->arg[0]);
}

static int32_t use_compare(const dnn_use *u, int mode, int32_t x, int32_t b) {
    return fxa__dnn_op2(u->g, mode, x, b, CUDNN_DATA_INT32, u->floats ? CUDNN_DATA_FLOAT : CUDNN_DATA_INT32);
}

static int32_t dnn_equal(const dnn_use *u) {
    if (fxa__node_compares_wide(u->s->program, u->n)) return use_refuse(u, "cuDNN compares ints of 32 bits");
    bool reversed = use_is_reversed(u, u->arg[0], u->arg[1]);
    return use_compare(u, u->mode, fxa__dnn_as_virtual(u->s, u->arg[reversed]), u->arg[!reversed]);
}

/* Rewrites x < y of ints as !(y <= x): cuDNN would mistake a comparison by `<` for padding and drop it. */
static int32_t dnn_less(const dnn_use *u) {
    bool strict = u->n->op == FXA_OP_LT, reversed = use_is_reversed(u, u->arg[0], u->arg[1]);
    int32_t first = fxa__dnn_as_virtual(u->s, u->arg[reversed]), second = u->arg[!reversed];
    if (u->floats) {
        static const int modes[2][2] = {{CUDNN_POINTWISE_CMP_LE, CUDNN_POINTWISE_CMP_LT},
                                        {CUDNN_POINTWISE_CMP_GE, CUDNN_POINTWISE_CMP_GT}};
        return use_compare(u, modes[reversed][strict], first, second);
    }
    if (u->g->status != FXA_OK) return 0;
    /* true: the first operand is on the left of <= */
    bool first_is_left = reversed == strict;
    if (use_is_virtual(u, second)) {
        int32_t left = first_is_left ? first : second, right = first_is_left ? second : first;
        int32_t m = use_compare(u, CUDNN_POINTWISE_CMP_LE, left, right);
        return strict ? use_not(u, m) : m;
    }
    int32_t m = use_compare(u, first_is_left ? CUDNN_POINTWISE_CMP_LE : CUDNN_POINTWISE_CMP_GE, first, second);
    return strict ? use_not(u, m) : m;
}

/* Returns m ? x : y for bools, as (m and x) or (not m and y). */
static int32_t use_select_bool(const dnn_use *u) {
    int32_t yes = use_commute(u, CUDNN_POINTWISE_LOGICAL_AND, u->arg[0], u->arg[1], false);
    int32_t no = use_commute(u, CUDNN_POINTWISE_LOGICAL_AND, use_not(u, u->arg[0]), u->arg[2], false);
    return fxa__dnn_int2(u->g, CUDNN_POINTWISE_LOGICAL_OR, yes, no);
}

/* Rewrites m ? x : y of two tensors as (m ? x : 0) + (m ? 0 : y), because cuDNN selects between two tensors 4 times
 * more slowly. */
static int32_t dnn_select(const dnn_use *u) {
    int32_t m = u->arg[0], x = u->arg[1], y = u->arg[2];
    if (u->n->type == FXA_BOOL) return use_select_bool(u);
    if (u->n->type == FXA_INT) return use_refuse(u, "cuDNN selects between floats; write float(x), float(y)");
    m = fxa__dnn_as_virtual(u->s, m);
    if (u->g->status != FXA_OK) return 0;
    if (fxa__dnn_is_by_value(use_tensor(u, y))) return fxa__dnn_select(u->g, fxa__dnn_as_virtual(u->s, x), y, m);
    int32_t other = use_not(u, m);
    y = fxa__dnn_as_virtual(u->s, y);
    if (u->g->status != FXA_OK) return 0;
    if (fxa__dnn_is_by_value(use_tensor(u, x))) return fxa__dnn_select(u->g, y, x, other);
    int32_t zero = fxa__dnn_float(u->g, 0);
    x = fxa__dnn_select(u->g, fxa__dnn_as_virtual(u->s, x), zero, m);
    return use_commute(u, CUDNN_POINTWISE_ADD, x, fxa__dnn_select(u->g, y, fxa__dnn_float(u->g, 0), other), true);
}

/* ---- Conversions ------------------------------------------------------------------------------------------------- */

static int32_t dnn_to_float(const dnn_use *u) {
    int64_t lo = 0, hi = 1;
    int32_t from = u->n->arg[0];
    bool known = u->s->program->nodes[from].type == FXA_BOOL || fxa__dnn_range(u->s, from, &lo, &hi);
    if (!known || lo < -(1 << 24) || hi > 1 << 24) return use_refuse(u, USE_NOT_EXACT);
    return fxa__dnn_float2(u->g, CUDNN_POINTWISE_IDENTITY, fxa__dnn_as_virtual(u->s, u->arg[0]), -1);
}

static int32_t dnn_to_int(const dnn_use *u) {
    if (u->s->program->nodes[u->n->arg[0]].type == FXA_BOOL) return u->arg[0];
    return use_refuse(u, "cuDNN's cast to int rounds in one pass and does nothing in the other");
}

/* ---- The table of rules ------------------------------------------------------------------------------------------ */

static const struct dnn_row {
    dnn_rule rule; /* NULL: cuDNN lacks the operation, or computes it wrongly */
    int mode;
} dnn_rows[FXA_OP_COUNT] = {
    [FXA_OP_ADD] = {dnn_commuting, CUDNN_POINTWISE_ADD},
    [FXA_OP_SUB] = {dnn_sub, 0},
    [FXA_OP_MUL] = {dnn_commuting, CUDNN_POINTWISE_MUL},
    [FXA_OP_DIV] = {dnn_div, 0},
    [FXA_OP_FLOORDIV] = {dnn_floordiv, CUDNN_POINTWISE_DIV},
    [FXA_OP_MOD] = {dnn_mod, CUDNN_POINTWISE_MOD},
    [FXA_OP_NEG] = {dnn_unary, CUDNN_POINTWISE_NEG},
    [FXA_OP_ABS] = {dnn_unary, CUDNN_POINTWISE_ABS},
    [FXA_OP_MIN] = {dnn_extreme, CUDNN_POINTWISE_MIN},
    [FXA_OP_MAX] = {dnn_extreme, CUDNN_POINTWISE_MAX},
    [FXA_OP_CLAMP] = {dnn_clamp, 0},
    [FXA_OP_POW] = {dnn_pow, 0},
    [FXA_OP_MULZ] = {dnn_zero, CUDNN_POINTWISE_MUL},
    [FXA_OP_DIVZ] = {dnn_zero, CUDNN_POINTWISE_DIV},
    [FXA_OP_SQRT] = {dnn_unary, CUDNN_POINTWISE_SQRT},
    [FXA_OP_RSQRT] = {dnn_unary, CUDNN_POINTWISE_RSQRT},
    [FXA_OP_EXP] = {dnn_unary, CUDNN_POINTWISE_EXP},
    [FXA_OP_EXP2] = {dnn_exp2, 0},
    [FXA_OP_LOG] = {dnn_unary, CUDNN_POINTWISE_LOG},
    [FXA_OP_LOG2] = {dnn_log2, 0},
    [FXA_OP_TANH] = {dnn_unary, CUDNN_POINTWISE_TANH_FWD},
    [FXA_OP_SIGMOID] = {dnn_unary, CUDNN_POINTWISE_SIGMOID_FWD},
    [FXA_OP_ERF] = {dnn_unary, CUDNN_POINTWISE_ERF},
    [FXA_OP_SIN] = {dnn_turn, CUDNN_POINTWISE_SIN},
    [FXA_OP_COS] = {dnn_turn, CUDNN_POINTWISE_COS},
    [FXA_OP_TAN] = {dnn_turn, CUDNN_POINTWISE_TAN},
    [FXA_OP_FLOOR] = {dnn_unary, CUDNN_POINTWISE_FLOOR},
    [FXA_OP_CEIL] = {dnn_unary, CUDNN_POINTWISE_CEIL},
    [FXA_OP_ATAN] = {dnn_atan, 0},
    [FXA_OP_AND] = {dnn_logical, CUDNN_POINTWISE_LOGICAL_AND},
    [FXA_OP_OR] = {dnn_logical, CUDNN_POINTWISE_LOGICAL_OR},
    [FXA_OP_XOR] = {dnn_logical, CUDNN_POINTWISE_CMP_NEQ},
    [FXA_OP_NOT] = {dnn_not, 0},
    [FXA_OP_EQ] = {dnn_equal, CUDNN_POINTWISE_CMP_EQ},
    [FXA_OP_NE] = {dnn_equal, CUDNN_POINTWISE_CMP_NEQ},
    [FXA_OP_LT] = {dnn_less, 0},
    [FXA_OP_LE] = {dnn_less, 0},
    [FXA_OP_SELECT] = {dnn_select, 0},
    [FXA_OP_FLOAT] = {dnn_to_float, 0},
    [FXA_OP_INT] = {dnn_to_int, 0},
};

int32_t fxa__dnn_lower_op(fxa__dnn_score *s, int32_t node) {
    const fxa__node *n = &s->program->nodes[node];
    const struct dnn_row *row = &dnn_rows[n->op];
    const fxa__node *decides = &s->program->nodes[n->arg[n->op == FXA_OP_SELECT ? 1 : 0]];
    dnn_use u = {s, s->g, node, n, decides->type == FXA_FLOAT, {0, 0, 0}, row->mode};
    for (int i = 0; i < n->n_args; i++) u.arg[i] = s->value[n->arg[i]];
    if (!row->rule && n->op == FXA_OP_SHR) return use_refuse(&u, "cuDNN has no shifts; of x >> 3 write x // 8");
    if (!row->rule) return use_refuse(&u, "cuDNN has nothing that computes it as it is meant");
    return row->rule(&u);
}
