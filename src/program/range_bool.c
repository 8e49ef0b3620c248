/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of bool nodes: comparisons become bounds on affine forms (fxa__row), and logical operations combine
 * lists of bounds (see range.h). A comparison of two forms is a bound on their difference. If the difference is a
 * single quotient, remainder or absolute value of a form, the bound is converted to a bound on that form, so that it
 * can be intersected with bounds of other comparisons.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"

static const fxa__truth truth_true = {FXA__ANY, FXA__NEVER};
static const fxa__truth truth_false = {FXA__NEVER, FXA__ANY};
static const fxa__truth truth_any = {FXA__ANY, FXA__ANY};

/* ---- Lists of bounds --------------------------------------------------------------------------------------------- */

/* Adds a bound to the front of a list; returns the new list. If r->bounds is full, returns the list without the bound,
 * which is sound but less precise. */
static int32_t truth_prepend(fxa__range *r, int32_t row, const fxa__set *set, int32_t list) {
    if (r->n_bounds == r->max_bounds) return list;
    r->bounds[r->n_bounds] = (fxa__bound){.row = row, .next = list, .set = *set};
    return r->n_bounds++;
}

/* Returns the first bound in `list` on form number `row`; NULL if there is none or the analysis has used up its work
 * limit. */
static const fxa__bound *truth_find(fxa__range *r, int32_t list, int32_t row) {
    for (; list >= 0 && r->work-- > 0; list = r->bounds[list].next)
        if (r->bounds[list].row == row) return &r->bounds[list];
    return NULL;
}

/* Returns true if the list of bounds a is not longer than the list b. */
static bool truth_shorter(fxa__range *r, int32_t a, int32_t b) {
    while (a >= 0 && b >= 0 && r->work-- > 0) a = r->bounds[a].next, b = r->bounds[b].next;
    return a < 0;
}

/* Returns the list of bounds that hold if the bounds of both lists hold; FXA__NEVER if they contradict each other. */
static int32_t truth_both(fxa__range *r, int32_t a, int32_t b) {
    if (a == FXA__NEVER || b == FXA__NEVER) return FXA__NEVER;
    if (!truth_shorter(r, a, b)) {
        int32_t t = a;
        a = b, b = t;
    }
    int32_t out = b;
    for (int32_t i = a; i >= 0 && r->work > 0; i = r->bounds[i].next) {
        fxa__bound x = r->bounds[i];
        const fxa__bound *y = truth_find(r, b, x.row);
        if (truth_find(r, a, x.row) != &r->bounds[i] || (y != NULL && fxa__set_contains(&x.set, &y->set))) continue;
        fxa__set set = y != NULL ? fxa__set_intersection(&x.set, &y->set) : x.set;
        if (!fxa__row_meets(r, x.row, &set)) return FXA__NEVER;
        out = truth_prepend(r, x.row, &set, out);
    }
    return out;
}

/* Returns the list of bounds that hold if the bounds of list a or those of list b hold: one bound for each form that
 * both lists bound. */
static int32_t truth_either(fxa__range *r, int32_t a, int32_t b) {
    if (a == FXA__NEVER) return b;
    if (b == FXA__NEVER) return a;
    if (!truth_shorter(r, a, b)) {
        int32_t t = a;
        a = b, b = t;
    }
    int32_t out = FXA__ANY;
    for (int32_t i = a; i >= 0 && r->work > 0; i = r->bounds[i].next) {
        int32_t row = r->bounds[i].row;
        const fxa__bound *y = truth_find(r, b, row);
        if (y == NULL || truth_find(r, a, row) != &r->bounds[i]) continue;
        fxa__set set = fxa__set_union(&r->bounds[i].set, &y->set);
        if (!fxa__set_contains(&set, &r->rows[row].set)) out = truth_prepend(r, row, &set, out);
    }
    return out;
}

static fxa__truth truth_and(fxa__range *r, fxa__truth a, fxa__truth b) {
    return (fxa__truth){truth_both(r, a.yes, b.yes), truth_either(r, a.no, b.no)};
}

static fxa__truth truth_not(fxa__truth a) { return (fxa__truth){a.no, a.yes}; }

/* Returns the bounds of the bool c ? a : b. */
static fxa__truth truth_select(fxa__range *r, fxa__truth c, fxa__truth a, fxa__truth b) {
    if (c.no == FXA__NEVER || c.yes == FXA__NEVER) return c.no == FXA__NEVER ? a : b;
    fxa__truth out;
    out.yes = truth_either(r, truth_both(r, c.yes, a.yes), truth_both(r, c.no, b.yes));
    out.no = truth_either(r, truth_both(r, c.yes, a.no), truth_both(r, c.no, b.no));
    return out;
}

