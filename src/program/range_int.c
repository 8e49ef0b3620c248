/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of int nodes. Sums, differences and products with a constant keep an affine form modulo 2^32 even if
 * they may wrap, so terms can still cancel later. A form is exact if all its values are in one interval of 2^32
 * numbers. All other operations require an exact form, so an operand that may wrap becomes an atom (an unknown of the
 * forms) itself.
 */
#include "range.h"

#include "../base/invariant.h"
#include "../base/num.h"

static const int64_t int_period = (int64_t)1 << 32;

/* Returns an int with the single value x. */
static fxa__int int_const(int64_t x) {
    return (fxa__int){
        .form = fxa__affine_const(x), .set = fxa__set_of(x, x), .has_form = true, .exact = true, .dense = true};
}

/* Returns x wrapped to 32 bits. */
static int64_t int_wrap32(int64_t x) { return fxa__wrap32(x); }

/* Sets *out to the values of a set wrapped to 32 bits; an interval that exceeds INT32_MIN..INT32_MAX may become two.
 * Returns false if *out is a superset or unknown. */
static bool int_wrap(const fxa__set *set, fxa__set *out) {
    bool fits = true;
    out->n = 0;
    for (int i = 0; i < set->n; i++) {
        fxa__interval x = set->at[i];
        if (x.hi - x.lo >= int_period - 1) return false;
        int64_t lo = int_wrap32(x.lo), hi = lo + (x.hi - x.lo);
        fits &= fxa__set_add(out, lo, fxa__min_i64(hi, INT32_MAX));
        if (hi > INT32_MAX) fits &= fxa__set_add(out, INT32_MIN, hi - int_period);
    }
    return fits;
}

/* Sets *out to the analysis result of an int whose value is an affine form modulo 2^32. */
static void int_from_wrapping(fxa__range *r, const fxa__affine *form, fxa__int *out) {
    fxa__affine f = fxa__affine_const(int_wrap32(form->c));
    for (int i = 0; i < form->n; i++) {
        int64_t coef = int_wrap32(form->coef[i]);
        if (coef == 0) continue;
        f.atom[f.n] = form->atom[i];
        f.coef[f.n++] = coef;
    }
    fxa__affine_tidy(r, &f);
    *out = (fxa__int){
        .form = f, .set = fxa__set_of(INT32_MIN, INT32_MAX), .support = fxa__affine_support(r, &f), .has_form = true};
    fxa__set set;
    if (!fxa__affine_range(r, &f, &set, &out->dense)) {
        out->dense = false;
        return;
    }
    int64_t turn = fxa__floordiv64(fxa__set_lo(&set) - INT32_MIN, int_period);
    out->exact = turn == fxa__floordiv64(fxa__set_hi(&set) - INT32_MIN, int_period);
    if (out->exact) out->form.c -= turn * int_period;
    fxa__set wrapped;
    if (int_wrap(&set, &wrapped))
        out->set = wrapped;
    else
        out->dense = false;
    if (fxa__set_is_one(&out->set)) *out = int_const(out->set.at[0].lo);
}

/* Sets *out to the analysis result of an int whose value is an affine form that does not wrap and is in `bound`.
 * Returns false on overflow. */
static bool int_from_exact(fxa__range *r, const fxa__affine *f, const fxa__set *bound, fxa__int *out) {
    fxa__set set;
    bool dense;
    if (!fxa__affine_range(r, f, &set, &dense)) return false;
    *out =
        (fxa__int){.form = *f, .support = fxa__affine_support(r, f), .has_form = true, .exact = true, .dense = dense};
    out->set = fxa__set_intersection(&set, bound);
    if (fxa__set_is_one(&out->set)) *out = int_const(out->set.at[0].lo);
    return true;
}

/* Sets *out to the analysis result of an int node of which only a set of values is known. The node becomes an atom, an
 * unknown of affine forms, so that terms with this node can cancel. */
static void int_from_set(fxa__range *r, int32_t node, const fxa__set *set, uint32_t support, bool dense,
                         fxa__int *out) {
    fxa__atom a = {.kind = FXA__ATOM_NODE, .id = node, .set = *set, .support = support, .dense = dense};
    *out = (fxa__int){.set = *set, .support = support, .dense = dense};
    if (fxa__set_is_one(set))
        *out = int_const(set->at[0].lo);
    else
        out->has_form = out->exact = fxa__affine_atom(r, &a, &out->form);
}

