/* SPDX-License-Identifier: Apache-2.0
 *
 * Simplifies an operation when it is built: folds constants, orders commutative operands, and applies identities that
 * hold for every value, including NaN, infinities, -0 and wrapping ints. No rule changes any bit of a result except the
 * payload of a NaN; so x + 0.0, x * 0.0 and x - x of floats are not simplified.
 *
 * Each rule returns a value, or SIMPLIFY_NONE if it does not apply, or rewrites the node and returns SIMPLIFY_AGAIN.
 * The loop ends when no rule applies, so a stored node is a fixed point: building a finished program again gives the
 * same program.
 */
#include "build.h"

#include <math.h>
#include <string.h>

enum { SIMPLIFY_NONE = -2, SIMPLIFY_AGAIN = -3 };

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

static const fxa__node *simplify_arg(const fxa_builder *b, const fxa__node *n, int i) { return &b->nodes[n->arg[i]]; }

/* Returns true if an int or bool node is the constant `value`. */
static bool simplify_is_int(const fxa__node *x, int32_t value) { return x->op == FXA_OP_CONST && x->imm == value; }

/* Returns true if a float node is a constant with the bits of `value`; 0.0 differs from -0.0. */
static bool simplify_is_float(const fxa__node *x, double value) {
    return x->op == FXA_OP_CONST && memcmp(&x->f, &value, sizeof value) == 0;
}

static bool simplify_is_zero(const fxa__node *x) { return simplify_is_float(x, 0.0) || simplify_is_float(x, -0.0); }

/* Changes the operation and operands of a node; returns SIMPLIFY_AGAIN. */
static fxa_value simplify_rewrite(fxa__node *n, fxa_op op, fxa_value x, fxa_value y) {
    n->op = (uint8_t)op;
    n->arg[0] = x;
    n->arg[1] = y;
    return SIMPLIFY_AGAIN;
}

/* ---- Order of commutative operands: score, expressions, loads, params, coordinates, constants -------------------- */

/* Returns the rank of an operand in the order score, expressions, loads, params, coordinates, constants; a cast has the
 * rank of its operand. */
static int simplify_rank(const fxa_builder *b, fxa_value x) {
    const fxa__node *n = &b->nodes[x];
    while (n->op == FXA_OP_FLOAT || n->op == FXA_OP_INT) n = &b->nodes[n->arg[0]];
    switch (n->op) {
    case FXA_OP_CONST: return 5 + FXA_INPUT_COUNT;
    case FXA_OP_INPUT: return n->imm == FXA_INPUT_SCORE || n->imm == FXA_INPUT_DSCORE ? 0 : 4 + n->imm;
    case FXA_OP_PARAM: return 3;
    case FXA_OP_LOAD: return 2;
    default: return 1;
    }
}

static void simplify_order(const fxa_builder *b, fxa__node *n) {
    if (!(fxa__op_info_get(n->op)->flags & FXA__OP_COMM)) return;
    fxa_value x = n->arg[0], y = n->arg[1];
    int rx = simplify_rank(b, x), ry = simplify_rank(b, y);
    if (rx < ry || (rx == ry && memcmp(&b->digests[x], &b->digests[y], sizeof *b->digests) <= 0)) return;
    n->arg[0] = y;
    n->arg[1] = x;
}

/* ---- Constants --------------------------------------------------------------------------------------------------- */

/* Returns true if every C library computes x ** y exactly: the result is an integer up to 2^53 or a power of 2. */
static bool simplify_pow_exact(double x, double y) {
    if (x == 2 && y == trunc(y) && fabs(y) <= 1000) return true;
    if (x != trunc(x) || y != trunc(y) || y < 0 || y > 64) return false;
    double power = 1;
    for (int i = 0; i < (int)y && fabs(power) <= 0x1p53; i++) power *= x;
    return fabs(power) <= 0x1p53;
}

/* Returns true if the node can be folded: its operands are constants and its result is exact. */
static bool simplify_foldable(const fxa_builder *b, const fxa__node *n) {
    for (int i = 0; i < n->n_args; i++)
        if (simplify_arg(b, n, i)->op != FXA_OP_CONST) return false;
    switch ((fxa__exact)fxa__op_info_get(n->op)->exact) {
    case FXA__EXACT_ALWAYS: return true;
    case FXA__EXACT_POWERS: return simplify_pow_exact(simplify_arg(b, n, 0)->f, simplify_arg(b, n, 1)->f);
    default: return false; /* FXA__EXACT_NEVER */
    }
}

