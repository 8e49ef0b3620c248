/* SPDX-License-Identifier: Apache-2.0
 *
 * Warns about given values with surprising effects: numbers that the arithmetic changes (f64 in f32, i64 in 32 bits),
 * NaN and infinity, and large negative numbers that stand for a mask.
 */
#include "input/job.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#define WARN_COARSE 0x1p-10 /* maximum relative change by f32 without a warning; scores are not more accurate */
#define WARN_LOW (-1e4)     /* limit below which a number stands for a mask, also in FXA_PROPERTY_LARGE_NEGATIVE */

/* Elements of a tensor that cause the same warning. */
typedef struct warn_kind {
    int64_t n, first;
    double value; /* value of the first element that causes the warning */
} warn_kind;

typedef struct warn_kinds {
    warn_kind bad, large, small, coarse, wide, low;
    bool lows_differ;
} warn_kinds;

/* Returns true if x is not 0, but x converted to f32 is 0. */
static bool warn_vanishes(double x) { return x != 0 && (float)x == 0; }
static bool warn_is_large(double x) { return isfinite(x) && fabs(x) > FLT_MAX; }
static bool warn_is_coarse(double x) { return fabs(x) <= FLT_MAX && fabs(x - (double)(float)x) > WARN_COARSE; }

static void warn_count(warn_kind *k, bool is, int64_t index, double x) {
    if (!is) return;
    if (!k->n) *k = (warn_kind){0, index, x};
    k->n++;
}

/* Counts an element under each kind of warning that it causes. -inf causes none, because masks commonly use it. */
static void warn_count_element(warn_kinds *k, const fxa_view *v, bool f64, int64_t index, double x) {
    bool low = isfinite(x) && x <= WARN_LOW;
    if (!dtype_is_float(v->dtype)) {
        warn_count(&k->wide, x < INT32_MIN || x > INT32_MAX, index, x);
        return;
    }
    if (low && k->low.n && x != k->low.value) k->lows_differ = true;
    warn_count(&k->bad, isnan(x) || x == INFINITY, index, x);
    warn_count(&k->large, !f64 && warn_is_large(x), index, x);
    warn_count(&k->small, !f64 && warn_vanishes(x), index, x);
    warn_count(&k->coarse, !f64 && warn_is_coarse(x) && !low, index, x);
    warn_count(&k->low, low, index, x);
}

/* Returns a text such as "tensor t holds 3 of 8 elements"; owned by c. */
static const char *warn_of(cli *c, const char *name, const warn_kind *k, int64_t count) {
    return cli_format(c, "tensor %s holds %" PRId64 " of %" PRId64 " elements", name, k->n, count);
}

static void warn_print(cli *c, const char *name, const fxa_view *v, int64_t count, const warn_kinds *k) {
    if (k->bad.n) cli_warn(c, "%s that are NaN or inf", warn_of(c, name, &k->bad, count));
    if (k->large.n)
        cli_warn(c, "%s beyond the range of f32, which count as inf: Q is not f64", warn_of(c, name, &k->large, count));
    if (k->small.n)
        cli_warn(c, "%s too small for f32, which count as 0: Q is not f64", warn_of(c, name, &k->small, count));
    if (k->coarse.n)
        cli_warn(c, "%s that f32 rounds by more than 0.001: %s is %.17g and read as %.17g, since Q is not f64",
                 warn_of(c, name, &k->coarse, count), place_text(c, v->size, v->rank, k->coarse.first), k->coarse.value,
                 (double)(float)k->coarse.value);
    if (k->wide.n)
        cli_warn(c, "%s beyond 32 bits: %s is %.17g and read as %d, but by == and != of two i64 elements",
                 warn_of(c, name, &k->wide, count), place_text(c, v->size, v->rank, k->wide.first), k->wide.value,
                 k->wide.value < 0 ? INT32_MIN : INT32_MAX);
    /* One repeated number stands for a mask; different numbers may be ordinary sums. */
    if (!k->lows_differ && (k->low.n > 1 || (k->low.n && k->low.n == count)))
        cli_warn(
            c,
            "%s that are %g: if a mask is meant, write -inf. A row that has nothing else attends to all these keys, "
            "and no pair is skipped",
            warn_of(c, name, &k->low, count), k->low.value);
}

static void warn_tensor(cli *c, const char *name, const fxa_view *v, bool f64) {
    int64_t count = 1;
    warn_kinds k = {0};
    for (int d = 0; d < v->rank; d++) count *= v->size[d];
    for (int64_t i = 0; v->data && i < count; i++) {
        int64_t rest = i, at = 0;
        for (int d = v->rank - 1; d >= 0; d--) {
            at += rest % v->size[d] * v->stride[d];
            rest /= v->size[d];
        }
        warn_count_element(&k, v, f64, i, element_get(v->dtype, v->data, at));
    }
    warn_print(c, name, v, count, &k);
}

/* Warns about a number that f32 arithmetic changes. */
static void warn_number(cli *c, const char *what, double x) {
    if (warn_is_large(x)) cli_warn(c, "%s is %g, beyond the range of f32, and counts as inf: Q is not f64", what, x);
    if (warn_vanishes(x)) cli_warn(c, "%s is %g, too small for f32, and counts as 0: Q is not f64", what, x);
    if (warn_is_coarse(x))
        cli_warn(c, "%s is %.17g, and read as %.17g by arithmetic in f32: Q is not f64", what, x, (double)(float)x);
}

const char *values_large_negative_text(const fxa_program *program) {
    fxa_properties properties;
    fxa_program_properties(program, &properties);
    if (!(properties.flags & FXA_PROPERTY_FINITE_LARGE_NEGATIVE)) return NULL;
    return "a condition subtracts a large number from the score: if a mask is meant, write mask = ..., or -inf. "
           "Without a mask, no pair is skipped; a row whose scores are all lowered attends to all its keys, and its "
           "gradients are wrong with an f32 LSE";
}

void values_warn(cli *c, const fxa_program *program, const cli_binding *b, bool f64) {
    for (size_t i = 0; i < b->n_params; i++) {
        fxa_param_info param = fxa_program_param(program, i);
        const char *what = cli_format(c, "param %s", param.name);
        if (isnan(b->params[i])) cli_warn(c, "%s is NaN", what);
        if (!f64 && param.type == FXA_FLOAT) warn_number(c, what, b->params[i]);
    }
    for (size_t i = 0; i < b->n_tensors; i++) warn_tensor(c, fxa_program_tensor(program, i).name, &b->views[i], f64);
}

void values_warn_scale(cli *c, bool f64) {
    double scale;
    const char *text = opt_get(c, OPT_SCALE);
    if (text && !f64 && read_double(text, &scale)) warn_number(c, "--scale", scale);
}
