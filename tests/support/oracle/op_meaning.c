/* SPDX-License-Identifier: Apache-2.0
 *
 * Second implementation of the operations (op_meaning.h). Ints are 64 bits wide and wrapped at the end, divisions use
 * the floor of an exact quotient, roundings are written out.
 */
#include "op_meaning.h"

#include <math.h>

meaning meaning_float(double x) { return (meaning){FXA_FLOAT, x, 0}; }
meaning meaning_bool(bool x) { return (meaning){FXA_BOOL, 0, x}; }

meaning meaning_int(int64_t x) {
    int64_t low = (int64_t)((uint64_t)x % 4294967296u);
    return (meaning){FXA_INT, 0, low >= 2147483648 ? low - 4294967296 : low};
}

double meaning_number(meaning x) { return x.type == FXA_FLOAT ? x.f : (double)x.i; }

bool meaning_same(meaning x, meaning y, bool zeroes) {
    if (x.type != y.type) return false;
    if (x.type != FXA_FLOAT) return x.i == y.i;
    if (isnan(x.f) || isnan(y.f)) return isnan(x.f) && isnan(y.f);
    return x.f == y.f && (zeroes || signbit(x.f) == signbit(y.f));
}

int meaning_arity(fxa_op op) {
    if (op == FXA_OP_CLAMP || op == FXA_OP_SELECT) return 3;
    if (op == FXA_OP_NEG || op == FXA_OP_ABS || op == FXA_OP_NOT || op == FXA_OP_FLOAT || op == FXA_OP_INT) return 1;
    if ((op >= FXA_OP_SQRT && op <= FXA_OP_SOFTPLUS) || op == FXA_OP_RELU || op == FXA_OP_SIGN ||
        op == FXA_OP_STOP_GRADIENT)
        return 1;
    return (op >= FXA_OP_ADD && op <= FXA_OP_DIVZ) || op == FXA_OP_WITH_GRAD ||
                   (op >= FXA_OP_AND && op <= FXA_OP_SHR) || (op >= FXA_OP_EQ && op <= FXA_OP_GE)
               ? 2
               : 0;
}

static double meaning_round_even(double x) {
    if (!(fabs(x) < 4503599627370496.0)) return x;
    double down = floor(x), part = x - down;
    double near = part < 0.5 ? down : part > 0.5 ? down + 1 : fmod(down, 2) == 0 ? down : down + 1;
    return copysign(near, x);
}

static double meaning_real1(fxa_op op, double x) {
    switch (op) {
    case FXA_OP_SQRT: return sqrt(x);
    case FXA_OP_RSQRT: return 1.0 / sqrt(x);
    case FXA_OP_EXP: return exp(x);
    case FXA_OP_EXP2: return exp2(x);
    case FXA_OP_LOG: return log(x);
    case FXA_OP_LOG2: return log2(x);
    case FXA_OP_TANH: return tanh(x);
    case FXA_OP_SIGMOID: return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
    case FXA_OP_ERF: return erf(x);
    case FXA_OP_SIN: return sin(x);
    case FXA_OP_COS: return cos(x);
    case FXA_OP_TAN: return tan(x);
    case FXA_OP_LOG1P: return log1p(x);
    case FXA_OP_ATAN: return atan(x);
    case FXA_OP_STOP_GRADIENT: return x;
    case FXA_OP_SOFTPLUS: return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    case FXA_OP_FLOOR: return -ceil(-x);
    case FXA_OP_CEIL: return -floor(-x);
    case FXA_OP_ROUND: return meaning_round_even(x);
    default: return x < 0 ? ceil(x) : floor(x); /* TRUNC */
    }
}

static double meaning_min(double x, double y) { return isnan(x) || isnan(y) ? NAN : fmin(x, y); }
static double meaning_max(double x, double y) { return isnan(x) || isnan(y) ? NAN : fmax(x, y); }

static double meaning_float_mod(double x, double y) {
    long double r = fmodl(x, y);
    return (double)(r != 0 && (r > 0) != (y > 0) ? r + y : r);
}

static meaning meaning_arith_float(fxa_op op, double x, double y, double z) {
    switch (op) {
    case FXA_OP_ADD: return meaning_float(x + y);
    case FXA_OP_SUB: return meaning_float(x - y);
    case FXA_OP_MUL: return meaning_float(x * y);
    case FXA_OP_DIV: return meaning_float(x / y);
    case FXA_OP_FLOORDIV: return meaning_float(floor(x / y));
    case FXA_OP_MOD: return meaning_float(meaning_float_mod(x, y));
    case FXA_OP_NEG: return meaning_float(-x);
    case FXA_OP_ABS: return meaning_float(copysign(x, 1.0));
    case FXA_OP_RELU: return meaning_float(isnan(x) || x > 0 ? x : 0);
    case FXA_OP_SIGN: return meaning_float(x == 0 || isnan(x) ? x : copysign(1, x));
    case FXA_OP_MIN: return meaning_float(meaning_min(x, y));
    case FXA_OP_MAX: return meaning_float(meaning_max(x, y));
    case FXA_OP_CLAMP: return meaning_float(meaning_min(meaning_max(x, y), z));
    case FXA_OP_POW: return meaning_float(pow(x, y));
    case FXA_OP_MULZ: return meaning_float(x == 0 ? 0.0 : x * y);
    case FXA_OP_DIVZ: return meaning_float(x == 0 ? 0.0 : x / y);
    case FXA_OP_WITH_GRAD: return meaning_float(x);
    default: return meaning_float(meaning_real1(op, x));
    }
}

