/* SPDX-License-Identifier: Apache-2.0
 *
 * Differentiation rules: one function per name in the rule column of ops.def. The table at the end is generated from
 * ops.def, so a row whose rule is missing in this file does not compile.
 *
 * "Zero wins": if the adjoint is exactly 0, every rule gives 0, even if the local derivative is infinite or NaN. A rule
 * therefore multiplies the adjoint with mulz or divides it with divz, whose result is 0 if the first operand is 0, or
 * selects between the adjoint and 0. Plain * or / is used on an adjoint only with a finite constant. Thus no gradient
 * receives a NaN from an operand that a select does not choose, or from a query and key that the mask excludes.
 *
 * Where an operation is not differentiable: min and max split the gradient of a tie in halves, clamp passes the entire
 * gradient to x at its bounds, abs has derivative 0 at 0, and min, max, abs and clamp give NaN operands no gradient.
 */
#include "derive.h"

#include "../base/invariant.h"

#define DERIVE_LN2 0.69314718055994530942
#define DERIVE_2_SQRTPI 1.12837916709551257390 /* 2 / sqrt(pi) */

typedef fxa__derive_step derive_step;

static fxa_value derive_const(derive_step *s, double x) { return fxa_builder_float(s->b, x); }
static fxa_value derive_un(derive_step *s, fxa_op op, fxa_value x) { return fxa_builder_op1(s->b, op, x); }
static fxa_value derive_bin(derive_step *s, fxa_op op, fxa_value x, fxa_value y) {
    return fxa_builder_op2(s->b, op, x, y);
}
static fxa_value derive_mul(derive_step *s, fxa_value x, fxa_value y) { return derive_bin(s, FXA_OP_MUL, x, y); }
static fxa_value derive_neg(derive_step *s, fxa_value x) { return derive_un(s, FXA_OP_NEG, x); }
static fxa_value derive_square(derive_step *s, fxa_value x) { return derive_mul(s, x, x); }

static fxa_value derive_where(derive_step *s, fxa_value c, fxa_value x, fxa_value y) {
    return fxa_builder_op3(s->b, FXA_OP_SELECT, c, x, y);
}
/* Returns the node's adjoint where the bool c is true, else 0. */
static fxa_value derive_if(derive_step *s, fxa_value c) { return derive_where(s, c, s->adj, derive_const(s, 0)); }
static fxa_value derive_mulz(derive_step *s, fxa_value factor) { return derive_bin(s, FXA_OP_MULZ, s->adj, factor); }
static fxa_value derive_divz(derive_step *s, fxa_value divisor) { return derive_bin(s, FXA_OP_DIVZ, s->adj, divisor); }

static void derive_rule_ZERO(derive_step *s) { (void)s; }

/* Rule of operations that the builder rewrites into other operations. No program contains such an operation, so this
 * function is never called. */
static void derive_rule_BUILT(derive_step *s) {
    (void)s;
    FXA__ASSERT(false && "an operation that is rewritten when built");
}

/* float(x) of an int or bool has no gradient. float(x) of a float does not occur, because the builder removes it. */
static void derive_rule_FLOAT(derive_step *s) { (void)s; }

static void derive_rule_ADD(derive_step *s) {
    for (int a = 0; a < 2; a++)
        if (s->wanted[a]) s->out[a] = s->adj;
}

static void derive_rule_SUB(derive_step *s) {
    if (s->wanted[0]) s->out[0] = s->adj;
    if (s->wanted[1]) s->out[1] = derive_neg(s, s->adj);
}

/* with_grad(x, y) has the value of x; the gradient goes to y. */
static void derive_rule_WITH_GRAD(derive_step *s) {
    if (s->wanted[1]) s->out[1] = s->adj;
}

static void derive_rule_NEG(derive_step *s) { s->out[0] = derive_neg(s, s->adj); }

static void derive_rule_MUL(derive_step *s) {
    for (int a = 0; a < 2; a++)
        if (s->wanted[a]) s->out[a] = derive_mulz(s, s->arg[1 - a]);
}

