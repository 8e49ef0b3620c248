/* SPDX-License-Identifier: Apache-2.0
 *
 * Affine forms of nodes; see linear.h. The form of a node is computed from the forms of its operands. All arithmetic is
 * modulo 2^32, like arithmetic on ints of programs, so every step is exact.
 */
#include "linear.h"

#include "../base/num.h"

fxa_tile_bounds fxa__box_default(void) {
    fxa_tile_bounds box = {{0}, {0}};
    for (int i = 0; i < FXA_INPUT_COUNT; i++) box.hi[i] = FXA__MAX_COORDINATE;
    return box;
}

/* Returns x * a + y * b modulo 2^32. */
static int32_t linear_madd(int32_t x, int32_t a, int32_t y, int32_t b) {
    return fxa__wrap32((int64_t)((uint64_t)((int64_t)x * a) + (uint64_t)((int64_t)y * b)));
}

fxa__linear fxa__linear_sum(const fxa__linear *x, int32_t a, const fxa__linear *y, int32_t b) {
    fxa__linear sum = {.c = linear_madd(x->c, a, y->c, b), .nonaffine = x->nonaffine | y->nonaffine};
    for (int i = 0; i < FXA_INPUT_COUNT; i++) sum.coef[i] = linear_madd(x->coef[i], a, y->coef[i], b);
    return sum;
}

uint32_t fxa__linear_reads(const fxa__linear *f) {
    uint32_t reads = f->nonaffine & FXA__NONAFFINE_READS;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) reads |= f->coef[i] != 0 ? 1u << i : 0;
    return reads;
}

/* Returns true if the form is a constant. */
static bool linear_is_const(const fxa__linear *f) { return f->nonaffine == 0 && fxa__linear_reads(f) == 0; }

bool fxa__linear_is_shift_invariant(const fxa__linear *f) {
    if ((f->nonaffine & FXA__NONAFFINE_SHIFTS) || f->coef[FXA_INPUT_Q_ROW] || f->coef[FXA_INPUT_K_ROW]) return false;
    return linear_madd(f->coef[FXA_INPUT_Q], 1, f->coef[FXA_INPUT_K], 1) == 0;
}

bool fxa__linear_bounds(const fxa__linear *f, const fxa_tile_bounds *box, int64_t *lo, int64_t *hi) {
    if (f->nonaffine) return false;
    *lo = *hi = f->c;
    for (int i = 0; i < FXA_INPUT_COUNT; i++) {
        int64_t x = (int64_t)f->coef[i] * box->lo[i], y = (int64_t)f->coef[i] * box->hi[i];
        if (!fxa__add_i64(*lo, fxa__min_i64(x, y), lo) || !fxa__add_i64(*hi, fxa__max_i64(x, y), hi)) return false;
    }
    return *lo >= INT32_MIN && *hi <= INT32_MAX;
}

/* ---- The form of one node ---------------------------------------------------------------------------------------- */

/* Returns a form with a non-affine part only, for a node that is not affine in its operands. still: true if the node
 * does not change when q and k shift by the same amount. */
static fxa__linear linear_nonaffine(const fxa__node *n, const fxa__linear *forms, bool still) {
    fxa__linear f = {.nonaffine = FXA__NONAFFINE | (still ? 0u : (uint32_t)FXA__NONAFFINE_SHIFTS)};
    for (int i = 0; i < n->n_args; i++) f.nonaffine |= fxa__linear_reads(&forms[n->arg[i]]);
    return f;
}

/* Returns true if no operand changes when q and k shift by the same amount. */
static bool linear_args_still(const fxa__node *n, const fxa__linear *forms) {
    for (int i = 0; i < n->n_args; i++)
        if (!fxa__linear_is_shift_invariant(&forms[n->arg[i]])) return false;
    return true;
}

/* Returns true if the affine form of a node does not wrap over a box of coordinates: the box of `range`, or
 * fxa__box_default if range is NULL. */
