/* SPDX-License-Identifier: Apache-2.0
 *
 * Integer arithmetic without undefined behaviour: checked sizes, and the wrapping 32-bit ints of score programs.
 */
#ifndef FXA_BASE_NUM_H
#define FXA_BASE_NUM_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "NaN and infinities mean something in fxattn: it cannot be compiled with -ffast-math or -ffinite-math-only"
#endif
#if FLT_EVAL_METHOD != 0
#error "fxattn needs exact f32 and f64, FLT_EVAL_METHOD 0: cmake/machine.cmake has the flags of each compiler"
#endif

/* fxa__add_x and fxa__mul_x return false on overflow; *out is then unspecified. */
static inline bool fxa__add_i64(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool fxa__mul_i64(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool fxa__add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool fxa__mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

static inline int64_t fxa__min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t fxa__max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* fxa__div_up returns x / by rounded up; fxa__round_up returns x rounded up to a multiple of `to`. `by` and `to` are
 * positive, x is not negative. */
static inline int64_t fxa__div_up(int64_t x, int64_t by) { return (x + by - 1) / by; }
static inline int64_t fxa__round_up(int64_t x, int64_t to) { return fxa__div_up(x, to) * to; }

/* Returns the low 32 bits of x as a two's complement int. */
static inline int32_t fxa__wrap32(int64_t x) {
    uint32_t u = (uint32_t)((uint64_t)x & 0xffffffffu);
    return u < 0x80000000u ? (int32_t)u : (int32_t)(u - 0x80000000u) + INT32_MIN;
}
static inline int32_t fxa__sat32(int64_t x) {
    return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : (int32_t)x;
}

/* Operations on ints of score programs: division rounds down, and is 0 for a divisor of 0; INT_MIN // -1 wraps; shift
 * counts are modulo 32. */
static inline int32_t fxa__floordiv32(int32_t a, int32_t b) {
    if (b == 0) return 0;
    int64_t q = (int64_t)a / b;
    return fxa__wrap32(q - (((int64_t)a % b != 0 && ((a < 0) != (b < 0))) ? 1 : 0));
}
static inline int32_t fxa__floormod32(int32_t a, int32_t b) {
    if (b == 0) return 0;
    int64_t r = (int64_t)a % b;
    return (int32_t)(r != 0 && ((r < 0) != (b < 0)) ? r + b : r);
}
static inline int32_t fxa__shl32(int32_t a, int32_t n) {
    return fxa__wrap32((int64_t)((uint32_t)a << ((uint32_t)n & 31u)));
}
static inline int32_t fxa__shr32(int32_t a, int32_t n) {
    uint32_t s = (uint32_t)n & 31u;
    return a < 0 ? (int32_t) ~(~(uint32_t)a >> s) : (int32_t)((uint32_t)a >> s);
}
/* int(x): rounds towards zero and saturates; NaN gives 0. */
static inline int32_t fxa__toint(double x) {
    if (!(x == x)) return 0;
    return x <= -2147483648.0 ? INT32_MIN : x >= 2147483647.0 ? INT32_MAX : (int32_t)x;
}

/* Operations on floats of score programs, in f64. */
static inline double fxa__fmin(double a, double b) { return a != a || b != b ? NAN : b < a ? b : a; }
static inline double fxa__fmax(double a, double b) { return a != a || b != b ? NAN : b > a ? b : a; }
static inline double fxa__fclamp(double x, double lo, double hi) { return fxa__fmin(fxa__fmax(x, lo), hi); }
static inline double fxa__fmodf(double a, double b) {
    double r = fmod(a, b);
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
static inline double fxa__sigmoid(double x) {
    double e = exp(-fabs(x));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}
static inline double fxa__softplus(double x) { return (x < 0 ? 0 : x) + log1p(exp(-fabs(x))); }

#endif
