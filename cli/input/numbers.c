/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads numbers in options, measures UTF-8, converts elements of all dtypes from and to double, and draws random
 * numbers.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t utf8_length(const unsigned char *s) {
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
               : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
               : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if (s[0] == 0xE0 && n == 3 && s[1] < 0xA0) return 0;
    if (s[0] == 0xED && n == 3 && s[1] > 0x9F) return 0;
    if (s[0] == 0xF0 && n == 4 && s[1] < 0x90) return 0;
    if (s[0] == 0xF4 && n == 4 && s[1] > 0x8F) return 0;
    return n;
}

bool read_double(const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || text[0] == ' ') return false;
    *out = value;
    return true;
}

bool word_is_out_of_range(const char *text, double value) {
    if (*text == '+' || *text == '-') text++;
    if (isinf(value)) return (*text | 32) != 'i';
    bool hex = *text == '0' && (text[1] | 32) == 'x';
    size_t digits = strcspn(text, hex ? "pP" : "eE");
    return value == 0 && strcspn(text, hex ? "123456789abcdefABCDEF" : "123456789") < digits;
}

bool read_int(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || text[0] == ' ') return false;
    *out = value;
    return true;
}

bool read_uint(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (text[0] < '0' || text[0] > '9' || *end || errno) return false;
    *out = value;
    return true;
}

int opt_int(cli *c, cli_option_id id, int64_t lo, int64_t hi, int64_t *out) {
    const char *text = opt_get(c, id);
    int64_t value;
    if (!text) return CLI_OK;
    if (lo == hi && (!read_int(text, &value) || value != lo))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.64s: %" PRId64 " is expected", cli_options[id].name, text, lo);
    if (!read_int(text, &value) || value < lo || value > hi)
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.64s: a whole number from %" PRId64 " to %" PRId64 " is expected",
                        cli_options[id].name, text, lo, hi);
    *out = value;
    return CLI_OK;
}

int opt_double(cli *c, cli_option_id id, double *out) {
    const char *text = opt_get(c, id);
    if (text && (!read_double(text, out) || isnan(*out)))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.64s: a number is expected", cli_options[id].name, text);
    if (text && word_is_out_of_range(text, *out))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.64s: beyond the range of f64", cli_options[id].name, text);
    return CLI_OK;
}

int opt_uint(cli *c, cli_option_id id, uint64_t *out) {
    const char *text = opt_get(c, id);
    if (text && !read_uint(text, out))
        return cli_fail(c, CLI_BAD_INPUT, "--%s %.64s: a whole number from 0 to 2^64 - 1 is expected",
                        cli_options[id].name, text);
    return CLI_OK;
}

int read_int_list(const char *text, int64_t *out, int max) {
    int n = 0;
    if (!*text) return 0;
    for (;;) {
        char word[24];
        size_t size = strcspn(text, ",");
        if (n == max || size >= sizeof word) return -1;
        snprintf(word, sizeof word, "%.*s", (int)size, text);
        if (!read_int(word, &out[n++])) return -1;
        if (!text[size]) return n;
        text += size + 1;
    }
}

const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

void hex_text(const uint8_t *bytes, size_t n, char *out) {
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

bool dtype_is_float(fxa_dtype dtype) {
    return (dtype >= FXA_F64 && dtype <= FXA_BF16) || dtype == FXA_E4M3 || dtype == FXA_E5M2;
}

static double number_from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                   : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                  : ldexp(fraction, -24);
    return bits >> 15 ? -value : value;
}

/* Rounds a double to f16, once, to nearest even. */
static uint16_t number_to_half(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double a = fabs(value);
    int exponent;
    if (isnan(value)) return 0x7E00;
    if (a == 0) return sign; /* for 0, frexp returns the same exponent as for 0.5 */
    if (a >= 65520) return (uint16_t)(sign | 0x7C00);
    frexp(a, &exponent);
    if (exponent < -13) exponent = -13; /* subnormals have the spacing of the smallest normal number */
    double steps = nearbyint(ldexp(a, 11 - exponent));
    int bits = (exponent + 13) * 1024 + (int)steps; /* a carry out of the mantissa increments the exponent */
    return (uint16_t)(sign | bits);
}

