/* SPDX-License-Identifier: Apache-2.0
 *
 * Interval arithmetic: for each operation, a rule that computes the interval of the result from the intervals of the
 * operands. Range analysis on the host uses the rules where affine forms do not help (range_int.c, range_float.c).
 * Generated CUDA code that bounds a mask over a tile calls the same functions (src/lower/interval.h). Therefore this
 * file is both C and CUDA and includes no header of the library.
 *
 * fxa__interval, for ints and bools (0 and 1), contains every value of a node. fxa__real, for floats, contains the
 * value that any engine computes: ref in f64, others in f32, some with fused or approximate instructions. Each rule
 * therefore widens its result by more than the error of any engine:
 *
 *   arithmetic          relative 2^-20, absolute 2^-120    f32: relative 2^-24, or absolute 2^-126 if flushed to 0
 *   exp, log, sqrt ...  relative 2^-9, absolute 2^-18      the least accurate GPU instruction has 2^-11
 *
 * Bounds beyond 2^126 become infinite, because f32 may overflow. A comparison is decided only if the widened intervals
 * are disjoint. Integers up to 2^24 and their sums, differences and products up to 2^24 are exact in f32; their
 * intervals are not widened. The result of an operation without a rule is unbounded, which is always sound.
 */
#ifndef FXA_PROGRAM_INTERVAL_RULES_H
#define FXA_PROGRAM_INTERVAL_RULES_H

#ifdef __CUDACC__
#define FXA__RULE_FN static __device__ inline
#define FXA__RULE_INF __longlong_as_double(0x7ff0000000000000LL)
typedef long long fxa__i64;
#else
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#define FXA__RULE_FN static inline
#define FXA__RULE_INF ((double)INFINITY)
typedef int64_t fxa__i64;
#endif

typedef struct fxa__interval {
    fxa__i64 lo, hi;
} fxa__interval;

typedef struct fxa__real {
    double lo, hi; /* bounds of the values that are not NaN; lo > hi = always NaN */
    bool nan;      /* true = the value may be NaN */
    bool integral; /* true = the value is an integer that is exact in f32, so no engine rounds */
} fxa__real;

/* ---- Ints and bools ---------------------------------------------------------------------------------------------- */

#define FXA__RULE_INT_MIN (-2147483647 - 1)
#define FXA__RULE_INT_MAX 2147483647

FXA__RULE_FN fxa__i64 fxa__rule_min(fxa__i64 a, fxa__i64 b) { return a < b ? a : b; }
FXA__RULE_FN fxa__i64 fxa__rule_max(fxa__i64 a, fxa__i64 b) { return a > b ? a : b; }
/* Returns floor(a / b), for b > 0. */
FXA__RULE_FN fxa__i64 fxa__floordiv64(fxa__i64 a, fxa__i64 b) { return a / b - (a % b < 0); }

FXA__RULE_FN fxa__interval fxa__interval_make(fxa__i64 lo, fxa__i64 hi) {
    fxa__interval s;
    s.lo = lo, s.hi = hi;
    return s;
}
FXA__RULE_FN fxa__interval fxa__interval_any(void) { return fxa__interval_make(FXA__RULE_INT_MIN, FXA__RULE_INT_MAX); }
FXA__RULE_FN bool fxa__interval_fits(fxa__interval a) { return a.lo >= FXA__RULE_INT_MIN && a.hi <= FXA__RULE_INT_MAX; }
/* Returns lo..hi if both fit in 32 bits; else all ints, because a value may wrap. */
FXA__RULE_FN fxa__interval fxa__interval_clip(fxa__i64 lo, fxa__i64 hi) {
    const fxa__interval a = fxa__interval_make(lo, hi);
    return fxa__interval_fits(a) ? a : fxa__interval_any();
}
FXA__RULE_FN bool fxa__interval_is_one(fxa__interval a) { return a.lo == a.hi; }
FXA__RULE_FN fxa__interval fxa__interval_hull(fxa__interval a, fxa__interval b) {
    return fxa__interval_make(fxa__rule_min(a.lo, b.lo), fxa__rule_max(a.hi, b.hi));
}
FXA__RULE_FN fxa__interval fxa__interval_negative(fxa__interval a) { return fxa__interval_make(-a.hi, -a.lo); }
/* Returns the interval of a bool: 1..1 if it is known to be true (`yes`), 0..0 if it is known to be false (`no`), else
 * 0..1. */