/* ---- Comparisons of ints ----------------------------------------------------------------------------------------- */

/* Converts a set of values of factor * x + c to the set of values of x. */
static void truth_unscale(fxa__set *set, int64_t factor, int64_t c) {
    fxa__set out = {0};
    for (int i = 0; i < set->n; i++) {
        int64_t lo = set->at[i].lo - c, hi = set->at[i].hi - c, size = factor;
        if (factor < 0) {
            int64_t t = lo;
            lo = -hi, hi = -t, size = -factor;
        }
        fxa__set_add(&out, -fxa__floordiv64(-lo, size), fxa__floordiv64(hi, size));
    }
    *set = out;
}

/* Replaces *set, a set of values of atom a, by the set of those values of a->form that give them. inner: superset of
 * the values of the form. start, blocks: for an atom form % d, the values of the form are in
 * start..start + blocks * d - 1. */
static void truth_enter_set(const fxa__atom *a, const fxa__set *inner, int64_t start, int64_t blocks, fxa__set *set) {
    fxa__set out = {0};
    for (int i = 0; i < set->n; i++) {
        int64_t lo = set->at[i].lo, hi = set->at[i].hi;
        if (a->kind == FXA__ATOM_DIV)
            fxa__set_add(&out, lo * a->d, hi * a->d + a->d - 1);
        else if (a->kind == FXA__ATOM_ABS)
            fxa__set_add(&out, lo, hi), fxa__set_add(&out, -hi, -lo);
        else
            for (int64_t j = 0; j < blocks; j++) fxa__set_add(&out, lo + start + j * a->d, hi + start + j * a->d);
    }
    *set = fxa__set_intersection(&out, inner);
}

/* Replaces the sets *yes and *no of values of atom a by the sets of those values of a->form that give them. Returns
 * false and changes neither set if a has no form, or if a is form % d or a wrapped form, and the values of the form
 * span more than two periods. */
static bool truth_enter(const fxa__range *r, const fxa__atom *a, fxa__set *yes, fxa__set *no) {
    fxa__set inner;
    bool dense;
    if (a->kind == FXA__ATOM_INPUT || a->kind == FXA__ATOM_NODE) return false;
    /* This call cannot fail, because the same call succeeded when the atom was added. */
    (void)fxa__affine_range(r, &a->form, &inner, &dense);
    int64_t start = 0, blocks = 1;
    if (a->kind == FXA__ATOM_MOD || a->kind == FXA__ATOM_WRAP) {
        int64_t zero = a->kind == FXA__ATOM_WRAP ? INT32_MIN : 0;
        int64_t first = fxa__floordiv64(fxa__set_lo(&inner) - zero, a->d);
        blocks = fxa__floordiv64(fxa__set_hi(&inner) - zero, a->d) - first + 1;
        start = first * a->d;
        if (blocks > 2) return false;
    }
    truth_enter_set(a, &inner, start, blocks, yes);
    truth_enter_set(a, &inner, start, blocks, no);
    return true;
}

/* Removes a division: if *f or its negation is a + z // d, *f becomes d * a + z, and each interval lo..hi of values of
 * this sum (in the sets `yes` and `no`) becomes d * lo..d * hi + d - 1. The form a must contain only coordinates, at
 * least one of which z depends on. Returns false if *f is no such sum, or on overflow. */
static bool truth_multiply_out(fxa__range *r, fxa__affine *f, fxa__set *yes, fxa__set *no) {
    int at = -1;
    uint32_t others = 0;
    for (int i = 0; i < f->n; i++) {
        const fxa__atom *a = &r->atoms[f->atom[i]];
        bool quotient = a->kind == FXA__ATOM_DIV && at < 0 && (f->coef[i] == 1 || f->coef[i] == -1);
        if (quotient)
            at = i;
        else if (a->kind == FXA__ATOM_INPUT)
            others |= a->support;
        else
            return false;
    }
    if (at < 0 || (others & r->atoms[f->atom[at]].support) == 0) return false;
    const fxa__atom *a = &r->atoms[f->atom[at]];
    fxa__affine rest = fxa__affine_without(f, at), clear;
    fxa__set values;
    bool dense;
    int64_t sign = f->coef[at];
    if (sign < 0) fxa__affine_negate(&rest);
    if (!fxa__affine_add(&a->form, &rest, a->d, &clear) || !fxa__affine_range(r, &clear, &values, &dense)) return false;
    if (sign < 0) truth_unscale(yes, -1, 0), truth_unscale(no, -1, 0);
    truth_enter_set(a, &values, 0, 1, yes);
    truth_enter_set(a, &values, 0, 1, no);
    *f = clear;
    return true;
}