static void derive_rule_DIV(derive_step *s) {
    fxa_value over = derive_divz(s, s->arg[1]);
    if (s->wanted[0]) s->out[0] = over;
    if (s->wanted[1]) s->out[1] = derive_neg(s, derive_bin(s, FXA_OP_MULZ, over, s->result));
}

/* Rule of a % b = a - b * floor(a / b), where floor has the derivative 0. */
static void derive_rule_MOD(derive_step *s) {
    if (s->wanted[0]) s->out[0] = s->adj;
    if (s->wanted[1]) s->out[1] = derive_neg(s, derive_mulz(s, derive_bin(s, FXA_OP_FLOORDIV, s->arg[0], s->arg[1])));
}

static void derive_rule_ABS(derive_step *s) {
    fxa_value zero = derive_const(s, 0);
    fxa_value negative = derive_bin(s, FXA_OP_LT, s->arg[0], zero);
    fxa_value positive = derive_bin(s, FXA_OP_LT, zero, s->arg[0]);
    s->out[0] = derive_where(s, positive, s->adj, derive_where(s, negative, derive_neg(s, s->adj), zero));
}

/* Rule of min and max. first: number of the operand that is the result if operand 0 < operand 1. */
static void derive_pick(derive_step *s, int first) {
    fxa_value tie = derive_bin(s, FXA_OP_EQ, s->arg[0], s->arg[1]);
    fxa_value zero = derive_const(s, 0);
    fxa_value half = derive_where(s, tie, derive_mul(s, s->adj, derive_const(s, 0.5)), zero);
    for (int a = 0; a < 2; a++) {
        fxa_value alone = derive_bin(s, FXA_OP_LT, s->arg[a == first ? 0 : 1], s->arg[a == first ? 1 : 0]);
        if (s->wanted[a]) s->out[a] = derive_where(s, alone, s->adj, half);
    }
}

static void derive_rule_MIN(derive_step *s) { derive_pick(s, 0); }
static void derive_rule_MAX(derive_step *s) { derive_pick(s, 1); }

/* clamp has the gradient of min(max(x, lo), hi), except that x gets the entire gradient where x equals a bound. If
 * lo > hi, the result is hi for every x. */
static void derive_rule_CLAMP(derive_step *s) {
    fxa_value x = s->arg[0], lo = s->arg[1], hi = s->arg[2];
    if (s->wanted[0]) {
        fxa_value below = derive_bin(s, FXA_OP_LE, x, hi);
        s->out[0] = derive_if(s, derive_bin(s, FXA_OP_AND, derive_bin(s, FXA_OP_LE, lo, x), below));
    }
    if (s->wanted[1]) {
        fxa_value ordered = derive_bin(s, FXA_OP_LE, lo, hi);
        s->out[1] = derive_if(s, derive_bin(s, FXA_OP_AND, derive_bin(s, FXA_OP_LT, x, lo), ordered));
    }
    if (s->wanted[2]) s->out[2] = derive_if(s, derive_bin(s, FXA_OP_LT, hi, derive_bin(s, FXA_OP_MAX, x, lo)));
}

/* The derivative of a ** b with respect to a is 0 where b is 0, because a ** 0 is 1 for every a. With respect to b it
 * is 0 where a is 0 and b > 0, because 0 ** b is 0 there; where both are 0, the derivative is set to 0. */
static void derive_rule_POW(derive_step *s) {
    fxa_value a = s->arg[0], b = s->arg[1], zero = derive_const(s, 0);
    if (s->wanted[0]) {
        fxa_value lower = derive_bin(s, FXA_OP_POW, a, derive_bin(s, FXA_OP_SUB, b, derive_const(s, 1)));
        fxa_value derivative = derive_mul(s, b, lower);
        s->out[0] = derive_mulz(s, derive_where(s, derive_bin(s, FXA_OP_EQ, b, zero), zero, derivative));
    }
    if (s->wanted[1]) {
        fxa_value at_zero = derive_bin(s, FXA_OP_EQ, a, zero);
        fxa_value flat = derive_bin(s, FXA_OP_AND, at_zero, derive_bin(s, FXA_OP_LE, zero, b));
        fxa_value derivative = derive_mul(s, s->result, derive_un(s, FXA_OP_LOG, a));
        s->out[1] = derive_mulz(s, derive_where(s, flat, zero, derivative));
    }
}