FXA__RULE_FN fxa__interval fxa__interval_known(bool yes, bool no) { return fxa__interval_make(yes, !no); }
FXA__RULE_FN fxa__interval fxa__interval_select(fxa__interval c, fxa__interval a, fxa__interval b) {
    return c.lo ? a : !c.hi ? b : fxa__interval_hull(a, b);
}

FXA__RULE_FN fxa__interval fxa__interval_product(fxa__interval a, fxa__interval b) {
    const fxa__i64 w = a.lo * b.lo, x = a.lo * b.hi, y = a.hi * b.lo, z = a.hi * b.hi;
    return fxa__interval_clip(fxa__rule_min(fxa__rule_min(w, x), fxa__rule_min(y, z)),
                              fxa__rule_max(fxa__rule_max(w, x), fxa__rule_max(y, z)));
}
FXA__RULE_FN fxa__interval fxa__interval_abs(fxa__interval a) {
    if (a.lo >= 0) return a;
    if (a.hi <= 0) return fxa__interval_clip(-a.hi, -a.lo);
    return fxa__interval_clip(0, fxa__rule_max(-a.lo, a.hi));
}

/* Returns the smallest 2^n - 1 that is at least x >= 0. */
FXA__RULE_FN fxa__i64 fxa__rule_bits(fxa__i64 x) {
    fxa__i64 m = 0;
    while (m < x) m = 2 * m + 1;
    return m;
}
FXA__RULE_FN fxa__interval fxa__interval_and(fxa__interval a, fxa__interval b) {
    if (a.lo >= 0 && b.lo >= 0) return fxa__interval_make(0, fxa__rule_min(a.hi, b.hi));
    if (a.lo >= 0 || b.lo >= 0) return fxa__interval_make(0, a.lo >= 0 ? a.hi : b.hi);
    return fxa__interval_any();
}
/* Returns bounds of a | b and a ^ b. lo: lower bound for nonnegative a and b, which is max(a.lo, b.lo) for | and 0
 * for ^. */
FXA__RULE_FN fxa__interval fxa__interval_or(fxa__interval a, fxa__interval b, fxa__i64 lo) {
    if (a.lo < 0 || b.lo < 0) return fxa__interval_any();
    return fxa__interval_make(lo, fxa__rule_bits(a.hi | b.hi));
}

/* Returns bounds of a // b for b > 0. The smallest and largest quotients are those of the interval ends. */
FXA__RULE_FN fxa__interval fxa__interval_corners(fxa__interval a, fxa__interval b) {
    const fxa__i64 w = fxa__floordiv64(a.lo, b.lo), x = fxa__floordiv64(a.lo, b.hi);
    const fxa__i64 y = fxa__floordiv64(a.hi, b.lo), z = fxa__floordiv64(a.hi, b.hi);
    return fxa__interval_clip(fxa__rule_min(w, x), fxa__rule_max(y, z));
}
/* Returns bounds of a // b. If b can be 0, the quotient still has at most the magnitude of a, because a // 0 is 0. */
FXA__RULE_FN fxa__interval fxa__interval_quotient(fxa__interval a, fxa__interval b) {
    const fxa__i64 size = fxa__rule_max(a.hi, -a.lo);
    if (b.lo > 0) return fxa__interval_corners(a, b);
    if (b.hi < 0) return fxa__interval_corners(fxa__interval_negative(a), fxa__interval_negative(b));
    return a.lo >= 0 && b.lo >= 0 ? fxa__interval_make(0, a.hi) : fxa__interval_clip(-size, size);
}
/* Returns bounds of a % b. The result has the sign of b and a smaller magnitude than b. If b is constant and floor(a /
 * b) is equal for all values of a, the bounds are those of a - floor(a / b) * b. */