/* Returns floor(x / y); 0 for y == 0. For 32-bit ints, a quotient that is no integer differs from every integer by more
 * than f64 rounds. */
static int64_t meaning_floordiv(int64_t x, int64_t y) { return y == 0 ? 0 : (int64_t)floor((double)x / (double)y); }

static meaning meaning_arith_int(fxa_op op, int64_t x, int64_t y, int64_t z) {
    int64_t low = x > y ? x : y;
    switch (op) {
    case FXA_OP_ADD: return meaning_int(x + y);
    case FXA_OP_SUB: return meaning_int(x - y);
    case FXA_OP_MUL: return meaning_int(x * y);
    case FXA_OP_FLOORDIV: return meaning_int(meaning_floordiv(x, y));
    case FXA_OP_MOD: return meaning_int(y == 0 ? 0 : x - y * meaning_floordiv(x, y));
    case FXA_OP_NEG: return meaning_int(-x);
    case FXA_OP_ABS: return meaning_int(x < 0 ? -x : x);
    case FXA_OP_RELU: return meaning_int(x > 0 ? x : 0);
    case FXA_OP_SIGN: return meaning_int((x > 0) - (x < 0));
    case FXA_OP_MIN: return meaning_int(x < y ? x : y);
    case FXA_OP_MAX: return meaning_int(low);
    case FXA_OP_CLAMP: return meaning_int(low < z ? low : z);
    case FXA_OP_SHL: return meaning_int(x * ((int64_t)1 << (((y % 32) + 32) % 32)));
    case FXA_OP_SHR: return meaning_int((int64_t)floor(ldexp((double)x, -(int)(((y % 32) + 32) % 32))));
    default: return (meaning){0};
    }
}

static meaning meaning_compare(fxa_op op, double x, double y) {
    bool less = x<y, equal = x == y, more = x> y;
    switch (op) {
    case FXA_OP_EQ: return meaning_bool(equal);
    case FXA_OP_NE: return meaning_bool(!equal);
    case FXA_OP_LT: return meaning_bool(less);
    case FXA_OP_LE: return meaning_bool(less || equal);
    case FXA_OP_GT: return meaning_bool(more);
    default: return meaning_bool(more || equal);
    }
}

static meaning meaning_bits(fxa_op op, meaning x, meaning y) {
    bool bools = x.type == FXA_BOOL && (op == FXA_OP_NOT || y.type == FXA_BOOL);
    if (x.type == FXA_FLOAT || (op != FXA_OP_NOT && y.type == FXA_FLOAT)) return (meaning){0};
    if (op == FXA_OP_NOT) return bools ? meaning_bool(x.i == 0) : meaning_int(-1 - x.i);
    int64_t r = op == FXA_OP_AND ? x.i & y.i : op == FXA_OP_OR ? x.i | y.i : x.i ^ y.i;
    return bools ? meaning_bool(r != 0) : meaning_int(r);
}

static meaning meaning_select(meaning c, meaning x, meaning y) {
    if (c.type != FXA_BOOL) return (meaning){0};
    meaning chosen = c.i ? x : y;
    if (x.type == FXA_FLOAT || y.type == FXA_FLOAT) return meaning_float(meaning_number(chosen));
    return x.type == FXA_BOOL && y.type == FXA_BOOL ? chosen : meaning_int(chosen.i);
}

static meaning meaning_to_int(meaning x) {
    if (x.type != FXA_FLOAT) return meaning_int(x.i);
    if (isnan(x.f)) return meaning_int(0);
    return meaning_int((int64_t)fmax(-2147483648.0, fmin(2147483647.0, trunc(x.f))));
}

meaning meaning_op(fxa_op op, const meaning *x) {
    int n = meaning_arity(op);
    bool floats = false;
    for (int i = 0; i < n; i++) floats = floats || x[i].type == FXA_FLOAT;
    meaning y = n > 1 ? x[1] : x[0], z = n > 2 ? x[2] : x[0];
    if (op == FXA_OP_SELECT) return meaning_select(x[0], y, z);
    if (op == FXA_OP_FLOAT) return meaning_float(meaning_number(x[0]));
    if (op == FXA_OP_INT) return meaning_to_int(x[0]);
    if (op >= FXA_OP_EQ && op <= FXA_OP_GE) return meaning_compare(op, meaning_number(x[0]), meaning_number(y));
    if (op >= FXA_OP_AND && op <= FXA_OP_NOT) return meaning_bits(op, x[0], y);
    bool shift = op == FXA_OP_SHL || op == FXA_OP_SHR;
    bool real = op == FXA_OP_DIV || op == FXA_OP_WITH_GRAD || op == FXA_OP_STOP_GRADIENT ||
                (op >= FXA_OP_POW && op <= FXA_OP_DIVZ) || (op >= FXA_OP_SQRT && op <= FXA_OP_SOFTPLUS);
    if (shift && floats) return (meaning){0};
    if (real || floats) return meaning_arith_float(op, meaning_number(x[0]), meaning_number(y), meaning_number(z));
    return meaning_arith_int(op, x[0].i, y.i, z.i);
}
