/* SPDX-License-Identifier: Apache-2.0
 *
 * Floor division, modulo and absolute value of affine forms; the results are affine forms with a new atom. Terms that
 * divide evenly are moved out of the atom first: (q + 64) // 64 becomes q // 64 + 1 and (2 * q) % 2 becomes 0. So equal
 * quotients get the same atom however they are written. If x // d has a single value for all values x of the operand,
 * floor division and modulo are affine and need no atom.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"

/* Returns the greatest common divisor, >= 0. */
static int64_t atom_gcd(int64_t a, int64_t b) {
    for (a = a < 0 ? -a : a, b = b < 0 ? -b : b; b != 0;) {
        int64_t t = a % b;
        a = b, b = t;
    }
    return a;
}

/* Returns a modulo d > 0, in 0..d - 1. */
static int64_t atom_mod64(int64_t a, int64_t d) { return a - d * fxa__floordiv64(a, d); }

/* Returns the greatest common divisor of d and the coefs of f. */
static int64_t atom_common(const fxa__affine *f, int64_t d) {
    for (int i = 0; i < f->n; i++) d = atom_gcd(d, f->coef[i]);
    return d;
}

/* Divides f by e, a divisor of its coefs; the constant is rounded down. */
static void atom_shrink(fxa__affine *f, int64_t e) {
    for (int i = 0; i < f->n; i++) f->coef[i] /= e;
    f->c = fxa__floordiv64(f->c, e);
}

/* Splits f = d * quotient + rest, where `quotient` has the terms of f with coefs divisible by d, and 0 <= rest.c <
 * d. */
static void atom_split(const fxa__affine *f, int64_t d, fxa__affine *quotient, fxa__affine *rest) {
    *quotient = fxa__affine_const(fxa__floordiv64(f->c, d));
    *rest = fxa__affine_const(f->c - d * quotient->c);
    for (int i = 0; i < f->n; i++) {
        fxa__affine *to = f->coef[i] % d == 0 ? quotient : rest;
        to->atom[to->n] = f->atom[i];
        to->coef[to->n++] = to == quotient ? f->coef[i] / d : f->coef[i];
    }
}

/* Sets *out to the atom rest // d, or to a constant if rest // d has a single value. The atom is dense (takes every
 * value of its set) if the steps between values of `rest` are at most d, so that no quotient is skipped. */
static bool atom_quotient(fxa__range *r, const fxa__affine *rest, int64_t d, fxa__affine *out) {
    fxa__atom a = {.kind = FXA__ATOM_DIV, .form = *rest, .d = d, .support = fxa__affine_support(r, rest)};
    fxa__affine primitive;
    fxa__set values;
    if (!fxa__affine_range(r, rest, &values, &a.dense)) return false;
    for (int i = 0; i < values.n; i++)
        fxa__set_add(&a.set, fxa__floordiv64(values.at[i].lo, d), fxa__floordiv64(values.at[i].hi, d));
    if (fxa__set_is_one(&a.set)) {
        *out = fxa__affine_const(a.set.at[0].lo);
        return true;
    }
    int64_t factor = a.dense ? 1 : fxa__affine_primitive(rest, &primitive);
    if (factor > 1 || factor < -1) {
        /* This call cannot overflow: the same call for `rest`, which is factor * primitive + constant, did not. */
        (void)fxa__affine_range(r, &primitive, &values, &a.dense);
        a.dense = a.dense && values.n == 1 && factor <= d && -factor <= d;
    }
    return fxa__affine_atom(r, &a, out);
}

bool fxa__affine_div(fxa__range *r, const fxa__affine *f, int64_t d, fxa__affine *out) {
    fxa__affine total, rest;
    atom_split(f, d, &total, &rest);
    while (rest.n > 0) { /* without terms, rest is in 0..d - 1 and its quotient is 0 */
        int64_t e = atom_common(&rest, d);
        atom_shrink(&rest, e);
        d /= e;
        const fxa__atom *inner = rest.n == 1 && rest.coef[0] == 1 ? &r->atoms[rest.atom[0]] : NULL;
        if (inner == NULL || inner->kind != FXA__ATOM_DIV || d >= FXA__INF / ((int64_t)1 << 32) / inner->d) {
            if (!atom_quotient(r, &rest, d, &rest)) return false;
            return fxa__affine_add(&total, &rest, 1, out);
        }
        fxa__affine form = inner->form, quotient; /* (x // a + c) // d = (x + c * a) // (a * d) */
        form.c += rest.c * inner->d;
        d *= inner->d;
        atom_split(&form, d, &quotient, &rest);
        /* no coef of inner->form is a multiple of inner->d: atom_split has kept such terms out of the atom */
        FXA__ASSERT(quotient.n == 0);
        total.c += quotient.c;
    }
    *out = total;
    return true;
}

/* Returns true if f takes all values modulo d because of one term: the atom of the term takes d or more consecutive
 * values, independently of the other terms, and the coef of the term is coprime to d. */