FXA__RULE_FN fxa__interval fxa__interval_remainder(fxa__interval a, fxa__interval b) {
    const fxa__i64 lo = b.lo < 0 ? b.lo + 1 : 0, hi = b.hi > 0 ? b.hi - 1 : 0;
    if (fxa__interval_is_one(b) && b.lo > 0) {
        const fxa__i64 period = fxa__floordiv64(a.lo, b.lo);
        if (period == fxa__floordiv64(a.hi, b.lo))
            return fxa__interval_make(a.lo - period * b.lo, a.hi - period * b.lo);
    }
    return fxa__interval_make(lo, a.lo >= 0 && b.lo >= 0 ? fxa__rule_min(a.hi, hi) : hi);
}
/* Returns bounds of a << n; all ints unless n is constant. */
FXA__RULE_FN fxa__interval fxa__interval_left(fxa__interval a, fxa__interval n) {
    const fxa__i64 times = (fxa__i64)1 << (n.lo & 31);
    return fxa__interval_is_one(n) ? fxa__interval_clip(a.lo * times, a.hi * times) : fxa__interval_any();
}
/* Returns bounds of a >> n. */
FXA__RULE_FN fxa__interval fxa__interval_right(fxa__interval a, fxa__interval n) {
    const fxa__i64 by = (fxa__i64)1 << (n.lo & 31);
    if (fxa__interval_is_one(n)) return fxa__interval_make(fxa__floordiv64(a.lo, by), fxa__floordiv64(a.hi, by));
    return fxa__interval_make(fxa__rule_min(a.lo, 0), fxa__rule_max(a.hi, -1));
}

/* Rules for operations on ints: X(operation, interval of the result). Comparisons have the interval of a bool. Callers
 * compute clamp(x, lo, hi) as min(max(x, lo), hi). */
#define FXA__INT_RULES(X)                                                                                              \
    X(ADD, fxa__interval_clip(a.lo + b.lo, a.hi + b.hi))                                                               \
    X(SUB, fxa__interval_clip(a.lo - b.hi, a.hi - b.lo))                                                               \
    X(MUL, fxa__interval_product(a, b))                                                                                \
    X(FLOORDIV, fxa__interval_quotient(a, b))                                                                          \
    X(MOD, fxa__interval_remainder(a, b))                                                                              \
    X(NEG, fxa__interval_clip(-a.hi, -a.lo))                                                                           \
    X(ABS, fxa__interval_abs(a))                                                                                       \
    X(MIN, fxa__interval_make(fxa__rule_min(a.lo, b.lo), fxa__rule_min(a.hi, b.hi)))                                   \
    X(MAX, fxa__interval_make(fxa__rule_max(a.lo, b.lo), fxa__rule_max(a.hi, b.hi)))                                   \
    X(AND, fxa__interval_and(a, b))                                                                                    \
    X(OR, fxa__interval_or(a, b, fxa__rule_max(a.lo, b.lo)))                                                           \
    X(XOR, fxa__interval_or(a, b, 0))                                                                                  \
    X(NOT, fxa__interval_make(-1 - a.hi, -1 - a.lo))                                                                   \
    X(SHL, fxa__interval_left(a, b))                                                                                   \
    X(SHR, fxa__interval_right(a, b))                                                                                  \
    X(EQ, fxa__interval_known(fxa__interval_is_one(a) && fxa__interval_is_one(b) && a.lo == b.lo,                      \
                              a.hi < b.lo || b.hi < a.lo))                                                             \
    X(NE, fxa__interval_known(a.hi < b.lo || b.hi < a.lo,                                                              \
                              fxa__interval_is_one(a) && fxa__interval_is_one(b) && a.lo == b.lo))                     \
    X(LT, fxa__interval_known(a.hi < b.lo, a.lo >= b.hi))                                                              \
    X(LE, fxa__interval_known(a.hi <= b.lo, a.lo > b.hi))

#define FXA__BOOL_RULES(X)                                                                                             \
    X(AND, fxa__interval_make(a.lo &b.lo, a.hi &b.hi))                                                                 \
    X(OR, fxa__interval_make(a.lo | b.lo, a.hi | b.hi))                                                                \
    X(XOR, fxa__interval_is_one(a) && fxa__interval_is_one(b) ? fxa__interval_make(a.lo ^ b.lo, a.lo ^ b.lo)           \
                                                              : fxa__interval_make(0, 1))                              \
    X(NOT, fxa__interval_make(!a.hi, !a.lo))

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

#define FXA__RULE_HUGE 0x1p126
#define FXA__RULE_EXACT 0x1p24

