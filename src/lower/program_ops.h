/* SPDX-License-Identifier: Apache-2.0
 *
 * What the text of emit.h calls: the functions that the rows of ops.def name, and loads of captured tensors. It is C as
 * well as CUDA, in f64 or, with FXA__OPS_F32, in f32, and is compiled with the text, not with the library: there
 * base/num.h and base/dtype.h have the same meanings, and tests/lower/test_emit.c holds the two together.
 *
 * Nothing here is undefined for any operand: ints wrap, shifts count modulo 32, a division by 0 gives 0.
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
    const int least = -2147483647 - 1, most = 2147483647;
    return x < least ? least : x > most ? most : (int)x;
}
/* x / |b|, rounded down, and what is left of x, which is 2^31 at most; by 1 where b is 0. No branches, since a kernel
 * does it for many pairs beside asynchronous products; and what is costly is a function of b alone, which has few
 * values where x has many. With z = floor((2^32 - 1) / y), x z / 2^32 is more than x / y - 1: one too few at most. */
FXA__OPS_FN unsigned fxa__divide(unsigned x, int b, unsigned *rest) {
    const unsigned y = b < 0 ? 0u - (unsigned)b : b == 0 ? 1u : (unsigned)b, z = 0xffffffffu / y;
    const unsigned q = (unsigned)((unsigned long long)x * z >> 32), r = x - q * y;
    *rest = r >= y ? r - y : r;
    return r >= y ? q + 1 : q;
}
FXA__OPS_FN unsigned fxa__size32(int a) { return a < 0 ? 0u - (unsigned)a : (unsigned)a; }
/* The one quotient that has no room, that of the least int by -1, wraps. */
FXA__OPS_FN int fxa__floordiv32(int a, int b) {
    unsigned r;
    const unsigned q = fxa__divide(fxa__size32(a), b, &r), down = 0u - q - (r != 0);
    return b == 0 ? 0 : (int)((a < 0) != (b < 0) ? down : q);
}
FXA__OPS_FN int fxa__floormod32(int a, int b) {
    unsigned r;
    (void)fxa__divide(fxa__size32(a), b, &r);
    const unsigned m = (a < 0) != (b < 0) && r != 0 ? fxa__size32(b) - r : r;
    return (int)(b < 0 ? 0u - m : m);
}
/* The same of an a that is not negative. */
FXA__OPS_FN int fxa__plusdiv32(int a, int b) {
    unsigned r;
    const unsigned q = fxa__divide((unsigned)a, b, &r), down = 0u - q - (r != 0);
    return b == 0 ? 0 : (int)(b < 0 ? down : q);
}
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
/* x - y, at an end of 32 bits where it leaves them. */
FXA__OPS_FN int fxa__apart(int x, int y) { return fxa__sat32((long long)x - y); }
/* x + y modulo 2^32. */
FXA__OPS_FN int fxa__shift(int x, int y) { return (int)((unsigned)x + (unsigned)y); }
FXA__OPS_FN int fxa__toint(real x) {
    const int least = -2147483647 - 1, most = 2147483647;
    if (!(x == x)) return 0;
    return x <= (real)least ? least : x >= (real)most ? most : (int)x;
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

/* One index of a load: a negative one counts from the end. 1 and its part of the offset, or 0 where it is outside. */
FXA__OPS_FN int fxa__at(int size, long long stride, int index, long long *offset) {
    const long long i = index < 0 ? (long long)index + size : index;
    const int inside = i >= 0 && i < size;
    *offset += inside ? i * stride : 0;
    return inside;
}

/* What lies at an index of an array. Nothing writes to captured tensors while kernels run: there it is a value like any
 * other to the compiler, as text that it does not look into. As loads of its own, of hundreds for a tile each was held
 * against all others, and two thirds of the time of compiling went there. */
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

/* An element, by the name of its dtype. */
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
FXA__OPS_FN real fxa__get_e5m2(const void *data, long long at) { /* an f16 without its last byte */
    return (real)fxa__float_of_f16((unsigned)fxa__read_u8(data, at) << 8);
}
FXA__OPS_FN long long fxa__get_whole(const void *data, long long at) { return fxa__read_i64(data, at); }
/* The same where it is hardly ever needed: the compiler does not move it to where it would cost something. */
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

/* Whether an index that is not counted from the end lies inside. */
FXA__OPS_FN int fxa__inside(int size, int index) { return (unsigned)index < (unsigned)size; }

/* What a load reads where the tensor has nothing to read. */
#ifdef __CUDACC__
static __device__ const long long fxa__nothing = 0;
#else
static const long long fxa__nothing = 0;
#endif

/* An element, or 0: the offset is one inside in any case, so that nothing branches, and equal loads are one. */
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
