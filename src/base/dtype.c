/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage types: names, sizes, and conversion of one element from and to f64. A value is rounded once, directly from
 * f64, since a step through f32 would round twice.
 */
#include "dtype.h"

#include "num.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *fxa_dtype_name(fxa_dtype dtype) {
    switch (dtype) {
#define DTYPE_NAME(name, value, text, size, type)                                                                      \
    case FXA_##name: return text;
        FXA_DTYPE_MAP(DTYPE_NAME)
    default: return "none";
    }
}

const char *fxa__dtype_show(uint32_t dtype, char text[24]) {
    if (dtype == FXA_DTYPE_NONE || fxa__dtype_valid(dtype)) return fxa_dtype_name((fxa_dtype)dtype);
    (void)snprintf(text, 24, "%" PRIu32 " (no dtype)", dtype);
    return text;
}

size_t fxa_dtype_size(fxa_dtype dtype) {
    switch (dtype) {
#define DTYPE_SIZE(name, value, text, size, type)                                                                      \
    case FXA_##name: return size;
        FXA_DTYPE_MAP(DTYPE_SIZE)
    default: return 0;
    }
}

fxa_dtype fxa_dtype_find(const char *name) {
    if (!name) return FXA_DTYPE_NONE;
#define DTYPE_FIND(id, value, text, size, type)                                                                        \
    if (strcmp(name, text) == 0) return FXA_##id;
    FXA_DTYPE_MAP(DTYPE_FIND)
    return FXA_DTYPE_NONE;
}

bool fxa__dtype_valid(uint32_t dtype) { return fxa_dtype_size((fxa_dtype)dtype) != 0; }

fxa_type fxa__dtype_type(uint32_t dtype) {
    switch (dtype) {
#define DTYPE_TYPE(name, value, text, size, type)                                                                      \
    case value: return FXA_##type;
        FXA_DTYPE_MAP(DTYPE_TYPE)
    default: return (fxa_type)0;
    }
}

bool fxa__dtype_is_float(uint32_t dtype) { return fxa__dtype_type(dtype) == FXA_FLOAT; }

/* ---- 16-bit floats ----------------------------------------------------------------------------------------------- */

static double dtype_from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double fxa__f16_to_f64(uint16_t bits) {
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * fraction * 0x1p-24;
    return sign * dtype_from_bits((uint64_t)(exponent - 15 + 1023) << 52 | (uint64_t)fraction << 42);
}

double fxa__bf16_to_f64(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

/* Returns the exponent and fraction bits of |x| in a float format with `fraction` fraction bits and exponent bias
 * `bias`, rounded to nearest even. A carry out of the fraction correctly increments the exponent. Computed in ints, so
 * that flushing of subnormals in the processor has no effect. */
static uint64_t dtype_round(double x, int fraction, int bias) {
    const uint64_t one = (uint64_t)1 << 52;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023 + bias, drop = 52 - fraction;
    if (exponent > 0) {
        bits -= (uint64_t)(1023 - bias) << 52;
    } else { /* subnormal: fewer fraction bits remain */
        drop += 1 - exponent;
        if (drop > 53) return 0;
        bits = (bits & (one - 1)) | one;
    }
    return (bits + ((uint64_t)1 << (drop - 1)) - 1 + (bits >> drop & 1)) >> drop;
}

/* Returns x rounded to a 16-bit float with the given fraction bits and exponent bias. */
static uint16_t dtype_narrow(double x, int fraction, int bias) {
    const uint64_t infinity = ((1u << (15 - fraction)) - 1) << fraction;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (x != x) return (uint16_t)(sign | infinity | 1u << (fraction - 1));
    uint64_t bits = dtype_round(fabs(x), fraction, bias);
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

uint16_t fxa__f64_to_f16(double x) { return dtype_narrow(x, 10, 15); }
uint16_t fxa__f64_to_bf16(double x) { return dtype_narrow(x, 7, 127); }

/* ---- 8-bit floats ------------------------------------------------------------------------------------------------ */

/* Converts e4m3. Codes with the largest exponent, which are infinity and NaN in other formats, are numbers in e4m3,
 * except one NaN per sign. */
double fxa__e4m3_to_f64(uint8_t bits) {
    double sign = bits & 0x80 ? -1.0 : 1.0;
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    if ((bits & 0x7f) == 0x7f) return NAN;
    if (exponent == 0) return sign * fraction * 0x1p-9;
    return sign * dtype_from_bits((uint64_t)(exponent - 7 + 1023) << 52 | (uint64_t)fraction << 49);
}

/* e5m2 is the upper half of an f16. */
double fxa__e5m2_to_f64(uint8_t bits) { return fxa__f16_to_f64((uint16_t)(bits << 8)); }

/* Returns x rounded to an 8-bit float; a magnitude above the largest finite number becomes the largest finite
 * number. */
static uint8_t dtype_narrow_byte(double x, int fraction, int bias, uint8_t largest) {
    uint8_t sign = signbit(x) ? 0x80 : 0;
    if (x != x) return sign | 0x7f;
    if (fabs(x) > 0x1p20) return sign | largest; /* x is far above the largest 8-bit float */
    uint64_t bits = dtype_round(fabs(x), fraction, bias);
    return (uint8_t)(sign | (bits < largest ? bits : largest));
}

uint8_t fxa__f64_to_e4m3(double x) { return dtype_narrow_byte(x, 3, 7, 0x7e); }
uint8_t fxa__f64_to_e5m2(double x) { return dtype_narrow_byte(x, 2, 15, 0x7b); }

/* ---- One element ------------------------------------------------------------------------------------------------- */

double fxa__load_f64(const void *data, uint32_t dtype, int64_t index) {
    switch (dtype) {
    case FXA_F64: return ((const double *)data)[index];
    case FXA_F32: return (double)((const float *)data)[index];
    case FXA_F16: return fxa__f16_to_f64(((const uint16_t *)data)[index]);
    case FXA_BF16: return fxa__bf16_to_f64(((const uint16_t *)data)[index]);
    case FXA_E4M3: return fxa__e4m3_to_f64(((const uint8_t *)data)[index]);
    case FXA_E5M2: return fxa__e5m2_to_f64(((const uint8_t *)data)[index]);
    default: return 0;
    }
}

int64_t fxa__load_i64(const void *data, int64_t index) { return ((const int64_t *)data)[index]; }

void fxa__store_f64(void *data, uint32_t dtype, int64_t index, double x) {
    switch (dtype) {
    case FXA_F64: ((double *)data)[index] = x; break;
    case FXA_F32: ((float *)data)[index] = (float)x; break;
    case FXA_F16: ((uint16_t *)data)[index] = fxa__f64_to_f16(x); break;
    case FXA_BF16: ((uint16_t *)data)[index] = fxa__f64_to_bf16(x); break;
    case FXA_E4M3: ((uint8_t *)data)[index] = fxa__f64_to_e4m3(x); break;
    case FXA_E5M2: ((uint8_t *)data)[index] = fxa__f64_to_e5m2(x); break;
    default: break;
    }
}