FXA__RULE_FN fxa__real fxa__real_make(double lo, double hi, bool nan, bool integral) {
    fxa__real x;
    x.lo = lo, x.hi = hi, x.nan = nan, x.integral = integral;
    return x;
}
FXA__RULE_FN fxa__real fxa__real_any(void) { return fxa__real_make(-FXA__RULE_INF, FXA__RULE_INF, true, false); }
FXA__RULE_FN bool fxa__real_none(fxa__real x) { return x.lo > x.hi; }

/* Widens both bounds by a relative and an absolute error. */
FXA__RULE_FN fxa__real fxa__real_widen(fxa__real x, double relative, double absolute) {
    if (fabs(x.lo) < FXA__RULE_INF) x.lo -= fabs(x.lo) * relative + absolute;
    if (fabs(x.hi) < FXA__RULE_INF) x.hi += fabs(x.hi) * relative + absolute;
    if (x.lo < -FXA__RULE_HUGE) x.lo = -FXA__RULE_INF;
    if (x.hi > FXA__RULE_HUGE) x.hi = FXA__RULE_INF;
    if (x.lo > FXA__RULE_HUGE) x.lo = FXA__RULE_HUGE;
    if (x.hi < -FXA__RULE_HUGE) x.hi = -FXA__RULE_HUGE;
    x.integral = false;
    return x;
}
FXA__RULE_FN fxa__real fxa__real_rounded(fxa__real x) { return fxa__real_widen(x, 0x1p-20, 0x1p-120); }
FXA__RULE_FN fxa__real fxa__real_function(fxa__real x) { return fxa__real_widen(x, 0x1p-9, 0x1p-18); }

/* Returns the interval of a constant: x..x if x is exact in f32, else x..x widened. */
FXA__RULE_FN fxa__real fxa__real_point(double x) {
    const fxa__real out = fxa__real_make(x, x, false, x == floor(x) && fabs(x) <= FXA__RULE_EXACT);
    if (x != x) return fxa__real_make(FXA__RULE_INF, -FXA__RULE_INF, true, false);
    return fabs(x) > FXA__RULE_HUGE || (double)(float)x != x ? fxa__real_rounded(out) : out;
}

FXA__RULE_FN bool fxa__real_finite(fxa__real x) { return x.lo >= -FXA__RULE_HUGE && x.hi <= FXA__RULE_HUGE; }
FXA__RULE_FN bool fxa__real_fits(double lo, double hi) { return lo >= -FXA__RULE_EXACT && hi <= FXA__RULE_EXACT; }

/* Returns lo..hi, widened unless all values are integers up to 2^24. integral: true if operands and result are
 * integers. */
FXA__RULE_FN fxa__real fxa__real_result(double lo, double hi, bool nan, bool integral) {
    const fxa__real out = fxa__real_make(lo, hi, nan, integral && fxa__real_fits(lo, hi));
    return out.integral ? out : fxa__real_rounded(out);
}
FXA__RULE_FN fxa__real fxa__real_corners(double w, double x, double y, double z, fxa__real a, fxa__real b,
                                         bool integral) {
    return fxa__real_result(fmin(fmin(w, x), fmin(y, z)), fmax(fmax(w, x), fmax(y, z)), a.nan || b.nan,
                            integral && a.integral && b.integral);
}
FXA__RULE_FN fxa__real fxa__real_negative(fxa__real a) { return fxa__real_make(-a.hi, -a.lo, a.nan, a.integral); }
FXA__RULE_FN fxa__real fxa__real_sum(fxa__real a, fxa__real b) {
    if (!fxa__real_finite(a) && !fxa__real_finite(b)) return fxa__real_any();
    return fxa__real_result(a.lo + b.lo, a.hi + b.hi, a.nan || b.nan, a.integral && b.integral);
}
FXA__RULE_FN fxa__real fxa__real_product(fxa__real a, fxa__real b) {
    if (!fxa__real_finite(a) || !fxa__real_finite(b)) return fxa__real_any();
    return fxa__real_corners(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi, a, b, true);
}
/* Returns bounds of a / b; unbounded for divisors near 0, which f32 may round to 0. */
FXA__RULE_FN fxa__real fxa__real_quotient(fxa__real a, fxa__real b) {
    if (!fxa__real_finite(a) || !fxa__real_finite(b) || (b.lo < 0x1p-100 && b.hi > -0x1p-100)) return fxa__real_any();
    return fxa__real_corners(a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi, a, b, false);
}
/* Returns bounds of a nondecreasing function over the interval a, at whose ends the function has the values lo and hi.
 * An end may be infinite if the function has a limit there. */
