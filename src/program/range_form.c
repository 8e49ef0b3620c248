/* SPDX-License-Identifier: Apache-2.0
 *
 * Affine forms over atoms: arithmetic, the set of values of a form, and the tables of atoms and of rows (the forms that
 * bounds refer to). Arithmetic is in 64 bits and checked for overflow; on overflow the caller continues without the
 * form.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"
#include "../base/poison.h"

#include <stdlib.h>

static bool form_fits(int64_t x) { return -FXA__INF < x && x < FXA__INF; }

/* Sets *out to a + times * x. Returns false if the magnitude of the result is FXA__INF or more. */
static bool form_madd(int64_t a, int64_t times, int64_t x, int64_t *out) {
    int64_t product;
    if (!fxa__mul_i64(times, x, &product) || !form_fits(product)) return false;
    *out = a + product;
    return form_fits(*out);
}

/* In builds with asserts, unused elements of f.atom are poisoned. */
fxa__affine fxa__affine_const(int64_t c) {
    fxa__affine f = {.c = c};
#if FXA_ASSERT
    fxa__poison_fill(f.atom, sizeof f.atom);
#endif
    return f;
}

bool fxa__affine_add(const fxa__affine *a, const fxa__affine *b, int64_t times, fxa__affine *out) {
    fxa__affine sum = fxa__affine_const(0);
    if (!form_madd(a->c, times, b->c, &sum.c)) return false;
    for (int i = 0, j = 0; i < a->n || j < b->n;) {
        bool from_a = j == b->n || (i < a->n && a->atom[i] <= b->atom[j]);
        bool from_b = i == a->n || (j < b->n && b->atom[j] <= a->atom[i]);
        int32_t atom = from_a ? a->atom[i] : b->atom[j];
        int64_t x;
        if (!form_madd(from_a ? a->coef[i] : 0, times, from_b ? b->coef[j] : 0, &x)) return false;
        i += from_a, j += from_b;
        if (x == 0) continue;
        if (sum.n == FXA__AFFINE_TERMS) return false;
        sum.atom[sum.n] = atom;
        sum.coef[sum.n++] = x;
    }
    *out = sum;
    return true;
}

void fxa__affine_negate(fxa__affine *f) {
    f->c = -f->c;
    for (int i = 0; i < f->n; i++) f->coef[i] = -f->coef[i];
}

fxa__affine fxa__affine_without(const fxa__affine *f, int i) {
    fxa__affine out = *f;
    out.n--;
    for (; i < out.n; i++) out.atom[i] = out.atom[i + 1], out.coef[i] = out.coef[i + 1];
    return out;
}

/* Returns true if the forms are equal, with constants compared modulo constants_modulo (0 = exactly). */
static bool form_is_same(const fxa__affine *a, const fxa__affine *b, uint64_t constants_modulo) {
    uint64_t difference = (uint64_t)a->c - (uint64_t)b->c;
    if (a->n != b->n || (constants_modulo ? difference % constants_modulo : difference) != 0) return false;
    for (int i = 0; i < a->n; i++)
        if (a->atom[i] != b->atom[i] || a->coef[i] != b->coef[i]) return false;
    return true;
}

int64_t fxa__affine_primitive(const fxa__affine *f, fxa__affine *out) {
    int64_t g = 0;
    for (int i = 0; i < f->n; i++)
        for (int64_t a = f->coef[i] < 0 ? -f->coef[i] : f->coef[i]; a != 0;) {
            int64_t t = g % a;
            g = a, a = t;
        }
    if (f->coef[0] < 0) g = -g;
    *out = *f;
    out->c = 0;
    for (int i = 0; i < f->n; i++) out->coef[i] /= g;
    return g;
}

uint32_t fxa__affine_support(const fxa__range *r, const fxa__affine *f) {
    uint32_t support = 0;
    for (int i = 0; i < f->n; i++) support |= r->atoms[f->atom[i]].support;
    return support;
}

/* Sets *out to all sums x + coef * y of a value x in so_far and a value y in atom. Clears *dense if *out may contain
 * numbers that are not such sums. Returns false on overflow. */