static uint16_t number_to_bf16(double value) {
    int exponent;
    uint32_t bits;
    if (isnan(value)) return 0x7FC0;
    frexp(value, &exponent);
    if (exponent < -125) exponent = -125;
    float f = (float)ldexp(nearbyint(ldexp(value, 8 - exponent)), exponent - 8); /* exact, or overflows to infinity */
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Converts an f8 with `fraction` fraction bits; `last` is the code of the largest finite number, which infinity follows
 * in e5m2. */
static double number_from_byte(uint8_t bits, int fraction, int bias, int last) {
    int code = bits & 127, exponent = code >> fraction, unit = 1 << fraction;
    double value = code > last
                       ? (fraction == 2 && code == last + 1 ? (double)INFINITY : (double)NAN)
                       : ldexp((exponent ? unit : 0) + code % unit, (exponent ? exponent : 1) - bias - fraction);
    return bits >> 7 ? -value : value;
}

/* Rounds a double to f8. A value that is too large becomes the largest finite number, as in the library. */
static uint8_t number_to_byte(double value, int fraction, int bias, int last) {
    uint8_t sign = signbit(value) ? 0x80 : 0;
    double a = fabs(value);
    int exponent;
    if (isnan(value)) return 0x7F;
    if (a == 0) return sign; /* for 0, frexp returns the same exponent as for 0.5 */
    if (a >= 65536) return (uint8_t)(sign | last);
    frexp(a, &exponent);
    if (exponent < 2 - bias) exponent = 2 - bias; /* subnormals have the spacing of the smallest normal number */
    int bits = ((exponent - 2 + bias) << fraction) + (int)nearbyint(ldexp(a, fraction + 1 - exponent));
    return (uint8_t)(sign | (bits < last ? bits : last));
}

double element_get(fxa_dtype dtype, const void *data, int64_t i) {
    uint16_t half = dtype == FXA_F16 || dtype == FXA_BF16 ? ((const uint16_t *)data)[i] : 0;
    uint32_t wide = (uint32_t)half << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    switch ((int)dtype) {
    case FXA_F64: return ((const double *)data)[i];
    case FXA_F32: return ((const float *)data)[i];
    case FXA_F16: return number_from_half(half);
    case FXA_BF16: return f;
    case FXA_E4M3: return number_from_byte(((const uint8_t *)data)[i], 3, 7, 0x7E);
    case FXA_E5M2: return number_from_byte(((const uint8_t *)data)[i], 2, 15, 0x7B);
    case FXA_I64: return (double)((const int64_t *)data)[i];
    case FXA_I32: return ((const int32_t *)data)[i];
    case FXA_I16: return ((const int16_t *)data)[i];
    case FXA_I8: return ((const int8_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

void element_set(fxa_dtype dtype, void *data, int64_t i, double value) {
    switch ((int)dtype) {
    case FXA_F64: ((double *)data)[i] = value; break;
    case FXA_F32: ((float *)data)[i] = (float)value; break;
    case FXA_F16: ((uint16_t *)data)[i] = number_to_half(value); break;
    case FXA_BF16: ((uint16_t *)data)[i] = number_to_bf16(value); break;
    case FXA_E4M3: ((uint8_t *)data)[i] = number_to_byte(value, 3, 7, 0x7E); break;
    case FXA_E5M2: ((uint8_t *)data)[i] = number_to_byte(value, 2, 15, 0x7B); break;
    case FXA_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    case FXA_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case FXA_I16: ((int16_t *)data)[i] = (int16_t)value; break;
    case FXA_I8: ((int8_t *)data)[i] = (int8_t)value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
    }
}

/* ---- Random numbers: splitmix64 ---------------------------------------------------------------------------------- */

uint64_t random_bits(cli_random *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double random_real(cli_random *r, double lo, double hi) {
    return lo + (hi - lo) * ((double)(random_bits(r) >> 11) * 0x1p-53);
}