FXA__RULE_FN fxa__real fxa__real_rising(fxa__real a, double lo, double hi) {
    return fxa__real_function(fxa__real_make(lo, hi, a.nan, false));
}
/* Returns bounds of sqrt or a logarithm, whose values at the ends of a are lo and hi. They are unbounded if a value of
 * a is below 2^-100, which f32 could round to 0, or above FXA__RULE_HUGE. */
FXA__RULE_FN fxa__real fxa__real_positive(fxa__real a, double lo, double hi) {
    return a.lo >= 0x1p-100 && a.hi <= FXA__RULE_HUGE ? fxa__real_rising(a, lo, hi) : fxa__real_any();
}
/* Returns bounds of floor, ceil, round and trunc, whose values at the ends of a are lo and hi. These functions are
 * monotone and exact, so the bounds are widened only beyond 2^24. */
FXA__RULE_FN fxa__real fxa__real_integral(fxa__real a, double lo, double hi) {
    return fxa__real_result(lo, hi, a.nan, true);
}
FXA__RULE_FN fxa__real fxa__real_floor(fxa__real a) { return fxa__real_integral(a, floor(a.lo), floor(a.hi)); }
FXA__RULE_FN fxa__real fxa__real_abs(fxa__real a) {
    const double lo = a.lo <= 0 && a.hi >= 0 ? 0 : fmin(fabs(a.lo), fabs(a.hi));
    return fxa__real_make(lo, fmax(fabs(a.lo), fabs(a.hi)), a.nan, a.integral);
}
FXA__RULE_FN fxa__real fxa__real_hull(fxa__real a, fxa__real b) {
    return fxa__real_make(fmin(a.lo, b.lo), fmax(a.hi, b.hi), a.nan || b.nan, a.integral && b.integral);
}
FXA__RULE_FN fxa__real fxa__real_select(fxa__interval c, fxa__real a, fxa__real b) {
    return c.lo ? a : !c.hi ? b : fxa__real_hull(a, b);
}
FXA__RULE_FN double fxa__rule_sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Rules for operations on floats with float results: X(operation, interval of the result). The rules are not used if an
 * operand is always NaN. */
#define FXA__REAL_RULES(X)                                                                                             \
    X(ADD, fxa__real_sum(a, b))                                                                                        \
    X(SUB, fxa__real_sum(a, fxa__real_negative(b)))                                                                    \
    X(MUL, fxa__real_product(a, b))                                                                                    \
    X(DIV, fxa__real_quotient(a, b))                                                                                   \
    X(FLOORDIV, fxa__real_floor(fxa__real_quotient(a, b)))                                                             \
    X(NEG, fxa__real_negative(a))                                                                                      \
    X(ABS, fxa__real_abs(a))                                                                                           \
    X(MIN, fxa__real_make(fmin(a.lo, b.lo), fmin(a.hi, b.hi), a.nan || b.nan, a.integral && b.integral))               \
    X(MAX, fxa__real_make(fmax(a.lo, b.lo), fmax(a.hi, b.hi), a.nan || b.nan, a.integral && b.integral))               \
    X(WITH_GRAD, a)                                                                                                    \
    X(SQRT, fxa__real_positive(a, sqrt(a.lo), sqrt(a.hi)))                                                             \
    X(RSQRT,                                                                                                           \
      fxa__real_function(fxa__real_quotient(fxa__real_point(1), fxa__real_positive(a, sqrt(a.lo), sqrt(a.hi)))))       \
    X(EXP, fxa__real_rising(a, exp(a.lo), exp(a.hi)))                                                                  \
    X(EXP2, fxa__real_rising(a, exp2(a.lo), exp2(a.hi)))                                                               \
    X(LOG, fxa__real_positive(a, log(a.lo), log(a.hi)))                                                                \
    X(LOG2, fxa__real_positive(a, log2(a.lo), log2(a.hi)))                                                             \
    X(LOG1P, a.lo >= -0.5 && a.hi <= FXA__RULE_HUGE ? fxa__real_rising(a, log1p(a.lo), log1p(a.hi)) : fxa__real_any()) \
    X(TANH, fxa__real_rising(a, tanh(a.lo), tanh(a.hi)))                                                               \
    X(SIGMOID, fxa__real_rising(a, fxa__rule_sigmoid(a.lo), fxa__rule_sigmoid(a.hi)))                                  \
    X(ERF, fxa__real_rising(a, erf(a.lo), erf(a.hi)))                                                                  \
    X(ATAN, fxa__real_rising(a, atan(a.lo), atan(a.hi)))                                                               \
    X(FLOOR, fxa__real_floor(a))                                                                                       \
    X(CEIL, fxa__real_integral(a, ceil(a.lo), ceil(a.hi)))                                                             \
    X(ROUND, fxa__real_integral(a, nearbyint(a.lo), nearbyint(a.hi)))                                                  \
    X(TRUNC, fxa__real_integral(a, trunc(a.lo), trunc(a.hi)))