/* Returns the constant that a node with constant operands evaluates to. */
static fxa_value simplify_fold(fxa_builder *b, const fxa__node *n) {
    fxa__val x[3];
    for (int i = 0; i < n->n_args; i++) {
        const fxa__node *arg = simplify_arg(b, n, i);
        if (arg->type == FXA_FLOAT)
            x[i].f = arg->f;
        else
            x[i].i = arg->imm;
    }
    fxa__val y = fxa__op_eval(n->op, n->type, simplify_arg(b, n, n->op == FXA_OP_SELECT)->type, x);
    return n->type == FXA_FLOAT ? fxa_builder_float(b, y.f) : fxa__builder_constant(b, (fxa_type)n->type, y.i);
}

/* ---- Identities -------------------------------------------------------------------------------------------------- */

/* Rule: identities of float operations, such as x * 1 = x. */
static fxa_value simplify_float(fxa_builder *b, fxa__node *n) {
    const fxa__node *x = simplify_arg(b, n, 0), *y = simplify_arg(b, n, n->n_args > 1);
    switch (n->op) {
    case FXA_OP_ADD: return simplify_is_float(y, -0.0) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_SUB: return simplify_is_float(y, 0.0) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_MUL:
    case FXA_OP_DIV: return simplify_is_float(y, 1.0) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_MULZ:
    case FXA_OP_DIVZ:
        if (x->op != FXA_OP_CONST) return SIMPLIFY_NONE;
        if (simplify_is_zero(x)) return fxa_builder_float(b, 0);
        return simplify_rewrite(n, n->op == FXA_OP_MULZ ? FXA_OP_MUL : FXA_OP_DIV, n->arg[0], n->arg[1]);
    case FXA_OP_POW: /* x ** 0 and 1 ** y are 1 even if x or y is NaN */
        if (simplify_is_zero(y) || simplify_is_float(x, 1.0)) return fxa_builder_float(b, 1);
        return simplify_is_float(y, 1.0) ? n->arg[0] : SIMPLIFY_NONE;
    default: return SIMPLIFY_NONE;
    }
}

/* Rule: identities of int operations, such as x + 0 = x. */
static fxa_value simplify_int(fxa_builder *b, const fxa__node *n) {
    const fxa__node *y = simplify_arg(b, n, n->n_args > 1);
    switch (n->op) {
    case FXA_OP_ADD: return simplify_is_int(y, 0) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_SUB:
        if (n->arg[0] == n->arg[1]) return fxa__builder_constant(b, FXA_INT, 0);
        return simplify_is_int(y, 0) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_MUL:
        if (simplify_is_int(y, 0)) return n->arg[1];
        return simplify_is_int(y, 1) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_FLOORDIV: return simplify_is_int(y, 1) ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_MOD: return simplify_is_int(y, 1) ? fxa__builder_constant(b, FXA_INT, 0) : SIMPLIFY_NONE;
    case FXA_OP_SHL:
    case FXA_OP_SHR: return y->op == FXA_OP_CONST && (y->imm & 31) == 0 ? n->arg[0] : SIMPLIFY_NONE;
    default: return SIMPLIFY_NONE;
    }
}

/* Rule: identities of and, or, xor of ints and bools. `ones`: operand 1 is the constant with all bits set (-1 or
 * true). */
static fxa_value simplify_bits(fxa_builder *b, fxa__node *n) {
    const fxa__node *y = simplify_arg(b, n, 1);
    bool same = n->arg[0] == n->arg[1], zero = simplify_is_int(y, 0);
    bool ones = simplify_is_int(y, n->type == FXA_BOOL ? 1 : -1);
    switch (n->op) {
    case FXA_OP_AND: return same || ones ? n->arg[0] : zero ? n->arg[1] : SIMPLIFY_NONE;
    case FXA_OP_OR: return same || zero ? n->arg[0] : ones ? n->arg[1] : SIMPLIFY_NONE;
    default:
        if (same) return fxa__builder_constant(b, (fxa_type)n->type, 0);
        if (zero) return n->arg[0];
        if (!ones) return SIMPLIFY_NONE;
        n->n_args = 1;
        return simplify_rewrite(n, FXA_OP_NOT, n->arg[0], 0);
    }
}

/* Rule: !!a is a, !(a == b) is a != b, and !(a < b) is b <= a. The rule for < applies to ints only, because comparisons
 * with NaN are false. */
static fxa_value simplify_not(fxa_builder *b, fxa__node *n) {
    const fxa__node *x = simplify_arg(b, n, 0);
    fxa_value first = x->arg[0], second = x->arg[1];
    if (x->op == FXA_OP_NOT) return first;
    bool order = x->op == FXA_OP_LT || x->op == FXA_OP_LE;
    if (x->op != FXA_OP_EQ && x->op != FXA_OP_NE && !(order && b->nodes[first].type == FXA_INT)) return SIMPLIFY_NONE;
    n->n_args = 2;
    if (!order) return simplify_rewrite(n, x->op == FXA_OP_EQ ? FXA_OP_NE : FXA_OP_EQ, first, second);
    return simplify_rewrite(n, x->op == FXA_OP_LT ? FXA_OP_LE : FXA_OP_LT, second, first);
}