static bool form_range_add(const fxa__set *so_far, int64_t coef, const fxa__set *atom, fxa__set *out, bool *dense) {
    int64_t size = coef < 0 ? -coef : coef;
    out->n = 0;
    for (int i = 0; i < so_far->n; i++)
        for (int j = 0; j < atom->n; j++) {
            fxa__interval x = so_far->at[i], y = atom->at[j];
            int64_t lo, hi;
            if (!form_madd(x.lo, coef, coef > 0 ? y.lo : y.hi, &lo) ||
                !form_madd(x.hi, coef, coef > 0 ? y.hi : y.lo, &hi))
                return false;
            if (y.lo < y.hi && x.hi - x.lo + 1 < size) *dense = false;
            if (!fxa__set_add(out, lo, hi)) *dense = false;
        }
    return true;
}

/* Narrows *set, the values of f, if f is c + m * (x // d - y // d): the difference of the quotients is within 1 of
 * (x - y) / d, and x - y may have a small range even if x and y vary widely. */
static void form_range_quotients(const fxa__range *r, const fxa__affine *f, fxa__set *set) {
    if (f->n != 2 || f->coef[0] != -f->coef[1]) return;
    const fxa__atom *x = &r->atoms[f->atom[0]], *y = &r->atoms[f->atom[1]];
    fxa__affine difference;
    fxa__set gap;
    bool dense;
    if (x->kind != FXA__ATOM_DIV || y->kind != FXA__ATOM_DIV || x->d != y->d ||
        !fxa__affine_add(&x->form, &y->form, -1, &difference) || !fxa__affine_range(r, &difference, &gap, &dense))
        return;
    int64_t lo = fxa__floordiv64(fxa__set_lo(&gap), x->d), hi = fxa__floordiv64(fxa__set_hi(&gap) + x->d - 1, x->d);
    if (f->coef[0] < 0) {
        int64_t t = lo;
        lo = -hi, hi = -t;
    }
    int64_t size = f->coef[0] < 0 ? -f->coef[0] : f->coef[0];
    if (!form_madd(f->c, size, lo, &lo) || !form_madd(f->c, size, hi, &hi)) return;
    fxa__set bound = fxa__set_of(lo, hi);
    *set = fxa__set_intersection(set, &bound);
}

bool fxa__affine_range(const fxa__range *r, const fxa__affine *f, fxa__set *set, bool *dense) {
    uint32_t seen = 0, done = 0;
    *set = fxa__set_of(f->c, f->c);
    *dense = true;
    /* smallest coefficients first, because their steps fill the gaps between larger steps */
    for (int step = 0; step < f->n; step++) {
        int best = -1;
        for (int i = 0; i < f->n; i++)
            if (!(done >> i & 1u) && (best < 0 || llabs(f->coef[i]) < llabs(f->coef[best]))) best = i;
        done |= 1u << best;
        const fxa__atom *a = &r->atoms[f->atom[best]];
        if (!a->dense || (seen & a->support) != 0) *dense = false;
        seen |= a->support;
        fxa__set next;
        if (!form_range_add(set, f->coef[best], &a->set, &next, dense)) return false;
        *set = next;
    }
    if (!*dense) form_range_quotients(r, f, set);
    return true;
}

/* ---- Hash tables of atoms (r->atoms) and of the forms that bounds refer to (r->rows) ----------------------------- */

/* Returns `hash` combined with x. */
static uint32_t form_mix(uint32_t hash, int64_t x) {
    uint64_t y = (hash ^ (uint64_t)x) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(y >> 32);
}

/* Returns a hash that is equal for forms which differ only by a multiple of 2^32 in the constant. */
static uint32_t form_hash(uint32_t hash, const fxa__affine *f) {
    hash = form_mix(hash, (int64_t)((uint64_t)f->c & UINT32_MAX));
    for (int i = 0; i < f->n; i++) hash = form_mix(form_mix(hash, f->atom[i]), f->coef[i]);
    return hash;
}