/* Returns the result of a < b (strict) or a <= b: 1 = true, 0 = false, -1 = unknown. Comparisons with NaN are false. */
FXA__RULE_FN int fxa__real_less(fxa__real a, fxa__real b, bool strict) {
    if (fxa__real_none(a) || fxa__real_none(b)) return 0;
    if (strict ? a.lo >= b.hi : a.lo > b.hi) return 0;
    return !a.nan && !b.nan && (strict ? a.hi < b.lo : a.hi <= b.lo) ? 1 : -1;
}
/* Returns the result of a == b: 1 = true, 0 = false, -1 = unknown. */
FXA__RULE_FN int fxa__real_equal(fxa__real a, fxa__real b) {
    if (fxa__real_none(a) || fxa__real_none(b) || a.hi < b.lo || b.hi < a.lo) return 0;
    return !a.nan && !b.nan && a.lo == a.hi && b.lo == b.hi && a.integral && b.integral ? 1 : -1;
}
FXA__RULE_FN fxa__interval fxa__interval_of_known(int known) { return fxa__interval_known(known == 1, known == 0); }

#define FXA__REAL_COMPARES(X)                                                                                          \
    X(LT, fxa__interval_of_known(fxa__real_less(a, b, true)))                                                          \
    X(LE, fxa__interval_of_known(fxa__real_less(a, b, false)))                                                         \
    X(EQ, fxa__interval_of_known(fxa__real_equal(a, b)))                                                               \
    X(NE, fxa__interval_make(fxa__real_equal(a, b) == 0, fxa__real_equal(a, b) != 1))

/* ---- Casts ------------------------------------------------------------------------------------------------------- */

