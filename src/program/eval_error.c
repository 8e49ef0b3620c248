/* SPDX-License-Identifier: Apache-2.0
 *
 * Running error analysis of programs; see eval_error.h. The error of a node is the error propagated from its operands
 * plus the rounding error of the operation itself; rounding errors of functions come from function_ulps.h.
 */
#include "eval_error.h"

#include "function_ulps.h"

#include <math.h>

/* Maximum error of the C library's f64 functions in ulps. The largest in the manual of glibc is 2, that of tanh. */
#define REFERENCE_ULPS 2

fxa__arithmetic fxa__arithmetic_of(bool f64) {
    /* The reference evaluation is in f64 too, so an f64 engine may differ from it by twice the rounding error 2^-53. */
    fxa__arithmetic wide = {0x1p-52, 0x1p-1022, 1e300, false, NULL}, narrow = {0x1p-24, 0x1p-126, 0x1p120, true, NULL};
    return f64 ? wide : narrow;
}

/* Returns |derivative| * e; 0 for an exact operand (e == 0), even if the derivative is infinite. */
static double error_through(double derivative, double e) { return e == 0 ? 0 : fabs(derivative) * e; }

/* Returns true if all values in x - e..x + e are on the same side of `bound`, or x is NaN. Returns false if e is
 * infinite. */
static bool error_decided(double x, double bound, double e) {
    return e == 0 || (e < INFINITY && (x != x || fabs(x - bound) > e));
}

/* Returns true if floor(v - step) is equal for all values v in x - e..x + e. */
static bool error_floor_decided(double x, double step, double e) {
    double y = x - step;
    if (e == 0 || e == INFINITY) return e == 0;
    return fabs(y) == INFINITY || y != y || (floor(y - e) == floor(y + e) && y - e != floor(y - e));
}

/* Returns the error of y = op(x) that an error e of x causes. At an end of op's domain: INFINITY if x - e..x + e
 * crosses or almost touches the end; 0 if all of x - e..x + e is outside the domain, where y is NaN. */
static double error_function(uint32_t op, double x, double y, double e) {
    switch (op) {
    case FXA_OP_SQRT: return e == 0 ? 0 : x < -e ? 0 : x <= 2 * e ? INFINITY : e / (2 * sqrt(x - e));
    case FXA_OP_RSQRT: return e == 0 ? 0 : x < -e ? 0 : x <= 2 * e ? INFINITY : y * e / (2 * (x - e));
    case FXA_OP_LOG: return e == 0 ? 0 : x < -e ? 0 : x <= 2 * e ? INFINITY : e / (x - e);
    case FXA_OP_LOG2: return e == 0 ? 0 : x < -e ? 0 : x <= 2 * e ? INFINITY : 1.4427 * e / (x - e);
    case FXA_OP_LOG1P: return e == 0 ? 0 : 1 + x < -e ? 0 : 1 + x <= 2 * e ? INFINITY : e / (1 + x - e);
    case FXA_OP_ATAN: return e / (1 + fmax(0, fabs(x) - e) * fmax(0, fabs(x) - e));
    case FXA_OP_EXP: return e == 0 ? 0 : y * expm1(e);
    case FXA_OP_EXP2: return e == 0 ? 0 : y * expm1(e * 0.6932);
    case FXA_OP_TANH: return error_through(1 - y * y + e, e);
    case FXA_OP_SIGMOID: return error_through(fmin(0.25, y * (1 - y) + e), e);
    case FXA_OP_ERF: return error_through(1.1284 * exp(-x * x) + e, e);
    case FXA_OP_SIN:
    case FXA_OP_COS: return e;
    case FXA_OP_TAN: return e * (1 + y * y) > 0.1 ? INFINITY : error_through(1.3 * (1 + y * y), e);
    case FXA_OP_FLOOR: return error_floor_decided(x, 0, e) ? 0 : INFINITY;
    case FXA_OP_CEIL: return error_floor_decided(-x, 0, e) ? 0 : INFINITY;
    case FXA_OP_ROUND: return error_floor_decided(x, 0.5, e) ? 0 : INFINITY;
    case FXA_OP_TRUNC: return error_floor_decided(fabs(x), 0, e) ? 0 : INFINITY;
    default: return e; /* NEG, ABS, FLOAT */
    }
}

/* Returns the error of y = a / b caused by the errors of a and b. */
static double error_divide(double a, double b, double y, double e_a, double e_b) {
    if (e_a == 0 && e_b == 0) return 0;
    if (b == 0 && e_b == 0) return fabs(a) <= e_a ? INFINITY : 0; /* a / 0 is infinite; only its sign may be wrong */
    if (fabs(b) <= 2 * e_b) return INFINITY;
    return fabs(b) == INFINITY ? 0 : (e_a + error_through(y, e_b)) / (fabs(b) - e_b);
}

