/* SPDX-License-Identifier: Apache-2.0
 *
 * fxa__row_meets: decides whether a form can take a value in a set.
 *   - a dense form, which takes every value of its own set: by intersecting both sets
 *   - a form of two terms, such as 2 * q - 3 * k: by solving the Diophantine equation a * x + b * y = v
 *   - a form that varies with one coordinate, such as (5 * q) % 64 or q // 8 - q % 8: by trying each q
 * In all other cases the result is true, which is sound.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"

enum { ROW_MAX_VALUES = 64, ROW_MAX_WALK = 256, ROW_MAX_ATOMS = 64 };
enum { ROW_SOLVE_WORK = 16 }; /* steps of work for solving one equation a * x + b * y = v */

/* Returns the inverse of a modulo m > 1; both are coprime and below 2^31. */
static int64_t row_inverse(int64_t a, int64_t m) {
    int64_t r0 = m, r1 = ((a % m) + m) % m, t0 = 0, t1 = 1;
    while (r1 != 0) {
        int64_t q = r0 / r1, t = r0 - q * r1;
        r0 = r1, r1 = t;
        t = t0 - q * t1;
        t0 = t1, t1 = t;
    }
    return ((t0 % m) + m) % m;
}

/* Returns true if there are x and y in their intervals with a * x + b * y = v. a > 0 and b are coprime and below 2^31;
 * intervals and v are small enough that no product overflows. */
static bool row_solve(int64_t a, fxa__interval x, int64_t b, fxa__interval y, int64_t v) {
    int64_t lo = v - (b > 0 ? b * y.hi : b * y.lo), hi = v - (b > 0 ? b * y.lo : b * y.hi); /* bounds of a * x */
    lo = fxa__max_i64(x.lo, -fxa__floordiv64(-lo, a));
    hi = fxa__min_i64(x.hi, fxa__floordiv64(hi, a));
    int64_t m = b < 0 ? -b : b;
    if (m <= 1) return lo <= hi;
    int64_t step = (v - m * fxa__floordiv64(v, m)) * row_inverse(a, m) % m - lo; /* solutions: x = lo + step + i * m */
    return lo + step - m * fxa__floordiv64(step, m) <= hi;
}

/* Returns true if coef fits 32 bits, so that no product in row_solve overflows. */
static bool row_fits_int32(int64_t coef) { return -((int64_t)1 << 31) < coef && coef < (int64_t)1 << 31; }

/* Returns true if a form a*x + b*y has a value in `set`, where the atoms x and y are independent and each takes every
 * value of its own set. Also returns true if there are too many values to try. */
static bool row_two_terms(fxa__range *r, const fxa__affine *f, const fxa__set *set) {
    const fxa__atom *x = &r->atoms[f->atom[0]], *y = &r->atoms[f->atom[1]];
    FXA__ASSERT(f->coef[0] > 0);
    if (!row_fits_int32(f->coef[0]) || !row_fits_int32(f->coef[1])) return true;
    int64_t left = ROW_MAX_VALUES, cost = (int64_t)x->set.n * y->set.n * ROW_SOLVE_WORK;
    for (int p = 0; p < set->n; p++)
        for (int64_t v = set->at[p].lo; v <= set->at[p].hi; v++) {
            if (left-- == 0 || (r->work -= cost) <= 0) return true;
            for (int i = 0; i < x->set.n; i++)
                for (int j = 0; j < y->set.n; j++)
                    if (row_solve(f->coef[0], x->set.at[i], f->coef[1], y->set.at[j], v)) return true;
        }
    return false;
}

/* Returns the value of a form, given the values of its atoms. */
static int64_t row_form_at(const fxa__affine *f, const int64_t *atoms) {
    int64_t x = f->c;
    for (int i = 0; i < f->n; i++) x += f->coef[i] * atoms[f->atom[i]];
    return x;
}

/* Returns the value of atom a (an unknown of affine forms) if the coordinate that row_walk varies has the value x.
 * atoms: values of the atoms with smaller indices, which may occur in a->form. */
static int64_t row_atom_at(const fxa__atom *a, int64_t x, const int64_t *atoms) {
    int64_t v = row_form_at(&a->form, atoms);
    switch (a->kind) {
    case FXA__ATOM_DIV: return fxa__floordiv64(v, a->d);
    case FXA__ATOM_MOD: return v - a->d * fxa__floordiv64(v, a->d);
    case FXA__ATOM_ABS: return v < 0 ? -v : v;
    case FXA__ATOM_WRAP: return fxa__wrap32(v);
    default: return x;
    }
}

/* Returns true if determined[] is true for all atoms of a form: the form's value then depends only on the coordinate
 * that row_walk varies. */
static bool row_form_determined(const fxa__affine *f, const bool *determined) {
    for (int i = 0; i < f->n; i++)
        if (!determined[f->atom[i]]) return false;
    return true;
}

/* Returns true if the form of *row takes a value in the set for some value of `input`, the only coordinate that the
 * form depends on; tries all values. Returns true also if there are more than ROW_MAX_WALK values or if `input` does
 * not determine the form's value. */
static bool row_walk(fxa__range *r, const fxa__row *row, int32_t input, const fxa__set *set) {
    int64_t atoms[ROW_MAX_ATOMS] = {0}, from = r->box->lo[input], to = r->box->hi[input];
    bool determined[ROW_MAX_ATOMS] = {false};
    int32_t n = row->form.atom[row->form.n - 1] + 1;
    if (n > ROW_MAX_ATOMS || to - from >= ROW_MAX_WALK || (r->work -= n * (to - from)) <= 0) return true;
    for (int32_t i = 0; i < n; i++) {
        const fxa__atom *a = &r->atoms[i];
        determined[i] = a->kind == FXA__ATOM_INPUT
                            ? a->id == input
                            : a->kind != FXA__ATOM_NODE && row_form_determined(&a->form, determined);
    }
    if (!row_form_determined(&row->form, determined)) return true;
    for (int64_t x = from; x <= to; x++) {
        for (int32_t i = 0; i < n; i++)
            if (determined[i]) atoms[i] = row_atom_at(&r->atoms[i], x, atoms);
        int64_t v = row_form_at(&row->form, atoms);
        fxa__set one = fxa__set_of(v, v);
        if (fxa__set_contains(set, &one)) return true;
    }
    return false;
}

bool fxa__row_meets(fxa__range *r, int32_t at, const fxa__set *set) {
    const fxa__row *row = &r->rows[at];
    fxa__set both = fxa__set_intersection(&row->set, set);
    if (both.n == 0 || row->dense) return both.n != 0;
    bool exact = true;
    uint32_t seen = 0;
    for (int i = 0; i < row->form.n; i++) {
        const fxa__atom *a = &r->atoms[row->form.atom[i]];
        exact = exact && a->dense && (seen & a->support) == 0;
        seen |= a->support;
    }
    if (exact && (fxa__set_lo(&both) == fxa__set_lo(&row->set) || fxa__set_hi(&both) == fxa__set_hi(&row->set)))
        return true;
    if (exact && row->form.n == 2) return row_two_terms(r, &row->form, &both);
    for (int32_t input = 0; input < FXA_INPUT_COUNT; input++)
        if (row->support == 1u << input) return row_walk(r, row, input, &both);
    return true;
}
