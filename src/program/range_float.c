/* SPDX-License-Identifier: Apache-2.0
 *
 * Float nodes: an interval that holds the value in every engine. ref computes in f64, others in f32, some with fused or
 * approximate instructions; so after each operation the interval is widened by more than any of them is off:
 *
 *   arithmetic          by 2^-20 of the value and 2^-120    f32 rounds to 2^-24; below 2^-126 it is subnormal
 *   exp, log, sqrt ...  by 2^-9 of the value and 2^-18      the coarsest GPU instruction is off by 2^-11
 *
 * What passes 2^126 may be infinite. A comparison is decided only when the widened intervals do not touch. Whole
 * numbers up to 2^24 are exact in f32, and so are their sums, differences and products within that size: they are not
 * widened, and float(q) - float(k) < 64.0 is decided as exactly as the ints are. Of loads the elements count
 * where they are few (range_load.c); other loads, the score, and functions that real_op1 and real_op2 do not name are
 * any float, NaN included.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"

#include <math.h>

static const double real_huge = 0x1p126, real_exact = 0x1p24;

static fxa__real real_any(void) { return (fxa__real){.lo = -INFINITY, .hi = INFINITY, .nan = true}; }

static fxa__real real_widen(fxa__real x, double part, double least) {
    FXA__ASSERT(x.lo <= x.hi);
    if (isfinite(x.lo)) x.lo -= fabs(x.lo) * part + least;
    if (isfinite(x.hi)) x.hi += fabs(x.hi) * part + least;
    if (x.lo < -real_huge) x.lo = -INFINITY;
    if (x.hi > real_huge) x.hi = INFINITY;
    if (x.lo > real_huge) x.lo = real_huge;
    if (x.hi < -real_huge) x.hi = -real_huge;
    x.whole = false;
    return x;
}
static fxa__real real_rounded(fxa__real x) { return real_widen(x, 0x1p-20, 0x1p-120); }
static fxa__real real_function(fxa__real x) { return real_widen(x, 0x1p-9, 0x1p-18); }

/* A constant or param: exact when f32 holds it. */
static fxa__real real_const(double x) {
    fxa__real out = {.lo = x, .hi = x, .whole = x == floor(x) && fabs(x) <= real_exact};
    if (x != x) return (fxa__real){.lo = INFINITY, .hi = -INFINITY, .nan = true};
    return fabs(x) > real_huge || (double)(float)x != x ? real_rounded(out) : out;
}

static bool real_finite(const fxa__real *x) { return x->lo >= -real_huge && x->hi <= real_huge; }
static bool real_has_zero(const fxa__real *x) { return x->lo <= 0 && x->hi >= 0; }

/* From the corners; `whole` says the operation keeps whole numbers whole. */
static fxa__real real_hull(const double *corner, int n, const fxa__real *a, const fxa__real *b, bool whole) {
    fxa__real out = {.lo = corner[0], .hi = corner[0], .nan = a->nan || b->nan};
    for (int i = 1; i < n; i++) {
        out.lo = fmin(out.lo, corner[i]);
        out.hi = fmax(out.hi, corner[i]);
    }
    out.whole = whole && a->whole && b->whole && out.lo >= -real_exact && out.hi <= real_exact;
    return out.whole ? out : real_rounded(out);
}

static fxa__real real_sum(const fxa__real *a, const fxa__real *b, double sign) {
    double y[2] = {sign * (sign > 0 ? b->lo : b->hi), sign * (sign > 0 ? b->hi : b->lo)};
    if (!real_finite(a) && !real_finite(b)) return real_any();
    double corner[2] = {a->lo + y[0], a->hi + y[1]};
    return real_hull(corner, 2, a, b, true);
}

static fxa__real real_product(const fxa__real *a, const fxa__real *b) {
    if (!real_finite(a) || !real_finite(b)) return real_any();
    double corner[4] = {a->lo * b->lo, a->lo * b->hi, a->hi * b->lo, a->hi * b->hi};
    return real_hull(corner, 4, a, b, true);
}

