/* SPDX-License-Identifier: Apache-2.0
 *
 * Storage types: names, sizes and conversions of one element, to and from f64. A value is rounded once, straight from
 * f64: going through f32 first would round twice.
 */
#include "dtype.h"

#include "num.h"

#include <string.h>

const char *fxa_dtype_name(fxa_dtype dtype) {
    switch (dtype) {
#define DTYPE_NAME(name, value, text, size, type)                                                                      \
    case FXA_##name: return text;
        FXA_DTYPE_MAP(DTYPE_NAME)
    default: return "none";
    }
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

/* ---- 16-bit floats --------------------------------------------------------------------------------------------- */

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

/* Rounds |x| to `fraction` bits with exponents from `min_exponent` (of normal numbers) up, to nearest even, by adding
 * and taking away a power of two that puts the last kept bit at the unit of f64's own rounding. */
static double dtype_round(double magnitude, int fraction, int min_exponent) {
    int exponent;
    (void)frexp(magnitude, &exponent); /* magnitude = f * 2^exponent, 0.5 <= f < 1 */
    int last = exponent - 1 < min_exponent ? min_exponent - fraction : exponent - 1 - fraction;
    double unit = ldexp(1.0, last);
    return nearbyint(magnitude / unit) * unit; /* both exact: unit is a power of two and nothing leaves f64's range */
}

uint16_t fxa__f64_to_f16(double x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (x != x) return (uint16_t)(sign | 0x7e00);
    double m = fabs(x);
    if (m >= 65520.0) return (uint16_t)(sign | 0x7c00); /* halfway between the largest f16 and 2^16 rounds up */
    if (m == 0) return sign;
    m = dtype_round(m, 10, -14);
    if (m < 0x1p-14) return (uint16_t)(sign | (uint16_t)(m * 0x1p24));
    int exponent;
    double f = frexp(m, &exponent);
    return (uint16_t)(sign | ((uint32_t)(exponent - 1 + 15) << 10) | ((uint32_t)(f * 2048) & 1023u));
}

uint16_t fxa__f64_to_bf16(double x) {
    if (x != x) return (uint16_t)(signbit(x) ? 0xffc0 : 0x7fc0);
    double m = fabs(x);
    uint32_t bits = 0x7f800000u;
    if (m < 0x1.ffp127) { /* halfway between the largest bf16 and 2^128 */
        float narrow = m == 0 ? 0.0f : (float)dtype_round(m, 7, -126);
        memcpy(&bits, &narrow, sizeof bits);
    }
    return (uint16_t)(bits >> 16 | (signbit(x) ? 0x8000u : 0u));
}

/* ---- One element ----------------------------------------------------------------------------------------------- */

double fxa__load_f64(const void *data, uint32_t dtype, int64_t index) {
    switch (dtype) {
    case FXA_F64: return ((const double *)data)[index];
    case FXA_F32: return (double)((const float *)data)[index];
    case FXA_F16: return fxa__f16_to_f64(((const uint16_t *)data)[index]);
    case FXA_BF16: return fxa__bf16_to_f64(((const uint16_t *)data)[index]);
    default: return 0;
    }
}

int32_t fxa__load_i32(const void *data, uint32_t dtype, int64_t index) {
    switch (dtype) {
    case FXA_I64: return fxa__sat32(((const int64_t *)data)[index]);
    case FXA_I32: return ((const int32_t *)data)[index];
    case FXA_I16: return ((const int16_t *)data)[index];
    case FXA_I8: return ((const int8_t *)data)[index];
    case FXA_U8: return ((const uint8_t *)data)[index];
    case FXA_B8: return ((const uint8_t *)data)[index] != 0;
    default: return 0;
    }
}

void fxa__store_f64(void *data, uint32_t dtype, int64_t index, double x) {
    switch (dtype) {
    case FXA_F64: ((double *)data)[index] = x; break;
    case FXA_F32: ((float *)data)[index] = (float)x; break;
    case FXA_F16: ((uint16_t *)data)[index] = fxa__f64_to_f16(x); break;
    case FXA_BF16: ((uint16_t *)data)[index] = fxa__f64_to_bf16(x); break;
    default: break;
    }
}