bool fxa__int_form(fxa__range *r, int32_t node, fxa__affine *out) {
    fxa__int *x = &fxa__range_of(r, node)->i;
    fxa__set unused;
    bool dense;
    if (x->has_form && x->exact) {
        *out = x->form;
        return true;
    }
    fxa__atom a = {.kind = FXA__ATOM_NODE, .id = node, .set = x->set, .support = x->support, .dense = x->dense};
    if (x->has_form && fxa__affine_range(r, &x->form, &unused, &dense)) {
        a.kind = FXA__ATOM_WRAP;
        a.id = 0;
        a.d = int_period;
        a.form = x->form;
    }
    return fxa__affine_atom(r, &a, out);
}

/* Sets *out to an affine form equal to the node modulo 2^32. Returns false if the array of atoms is full. */
static bool int_wrapping_form(fxa__range *r, int32_t node, fxa__affine *out) {
    const fxa__int *x = &fxa__range_of(r, node)->i;
    if (!x->has_form) return fxa__int_form(r, node, out);
    *out = x->form;
    return true;
}

static bool int_is_const(const fxa__int *x) { return fxa__set_is_one(&x->set); }

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Returns the interval of an int's values. */
static fxa__interval int_interval(const fxa__int *x) {
    return (fxa__interval){fxa__set_lo(&x->set), fxa__set_hi(&x->set)};
}

/* Sets *out to the analysis result of a * x + b * y + c modulo 2^32; y -1 = no second term. Returns false if there is
 * no affine form. */
static bool int_linear(fxa__range *r, int32_t x, int64_t a, int32_t y, int64_t b, int64_t c, fxa__int *out) {
    fxa__affine sum = fxa__affine_const(c), f;
    if (!int_wrapping_form(r, x, &f) || !fxa__affine_add(&sum, &f, a, &sum)) return false;
    if (y >= 0 && (!int_wrapping_form(r, y, &f) || !fxa__affine_add(&sum, &f, b, &sum))) return false;
    int_from_wrapping(r, &sum, out);
    return true;
}

/* Sets *out to the analysis result of x // d or, if `mod`, of x % d. For the remainder by a power of two, which divides
 * 2^32, a form of x modulo 2^32 is enough. Returns false if there is no affine form. */
static bool int_divide(fxa__range *r, int32_t x, int64_t d, bool mod, fxa__int *out) {
    fxa__affine f;
    if (d == 0) {
        *out = int_const(0);
        return true;
    }
    if (d == -1 && !mod) return int_linear(r, x, -1, -1, 0, 0, out);
    int64_t size = d < 0 ? -d : d, sign = d < 0 ? -1 : 1;
    if (!(mod && (size & (size - 1)) == 0 ? int_wrapping_form(r, x, &f) : fxa__int_form(r, x, &f))) return false;
    if (sign < 0) fxa__affine_negate(&f);
    fxa__interval a = int_interval(&fxa__range_of(r, x)->i);
    if (mod) {
        if (!fxa__affine_mod(r, &f, size, &f)) return false;
        if (sign < 0) fxa__affine_negate(&f);
        fxa__set bound = d > 0 ? fxa__set_of(0, d - 1) : fxa__set_of(d + 1, 0);
        return int_from_exact(r, &f, &bound, out);
    }
    if (!fxa__affine_div(r, &f, size, &f)) return false;
    int64_t lo = sign > 0 ? a.lo : -a.hi, hi = sign > 0 ? a.hi : -a.lo;
    fxa__set bound = fxa__set_of(fxa__floordiv64(lo, size), fxa__floordiv64(hi, size));
    return int_from_exact(r, &f, &bound, out);
}

/* Sets *out to the analysis result of x & mask if mask is 2^n - 1 (x % 2^n) or -2^n (x - x % 2^n). Returns false for
 * other masks, or if there is no affine form. */
static bool int_and(fxa__range *r, int32_t x, int64_t mask, fxa__int *out) {
    int64_t low = mask >= 0 ? mask : ~mask;
    fxa__int rest;
    if ((low & (low + 1)) != 0) return false;
    if (mask >= 0) return int_divide(r, x, low + 1, true, out);
    fxa__affine f;
    if (!int_divide(r, x, low + 1, true, &rest) || !int_wrapping_form(r, x, &f)) return false;
    if (!fxa__affine_add(&f, &rest.form, -1, &f)) return false;
    int_from_wrapping(r, &f, out);
    return true;
}

