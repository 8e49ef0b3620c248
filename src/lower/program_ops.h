/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that emitted text calls (emit.h): functions named in the rows of ops.def, and loads of captured
 * tensors. This file is both C and CUDA, in f64 or, with FXA__OPS_F32, in f32. It is compiled together with emitted
 * text. The library itself uses the equal functions of base/num.h and base/dtype.h; tests/lower/test_emit.c checks that
 * both agree.
 *
 * Every function is defined for every operand: ints wrap, shift counts are taken modulo 32, division by 0 gives 0.
 */
#ifndef FXA_LOWER_PROGRAM_OPS_H
#define FXA_LOWER_PROGRAM_OPS_H

#ifdef __CUDACC__
#define FXA__OPS_FN static __device__ __forceinline__
#else
#include <math.h>
#include <string.h>
#define FXA__OPS_FN static inline
#endif

#ifdef FXA__OPS_F32
typedef float real;
#define FXA__OPS_OF(function) function##f
#else
typedef double real;
#define FXA__OPS_OF(function) function
#endif

/* ---- Floats from bits -------------------------------------------------------------------------------------------- */

FXA__OPS_FN float fxa__float_of(unsigned bits) {
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

#define FXA__OPS_INF ((real)fxa__float_of(0x7f800000u))
#define FXA__OPS_NAN ((real)fxa__float_of(0x7fc00000u))

FXA__OPS_FN float fxa__float_of_f16(unsigned bits) {
#ifdef __CUDACC__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
    return x;
#else
    unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, part = bits & 1023u;
    if (exponent == 31) return fxa__float_of(sign | 0x7f800000u | part << 13);
    if (exponent) return fxa__float_of(sign | (exponent + 112) << 23 | part << 13);
    return sign ? -((float)part * 0x1p-24f) : (float)part * 0x1p-24f;
#endif
}

FXA__OPS_FN float fxa__float_of_e4m3(unsigned bits) {
    const unsigned sign = (bits & 0x80u) << 24, exponent = bits >> 3 & 15u, part = bits & 7u;
    if ((bits & 0x7fu) == 0x7fu) return fxa__float_of(0x7fc00000u);
    if (exponent) return fxa__float_of(sign | (exponent + 120) << 23 | part << 20);
    return sign ? -((float)part * 0x1p-9f) : (float)part * 0x1p-9f;
}

/* ---- Ints -------------------------------------------------------------------------------------------------------- */

FXA__OPS_FN int fxa__wrap32(long long x) { return (int)(unsigned)((unsigned long long)x & 0xffffffffu); }
FXA__OPS_FN int fxa__sat32(long long x) {
    const int lo = -2147483647 - 1, hi = 2147483647;
    return x < lo ? lo : x > hi ? hi : (int)x;
}
/* Returns floor(x / |b|) and sets *rest to the remainder, for x <= 2^31; b == 0 counts as 1. Branch-free, since kernels
 * call the function for every (row, key) pair while asynchronous matrix products run. The only division divides a
 * constant by |b|. b is usually the same for many x, so the compiler can hoist the division. With y = |b| and
 * z = floor((2^32 - 1) / y), x * z / 2^32 is above x / y - 1, so the estimate q is at most one too small. */
FXA__OPS_FN unsigned fxa__divide(unsigned x, int b, unsigned *rest) {
    const unsigned y = b < 0 ? 0u - (unsigned)b : b == 0 ? 1u : (unsigned)b, z = 0xffffffffu / y;
    const unsigned q = (unsigned)((unsigned long long)x * z >> 32), r = x - q * y;
    *rest = r >= y ? r - y : r;
    return r >= y ? q + 1 : q;
}
FXA__OPS_FN unsigned fxa__size32(int a) { return a < 0 ? 0u - (unsigned)a : (unsigned)a; }
/* Returns floor(a / b), 0 for b == 0. The only quotient that does not fit, INT32_MIN / -1, wraps. */
FXA__OPS_FN int fxa__floordiv32(int a, int b) {
    unsigned r;
    const unsigned q = fxa__divide(fxa__size32(a), b, &r), down = 0u - q - (r != 0);
    return b == 0 ? 0 : (int)((a < 0) != (b < 0) ? down : q);
}
/* Returns a - b * floor(a / b), which has the sign of b; 0 for b == 0. */
FXA__OPS_FN int fxa__floormod32(int a, int b) {
    unsigned r;
    (void)fxa__divide(fxa__size32(a), b, &r);
    const unsigned m = (a < 0) != (b < 0) && r != 0 ? fxa__size32(b) - r : r;
    return (int)(b < 0 ? 0u - m : m);
}
/* Returns floor(a / b) like fxa__floordiv32, for a >= 0. */
FXA__OPS_FN int fxa__plusdiv32(int a, int b) {
    unsigned r;
    const unsigned q = fxa__divide((unsigned)a, b, &r), down = 0u - q - (r != 0);
    return b == 0 ? 0 : (int)(b < 0 ? down : q);
}
/* Returns the remainder like fxa__floormod32, for a >= 0. */
FXA__OPS_FN int fxa__plusmod32(int a, int b) {
    unsigned r;
    (void)fxa__divide((unsigned)a, b, &r);
    return (int)(b < 0 && r != 0 ? r + (unsigned)b : r);
}
FXA__OPS_FN int fxa__shl32(int a, int n) { return (int)((unsigned)a << ((unsigned)n & 31u)); }
FXA__OPS_FN int fxa__shr32(int a, int n) {
    const unsigned s = (unsigned)n & 31u;
    return a < 0 ? (int)~(~(unsigned)a >> s) : (int)((unsigned)a >> s);
}
/* Returns x - y, saturated to 32 bits. */
FXA__OPS_FN int fxa__apart(int x, int y) { return fxa__sat32((long long)x - y); }
/* Returns x + y modulo 2^32. */
FXA__OPS_FN int fxa__shift(int x, int y) { return (int)((unsigned)x + (unsigned)y); }
/* Returns x truncated and saturated to 32 bits, 0 for NaN. */
FXA__OPS_FN int fxa__toint(real x) {
    const int lo = -2147483647 - 1, hi = 2147483647;
    if (!(x == x)) return 0;
    return x <= (real)lo ? lo : x >= (real)hi ? hi : (int)x;
}

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

FXA__OPS_FN real fxa__fmin(real a, real b) { return a != a || b != b ? FXA__OPS_NAN : b < a ? b : a; }
FXA__OPS_FN real fxa__fmax(real a, real b) { return a != a || b != b ? FXA__OPS_NAN : b > a ? b : a; }
FXA__OPS_FN real fxa__fclamp(real x, real lo, real hi) { return fxa__fmin(fxa__fmax(x, lo), hi); }
FXA__OPS_FN real fxa__fmodf(real a, real b) {
    const real r = FXA__OPS_OF(fmod)(a, b);
    return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
FXA__OPS_FN real fxa__sigmoid(real x) {
    const real e = FXA__OPS_OF(exp)(-FXA__OPS_OF(fabs)(x));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* ---- Captured tensors -------------------------------------------------------------------------------------------- */

/* Checks one index of a load; a negative index counts from the end of the axis. Returns 1 and adds index * stride to
 * *offset, or returns 0 if the index is out of bounds. */
FXA__OPS_FN int fxa__at(int size, long long stride, int index, long long *offset) {
    const long long i = index < 0 ? (long long)index + size : index;
    const int inside = i >= 0 && i < size;
    *offset += inside ? i * stride : 0;
    return inside;
}

/* fxa__read_<type> returns element `at` of an array. In CUDA the read is inline assembly without a memory clobber:
 * captured tensors are not written while a kernel runs, so the compiler may reorder the read freely. With plain loads,
 * alias analysis of the hundreds of loads of a tile took two thirds of the compile time. */
#ifdef __CUDACC__
#define FXA__OPS_READ(name, type, in, ptx, letter)                                                                     \
    FXA__OPS_FN type fxa__read_##name(const void *data, long long at) {                                                \
        in x;                                                                                                          \
        asm("ld.global.nc." ptx " %0, [%1];" : "=" letter(x) : "l"((const type *)data + at));                          \
        return (type)x;                                                                                                \
    }
#else
#define FXA__OPS_READ(name, type, in, ptx, letter)                                                                     \
    FXA__OPS_FN type fxa__read_##name(const void *data, long long at) { return ((const type *)data)[at]; }
#endif
FXA__OPS_READ(f64, double, double, "f64", "d")
FXA__OPS_READ(f32, float, float, "f32", "f")
FXA__OPS_READ(u16, unsigned short, unsigned short, "u16", "h")
FXA__OPS_READ(u8, unsigned char, unsigned, "u8", "r")
FXA__OPS_READ(i64, long long, long long, "s64", "l")
FXA__OPS_READ(i32, int, int, "s32", "r")
FXA__OPS_READ(i16, short, int, "s16", "r")
FXA__OPS_READ(i8, signed char, int, "s8", "r")
#undef FXA__OPS_READ

/* fxa__get_<dtype> returns element `at`, converted to the compute type or to a 32-bit int. */
FXA__OPS_FN real fxa__get_f64(const void *data, long long at) { return (real)fxa__read_f64(data, at); }
FXA__OPS_FN real fxa__get_f32(const void *data, long long at) { return (real)fxa__read_f32(data, at); }
FXA__OPS_FN real fxa__get_f16(const void *data, long long at) {
    return (real)fxa__float_of_f16(fxa__read_u16(data, at));
}
FXA__OPS_FN real fxa__get_bf16(const void *data, long long at) {
    return (real)fxa__float_of((unsigned)fxa__read_u16(data, at) << 16);
}
FXA__OPS_FN real fxa__get_e4m3(const void *data, long long at) {
    return (real)fxa__float_of_e4m3(fxa__read_u8(data, at));
}
FXA__OPS_FN real fxa__get_e5m2(const void *data, long long at) { /* e5m2 is the upper byte of an f16 */
    return (real)fxa__float_of_f16((unsigned)fxa__read_u8(data, at) << 8);
}
FXA__OPS_FN long long fxa__get_whole(const void *data, long long at) { return fxa__read_i64(data, at); }
/* Returns the i64 element `at`, like fxa__get_whole, for loads that are rarely executed: the load is volatile, so the
 * compiler does not hoist it out of its branch. */
FXA__OPS_FN long long fxa__rare_whole(const void *data, long long at) {
#ifdef __CUDACC__
    long long x;
    asm volatile("ld.global.s64 %0, [%1];" : "=l"(x) : "l"((const long long *)data + at));
    return x;
#else
    return fxa__get_whole(data, at);
#endif
}
FXA__OPS_FN int fxa__get_i64(const void *data, long long at) { return fxa__sat32(fxa__get_whole(data, at)); }
FXA__OPS_FN int fxa__get_i32(const void *data, long long at) { return fxa__read_i32(data, at); }
FXA__OPS_FN int fxa__get_i16(const void *data, long long at) { return fxa__read_i16(data, at); }
FXA__OPS_FN int fxa__get_i8(const void *data, long long at) { return fxa__read_i8(data, at); }
FXA__OPS_FN int fxa__get_u8(const void *data, long long at) { return fxa__read_u8(data, at); }
FXA__OPS_FN int fxa__get_bool(const void *data, long long at) { return fxa__read_u8(data, at) != 0; }

/* Returns 1 if 0 <= index < size, else 0. */
FXA__OPS_FN int fxa__inside(int size, int index) { return (unsigned)index < (unsigned)size; }

/* An element that can always be read. For some loads, emit_load.c computes an address once per head; if the indices are
 * out of bounds for a head, the address is that of fxa__nothing. */
#ifdef __CUDACC__
static __device__ const long long fxa__nothing = 0;
#else
static const long long fxa__nothing = 0;
#endif

/* fxa__take_<dtype> returns element `at` if inside, else 0. `at` must be readable in either case, so that the load
 * needs no branch and equal loads can be merged. */
#define FXA__OPS_TAKE(name, type)                                                                                      \
    FXA__OPS_FN type fxa__take_##name(const void *data, long long at, int inside) {                                    \
        const type x = fxa__get_##name(data, at);                                                                      \
        return inside ? x : 0;                                                                                         \
    }
FXA__OPS_TAKE(f64, real)
FXA__OPS_TAKE(f32, real)
FXA__OPS_TAKE(f16, real)
FXA__OPS_TAKE(bf16, real)
FXA__OPS_TAKE(e4m3, real)
FXA__OPS_TAKE(e5m2, real)
FXA__OPS_TAKE(whole, long long)
FXA__OPS_TAKE(i64, int)
FXA__OPS_TAKE(i32, int)
FXA__OPS_TAKE(i16, int)
FXA__OPS_TAKE(i8, int)
FXA__OPS_TAKE(u8, int)
FXA__OPS_TAKE(bool, int)
#undef FXA__OPS_TAKE

#endif