FXA__RULE_FN fxa__real fxa__real_of_interval(fxa__interval a) {
    return fxa__real_result((double)a.lo, (double)a.hi, false, true);
}
/* Returns int(x) for an x that is not NaN: truncated towards 0 and saturated to 32 bits. */
FXA__RULE_FN fxa__i64 fxa__rule_toint(double x) {
    return x <= (double)FXA__RULE_INT_MIN   ? FXA__RULE_INT_MIN
           : x >= (double)FXA__RULE_INT_MAX ? FXA__RULE_INT_MAX
                                            : (fxa__i64)x;
}
/* Returns bounds of int(x) for x in a; int(NaN) is 0. */
FXA__RULE_FN fxa__interval fxa__interval_of_real(fxa__real a) {
    const fxa__interval zero = fxa__interval_make(0, 0);
    if (fxa__real_none(a)) return zero;
    const fxa__interval out = fxa__interval_make(fxa__rule_toint(a.lo), fxa__rule_toint(a.hi));
    return a.nan ? fxa__interval_hull(out, zero) : out;
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

#define FXA__RULE_BLOCK 64 /* elements of a block; a table holds the {min, max} pair of each block of a tensor */
#define FXA__RULE_WALK 256 /* a load that may read from more blocks is unbounded */

FXA__RULE_FN fxa__i64 fxa__interval_n_blocks(fxa__i64 size) { return (size + FXA__RULE_BLOCK - 1) / FXA__RULE_BLOCK; }

/* Returns the hull of `out` and of the {min, max} pairs of the blocks that contain elements first..last of a tensor
 * row. Returns `out` if first > last, and the unbounded interval if there are more than FXA__RULE_WALK blocks. */
FXA__RULE_FN fxa__interval fxa__interval_walk(const int *pairs, fxa__i64 first, fxa__i64 last, fxa__interval out) {
    if (first > last) return out;
    if (last / FXA__RULE_BLOCK - first / FXA__RULE_BLOCK >= FXA__RULE_WALK) return fxa__interval_any();
    for (fxa__i64 i = first / FXA__RULE_BLOCK; i <= last / FXA__RULE_BLOCK; i++) {
        const fxa__interval block = fxa__interval_make(pairs[2 * i], pairs[2 * i + 1]);
        out = out.lo > out.hi ? block : fxa__interval_hull(out, block);
    }
    return out;
}
/* Adds one more axis of `size` elements to *row, a row-major position over the axes so far. Returns 1 if the index is
 * in bounds (a negative index counts from the end); else uses index 0 and returns 0. */
FXA__RULE_FN int fxa__at_row(fxa__i64 size, fxa__i64 index, long long *row) {
    const fxa__i64 i = index < 0 ? index + size : index;
    const int inside = i >= 0 && i < size;
    *row = *row * size + (inside ? i : 0);
    return inside;
}
/* Returns bounds of a load from a row (along the last axis) of a tensor. size: elements of the row; pairs: {min, max}
 * of each FXA__RULE_BLOCK elements. A negative index counts from the end; a load out of bounds gives 0. */
FXA__RULE_FN fxa__interval fxa__interval_load(const int *pairs, fxa__i64 size, fxa__interval index) {
    const fxa__interval zero = fxa__interval_make(0, 0);
    fxa__interval out = fxa__interval_make(1, 0);
    out = fxa__interval_walk(pairs, fxa__rule_max(index.lo, 0), fxa__rule_min(index.hi, size - 1), out);
    out = fxa__interval_walk(pairs, fxa__rule_max(index.lo, -size) + size, fxa__rule_min(index.hi, -1) + size, out);
    if (out.lo > out.hi) return zero;
    return index.lo < -size || index.hi >= size ? fxa__interval_hull(out, zero) : out;
}
/* Clips the bounds of a bool tensor's element to 0..1. */
FXA__RULE_FN fxa__interval fxa__interval_truth(fxa__interval a) {
    return fxa__interval_make(fxa__rule_max(a.lo, 0), fxa__rule_min(a.hi, 1));
}
/* Returns the interval of the bool x == y for two i64 elements. equal: this interval for the elements saturated to 32
 * bits; a: interval of the saturated x. Equality at INT32_MIN or INT32_MAX makes the result unknown, because different
 * elements saturate to these values. */
FXA__RULE_FN fxa__interval fxa__interval_whole(fxa__interval equal, fxa__interval a) {
    return equal.lo && (a.lo == FXA__RULE_INT_MIN || a.lo == FXA__RULE_INT_MAX) ? fxa__interval_make(0, 1) : equal;
}

/* ---- One function per rule, such as fxa__ints_ADD(a, b); operations with one operand ignore b -------------------- */
/* clang-format off */
#define FXA__INT_RULE(ID, value)                                                                                       \
    FXA__RULE_FN fxa__interval fxa__ints_##ID(fxa__interval a, fxa__interval b) { (void)b; return value; }
#define FXA__BOOL_RULE(ID, value)                                                                                      \
    FXA__RULE_FN fxa__interval fxa__bools_##ID(fxa__interval a, fxa__interval b) { (void)b; return value; }
#define FXA__REAL_RULE(ID, value)                                                                                      \
    FXA__RULE_FN fxa__real fxa__reals_##ID(fxa__real a, fxa__real b) {                                                 \
        return fxa__real_none(a) || fxa__real_none(b) ? fxa__real_any() : (value);                                     \
    }
#define FXA__REAL_COMPARE(ID, value)                                                                                   \
    FXA__RULE_FN fxa__interval fxa__reals_##ID(fxa__real a, fxa__real b) { return value; }
FXA__INT_RULES(FXA__INT_RULE)
FXA__BOOL_RULES(FXA__BOOL_RULE)
FXA__REAL_RULES(FXA__REAL_RULE)
FXA__REAL_COMPARES(FXA__REAL_COMPARE)
/* clang-format on */

#endif