/* Returns the node, x or y, that min(x, y) or max(x, y) (by op) always equals; -1 if neither is proven. */
static int32_t int_pick(fxa__range *r, uint32_t op, int32_t x, int32_t y) {
    fxa__affine a, b, difference;
    fxa__set set;
    bool dense;
    if (x < 0 || !fxa__int_form(r, x, &a) || !fxa__int_form(r, y, &b)) return -1;
    if (!fxa__affine_add(&a, &b, -1, &difference) || !fxa__affine_range(r, &difference, &set, &dense)) return -1;
    if (fxa__set_hi(&set) <= 0) return op == FXA_OP_MIN ? x : y;
    if (fxa__set_lo(&set) >= 0) return op == FXA_OP_MIN ? y : x;
    return -1;
}

/* Sets *out to the analysis result of int node `node`. Returns false if `node` is -1. */
static bool int_picked(fxa__range *r, int32_t node, fxa__int *out) {
    if (node >= 0) *out = fxa__range_of(r, node)->i;
    return node >= 0;
}

/* Sets *out to the analysis result of abs(x). Returns false if there is no affine form. */
static bool int_abs(fxa__range *r, int32_t x, fxa__int *out) {
    fxa__affine f;
    fxa__interval a = int_interval(&fxa__range_of(r, x)->i);
    if (a.hi <= 0) return int_linear(r, x, -1, -1, 0, 0, out);
    if (a.lo == INT32_MIN || !fxa__int_form(r, x, &f) || !fxa__affine_abs(r, &f, &f)) return false;
    fxa__set bound = fxa__set_of(fxa__max_i64(a.lo, 0), fxa__max_i64(a.hi, -a.lo));
    return int_from_exact(r, &f, &bound, out);
}

/* Sets *out to the result that the affine forms of the operands give. This result is more precise than the result from
 * the operands' intervals. Returns false if the result has no affine form. */
static bool int_by_form(fxa__range *r, const fxa__node *node, fxa__int *out) {
    int32_t x = node->arg[0], y = node->arg[1];
    const fxa__int *a = &fxa__range_of(r, x)->i, *b = node->n_args > 1 ? &fxa__range_of(r, y)->i : a;
    int64_t c = fxa__set_lo(&b->set);
    switch (node->op) {
    case FXA_OP_ADD: return int_linear(r, x, 1, y, 1, 0, out);
    case FXA_OP_SUB: return int_linear(r, x, 1, y, -1, 0, out);
    case FXA_OP_NEG: return int_linear(r, x, -1, -1, 0, 0, out);
    case FXA_OP_NOT: return int_linear(r, x, -1, -1, 0, -1, out);
    case FXA_OP_MUL:
        if (int_is_const(a)) return int_linear(r, y, fxa__set_lo(&a->set), -1, 0, 0, out);
        return int_is_const(b) && int_linear(r, x, c, -1, 0, 0, out);
    case FXA_OP_SHL: return int_is_const(b) && int_linear(r, x, (int64_t)1 << (c & 31), -1, 0, 0, out);
    case FXA_OP_SHR: return int_is_const(b) && int_divide(r, x, (int64_t)1 << (c & 31), false, out);
    case FXA_OP_FLOORDIV: return int_is_const(b) && int_divide(r, x, c, false, out);
    case FXA_OP_MOD: return int_is_const(b) && int_divide(r, x, c, true, out);
    case FXA_OP_AND:
        if (int_is_const(a)) return int_and(r, y, fxa__set_lo(&a->set), out);
        return int_is_const(b) && int_and(r, x, c, out);
    case FXA_OP_MIN:
    case FXA_OP_MAX: return int_picked(r, int_pick(r, node->op, x, y), out);
    case FXA_OP_CLAMP: return int_picked(r, int_pick(r, FXA_OP_MIN, int_pick(r, FXA_OP_MAX, x, y), node->arg[2]), out);
    case FXA_OP_ABS: return int_abs(r, x, out);
    default: return false;
    }
}

/* [fxa_op] rule of interval_rules.h for the operation; NULL = no rule */
static fxa__interval (*const int_rules[FXA_OP_COUNT])(fxa__interval, fxa__interval) = {
#define INT_RULE(ID, value) [FXA_OP_##ID] = fxa__ints_##ID,
    FXA__INT_RULES(INT_RULE)
#undef INT_RULE
};

/* Sets *out from the intervals of the operands alone. The result of min or max takes every value of its interval (is
 * dense) if each operand does and the operands depend on no common input. */