static bool linear_is_exact(const fxa__linear *forms, int32_t node, const fxa__range *range) {
    int64_t lo, hi;
    if (range) {
        const fxa__int *x = &fxa__range_of(range, node)->i;
        return x->has_form && x->exact;
    }
    fxa_tile_bounds plain = fxa__box_default();
    return fxa__linear_bounds(&forms[node], &plain, &lo, &hi);
}

/* Returns true if n compares two ints whose difference does not change when q and k shift by the same amount. For < and
 * <= the result is true only if the operands also do not wrap. */
static bool linear_compare_still(const fxa_program *p, const fxa__node *n, const fxa__linear *forms,
                                 const fxa__range *range) {
    if (fxa__op_info_get(n->op)->sig != FXA__SIG_CMP || p->nodes[n->arg[0]].type != FXA_INT) return false;
    bool order = n->op == FXA_OP_LT || n->op == FXA_OP_LE;
    if (order && !(linear_is_exact(forms, n->arg[0], range) && linear_is_exact(forms, n->arg[1], range))) return false;
    fxa__linear difference = fxa__linear_sum(&forms[n->arg[0]], 1, &forms[n->arg[1]], -1);
    return fxa__linear_is_shift_invariant(&difference);
}

/* Returns the affine form of a product x * y with a constant factor; sets *ok to false if neither x nor y is
 * constant. */
static fxa__linear linear_product(const fxa__linear *x, const fxa__linear *y, bool *ok) {
    const fxa__linear none = {.c = 0};
    if (linear_is_const(x)) return fxa__linear_sum(y, x->c, &none, 0);
    *ok = linear_is_const(y);
    return fxa__linear_sum(x, y->c, &none, 0);
}

/* Writes the affine form of an int operation. Returns false if node n is not affine in its operands. */
static bool linear_arithmetic(const fxa__node *n, const fxa__linear *forms, fxa__linear *out) {
    const fxa__linear one = {.c = 1}, *x = &forms[n->arg[0]], *y = n->n_args > 1 ? &forms[n->arg[1]] : &one;
    bool ok = true;
    switch (n->op) {
    case FXA_OP_ADD: *out = fxa__linear_sum(x, 1, y, 1); break;
    case FXA_OP_SUB: *out = fxa__linear_sum(x, 1, y, -1); break;
    case FXA_OP_NEG: *out = fxa__linear_sum(x, -1, &one, 0); break;
    case FXA_OP_NOT: *out = fxa__linear_sum(x, -1, &one, -1); break;
    case FXA_OP_MUL: *out = linear_product(x, y, &ok); break;
    case FXA_OP_SHL:
        ok = linear_is_const(y);
        *out = fxa__linear_sum(x, fxa__shl32(1, y->c), &one, 0);
        break;
    default: return false;
    }
    return ok;
}

fxa__linear fxa__linear_of(const fxa_program *p, int32_t node, const fxa__linear *forms, const fxa__range *range) {
    const fxa__node *n = &p->nodes[node];
    fxa__linear f = {.c = 0};
    if (range && n->type == FXA_INT && fxa__set_is_one(&fxa__range_of(range, node)->i.set)) {
        f.c = (int32_t)fxa__set_lo(&fxa__range_of(range, node)->i.set);
        return f;
    }
    if (n->type == FXA_INT && n->op == FXA_OP_CONST) {
        f.c = n->imm;
        return f;
    }
    if (n->op == FXA_OP_INPUT) {
        if (n->type == FXA_INT)
            f.coef[n->imm] = 1;
        else
            f.nonaffine = FXA__NONAFFINE | 1u << n->imm;
        return f;
    }
    if (n->type == FXA_INT && n->n_args > 0 && n->op != FXA_OP_LOAD && linear_arithmetic(n, forms, &f)) return f;
    return linear_nonaffine(n, forms, linear_args_still(n, forms) || linear_compare_still(p, n, forms, range));
}