/* Rule of comparisons: > and >= are rewritten as < and <=; x op x of ints or bools is a constant. */
static fxa_value simplify_compare(fxa_builder *b, fxa__node *n) {
    if (n->op == FXA_OP_GT) return simplify_rewrite(n, FXA_OP_LT, n->arg[1], n->arg[0]);
    if (n->op == FXA_OP_GE) return simplify_rewrite(n, FXA_OP_LE, n->arg[1], n->arg[0]);
    if (n->arg[0] != n->arg[1] || simplify_arg(b, n, 0)->type == FXA_FLOAT) return SIMPLIFY_NONE;
    return fxa__builder_constant(b, FXA_BOOL, n->op == FXA_OP_EQ || n->op == FXA_OP_LE);
}

/* Rule of select(c, x, y): simplifies selects whose condition is constant or negated, whose choices x and y are equal,
 * or whose choices are the constants true and false. */
static fxa_value simplify_select(fxa_builder *b, fxa__node *n) {
    const fxa__node *c = simplify_arg(b, n, 0), *x = simplify_arg(b, n, 1), *y = simplify_arg(b, n, 2);
    if (c->op == FXA_OP_CONST) return n->arg[c->imm ? 1 : 2];
    if (n->arg[1] == n->arg[2]) return n->arg[1];
    if (c->op == FXA_OP_NOT) {
        fxa_value taken = n->arg[1];
        n->arg[1] = n->arg[2];
        n->arg[2] = taken;
        n->arg[0] = c->arg[0];
        return SIMPLIFY_AGAIN;
    }
    if (n->type != FXA_BOOL) return SIMPLIFY_NONE;
    if (simplify_is_int(x, 1) && simplify_is_int(y, 0)) return n->arg[0];
    if (!simplify_is_int(x, 0) || !simplify_is_int(y, 1)) return SIMPLIFY_NONE;
    n->n_args = 1;
    n->arg[2] = 0;
    return simplify_rewrite(n, FXA_OP_NOT, n->arg[0], 0);
}

/* Rule of float(x) and int(x): removes a cast to x's own type, the inner cast of int(float(x)) and, for a bool x, the
 * inner cast of float(int(x)). */
static fxa_value simplify_cast(fxa_builder *b, fxa__node *n) {
    const fxa__node *x = simplify_arg(b, n, 0);
    if (x->type == n->type) return n->arg[0];
    bool there_and_back = n->op == FXA_OP_INT && x->op == FXA_OP_FLOAT;
    bool through_int = n->op == FXA_OP_FLOAT && x->op == FXA_OP_INT && b->nodes[x->arg[0]].type == FXA_BOOL;
    if (!there_and_back && !through_int) return SIMPLIFY_NONE;
    n->arg[0] = x->arg[0];
    return SIMPLIFY_AGAIN;
}

/* Builds an operation whose operands have been converted; y and z are ignored if the operation has fewer operands. An
 * operand of -1 means that the builder has failed. */
static fxa_value simplify_build(fxa_builder *b, fxa_op op, fxa_type type, fxa_value x, fxa_value y, fxa_value z) {
    fxa__node n = {.op = (uint8_t)op, .type = (uint8_t)type, .n_args = fxa__op_info_get(op)->arity, .arg = {x}};
    if (fxa__builder_failed(b)) return -1;
    if (n.n_args > 1) n.arg[1] = y;
    if (n.n_args > 2) n.arg[2] = z;
    return fxa__builder_simplify(b, n);
}

/* Returns the constant x as a float or an int. */
static fxa_value simplify_number(fxa_builder *b, uint8_t type, int32_t x) {
    return type == FXA_FLOAT ? fxa_builder_float(b, x) : fxa__builder_constant(b, FXA_INT, x);
}

/* Returns relu(x) rewritten as x <= 0 ? 0 : x. */
static fxa_value simplify_relu(fxa_builder *b, const fxa__node *n) {
    fxa_value x = n->arg[0], zero = simplify_number(b, n->type, 0);
    fxa_value flat = simplify_build(b, FXA_OP_LE, FXA_BOOL, x, zero, 0);
    return simplify_build(b, FXA_OP_SELECT, (fxa_type)n->type, flat, zero, x);
}