/* Divisors near 0 are left alone: f32 may see 0 where f64 does not. */
static fxa__real real_quotient(const fxa__real *a, const fxa__real *b) {
    if (!real_finite(a) || !real_finite(b) || (b->lo < 0x1p-100 && b->hi > -0x1p-100)) return real_any();
    double corner[4] = {a->lo / b->lo, a->lo / b->hi, a->hi / b->lo, a->hi / b->hi};
    return real_hull(corner, 4, a, b, false);
}

static fxa__real real_extreme(const fxa__real *a, const fxa__real *b, bool max) {
    fxa__real out = {.lo = max ? fmax(a->lo, b->lo) : fmin(a->lo, b->lo),
                     .hi = max ? fmax(a->hi, b->hi) : fmin(a->hi, b->hi)};
    out.nan = a->nan || b->nan;
    out.whole = a->whole && b->whole;
    return out;
}

static fxa__real real_join(const fxa__real *a, const fxa__real *b) {
    return (fxa__real){fmin(a->lo, b->lo), fmax(a->hi, b->hi), a->nan || b->nan, a->whole && b->whole};
}

/* f is nondecreasing; infinite ends are fine where f has limits there. */
static fxa__real real_rising(const fxa__real *a, double (*f)(double)) {
    fxa__real out = {.lo = f(a->lo), .hi = f(a->hi), .nan = a->nan};
    return real_function(out);
}

/* floor, ceil, round, trunc: monotone and exact; what passes 2^24 is left to the margin. */
static fxa__real real_integral(const fxa__real *a, double (*f)(double)) {
    fxa__real out = {.lo = f(a->lo), .hi = f(a->hi), .nan = a->nan};
    out.whole = out.lo >= -real_exact && out.hi <= real_exact;
    return out.whole ? out : real_rounded(out);
}

static fxa__real real_abs(const fxa__real *a) {
    double lo = real_has_zero(a) ? 0 : fmin(fabs(a->lo), fabs(a->hi));
    return (fxa__real){lo, fmax(fabs(a->lo), fabs(a->hi)), a->nan, a->whole};
}

/* sqrt and logarithms, from positive numbers that f32 tells from 0. */
static fxa__real real_positive(const fxa__real *a, double (*f)(double)) {
    return a->lo >= 0x1p-100 && a->hi <= real_huge ? real_rising(a, f) : real_any();
}

static fxa__real real_rsqrt(const fxa__real *a) {
    fxa__real x = real_positive(a, sqrt), one = real_const(1);
    return real_function(real_quotient(&one, &x));
}

static fxa__real real_cast(const fxa__range *r, int32_t arg) {
    const fxa__known *x = fxa__range_of(r, arg);
    fxa__real out = {.lo = x->t.no == FXA__NEVER, .hi = x->t.yes != FXA__NEVER, .whole = true};
    if (r->p->nodes[arg].type == FXA_BOOL) return out;
    out.lo = (double)fxa__set_lo(&x->i.set);
    out.hi = (double)fxa__set_hi(&x->i.set);
    out.whole = out.lo >= -real_exact && out.hi <= real_exact;
    return out.whole ? out : real_rounded(out);
}

/* Elements that all engines see as they are, or nearly. */
static void real_load(fxa__range *r, int32_t at, fxa__real *out) {
    fxa__real x;
    bool exact;
    if (fxa__range_load_real(r, at, &x, &exact)) *out = exact || x.lo > x.hi ? x : real_rounded(x);
}

static fxa__real real_select(const fxa__range *r, const fxa__node *node) {
    fxa__truth c = fxa__range_of(r, node->arg[0])->t;
    const fxa__real *a = &fxa__range_of(r, node->arg[1])->f, *b = &fxa__range_of(r, node->arg[2])->f;
    return c.no == FXA__NEVER ? *a : c.yes == FXA__NEVER ? *b : real_join(a, b);
}