static void derive_rule_SQRT(derive_step *s) {
    s->out[0] = derive_divz(s, derive_mul(s, derive_const(s, 2), s->result));
}

static void derive_rule_RSQRT(derive_step *s) {
    fxa_value half = derive_mul(s, derive_const(s, -0.5), s->result);
    s->out[0] = derive_mulz(s, derive_bin(s, FXA_OP_DIV, half, s->arg[0]));
}

static void derive_rule_EXP(derive_step *s) { s->out[0] = derive_mulz(s, s->result); }

static void derive_rule_EXP2(derive_step *s) {
    s->out[0] = derive_mulz(s, derive_mul(s, s->result, derive_const(s, DERIVE_LN2)));
}

static void derive_rule_LOG(derive_step *s) { s->out[0] = derive_divz(s, s->arg[0]); }

static void derive_rule_LOG1P(derive_step *s) {
    s->out[0] = derive_divz(s, derive_bin(s, FXA_OP_ADD, derive_const(s, 1), s->arg[0]));
}

static void derive_rule_ATAN(derive_step *s) {
    fxa_value square = derive_square(s, s->arg[0]);
    s->out[0] = derive_divz(s, derive_bin(s, FXA_OP_ADD, derive_const(s, 1), square));
}

static void derive_rule_LOG2(derive_step *s) {
    s->out[0] = derive_divz(s, derive_mul(s, s->arg[0], derive_const(s, DERIVE_LN2)));
}

static void derive_rule_TANH(derive_step *s) {
    fxa_value square = derive_square(s, s->result);
    s->out[0] = derive_mulz(s, derive_bin(s, FXA_OP_SUB, derive_const(s, 1), square));
}

static void derive_rule_SIGMOID(derive_step *s) {
    fxa_value complement = derive_bin(s, FXA_OP_SUB, derive_const(s, 1), s->result);
    s->out[0] = derive_mulz(s, derive_mul(s, s->result, complement));
}

static void derive_rule_ERF(derive_step *s) {
    fxa_value bell = derive_un(s, FXA_OP_EXP, derive_neg(s, derive_square(s, s->arg[0])));
    s->out[0] = derive_mulz(s, derive_mul(s, derive_const(s, DERIVE_2_SQRTPI), bell));
}

static void derive_rule_SIN(derive_step *s) { s->out[0] = derive_mulz(s, derive_un(s, FXA_OP_COS, s->arg[0])); }

static void derive_rule_COS(derive_step *s) {
    s->out[0] = derive_mulz(s, derive_neg(s, derive_un(s, FXA_OP_SIN, s->arg[0])));
}

static void derive_rule_TAN(derive_step *s) {
    fxa_value square = derive_square(s, s->result);
    s->out[0] = derive_mulz(s, derive_bin(s, FXA_OP_ADD, derive_const(s, 1), square));
}

static void derive_rule_SELECT(derive_step *s) {
    fxa_value zero = derive_const(s, 0);
    if (s->wanted[1]) s->out[1] = derive_where(s, s->arg[0], s->adj, zero);
    if (s->wanted[2]) s->out[2] = derive_where(s, s->arg[0], zero, s->adj);
}

static void (*const derive_rules[FXA_OP_COUNT])(derive_step *) = {
#define OP(code, ID, text, form, prec, arity, sig, flags, exact, f64, i32, b1, rule, about) [code] = derive_rule_##rule,
#include "ops.def"
};

void fxa__derive_rule(uint32_t op, fxa__derive_step *s) { derive_rules[op](s); }

bool fxa__derive_passes(uint32_t op) { return derive_rules[op] != derive_rule_ZERO; }