/* Returns the bounds of the bool that is true if f is in `yes` and false if f is in `no`; both sets are subsets of f's
 * values. */
static fxa__truth truth_of_form(fxa__range *r, fxa__affine f, fxa__set yes, fxa__set no) {
    for (;;) {
        fxa__affine inner;
        int64_t factor = fxa__affine_primitive(&f, &inner);
        /* factor is 0 only for a constant f, and f is never constant: truth_of_ints and atoms exclude constant forms */
        FXA__ASSERT(factor != 0);
        truth_unscale(&yes, factor, f.c);
        truth_unscale(&no, factor, f.c);
        f = inner;
        if (f.n == 1 && truth_enter(r, &r->atoms[f.atom[0]], &yes, &no))
            f = r->atoms[f.atom[0]].form;
        else if (f.n == 1 || !truth_multiply_out(r, &f, &yes, &no))
            break;
    }
    if (yes.n == 0 || no.n == 0) return yes.n == 0 ? truth_false : truth_true;
    int32_t row = fxa__affine_row(r, &f);
    if (row < 0) return truth_any;
    fxa__truth out;
    out.yes = fxa__row_meets(r, row, &yes) ? truth_prepend(r, row, &yes, FXA__ANY) : FXA__NEVER;
    out.no = fxa__row_meets(r, row, &no) ? truth_prepend(r, row, &no, FXA__ANY) : FXA__NEVER;
    return out;
}

/* Sets *difference to the affine form of x - y and *values to the set of its values. Returns false if there is no
 * form. */
static bool truth_difference(fxa__range *r, int32_t x, int32_t y, fxa__affine *difference, fxa__set *values) {
    fxa__affine a, b;
    bool dense;
    if (!fxa__int_form(r, x, &a) || !fxa__int_form(r, y, &b) || !fxa__affine_add(&a, &b, -1, difference)) return false;
    fxa__affine_tidy(r, difference);
    return fxa__affine_range(r, difference, values, &dense);
}

/* Returns the bounds of the bool x == y, x < y or x <= y (by op): bounds on the form x - y. */
static fxa__truth truth_of_ints(fxa__range *r, uint32_t op, int32_t x, int32_t y) {
    fxa__affine difference;
    fxa__set values;
    if (!truth_difference(r, x, y, &difference, &values)) {
        const fxa__set *s = &fxa__range_of(r, x)->i.set, *t = &fxa__range_of(r, y)->i.set;
        difference = fxa__affine_const(0);
        values = fxa__set_of(fxa__set_lo(s) - fxa__set_hi(t), fxa__set_hi(s) - fxa__set_lo(t));
    }
    fxa__set yes = fxa__set_of(op == FXA_OP_EQ ? 0 : -FXA__INF, op == FXA_OP_LT ? -1 : 0),
             no = fxa__set_of(1, FXA__INF);
    if (op == FXA_OP_EQ) fxa__set_add(&no, -FXA__INF, -1);
    if (op == FXA_OP_LT) fxa__set_add(&no, 0, 0);
    yes = fxa__set_intersection(&yes, &values);
    no = fxa__set_intersection(&no, &values);
    if (yes.n == 0 || no.n == 0) return yes.n == 0 ? truth_false : truth_true;
    return difference.n == 0 ? truth_any : truth_of_form(r, difference, yes, no);
}

/* Returns true if the two loads may read equal elements. */
static bool truth_wide_meets(const fxa__wide *a, const fxa__wide *b) {
    if (a->n < 0 && b->n < 0) return a->lo <= b->hi && b->lo <= a->hi;
    const fxa__wide *list = a->n < 0 ? b : a, *other = a->n < 0 ? a : b;
    for (int i = 0; i < list->n; i++) {
        int64_t x = list->value[i];
        if (other->n < 0 && other->lo <= x && x <= other->hi) return true;
        for (int j = 0; j < other->n; j++)
            if (other->value[j] == x) return true;
    }
    return false;
}

/* Returns the bounds of the bool x == y for two i64 loads, compared in all 64 bits. Equal elements have equal saturated
 * values, so the bounds that hold if the saturated values are equal also hold if the elements are equal. The bounds
 * that hold if the saturated values differ are valid unless both values can be INT32_MIN, or both INT32_MAX, because
 * different elements can saturate to the same value. In that case the 64-bit elements are compared. */
