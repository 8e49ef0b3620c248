/* SPDX-License-Identifier: Apache-2.0
 *
 * Range analysis of float nodes: an interval that contains the node's value in each engine, by the rules of
 * interval_rules.h. A load has the interval of its elements if the elements can be read and are few (range_load.c).
 * Other loads, the score and functions without a rule are unbounded and may be NaN.
 */
#include "range.h"

#include "../base/num.h"

static fxa__real (*const real_rules[FXA_OP_COUNT])(fxa__real, fxa__real) = {
#define REAL_RULE(ID, value) [FXA_OP_##ID] = fxa__reals_##ID,
    FXA__REAL_RULES(REAL_RULE)
#undef REAL_RULE
};

/* Returns the interval of a bool's values, where false is 0 and true is 1. */
static fxa__interval real_truth(fxa__truth t) { return fxa__interval_known(t.no == FXA__NEVER, t.yes == FXA__NEVER); }

/* Returns the interval of float(x), for a bool or an int. */
static fxa__real real_cast(const fxa__range *r, int32_t arg) {
    const fxa__known *x = fxa__range_of(r, arg);
    if (r->p->nodes[arg].type == FXA_BOOL) return fxa__real_of_interval(real_truth(x->t));
    return fxa__real_of_interval(fxa__interval_make(fxa__set_lo(&x->i.set), fxa__set_hi(&x->i.set)));
}

/* Sets *out to the interval of a load's elements, widened if engines may round them; leaves *out unchanged if the
 * elements are not known. */
static void real_load(fxa__range *r, int32_t at, fxa__real *out) {
    fxa__real x;
    bool exact;
    if (fxa__range_load_real(r, at, &x, &exact)) *out = exact || fxa__real_none(x) ? x : fxa__real_rounded(x);
}

void fxa__range_float(fxa__range *r, int32_t at, fxa__real *out) {
    const fxa__node *node = &r->p->nodes[at];
    fxa__real x[3];
    *out = fxa__real_any();
    switch (node->op) {
    case FXA_OP_CONST: *out = fxa__real_point(node->f); return;
    case FXA_OP_PARAM:
        if (r->params) *out = fxa__real_point(r->params[node->imm]);
        return;
    case FXA_OP_INPUT: return;
    case FXA_OP_LOAD: real_load(r, at, out); return;
    case FXA_OP_FLOAT: *out = real_cast(r, node->arg[0]); return;
    case FXA_OP_SELECT:
        *out = fxa__real_select(real_truth(fxa__range_of(r, node->arg[0])->t), fxa__range_of(r, node->arg[1])->f,
                                fxa__range_of(r, node->arg[2])->f);
        return;
    default: break;
    }
    for (int i = 0; i < 3; i++) x[i] = fxa__range_of(r, node->arg[i < node->n_args ? i : 0])->f;
    if (node->op == FXA_OP_CLAMP)
        *out = fxa__reals_MIN(fxa__reals_MAX(x[0], x[1]), x[2]);
    else if (real_rules[node->op])
        *out = real_rules[node->op](x[0], x[1]);
}

fxa__set fxa__int32_of_real(const fxa__real *x) {
    fxa__set set = fxa__set_of(0, 0);
    if (!fxa__real_none(*x)) set = fxa__set_of(fxa__toint(x->lo), fxa__toint(x->hi));
    if (x->nan) fxa__set_add(&set, 0, 0);
    return set;
}
