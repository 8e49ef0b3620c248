/* SPDX-License-Identifier: Apache-2.0
 *
 * src/base/dtype.c and num.h: conversion of every 16-bit and 8-bit float in both directions, rounding to even,
 * saturation, program ints.
 */
#include "base/dtype.h"
#include "base/num.h"
#include "t.h"

TEST(every_f16_and_bf16_survives_the_way_there_and_back) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        double x = fxa__f16_to_f64((uint16_t)bits), y = fxa__bf16_to_f64((uint16_t)bits);
        if (x == x && fxa__f64_to_f16(x) != bits) T_FAIL("f16 %04x comes back as %04x\n", bits, fxa__f64_to_f16(x));
        if (y == y && fxa__f64_to_bf16(y) != bits) T_FAIL("bf16 %04x comes back as %04x\n", bits, fxa__f64_to_bf16(y));
        if (x != x) T_CHECK(fxa__f16_to_f64(fxa__f64_to_f16(x)) != x);
        if (y != y) T_CHECK(fxa__bf16_to_f64(fxa__f64_to_bf16(y)) != y);
    }
}

/* Checks rounding between neighbours a and b: below the midpoint to a, above to b, the midpoint to the even one. */
static void dtype_check_rounding(uint16_t (*narrow)(double), double (*widen)(uint16_t), uint32_t infinity) {
    for (uint32_t bits = 0; bits + 1 < infinity; bits++) {
        double a = widen((uint16_t)bits), b = widen((uint16_t)(bits + 1)), middle = (a + b) / 2;
        uint16_t even = (uint16_t)(bits & 1 ? bits + 1 : bits);
        if (narrow(middle) != even) T_FAIL("the middle above %04x goes to %04x\n", bits, narrow(middle));
        if (narrow(nextafter(middle, 0)) != bits) T_FAIL("below the middle above %04x\n", bits);
        if (narrow(nextafter(middle, INFINITY)) != bits + 1) T_FAIL("above the middle above %04x\n", bits);
        if (narrow(-middle) != (even | 0x8000)) T_FAIL("the negative middle above %04x\n", bits);
    }
}

TEST(f16_rounds_once_to_nearest_even) { dtype_check_rounding(fxa__f64_to_f16, fxa__f16_to_f64, 0x7c00); }
TEST(bf16_rounds_once_to_nearest_even) { dtype_check_rounding(fxa__f64_to_bf16, fxa__bf16_to_f64, 0x7f80); }

TEST(sixteen_bit_overflow_and_underflow) {
    T_INT(fxa__f64_to_f16(65519.999), 0x7bff);
    T_INT(fxa__f64_to_f16(65520), 0x7c00);
    T_INT(fxa__f64_to_f16(-1e300), 0xfc00);
    T_INT(fxa__f64_to_f16(0x1p-25), 0);
    T_INT(fxa__f64_to_f16(0x1.0001p-25), 1);
    T_INT(fxa__f64_to_f16(-1e-300), 0x8000);
    T_INT(fxa__f64_to_bf16(1e39), 0x7f80);
    T_INT(fxa__f64_to_bf16(0x1.ffp127), 0x7f80);
    T_INT(fxa__f64_to_bf16(0x1.feffp127), 0x7f7f);
    T_INT(fxa__f64_to_bf16(4e-320), 0);
}

/* ---- 8 bits ------------------------------------------------------------------------------------------------------ */

/* Format by definition: sign, exponent, fraction; `last` is the largest finite encoding. */
typedef struct byte_float {
    uint8_t (*narrow)(double);
    double (*widen)(uint8_t);
    int fraction, bias, last;
} byte_float;
static const byte_float byte_floats[] = {{fxa__f64_to_e4m3, fxa__e4m3_to_f64, 3, 7, 0x7e},
                                         {fxa__f64_to_e5m2, fxa__e5m2_to_f64, 2, 15, 0x7b}};

static double byte_value(const byte_float *f, int code) {
    int exponent = code >> f->fraction, unit = 1 << f->fraction, fraction = code % unit;
    return ldexp(exponent ? unit + fraction : fraction, (exponent ? exponent : 1) - f->bias - f->fraction);
}

TEST(every_number_of_8_bits_is_what_its_bits_say) {
    for (int j = 0; j < 2; j++) {
        const byte_float *f = &byte_floats[j];
        for (int code = 0; code <= f->last; code++) {
            double x = byte_value(f, code);
            T_SAME(f->widen((uint8_t)code), x);
            T_SAME(f->widen((uint8_t)(code | 0x80)), -x);
            T_INT(f->narrow(x), code);
            T_INT(f->narrow(-x), code | 0x80);
        }
    }
    T_SAME(fxa__e4m3_to_f64(0x38), 1.0);
    T_SAME(fxa__e4m3_to_f64(0x7e), 448.0);
    T_SAME(fxa__e4m3_to_f64(0x01), 0x1p-9);
    T_SAME(fxa__e4m3_to_f64(0x08), 0x1p-6);
    T_SAME(fxa__e5m2_to_f64(0x3c), 1.0);
    T_SAME(fxa__e5m2_to_f64(0x7b), 57344.0);
    T_SAME(fxa__e5m2_to_f64(0x01), 0x1p-16);
    T_SAME(fxa__e5m2_to_f64(0x7c), INFINITY);
    T_SAME(fxa__e5m2_to_f64(0xfc), -INFINITY);
    for (int code = 0x7d; code <= 0x7f; code++) T_CHECK(isnan(fxa__e5m2_to_f64((uint8_t)code)));
    T_CHECK(isnan(fxa__e4m3_to_f64(0x7f)) && isnan(fxa__e4m3_to_f64(0xff)));
}