/* Returns the error of y = a ** b caused by the errors of a and b. */
static double error_power(double a, double b, double y, double e_a, double e_b) {
    /* b is exact and positive; the sign of the base a is not certain, or a may be 0 */
    if (e_b == 0 && b > 0 && b < INFINITY && fabs(a) <= 2 * e_a)
        return b == floor(b) || a >= e_a ? pow(fabs(a) + e_a, b) + fabs(y) : INFINITY;
    if (a == 0 || b == 0 || fabs(a) == INFINITY || fabs(b) == INFINITY) return e_a == 0 && e_b == 0 ? 0 : INFINITY;
    if (fabs(a) <= 2 * e_a || (a < 0 && e_b != 0)) return INFINITY;
    double by_log = error_through(b / (fabs(a) - e_a), e_a) + error_through(log(fabs(a)), e_b);
    return fabs(y) * expm1(by_log);
}

/* Returns the error of a float operation that the errors of its two operands cause. // and % are discontinuous where
 * the quotient is an integer. */
static double error_binary(const fxa__arithmetic *m, uint32_t op, double a, double b, double y, double e_a,
                           double e_b) {
    double quotient = a / b, e_q = error_divide(a, b, quotient, e_a, e_b);
    double e_rounded = e_q + (fabs(quotient) < INFINITY ? m->unit * fabs(quotient) : 0);
    bool exact = e_a == 0 && e_b == 0 && fmod(a, b) == 0;
    switch (op) {
    case FXA_OP_MULZ:
    case FXA_OP_MUL: return error_through(b, e_a) + error_through(a, e_b) + e_a * e_b;
    case FXA_OP_DIVZ:
    case FXA_OP_DIV: return e_q;
    case FXA_OP_FLOORDIV: return exact || error_floor_decided(quotient, 0, e_rounded) ? 0 : INFINITY;
    case FXA_OP_MOD:
        if (!exact && !error_floor_decided(quotient, 0, e_rounded)) return INFINITY;
        /* a % b is computed as a - b * floor(a / b) */
        return e_a + error_through(floor(quotient), e_b) + m->unit * fabs(a);
    case FXA_OP_POW: return error_power(a, b, y, e_a, e_b);
    case FXA_OP_MIN:
    case FXA_OP_MAX:
        if (error_decided(a, b, e_a + e_b) && a == a && b == b) return y == a ? e_a : e_b;
        return fmax(e_a, e_b);
    default: return e_a + e_b; /* ADD, SUB */
    }
}

/* Returns the relative error of a function as a multiple of m->unit. For f32, an ulp is at most two units. For f64, an
 * ulp is at most one unit, and the error of the reference evaluation is added. */
static double error_function_units(const fxa__arithmetic *m, uint32_t op) {
    return m->narrow ? 2 * fxa__function_ulps(op, false) : fxa__function_ulps(op, true) + REFERENCE_ULPS;
}

/* Returns the rounding error that the operation y = op(x) adds. */
static double error_rounding(const fxa__arithmetic *m, uint32_t op, double x, double y) {
    double units = 1, tiny = fabs(y) < 0x1p-100 ? m->tiny : 0, other = m->function ? m->function(op, x, y) : -1;
    if (other >= 0) return fabs(y) < INFINITY ? other + 2 * tiny : 0;
    if (y == 0) return 0;
    if (fxa__function_ulps(op, false) > 0) return error_function_units(m, op) * m->unit * fabs(y) + 2 * tiny;
    if (op == FXA_OP_NEG || op == FXA_OP_ABS || (op >= FXA_OP_MIN && op <= FXA_OP_CLAMP))
        units = 0;
    else if (op >= FXA_OP_FLOOR && op <= FXA_OP_TRUNC)
        units = 0;
    else if (op == FXA_OP_DIV || op == FXA_OP_DIVZ)
        units = 2; /* engines may multiply by the reciprocal instead of dividing */
    else if (op == FXA_OP_FLOAT)
        units = fabs(y) > 0x1p24 && m->narrow;
    return units * (m->unit * fabs(y) + tiny);
}

/* Returns the rounding error of converting a constant, param or tensor element to the engine's compute type. */
static double error_number(const fxa__arithmetic *m, double x) {
    if (!m->narrow || x != x || fabs(x) == INFINITY || x == (double)(float)x) return 0;
    return fabs(x) > m->largest ? INFINITY : m->unit * fabs(x) + (fabs(x) < 0x1p-100 ? m->tiny : 0);
}

/* Returns the error of an operation on ints or bools: 0 if an exact operand of && or || decides the result; else
 * `worst`, which is the largest error of the operands (0 or INFINITY). */
static double error_bools(const fxa__node *n, const fxa__val *vals, const double *error, double worst) {
    uint32_t op = n->op;
    double e_a = error[n->arg[0]], e_b = n->n_args > 1 ? error[n->arg[1]] : 0;
    int32_t a = vals[n->arg[0]].i, b = n->n_args > 1 ? vals[n->arg[1]].i : 0;
    if (n->type == FXA_BOOL && op == FXA_OP_AND && ((e_a == 0 && !a) || (e_b == 0 && !b))) return 0;
    if (n->type == FXA_BOOL && op == FXA_OP_OR && ((e_a == 0 && a) || (e_b == 0 && b))) return 0;
    return worst;
}

