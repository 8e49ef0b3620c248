/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and writes f64 numbers in decimal. The C library rounds, but its decimal point depends on the locale. Reading
 * therefore moves the point into the exponent (strtod gets "15e2" for "1.5e3"); writing takes only the digits from
 * snprintf and inserts the point itself.
 */
#include "decimal.h"

#include "../base/invariant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool decimal_digit(char c) { return c >= '0' && c <= '9'; }

bool fxa__decimal_read(const char *text, size_t n, double *out) {
    char copy[FXA__DECIMAL_READ + 16];
    size_t at = 0, used = 0;
    long exponent = 0, behind = 0;
    bool point = false;
    for (; at < n && (decimal_digit(text[at]) || text[at] == '.'); at++) {
        if (text[at] == '.')
            point = true;
        else {
            copy[used++] = text[at];
            behind += point;
        }
    }
    if (at < n) { /* text[at] is 'e' */
        bool minus = text[++at] == '-';
        if (!decimal_digit(text[at])) at++;
        /* The limit 100000 keeps `exponent` from overflowing. With a larger exponent the number is 0 or infinite for
         * any FXA__DECIMAL_READ digits. */
        for (; at < n; at++) exponent = exponent < 100000 ? exponent * 10 + (text[at] - '0') : exponent;
        if (minus) exponent = -exponent;
    }
    (void)snprintf(copy + used, sizeof copy - used, "e%ld", exponent - behind);
    *out = strtod(copy, NULL);
    return isfinite(*out);
}

/* Writes the decimal digits of x, rounded to `precision` digits, without trailing zeros. Returns the decimal exponent
 * of the first digit, which is 1 for 12.5. */
static int decimal_digits(double x, int precision, char digits[20]) {
    char text[FXA__DECIMAL_WRITE];
    size_t used = 0;
    const char *at = text;
    (void)snprintf(text, sizeof text, "%.*e", precision - 1, x);
    for (; *at != 'e'; at++)
        if (decimal_digit(*at)) digits[used++] = *at;
    while (used > 1 && digits[used - 1] == '0') used--;
    digits[used] = 0;
    return (int)strtol(at + 1, NULL, 10);
}

/* Writes a number as 0.00123, 123.0 or 1.23, or with an exponent if the number is below 1e-5 or at least 1e16. */
static void decimal_layout(const char *digits, int power, char *out) {
    int n = (int)strlen(digits);
    if (power < -5 || power > 15) {
        (void)snprintf(out, FXA__DECIMAL_WRITE - 1, "%c%s%se%d", digits[0], n > 1 ? "." : "", digits + 1, power);
    } else if (power < 0) {
        (void)snprintf(out, FXA__DECIMAL_WRITE - 1, "0.%.*s%s", -power - 1, "0000", digits);
    } else if (n <= power + 1) {
        (void)snprintf(out, FXA__DECIMAL_WRITE - 1, "%s%.*s.0", digits, power + 1 - n, "000000000000000");
    } else {
        (void)snprintf(out, FXA__DECIMAL_WRITE - 1, "%.*s.%s", power + 1, digits, digits + power + 1);
    }
}

void fxa__decimal_write(double x, char out[FXA__DECIMAL_WRITE]) {
    char digits[20];
    double back;
    if (signbit(x)) *out++ = '-';
    for (int precision = 15;; precision++) {
        FXA__ASSERT(precision <= 17); /* 17 digits identify every f64 */
        int power = decimal_digits(fabs(x), precision, digits);
        decimal_layout(digits, power, out);
        if (fxa__decimal_read(out, strlen(out), &back) && back == fabs(x)) return;
    }
}