TEST(eight_bits_round_once_to_nearest_even_and_end_at_their_largest) {
    for (int j = 0; j < 2; j++) {
        const byte_float *f = &byte_floats[j];
        for (int code = 0; code < f->last; code++) {
            double middle = (byte_value(f, code) + byte_value(f, code + 1)) / 2;
            T_INT(f->narrow(middle), code & 1 ? code + 1 : code);
            T_INT(f->narrow(-middle), (code & 1 ? code + 1 : code) | 0x80);
            T_INT(f->narrow(nextafter(middle, 0)), code);
            T_INT(f->narrow(nextafter(middle, INFINITY)), code + 1);
        }
        const double large[] = {byte_value(f, f->last) * 1.001, byte_value(f, f->last) * 2, 1e9, 1e300, INFINITY};
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            T_INT(f->narrow(large[i]), f->last);
            T_INT(f->narrow(-large[i]), f->last | 0x80);
        }
        T_CHECK(isnan(f->widen(f->narrow(NAN))));
        T_INT(f->narrow(1e-300), 0);
        T_INT(f->narrow(-4e-320), 0x80);
    }
}

TEST(elements_of_every_dtype) {
    int64_t i64[2] = {INT64_MAX, INT64_MIN};
    int8_t i8[1] = {-128};
    uint8_t u8[2] = {255, 2};
    int16_t i16[1] = {-32768};
    float f32[1] = {0.1f};
    double f64[1] = {0.1};
    T_INT(fxa__load_i32(i64, FXA_I64, 0), INT32_MAX);
    T_INT(fxa__load_i32(i64, FXA_I64, 1), INT32_MIN);
    T_INT(fxa__load_i32(i8, FXA_I8, 0), -128);
    T_INT(fxa__load_i32(u8, FXA_U8, 0), 255);
    T_INT(fxa__load_i32(u8, FXA_B8, 1), 1);
    T_INT(fxa__load_i32(i16, FXA_I16, 0), -32768);
    T_SAME(fxa__load_f64(f32, FXA_F32, 0), (double)0.1f);
    T_SAME(fxa__load_f64(f64, FXA_F64, 0), 0.1);
    fxa__store_f64(f32, FXA_F32, 0, 1.0 / 3);
    T_SAME(fxa__load_f64(f32, FXA_F32, 0), (double)(float)(1.0 / 3));
}

TEST(names_and_sizes) {
    for (int d = 1; d <= 12; d++) {
        T_CHECK(fxa_dtype_size((fxa_dtype)d) > 0);
        T_INT(fxa_dtype_find(fxa_dtype_name((fxa_dtype)d)), d);
    }
    T_STR(fxa_dtype_name((fxa_dtype)13), "none");
    T_INT(fxa_dtype_find("f8"), FXA_DTYPE_NONE);
    T_INT(fxa_dtype_find(NULL), FXA_DTYPE_NONE);
    T_INT(fxa_dtype_size((fxa_dtype)0), 0);
    T_INT(fxa__dtype_type(FXA_B8), FXA_BOOL);
    T_INT(fxa__dtype_type(FXA_I16), FXA_INT);
    T_INT(fxa__dtype_type(FXA_BF16), FXA_FLOAT);
    T_INT(fxa__dtype_type(FXA_E5M2), FXA_FLOAT);
    T_INT(fxa__dtype_type(13), 0);
}

TEST(an_element_of_another_kind_reads_0_and_is_not_written) {
    int32_t ints[2] = {7, 8};
    float floats[2] = {7, 8};
    T_SAME(fxa__load_f64(ints, FXA_I32, 1), 0);
    T_INT(fxa__load_i32(floats, FXA_F32, 1), 0);
    fxa__store_f64(ints, FXA_I32, 1, 3.0);
    T_INT(ints[1], 8);
}

TEST(program_ints_wrap_and_round_down) {
    T_INT(fxa__wrap32((int64_t)INT32_MAX + 1), INT32_MIN);
    T_INT(fxa__wrap32(-(int64_t)INT32_MIN), INT32_MIN);
    T_INT(fxa__floordiv32(-7, 2), -4);
    T_INT(fxa__floordiv32(7, -2), -4);
    T_INT(fxa__floordiv32(INT32_MIN, -1), INT32_MIN);
    T_INT(fxa__floordiv32(5, 0), 0);
    T_INT(fxa__floormod32(-7, 2), 1);
    T_INT(fxa__floormod32(7, -2), -1);
    T_INT(fxa__floormod32(INT32_MIN, -1), 0);
    T_INT(fxa__floormod32(5, 0), 0);
    T_INT(fxa__shl32(1, 33), 2);
    T_INT(fxa__shl32(1, -1), INT32_MIN);
    T_INT(fxa__shr32(-5, 1), -3);
    T_INT(fxa__toint(-3.9), -3);
    T_INT(fxa__toint(1e20), INT32_MAX);
    T_INT(fxa__toint(-INFINITY), INT32_MIN);
    T_INT(fxa__toint(NAN), 0);
    T_SAME(fxa__fmodf(-7, 2), 1);
    T_SAME(fxa__fmodf(7, -2), -1);
    T_SAME(fxa__fmin(NAN, 1), NAN);
    T_SAME(fxa__fmax(1, NAN), NAN);
    T_NEAR(fxa__sigmoid(-800), 0, 1e-300);
}

T_MAIN
