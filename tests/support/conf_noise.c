/* SPDX-License-Identifier: Apache-2.0
 *
 * What roundings of P and dS to 16 bits come to in sums of their products: docs/numerics.md, "Other engines". Numbers
 * that are apart round in directions of their own, and squares of their terms are added. Those that are the same, or
 * nearly, round alike: what they err by is a factor of their sum. Rows in which the program leaves many scores alike,
 * beside columns of K or V that are alike too, have such sums.
 */
#include "conf_bound.h"

#include <math.h>
#include <stdlib.h>

static int noise_order(const void *x, const void *y) {
    double a = fabs(((const conf_term *)x)->rounded), b = fabs(((const conf_term *)y)->rounded);
    return (a > b) - (a < b);
}

/* Terms from..to-1 round alike. */
static void noise_group(conf_buffer *t, int64_t place, int64_t width, const conf_term *terms, int64_t from,
                        int64_t to) {
    for (int64_t i = 0; i < width; i++) {
        double sum = 0, squares = 0;
        for (int64_t j = from; j < to; j++) {
            double term = copysign(terms[j].size, terms[j].rounded) * terms[j].row[i];
            sum += term, squares += term * term;
        }
        t->noise[place + i * t->stride[3]] += fmax(sum * sum, squares);
    }
}

/* Roundings of numbers that are a quarter of a digit's unit apart have nothing in common: as functions of the number
 * they are saws, whose correlation at a distance of x teeth is 1 - 6 x + 6 x^2. A quarter is half of product_unit at
 * most. */
void conf_add_noise(const conf_case *c, conf_buffer *t, int64_t place, int64_t width, conf_term *terms, int64_t n) {
    if (c->product_unit == 0 || !t->noise) return;
    qsort(terms, (size_t)n, sizeof *terms, noise_order);
    for (int64_t from = 0, to; from < n; from = to) {
        double last = fabs(terms[from].rounded) * (1 + c->product_unit / 2);
        for (to = from + 1; to < n && fabs(terms[to].rounded) <= last; to++) {}
        noise_group(t, place, width, terms, from, to);
    }
}