static fxa__real real_op1(uint32_t op, const fxa__real *a) {
    switch (op) {
    case FXA_OP_NEG: return (fxa__real){-a->hi, -a->lo, a->nan, a->whole};
    case FXA_OP_ABS: return real_abs(a);
    case FXA_OP_SQRT: return real_positive(a, sqrt);
    case FXA_OP_RSQRT: return real_rsqrt(a);
    case FXA_OP_EXP: return real_rising(a, exp);
    case FXA_OP_EXP2: return real_rising(a, exp2);
    case FXA_OP_LOG: return real_positive(a, log);
    case FXA_OP_LOG2: return real_positive(a, log2);
    case FXA_OP_LOG1P: return a->lo >= -0.5 && a->hi <= real_huge ? real_rising(a, log1p) : real_any();
    case FXA_OP_TANH: return real_rising(a, tanh);
    case FXA_OP_SIGMOID: return real_rising(a, fxa__sigmoid);
    case FXA_OP_ERF: return real_rising(a, erf);
    case FXA_OP_ATAN: return real_rising(a, atan);
    case FXA_OP_FLOOR: return real_integral(a, floor);
    case FXA_OP_CEIL: return real_integral(a, ceil);
    case FXA_OP_ROUND: return real_integral(a, nearbyint);
    case FXA_OP_TRUNC: return real_integral(a, trunc);
    default: return real_any();
    }
}

static fxa__real real_op2(uint32_t op, const fxa__real *a, const fxa__real *b) {
    switch (op) {
    case FXA_OP_ADD: return real_sum(a, b, 1);
    case FXA_OP_SUB: return real_sum(a, b, -1);
    case FXA_OP_MUL: return real_product(a, b);
    case FXA_OP_DIV: return real_quotient(a, b);
    case FXA_OP_MIN: return real_extreme(a, b, false);
    case FXA_OP_MAX: return real_extreme(a, b, true);
    case FXA_OP_GRAFT: return *a;
    case FXA_OP_FLOORDIV: {
        fxa__real x = real_quotient(a, b);
        return real_integral(&x, floor);
    }
    default: return real_any();
    }
}

void fxa__range_float(fxa__range *r, int32_t at, fxa__real *out) {
    const fxa__node *node = &r->p->nodes[at];
    const fxa__real *x[3] = {NULL, NULL, NULL};
    *out = real_any();
    switch (node->op) {
    case FXA_OP_CONST: *out = real_const(node->f); return;
    case FXA_OP_PARAM:
        if (r->params) *out = real_const(r->params[node->imm]);
        return;
    case FXA_OP_INPUT: return;
    case FXA_OP_LOAD: real_load(r, at, out); return;
    case FXA_OP_FLOAT: *out = real_cast(r, node->arg[0]); return;
    case FXA_OP_SELECT: *out = real_select(r, node); return;
    default: break;
    }
    for (int i = 0; i < node->n_args; i++) {
        x[i] = &fxa__range_of(r, node->arg[i])->f;
        if (x[i]->lo > x[i]->hi) return; /* always NaN */
    }
    if (node->op == FXA_OP_CLAMP) {
        fxa__real low = real_extreme(x[0], x[1], true);
        *out = real_extreme(&low, x[2], false);
    } else
        *out = node->n_args == 1 ? real_op1(node->op, x[0]) : real_op2(node->op, x[0], x[1]);
}

/* Comparisons with NaN are false. */
int fxa__real_less(const fxa__real *a, const fxa__real *b, bool strict) {
    if (a->lo > a->hi || b->lo > b->hi) return 0;
    if (strict ? a->lo >= b->hi : a->lo > b->hi) return 0;
    return !a->nan && !b->nan && (strict ? a->hi < b->lo : a->hi <= b->lo) ? 1 : -1;
}

int fxa__real_equal(const fxa__real *a, const fxa__real *b) {
    if (a->lo > a->hi || b->lo > b->hi || a->hi < b->lo || b->hi < a->lo) return 0;
    return !a->nan && !b->nan && a->lo == a->hi && b->lo == b->hi && a->whole && b->whole ? 1 : -1;
}

fxa__set fxa__int32_of_real(const fxa__real *x) {
    fxa__set set = fxa__set_of(0, 0);
    if (x->lo <= x->hi) set = fxa__set_of(fxa__toint(x->lo), fxa__toint(x->hi));
    if (x->nan) fxa__set_add(&set, 0, 0);
    return set;
}