/* Returns sign(x) rewritten as 0 < x ? 1 : x < 0 ? -1 : 0 * x. */
static fxa_value simplify_sign(fxa_builder *b, const fxa__node *n) {
    fxa_type type = (fxa_type)n->type;
    fxa_value x = n->arg[0], zero = simplify_number(b, n->type, 0), one = simplify_number(b, n->type, 1);
    fxa_value above = simplify_build(b, FXA_OP_LT, FXA_BOOL, zero, x, 0);
    fxa_value below = simplify_build(b, FXA_OP_LT, FXA_BOOL, x, zero, 0);
    fxa_value level = simplify_build(b, FXA_OP_MUL, type, zero, x, 0), minus_one = simplify_number(b, n->type, -1);
    fxa_value rest = simplify_build(b, FXA_OP_SELECT, type, below, minus_one, level);
    return simplify_build(b, FXA_OP_SELECT, type, above, one, rest);
}

/* Returns softplus(x) rewritten as max(x, 0) + log1p(exp(-abs(x))). */
static fxa_value simplify_softplus(fxa_builder *b, const fxa__node *n) {
    fxa_value x = n->arg[0], y = simplify_build(b, FXA_OP_ABS, FXA_FLOAT, x, 0, 0);
    y = simplify_build(b, FXA_OP_EXP, FXA_FLOAT, simplify_build(b, FXA_OP_NEG, FXA_FLOAT, y, 0, 0), 0, 0);
    y = simplify_build(b, FXA_OP_LOG1P, FXA_FLOAT, y, 0, 0);
    fxa_value above = simplify_build(b, FXA_OP_MAX, FXA_FLOAT, x, simplify_number(b, FXA_FLOAT, 0), 0);
    return simplify_build(b, FXA_OP_ADD, FXA_FLOAT, above, y, 0);
}

/* Rule of with_grad(x, y): with_grad(x, y) is x in programs that are not differentiated. Nested with_grads are merged:
 * with_grad(with_grad(a, b), with_grad(c, d)) is with_grad(a, d). */
static fxa_value simplify_with_grad(fxa_builder *b, fxa__node *n) {
    const fxa__node *x = simplify_arg(b, n, 0), *y = simplify_arg(b, n, 1);
    if (b->kind != FXA_PROGRAM_SCORE || n->arg[0] == n->arg[1]) return n->arg[0];
    if (x->op != FXA_OP_WITH_GRAD && y->op != FXA_OP_WITH_GRAD) return SIMPLIFY_NONE;
    return simplify_rewrite(n, FXA_OP_WITH_GRAD, x->op == FXA_OP_WITH_GRAD ? x->arg[0] : n->arg[0],
                            y->op == FXA_OP_WITH_GRAD ? y->arg[1] : n->arg[1]);
}

/* Applies the rule of a node's operation and returns the rule's result. */
static fxa_value simplify_rule(fxa_builder *b, fxa__node *n) {
    switch (n->op) {
    case FXA_OP_RELU: return simplify_relu(b, n);
    case FXA_OP_SIGN: return simplify_sign(b, n);
    case FXA_OP_SOFTPLUS: return simplify_softplus(b, n);
    case FXA_OP_STOP_GRADIENT:
        return simplify_build(b, FXA_OP_WITH_GRAD, FXA_FLOAT, n->arg[0], simplify_number(b, FXA_FLOAT, 0), 0);
    case FXA_OP_WITH_GRAD: return simplify_with_grad(b, n);
    case FXA_OP_NEG: return simplify_arg(b, n, 0)->op == FXA_OP_NEG ? simplify_arg(b, n, 0)->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_MIN:
    case FXA_OP_MAX: return n->arg[0] == n->arg[1] ? n->arg[0] : SIMPLIFY_NONE;
    case FXA_OP_AND:
    case FXA_OP_OR:
    case FXA_OP_XOR: return simplify_bits(b, n);
    case FXA_OP_NOT: return simplify_not(b, n);
    case FXA_OP_SELECT: return simplify_select(b, n);
    case FXA_OP_FLOAT:
    case FXA_OP_INT: return simplify_cast(b, n);
    default: break;
    }
    if (fxa__op_info_get(n->op)->sig == FXA__SIG_CMP) return simplify_compare(b, n);
    return n->type == FXA_FLOAT ? simplify_float(b, n) : simplify_int(b, n);
}

fxa_value fxa__builder_simplify(fxa_builder *b, fxa__node node) {
    for (;;) {
        simplify_order(b, &node);
        if (simplify_foldable(b, &node)) return simplify_fold(b, &node);
        fxa_value result = simplify_rule(b, &node);
        if (result == SIMPLIFY_NONE) return fxa__builder_intern(b, &node);
        if (result != SIMPLIFY_AGAIN) return result;
    }
}