/* Computes a hash of a load's tensor and the affine forms of its indices. Returns false if an index has no form, so
 * that no other load can be proven equal. */
static bool form_load_hash(const fxa__range *r, const fxa__node *load, uint32_t *hash) {
    *hash = form_mix(FXA_OP_LOAD, load->imm);
    for (int i = 0; i < load->n_args; i++) {
        const fxa__int *x = &fxa__range_of(r, load->arg[i])->i;
        if (!x->has_form) return false;
        *hash = form_hash(*hash, &x->form);
    }
    return true;
}

/* Returns the hash bucket of an atom. If the atom is a load whose indices all have forms, the bucket depends on the
 * tensor and these forms only, so fxa__affine_load finds equal loads in one bucket. */
static int32_t *form_atom_bucket(fxa__range *r, const fxa__atom *a) {
    const fxa__node *node = a->kind == FXA__ATOM_NODE ? &r->p->nodes[a->id] : NULL;
    uint32_t hash;
    if (node == NULL || node->op != FXA_OP_LOAD || !form_load_hash(r, node, &hash))
        hash = form_hash(form_mix(form_mix(a->kind, a->id), a->d), &a->form);
    return &r->atom_bucket[hash % FXA__RANGE_BUCKETS];
}

/* Returns true if b is a load of the same tensor as a with equal indices. */
static bool form_load_same(const fxa__range *r, const fxa__node *a, const fxa__node *b) {
    if (b->op != FXA_OP_LOAD || b->imm != a->imm) return false;
    for (int i = 0; i < a->n_args; i++) {
        const fxa__int *x = &fxa__range_of(r, a->arg[i])->i, *y = &fxa__range_of(r, b->arg[i])->i;
        FXA__ASSERT(y->has_form); /* load b is an atom: r->atoms was not full when its index y was analysed */
        if (!form_is_same(&x->form, &y->form, (uint64_t)1 << 32)) return false;
    }
    return true;
}

int32_t fxa__affine_load(const fxa__range *r, int32_t node) {
    const fxa__node *load = &r->p->nodes[node];
    uint32_t hash;
    if (!form_load_hash(r, load, &hash)) return node;
    for (int32_t i = r->atom_bucket[hash % FXA__RANGE_BUCKETS]; i >= 0; i = r->atoms[i].next) {
        const fxa__atom *a = &r->atoms[i];
        if (a->kind == FXA__ATOM_NODE && form_load_same(r, load, &r->p->nodes[a->id])) return a->id;
    }
    return node;
}

static bool form_atom_same(const fxa__atom *a, const fxa__atom *b) {
    return a->kind == b->kind && a->id == b->id && a->d == b->d && form_is_same(&a->form, &b->form, 0);
}

bool fxa__affine_atom(fxa__range *r, const fxa__atom *a, fxa__affine *out) {
    int32_t *bucket = form_atom_bucket(r, a), i = *bucket;
    while (i >= 0 && !form_atom_same(&r->atoms[i], a)) i = r->atoms[i].next;
    if (i < 0) {
        if (r->n_atoms == r->max_atoms) return false;
        i = r->n_atoms++;
        r->atoms[i] = *a;
        r->atoms[i].next = *bucket;
        *bucket = i;
    }
    *out = (fxa__affine){.n = 1, .atom = {i}, .coef = {1}};
    return true;
}

int32_t fxa__affine_row(fxa__range *r, const fxa__affine *f) {
    int32_t *bucket = &r->row_bucket[form_hash(0, f) % FXA__RANGE_BUCKETS];
    for (int32_t i = *bucket; i >= 0; i = r->rows[i].next)
        if (form_is_same(&r->rows[i].form, f, 0)) return i;
    if (r->n_rows == r->max_rows) return -1;
    fxa__row *row = &r->rows[r->n_rows];
    row->form = *f;
    row->support = fxa__affine_support(r, f);
    if (!fxa__affine_range(r, f, &row->set, &row->dense)) return -1;
    row->next = *bucket;
    *bucket = r->n_rows;
    return r->n_rows++;
}