static fxa__truth truth_of_wide(fxa__range *r, int32_t x, int32_t y) {
    if (fxa__affine_load(r, x) == fxa__affine_load(r, y)) return truth_true;
    fxa__truth out = truth_of_ints(r, FXA_OP_EQ, x, y);
    const fxa__set *s = &fxa__range_of(r, x)->i.set, *t = &fxa__range_of(r, y)->i.set;
    bool below = fxa__set_lo(s) == INT32_MIN && fxa__set_lo(t) == INT32_MIN;
    bool above = fxa__set_hi(s) == INT32_MAX && fxa__set_hi(t) == INT32_MAX;
    fxa__wide a, b;
    if (out.yes == FXA__NEVER || (!below && !above)) return out;
    if (fxa__range_load_wide(r, x, &a) && fxa__range_load_wide(r, y, &b)) {
        if (!truth_wide_meets(&a, &b)) return truth_false;
        if (a.n == 1 && b.n == 1) return truth_true;
    }
    out.no = FXA__ANY;
    return out;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

/* Returns the bounds of a bool that is false (known 0), true (1) or unknown (-1). */
static fxa__truth truth_of_known(int known) { return known < 0 ? truth_any : known ? truth_true : truth_false; }

/* Sets *out to the bounds of the bool that an int node was made from: b for int(b), false for the constant 0, true for
 * 1. Returns false for every other node. */
static bool truth_of_int(const fxa__range *r, int32_t node, fxa__truth *out) {
    const fxa__node *n = &r->p->nodes[node];
    if (n->op == FXA_OP_CONST && (n->imm == 0 || n->imm == 1))
        *out = truth_of_known(n->imm);
    else if (n->op == FXA_OP_INT && r->p->nodes[n->arg[0]].type == FXA_BOOL)
        *out = fxa__range_of(r, n->arg[0])->t;
    else
        return false;
    return true;
}

/* Returns the bounds of a comparison node: those that hold if the comparison is true, and those if it is false. */
static fxa__truth truth_compare(fxa__range *r, const fxa__node *n) {
    int32_t x = n->arg[0], y = n->arg[1];
    bool equality = n->op == FXA_OP_EQ || n->op == FXA_OP_NE;
    fxa__truth a, b, out;
    if (r->p->nodes[x].type == FXA_FLOAT) {
        const fxa__real *u = &fxa__range_of(r, x)->f, *v = &fxa__range_of(r, y)->f;
        out = truth_of_known(equality ? fxa__real_equal(*u, *v) : fxa__real_less(*u, *v, n->op == FXA_OP_LT));
    } else if (fxa__node_compares_wide(r->p, n)) {
        out = truth_of_wide(r, x, y);
    } else if (equality && truth_of_int(r, x, &a) && truth_of_int(r, y, &b)) {
        out = truth_select(r, a, b, truth_not(b));
    } else {
        out = truth_of_ints(r, equality ? FXA_OP_EQ : n->op, x, y);
    }
    return n->op == FXA_OP_NE ? truth_not(out) : out;
}

void fxa__range_bool(fxa__range *r, int32_t at, fxa__truth *out) {
    const fxa__node *node = &r->p->nodes[at];
    fxa__truth x[3] = {truth_any, truth_any, truth_any};
    for (int i = 0; i < node->n_args && i < 3; i++)
        if (r->p->nodes[node->arg[i]].type == FXA_BOOL) x[i] = fxa__range_of(r, node->arg[i])->t;
    switch (node->op) {
    case FXA_OP_CONST: *out = truth_of_known(node->imm != 0); return;
    case FXA_OP_LOAD: {
        fxa__set set = fxa__range_load(r, at);
        *out = truth_of_known(fxa__set_is_one(&set) ? (int)fxa__set_lo(&set) : -1);
        return;
    }
    case FXA_OP_AND: *out = truth_and(r, x[0], x[1]); return;
    case FXA_OP_OR: *out = truth_not(truth_and(r, truth_not(x[0]), truth_not(x[1]))); return;
    case FXA_OP_NOT: *out = truth_not(x[0]); return;
    case FXA_OP_XOR: *out = truth_select(r, x[0], truth_not(x[1]), x[1]); return;
    case FXA_OP_SELECT: *out = truth_select(r, x[0], x[1], x[2]); return;
    case FXA_OP_EQ:
    case FXA_OP_NE:
    case FXA_OP_LT:
    case FXA_OP_LE: *out = truth_compare(r, node); return;
    default: *out = truth_any; return;
    }
}