/* Returns the error of a select. If the condition is exact: the error of the chosen operand. Else the larger error of
 * both operands if their values are equal, or INFINITY. */
static double error_select(const fxa_program *p, const fxa__node *n, const fxa__val *vals, const double *error) {
    int32_t x = n->arg[1], y = n->arg[2];
    bool is_float = p->nodes[x].type == FXA_FLOAT;
    if (error[n->arg[0]] == 0) return error[vals[n->arg[0]].i ? x : y];
    bool same = is_float ? vals[x].f == vals[y].f : vals[x].i == vals[y].i;
    return same ? fmax(error[x], error[y]) : INFINITY;
}

/* Returns the error of clamp(x, lo, hi): the error of a bound if x certainly exceeds that bound, else the largest error
 * of the three operands. */
static double error_clamp(double x, double e_x, double lo, double e_lo, double hi, double e_hi) {
    if (lo <= hi && x - e_x > hi + e_hi) return e_hi;
    if (lo <= hi && x + e_x < lo - e_lo) return e_lo;
    return fmax(e_x, fmax(e_lo, e_hi));
}

/* Returns the error of node `at`, whose operands are floats and which is not a select. */
static double error_floats(const fxa_program *p, const fxa__arithmetic *m, int32_t at, const fxa__val *vals,
                           const double *error) {
    const fxa__node *n = &p->nodes[at];
    double a = vals[n->arg[0]].f, e_a = error[n->arg[0]], y = vals[at].f, e;
    double b = n->n_args > 1 ? vals[n->arg[1]].f : 0, e_b = n->n_args > 1 ? error[n->arg[1]] : 0;
    bool nan = (a != a && e_a == 0) || (b != b && e_b == 0); /* an operand is certainly NaN */
    if (n->type == FXA_BOOL) return nan || error_decided(a, b, e_a + e_b) ? 0 : INFINITY;
    if (n->op == FXA_OP_INT) return error_floor_decided(fabs(a), 0, e_a) ? 0 : INFINITY;
    if ((n->op == FXA_OP_MULZ || n->op == FXA_OP_DIVZ) && a == 0 && e_a == 0) return 0;
    if (e_a == INFINITY || e_b == INFINITY) return INFINITY;
    if (n->op == FXA_OP_CLAMP)
        e = error_clamp(a, e_a, b, e_b, vals[n->arg[2]].f, error[n->arg[2]]);
    else if (n->n_args == 2)
        e = error_binary(m, n->op, a, b, y, e_a, e_b);
    else
        e = error_function(n->op, a, y, e_a);
    if (y != y || fabs(y) == INFINITY) return e == INFINITY ? INFINITY : 0;
    e += error_rounding(m, n->op, a, y);
    return e == e && fabs(y) + e < m->largest ? e : INFINITY;
}

/* Returns the error of node `at`, computed from the errors of its operands. */
static double error_node(const fxa_program *p, const fxa__arithmetic *m, int32_t at, const fxa__val *vals,
                         const double *error) {
    const fxa__node *n = &p->nodes[at];
    double worst = 0;
    for (int i = 0; i < n->n_args; i++) worst = fmax(worst, error[n->arg[i]]);
    switch (n->op) {
    case FXA_OP_INPUT: return 0; /* ints are exact; fxa__program_error replaces the errors of score and dscore */
    case FXA_OP_CONST:
    case FXA_OP_PARAM:
    case FXA_OP_LOAD:
        if (worst == INFINITY) return INFINITY;
        return n->type == FXA_FLOAT ? error_number(m, vals[at].f) : 0;
    case FXA_OP_SELECT: return error_select(p, n, vals, error);
    case FXA_OP_WITH_GRAD: return error[n->arg[0]];
    default: break;
    }
    if (p->nodes[n->arg[0]].type == FXA_FLOAT) return error_floats(p, m, at, vals, error);
    if (n->type != FXA_FLOAT) return error_bools(n, vals, error, worst);
    /* Only float(x) of an int or bool x gets here: the operand is no float and the result is a float. */
    return worst == INFINITY ? INFINITY : error_rounding(m, n->op, 0, vals[at].f);
}

void fxa__program_error(const fxa_program *p, const fxa__arithmetic *a, double e_score, double e_dscore,
                        const fxa__val *vals, double *error) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const fxa__node *n = &p->nodes[i];
        error[i] = error_node(p, a, i, vals, error);
        if (n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_SCORE) error[i] = e_score;
        if (n->op == FXA_OP_INPUT && n->imm == FXA_INPUT_DSCORE) error[i] = e_dscore;
    }
}