static void int_by_interval(fxa__range *r, int32_t at, const fxa__node *node, fxa__int *out) {
    const fxa__int *a = &fxa__range_of(r, node->arg[0])->i,
                   *b = node->n_args > 1 ? &fxa__range_of(r, node->arg[1])->i : a;
    uint32_t support = a->support | b->support;
    bool dense = (node->op == FXA_OP_MIN || node->op == FXA_OP_MAX) && a->dense && b->dense && a->set.n == 1 &&
                 b->set.n == 1 && (a->support & b->support) == 0;
    fxa__interval bounds = fxa__interval_any();
    if (node->op == FXA_OP_CLAMP) {
        const fxa__int *c = &fxa__range_of(r, node->arg[2])->i;
        bounds = fxa__ints_MIN(fxa__ints_MAX(int_interval(a), int_interval(b)), int_interval(c));
        support |= c->support;
    } else if (int_rules[node->op])
        bounds = int_rules[node->op](int_interval(a), int_interval(b));
    fxa__set set = fxa__set_of(bounds.lo, bounds.hi);
    int_from_set(r, at, &set, support, dense, out);
}

/* Sets *out to the evaluated result if every operand has a single value; else returns false. */
static bool int_by_value(fxa__range *r, const fxa__node *node, fxa__int *out) {
    fxa__val x[3];
    for (int i = 0; i < node->n_args; i++) {
        const fxa__int *a = &fxa__range_of(r, node->arg[i])->i;
        if (!int_is_const(a)) return false;
        x[i].i = (int32_t)fxa__set_lo(&a->set);
    }
    *out = int_const(fxa__op_eval(node->op, FXA_INT, FXA_INT, x).i);
    return true;
}

/* ---- Inputs, loads, selects, casts ------------------------------------------------------------------------------- */

static void int_input(fxa__range *r, const fxa__node *node, fxa__int *out) {
    int64_t lo = r->box->lo[node->imm], hi = r->box->hi[node->imm];
    fxa__atom a = {.kind = FXA__ATOM_INPUT,
                   .id = node->imm,
                   .set = fxa__set_of(lo, hi),
                   .support = 1u << node->imm,
                   .dense = true};
    *out = (fxa__int){.set = a.set, .support = a.support, .dense = true};
    if (lo == hi)
        *out = int_const(lo);
    else
        out->has_form = out->exact = fxa__affine_atom(r, &a, &out->form);
}

static void int_load(fxa__range *r, int32_t at, const fxa__node *node, fxa__int *out) {
    uint32_t support = 0;
    for (int i = 0; i < node->n_args; i++) support |= fxa__range_of(r, node->arg[i])->i.support;
    fxa__set set = fxa__range_load(r, at);
    int_from_set(r, fxa__affine_load(r, at), &set, support, false, out);
}

static void int_select(fxa__range *r, int32_t at, const fxa__node *node, fxa__int *out) {
    fxa__truth c = fxa__range_of(r, node->arg[0])->t;
    const fxa__int *a = &fxa__range_of(r, node->arg[1])->i, *b = &fxa__range_of(r, node->arg[2])->i;
    if (c.no == FXA__NEVER || c.yes == FXA__NEVER) {
        *out = c.no == FXA__NEVER ? *a : *b;
        return;
    }
    fxa__set set = fxa__set_union(&a->set, &b->set);
    int_from_set(r, at, &set, UINT32_MAX, false, out);
}

static void int_cast(fxa__range *r, int32_t at, const fxa__node *node, fxa__int *out) {
    const fxa__known *x = fxa__range_of(r, node->arg[0]);
    uint32_t type = r->p->nodes[node->arg[0]].type;
    FXA__ASSERT(type != FXA_INT); /* the builder removes int() of an int */
    fxa__set set =
        type == FXA_BOOL ? fxa__set_of(x->t.no == FXA__NEVER, x->t.yes != FXA__NEVER) : fxa__int32_of_real(&x->f);
    int_from_set(r, at, &set, UINT32_MAX, false, out);
}

void fxa__range_int(fxa__range *r, int32_t at, fxa__int *out) {
    const fxa__node *node = &r->p->nodes[at];
    fxa__set all = fxa__set_of(INT32_MIN, INT32_MAX);
    switch (node->op) {
    case FXA_OP_CONST: *out = int_const(node->imm); return;
    case FXA_OP_INPUT: int_input(r, node, out); return;
    case FXA_OP_PARAM: {
        double x = r->params ? r->params[node->imm] : NAN;
        if (x >= INT32_MIN && x <= INT32_MAX && x == floor(x))
            *out = int_const((int64_t)x);
        else
            int_from_set(r, at, &all, 0, false, out);
        return;
    }
    case FXA_OP_LOAD: int_load(r, at, node, out); return;
    case FXA_OP_SELECT: int_select(r, at, node, out); return;
    case FXA_OP_INT: int_cast(r, at, node, out); return;
    default: break;
    }
    if (!int_by_value(r, node, out) && !int_by_form(r, node, out)) int_by_interval(r, at, node, out);
}
