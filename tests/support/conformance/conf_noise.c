/* SPDX-License-Identifier: Apache-2.0
 *
 * Error of sums of products whose factors P and dS are rounded to 16 bits: docs/numerics.md, "Other engines". Values
 * that are far enough apart have independent rounding errors, so the squares of their terms are added. Values that are
 * equal, or nearly so, have the same relative error, which becomes a factor of their sum. Equal values occur if a
 * program gives many pairs of a row equal scores and columns of K or V are similar too.
 */
#include "conf_bound.h"

#include <math.h>
#include <stdlib.h>

static int noise_order(const void *x, const void *y) {
    double a = fabs(((const conf_term *)x)->rounded), b = fabs(((const conf_term *)y)->rounded);
    return (a > b) - (a < b);
}

/* Adds the terms from..to-1, whose rounding errors are equal. */
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

/* Rounding errors of values that differ by a quarter of the last digit's unit are uncorrelated: as functions of the
 * value they are sawtooth waves, whose correlation at a distance of x teeth is 1 - 6 x + 6 x^2. A quarter is at most
 * half of product_unit. */
void conf_add_noise(const conf_case *c, conf_buffer *t, int64_t place, int64_t width, conf_term *terms, int64_t n) {
    if (c->product_unit == 0 || !t->noise) return;
    qsort(terms, (size_t)n, sizeof *terms, noise_order);
    for (int64_t from = 0, to; from < n; from = to) {
        double last = fabs(terms[from].rounded) * (1 + c->product_unit / 2);
        for (to = from + 1; to < n && fabs(terms[to].rounded) <= last; to++) {}
        noise_group(t, place, width, terms, from, to);
    }
}