static bool atom_covers(const fxa__range *r, const fxa__affine *f, int64_t d) {
    for (int i = 0; i < f->n; i++) {
        const fxa__atom *a = &r->atoms[f->atom[i]];
        uint32_t others = 0;
        for (int j = 0; j < f->n; j++)
            if (j != i) others |= r->atoms[f->atom[j]].support;
        if (!a->dense || (others & a->support) != 0 || atom_gcd(f->coef[i], d) != 1) continue;
        for (int j = 0; j < a->set.n; j++)
            if (a->set.at[j].hi - a->set.at[j].lo >= d - 1) return true;
    }
    return false;
}

/* Sets *out to the atom rest % d, or to an affine form if rest // d has a single value. */
static bool atom_residue(fxa__range *r, const fxa__affine *rest, int64_t d, fxa__affine *out) {
    fxa__atom a = {.kind = FXA__ATOM_MOD, .form = *rest, .d = d, .support = fxa__affine_support(r, rest)};
    fxa__set values;
    if (!fxa__affine_range(r, rest, &values, &a.dense)) return false;
    int64_t block = fxa__floordiv64(fxa__set_lo(&values), d);
    if (block == fxa__floordiv64(fxa__set_hi(&values), d)) {
        fxa__affine start = fxa__affine_const(block);
        return fxa__affine_add(rest, &start, -d, out);
    }
    bool fits = true;
    for (int i = 0; i < values.n; i++) {
        fxa__interval x = values.at[i];
        int64_t lo = atom_mod64(x.lo, d), hi = atom_mod64(x.hi, d);
        if (x.hi - x.lo >= d - 1) lo = 0, hi = d - 1;
        if (lo <= hi)
            fits &= fxa__set_add(&a.set, lo, hi);
        else {
            /* Adding 0..hi is exact: until then a.set has at most three intervals, or one that begins at 0. */
            fxa__set_add(&a.set, 0, hi);
            fits &= fxa__set_add(&a.set, lo, d - 1);
        }
    }
    a.dense = (a.dense && fits) || atom_covers(r, rest, d);
    return fxa__affine_atom(r, &a, out);
}

bool fxa__affine_mod(fxa__range *r, const fxa__affine *f, int64_t d, fxa__affine *out) {
    fxa__affine rest = fxa__affine_const(atom_mod64(f->c, d));
    for (int i = 0; i < f->n; i++) { /* only coefs modulo d matter; the representative nearest to 0 is used */
        int64_t coef = atom_mod64(f->coef[i], d);
        if (coef > d / 2) coef -= d;
        if (coef == 0) continue;
        rest.atom[rest.n] = f->atom[i];
        rest.coef[rest.n++] = coef;
    }
    int64_t e = atom_common(&rest, d), offset = atom_mod64(rest.c, e); /* rest = e * x + offset, modulo e * (d / e) */
    fxa__affine residue = fxa__affine_const(0), start = fxa__affine_const(offset);
    atom_shrink(&rest, e);
    if (d / e > 1 && !atom_residue(r, &rest, d / e, &residue)) return false;
    return fxa__affine_add(&start, &residue, e, out);
}

bool fxa__affine_abs(fxa__range *r, const fxa__affine *f, fxa__affine *out) {
    fxa__atom a = {.kind = FXA__ATOM_ABS, .support = fxa__affine_support(r, f)};
    fxa__set values;
    if (!fxa__affine_range(r, f, &values, &a.dense)) return false;
    if (fxa__set_lo(&values) >= 0) {
        *out = *f;
        return true;
    }
    a.form = *f;
    if (f->coef[0] < 0) fxa__affine_negate(&a.form);
    for (int i = 0; i < values.n; i++) { /* a.set has room for all: the abs of one interval is one interval */
        fxa__interval x = values.at[i];
        fxa__set_add(&a.set, fxa__max_i64(x.lo, 0), x.hi);
        fxa__set_add(&a.set, fxa__max_i64(-x.hi, 0), -x.lo);
    }
    return fxa__affine_atom(r, &a, out);
}

/* Rewrites term i of f, m * (z // d) or m * (z % d), by the identity z = d * (z // d) + z % d: z // d is replaced by
 * z % d, or the reverse. Returns false for other terms, if d does not divide the m of z // d, and on overflow. */
static bool atom_rewrite(fxa__range *r, const fxa__affine *f, int i, fxa__affine *out) {
    const fxa__atom *a = &r->atoms[f->atom[i]];
    fxa__affine rest = fxa__affine_without(f, i), other, z = a->form;
    int64_t m = f->coef[i], d = a->d, step;
    if (a->kind == FXA__ATOM_MOD) /* m * z - m * d * (z // d) */
        return fxa__affine_div(r, &z, d, &other) && fxa__mul_i64(-m, d, &step) && fxa__affine_add(&rest, &z, m, out) &&
               fxa__affine_add(out, &other, step, out);
    return a->kind == FXA__ATOM_DIV && m % d == 0 && fxa__affine_mod(r, &z, d, &other) &&
           fxa__affine_add(&rest, &z, m / d, out) && fxa__affine_add(out, &other, -(m / d), out);
}

void fxa__affine_tidy(fxa__range *r, fxa__affine *f) {
    for (int i = 0; f->n > 1 && i < f->n; i++) {
        fxa__affine other;
        if (!atom_rewrite(r, f, i, &other) || other.n >= f->n) continue;
        *f = other;
        i = -1;
    }
}
